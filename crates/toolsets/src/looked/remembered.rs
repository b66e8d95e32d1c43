//! Caches values computed from files until the files change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toolgate_contract::ToolError;

use crate::world::root::{File, Moment, Stamp};

/// Cached values by file path.
pub(crate) struct Remembered<T> {
    known: BTreeMap<PathBuf, Known<T>>,
    round: u64,
}

struct Known<T> {
    value: T,
    stamp: Stamp,
    /// True if the file was unchanged for a clock tick when it was read. Only then does its stamp
    /// reveal every later change.
    settled: bool,
    round: u64,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), round: 0 }
    }
}

impl<T: Clone> Remembered<T> {
    /// Returns the value that `make` computes from `file` at `path`. Computes it only if the file
    /// changed.
    ///
    /// # Errors
    ///
    /// If `make` fails.
    pub(crate) fn of(
        &mut self,
        path: &Path,
        file: &File,
        make: impl FnOnce() -> Result<T, ToolError>,
    ) -> Result<T, ToolError> {
        let stamp = file.meta().stamp();
        let round = self.round;
        if let Some(known) = self.known.get_mut(path)
            && known.settled
            && known.stamp == stamp
        {
            known.round = round;
            return Ok(known.value.clone());
        }
        let settled = !file.meta().is_changed_since(Moment::now());
        let value = make()?;
        let known = Known { value: value.clone(), stamp, settled, round };
        self.known.insert(path.to_owned(), known);
        Ok(value)
    }

    /// Drops the files that were not requested since the last call.
    pub(crate) fn forget_the_rest(&mut self) {
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        self.round += 1;
    }
}
