//! Empty folders in which the programs of upstreams run by default.
#![allow(clippy::disallowed_methods, reason = "the folders are toolgate's own")]

use std::fs::{self, DirEntry, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::geteuid;
use tempfile::TempDir;

/// Start of the names of all working folders.
const NAME_PREFIX: &str = "toolgate-upstream-";
/// Age from which a working folder without a lock is deleted. A new folder is locked much sooner.
const LEFTOVER_AGE_MIN: Duration = Duration::from_secs(60);

/// Private folder in the folder of temporary files, in which one program of an upstream runs.
/// Nobody else can place files there that the program looks for. Dropping this value deletes the
/// folder.
pub(super) struct UpstreamWorkingFolder {
    folder: TempDir,
    /// Lock of the folder, which the kernel releases when this process ends. It shows that the folder
    /// is not a leftover.
    _lock: File,
}

impl UpstreamWorkingFolder {
    /// Creates an empty folder, and deletes the folders that killed servers of this user left.
    /// Fails if the folder cannot be created.
    pub(super) fn create() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        // A leftover that cannot be deleted does no harm.
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let _ = delete_leftover(&entry);
        }
        let folder = tempfile::Builder::new().prefix(NAME_PREFIX).tempdir_in(parent)?;
        let lock = File::open(folder.path())?;
        // Without locks, as in some file systems, leftovers are not deleted.
        let _ = lock.lock();
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Deletes the folder `entry` if it is a working folder whose server was killed.
fn delete_leftover(entry: &DirEntry) -> io::Result<()> {
    let is_named = entry.file_name().to_string_lossy().starts_with(NAME_PREFIX);
    if !is_named || !entry.file_type()?.is_dir() {
        return Ok(());
    }
    let meta = entry.metadata()?;
    let is_old = meta.modified()?.elapsed().is_ok_and(|age| age >= LEFTOVER_AGE_MIN);
    if !is_old || meta.uid() != geteuid().as_raw() {
        return Ok(());
    }
    match File::open(entry.path())?.try_lock() {
        Ok(()) => fs::remove_dir_all(entry.path()),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(err)) => Err(err),
    }
}
