//! Scans all files of a folder before its index is updated.

use tokio_util::sync::DropGuard;
use toolgate_contract::ToolError;
use toolgate_net::{BlockingTask, spawn_blocking};

use super::IndexUpdater;
use toolgate_world::root::DiskWorkMonitor;
use toolgate_world::watch::{FileTracker, TrackedFolderUpdate};

/// A running scan of all files of a folder. Dropping this value cancels the scan.
pub(super) struct IndexFolderScan {
    pub(super) task: BlockingTask<Result<(FileTracker, TrackedFolderUpdate), ToolError>>,
    _ends: DropGuard,
}

impl IndexUpdater {
    /// Starts to scan all files of the folder and to watch for changes.
    pub(super) fn start_scan(&self) -> IndexFolderScan {
        let root = self.root.clone();
        let excluded = self.excluded.clone();
        let cancel = self.cancel.child_token();
        let watch = DiskWorkMonitor::silent(cancel.clone());
        let task = spawn_blocking(move || {
            // Remote file systems report no changes of other machines.
            let mut tracker = FileTracker::new(&root, excluded, root.is_local());
            let update = tracker.rescan(&watch)?;
            Ok((tracker, update))
        });
        IndexFolderScan { task, _ends: cancel.drop_guard() }
    }
}
