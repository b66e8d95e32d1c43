//! Status of the indexing process for the processes that only read: completeness and heartbeat.
//!
//! It is a small file beside the index. The modification time of the file is the last heartbeat.
#![allow(clippy::disallowed_methods, reason = "a file of the index's own folder")]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Index, IndexError, Writer, folder};

const FILE: &str = "leader.json";

/// Status of the process that writes an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leader {
    /// Set if the process has indexed everything.
    pub complete: bool,
    /// Process id, if known.
    pub process: Option<u32>,
    /// Time since the last heartbeat.
    pub silent: Duration,
}

/// Heartbeat of the process that writes an index.
#[derive(Debug, Clone)]
pub struct Pulse(PathBuf);

#[derive(Serialize, Deserialize)]
struct Told {
    complete: bool,
    process: u32,
}

impl Index {
    /// Returns the status of the writing process; `None` for an index in memory, which has no other
    /// readers.
    pub fn leader(&self) -> Option<Leader> {
        let (folder, _) = self.inner.folder.as_ref()?;
        // Without a status file, the index is incomplete.
        Some(read(&folder.join(FILE)).unwrap_or_default())
    }
}

impl Writer {
    /// Publishes whether the index is complete.
    pub fn tell(&self, complete: bool) -> Result<(), IndexError> {
        let Some(Pulse(file)) = self.pulse() else { return Ok(()) };
        let told = Told { complete, process: process::id() };
        let told = serde_json::to_vec(&told).map_err(std::io::Error::other)?;
        let done = folder::replace(&file, &told);
        if done.is_err() {
            // The previous status is not valid any more.
            drop(fs::remove_file(&file));
        }
        Ok(done?)
    }

    /// Returns the heartbeat; `None` for an index in memory.
    pub fn pulse(&self) -> Option<Pulse> {
        let (folder, _) = self.index.inner.folder.as_ref()?;
        Some(Pulse(folder.join(FILE)))
    }
}

impl Pulse {
    /// Records one heartbeat.
    pub fn beat(&self) {
        let file = OpenOptions::new().write(true).open(&self.0);
        // If it fails, readers see the missing heartbeat.
        drop(file.and_then(|file| file.set_modified(SystemTime::now())));
    }
}

fn read(file: &Path) -> Option<Leader> {
    let Told { complete, process } = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    let silent = fs::metadata(file).ok()?.modified().ok()?.elapsed().unwrap_or_default();
    Some(Leader { complete, process: Some(process), silent })
}
