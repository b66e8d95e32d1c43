//! Caches values computed from files until the files change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toolgate_contract::ToolError;

use toolgate_world::root::{EntryFingerprint, FileTime, WorkspaceFile};

/// Values that were computed from files, by file path.
pub(crate) struct FileValueCache<T> {
    entries: BTreeMap<PathBuf, CachedFileValue<T>>,
    round: u64,
}

/// Value that was computed from a file, with the file's fingerprint.
struct CachedFileValue<T> {
    value: T,
    stamp: EntryFingerprint,
    /// True if the file had been unchanged for at least one clock tick when it was read. Only then
    /// does its fingerprint reveal every later change.
    settled: bool,
    round: u64,
}

impl<T> Default for FileValueCache<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), round: 0 }
    }
}

impl<T: Clone> FileValueCache<T> {
    /// Returns the value that `make` computes from `file` at `path`. Calls `make` only if the file
    /// has changed since the last call.
    ///
    /// # Errors
    /// Fails if `make` fails.
    pub(crate) fn get_or_make(
        &mut self,
        path: &Path,
        file: &WorkspaceFile,
        make: impl FnOnce() -> Result<T, ToolError>,
    ) -> Result<T, ToolError> {
        let stamp = file.meta().stamp();
        let round = self.round;
        if let Some(known) = self.entries.get_mut(path)
            && known.settled
            && known.stamp == stamp
        {
            known.round = round;
            return Ok(known.value.clone());
        }
        let settled = !file.meta().has_changed_since(FileTime::now());
        let value = make()?;
        let known = CachedFileValue { value: value.clone(), stamp, settled, round };
        self.entries.insert(path.to_owned(), known);
        Ok(value)
    }

    /// Drops the values of files that were not requested since the last call of this function.
    pub(crate) fn evict_unused(&mut self) {
        let round = self.round;
        self.entries.retain(|_, known| known.round == round);
        self.round += 1;
    }
}
