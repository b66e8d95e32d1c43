//! The look at every file of a folder that an index begins with.

use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::DropGuard;
use toolgate_contract::ToolError;

use super::Keeper;
use crate::world::root::Watch;
use crate::world::watch::{Looked, Tracker};

/// A look at every file of a folder, which ends when this is dropped.
pub(super) struct Look {
    pub(super) taken: JoinHandle<Result<(Tracker, Looked), ToolError>>,
    _ends: DropGuard,
}

impl Keeper {
    /// Begins to look at every file of the folder, and to hear of what changes from then on.
    pub(super) fn look_through(&self) -> Look {
        let (root, left_out) = (self.root.clone(), self.left_out.clone());
        let cancel = self.cancel.child_token();
        let watch = Watch::quiet(cancel.clone());
        let taken = spawn_blocking(move || {
            // A file system that others change says nothing of it.
            let mut tracker = Tracker::new(&root, left_out, root.is_local());
            let looked = tracker.look_through(&watch)?;
            Ok((tracker, looked))
        });
        Look { taken, _ends: cancel.drop_guard() }
    }
}
