//! What was made of files, for as long as they are as they were.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toolgate_contract::ToolError;

use crate::world::root::{File, Moment, Stamp};

/// What was made of each file, by its path.
pub(crate) struct Remembered<T> {
    known: BTreeMap<PathBuf, Known<T>>,
    round: u64,
}

struct Known<T> {
    value: T,
    stamp: Stamp,
    /// Whether the file had been left alone for a tick of the clock when it was read: only then
    /// does its stamp tell of every change since.
    settled: bool,
    round: u64,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), round: 0 }
    }
}

impl<T: Clone> Remembered<T> {
    /// What `make` made of `file`, which is at `path`; made again only if the file was changed.
    pub(crate) fn of(
        &mut self,
        path: &Path,
        file: &File,
        make: impl FnOnce() -> Result<T, ToolError>,
    ) -> Result<T, ToolError> {
        let (stamp, round) = (file.meta().stamp(), self.round);
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

    /// Forgets the files that nobody asked for since the last time.
    pub(crate) fn forget_the_rest(&mut self) {
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        self.round += 1;
    }
}
