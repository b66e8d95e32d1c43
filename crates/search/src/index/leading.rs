//! What the process that writes an index tells those that only read it: whether all is in it, and
//! that it still moves.
//!
//! A small file beside the index says so; its time is the last sign of life.
#![allow(clippy::disallowed_methods, reason = "a file of the index's own folder")]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Index, IndexError, Writer, folder};

const FILE: &str = "leader.json";

/// The process that writes an index, as others see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leader {
    /// Whether it has taken in all there is.
    pub complete: bool,
    /// Its number, where it told.
    pub process: Option<u32>,
    /// How long it has given no sign of life.
    pub silent: Duration,
}

/// Gives signs of life for whoever writes.
#[derive(Debug, Clone)]
pub struct Pulse(PathBuf);

#[derive(Serialize, Deserialize)]
struct Told {
    complete: bool,
    process: u32,
}

impl Index {
    /// Who writes it; `None` of one in memory, which has no followers.
    pub fn leader(&self) -> Option<Leader> {
        let (folder, _) = self.inner.folder.as_ref()?;
        // One that has told nothing yet has not taken in all.
        Some(read(&folder.join(FILE)).unwrap_or_default())
    }
}

impl Writer {
    /// Tells those who only read whether all is in the index.
    pub fn tell(&self, complete: bool) -> Result<(), IndexError> {
        let Some(Pulse(file)) = self.pulse() else { return Ok(()) };
        let told = Told { complete, process: process::id() };
        let told = serde_json::to_vec(&told).map_err(std::io::Error::other)?;
        let done = folder::replace(&file, &told);
        if done.is_err() {
            // What it told before is not so any more.
            drop(fs::remove_file(&file));
        }
        Ok(done?)
    }

    /// What shows that it lives; `None` in memory.
    pub fn pulse(&self) -> Option<Pulse> {
        let (folder, _) = self.index.inner.folder.as_ref()?;
        Some(Pulse(folder.join(FILE)))
    }
}

impl Pulse {
    /// Gives one sign.
    pub fn beat(&self) {
        let file = OpenOptions::new().write(true).open(&self.0);
        // Where that fails, silence tells.
        drop(file.and_then(|file| file.set_modified(SystemTime::now())));
    }
}

fn read(file: &Path) -> Option<Leader> {
    let Told { complete, process } = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    let silent = fs::metadata(file).ok()?.modified().ok()?.elapsed().unwrap_or_default();
    Some(Leader { complete, process: Some(process), silent })
}
