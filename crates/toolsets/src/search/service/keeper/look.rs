//! The scan of all files of a folder, with which an index begins.

use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::DropGuard;
use toolgate_contract::ToolError;

use super::Keeper;
use crate::world::root::Watch;
use crate::world::watch::{Looked, Tracker};

/// A running scan of all files of a folder. It is canceled on drop.
pub(super) struct Look {
    pub(super) taken: JoinHandle<Result<(Tracker, Looked), ToolError>>,
    _ends: DropGuard,
}

impl Keeper {
    /// Starts to scan all files of the folder and to watch for changes.
    pub(super) fn look_through(&self) -> Look {
        let root = self.root.clone();
        let left_out = self.left_out.clone();
        let cancel = self.cancel.child_token();
        let watch = Watch::quiet(cancel.clone());
        let taken = spawn_blocking(move || {
            // Remote file systems report no changes of other machines.
            let mut tracker = Tracker::new(&root, left_out, root.is_local());
            let looked = tracker.look_through(&watch)?;
            Ok((tracker, looked))
        });
        Look { taken, _ends: cancel.drop_guard() }
    }
}
