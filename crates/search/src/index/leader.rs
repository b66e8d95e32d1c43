//! Status of the process that writes an index, for the processes that only read it: completeness
//! and heartbeat.
//!
//! The status is a small file beside the index. The modification time of the file is the last
//! heartbeat.
#![allow(clippy::disallowed_methods, reason = "a file of the index's own folder")]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{IndexError, SearchIndex, SearchIndexWriter, directory};

const LEADER_FILE: &str = "leader.json";

/// Status of the process that writes an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexLeaderStatus {
    /// True if the writing process has indexed everything.
    pub complete: bool,
    /// Process id of the writing process, if known.
    pub process_id: Option<u32>,
    /// Time since the last heartbeat of the writing process.
    pub silent_for: Duration,
}

/// Handle that records heartbeats of the process that writes an index. A heartbeat is the
/// modification time of the status file at this path.
#[derive(Debug, Clone)]
pub struct IndexLeaderHeartbeat(PathBuf);

/// Content of the status file: the process that writes an index, and whether the index is complete.
#[derive(Serialize, Deserialize)]
struct IndexLeaderRecord {
    complete: bool,
    process: u32,
}

impl SearchIndex {
    /// Returns the status of the process that writes the index. `None` for an index in memory,
    /// which no other process can read.
    pub fn leader(&self) -> Option<IndexLeaderStatus> {
        let (folder, _) = self.inner.folder.as_ref()?;
        // Without a status file, the index is incomplete.
        Some(read_leader(&folder.join(LEADER_FILE)).unwrap_or_default())
    }
}

impl SearchIndexWriter {
    /// Writes the status of this process, which writes the index, for other processes. `complete`
    /// is true if everything is indexed. Fails if the status file cannot be written.
    pub fn publish_status(&self, complete: bool) -> Result<(), IndexError> {
        let Some(IndexLeaderHeartbeat(file)) = self.heartbeat() else { return Ok(()) };
        let record = IndexLeaderRecord { complete, process: process::id() };
        let record = serde_json::to_vec(&record).map_err(std::io::Error::other)?;
        let done = directory::write_atomically(&file, &record);
        if done.is_err() {
            // The previous status is not valid any more.
            drop(fs::remove_file(&file));
        }
        Ok(done?)
    }

    /// Returns the handle that records heartbeats of this process. `None` for an index in memory.
    pub fn heartbeat(&self) -> Option<IndexLeaderHeartbeat> {
        let (folder, _) = self.index.inner.folder.as_ref()?;
        Some(IndexLeaderHeartbeat(folder.join(LEADER_FILE)))
    }
}

impl IndexLeaderHeartbeat {
    /// Records a heartbeat of the process that writes the index. Ignores errors, because readers
    /// notice a missing heartbeat.
    pub fn beat(&self) {
        let file = OpenOptions::new().write(true).open(&self.0);
        // If it fails, readers see the missing heartbeat.
        drop(file.and_then(|file| file.set_modified(SystemTime::now())));
    }
}

fn read_leader(file: &Path) -> Option<IndexLeaderStatus> {
    let IndexLeaderRecord { complete, process } =
        serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    let silent = fs::metadata(file).ok()?.modified().ok()?.elapsed().unwrap_or_default();
    Some(IndexLeaderStatus { complete, process_id: Some(process), silent_for: silent })
}
