//! Opens all files below a folder on several threads, in no particular order.
//!
//! A thread lists one folder, queues its subfolders for any free thread, and opens the files
//! relative to the open folder. Several threads share a very large folder.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use toolgate_contract::{ToolError, lock_mutex};

use super::ReservedSearchThreads;
use toolgate_world::Root;
use toolgate_world::root::{
    DiskWorkMonitor, EntryKind, OpenWalkFolder, WalkFilter, WalkFolder, WorkspaceFile,
};

/// The maximum number of entries of a folder that a thread opens in one task.
const ENTRIES_AT_ONCE: usize = 256;

/// The result of opening all files below a folder on several threads.
pub(crate) struct ParallelWalkResult<T> {
    /// The results of the threads, one for each thread.
    pub(crate) results: Vec<T>,
    /// The number of directories that could not be listed and of files that could not be opened.
    pub(crate) unreadable: u64,
}

/// Opens each file below `folder` for whose path `wanted` returns true. Calls `take` with the
/// result of the current thread, the path and the open file. `begin` creates the initial result of
/// a thread.
///
/// # Errors
/// Fails if the call is cancelled.
pub(crate) fn sweep<T: Send>(
    root: &Root,
    folder: WalkFolder,
    filter: WalkFilter,
    watch: &DiskWorkMonitor,
    wanted: impl Fn(&Path) -> bool + Sync,
    begin: impl Fn() -> T + Sync,
    take: impl Fn(&mut T, &Path, WorkspaceFile) + Sync,
) -> Result<ParallelWalkResult<T>, ToolError> {
    let queue = ParallelWalkQueue::new(folder);
    let unreadable = AtomicU64::new(0);
    let work = || {
        let mut result = begin();
        while let Some(piece) = queue.next() {
            let _done = ParallelWalkTaskGuard(&queue);
            if watch.check_cancelled().is_err() {
                continue;
            }
            let (folder, open, from) = match piece {
                ParallelWalkTask::Folder(mut folder) => {
                    match folder.open_and_list(root, filter, watch) {
                        Ok(open) => (Arc::new(folder), Arc::new(open), 0),
                        Err(_) => {
                            unreadable.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                    }
                }
                ParallelWalkTask::Rest(folder, open, from) => (folder, open, from),
            };
            if from == 0 {
                queue.push_subtasks(&folder, &open);
            }
            let entries = open.entries.iter().skip(from).take(ENTRIES_AT_ONCE);
            let files = entries.filter(|(_, kind)| *kind == EntryKind::File);
            for (name, _) in files {
                let path = folder.path.join(name);
                if !wanted(&path) {
                    continue;
                }
                match open.open_file(name, &path) {
                    Ok(file) => take(&mut result, &path, file),
                    Err(_) => {
                        unreadable.fetch_add(1, Ordering::Relaxed);
                    }
                }
                if watch.check_cancelled().is_err() {
                    break;
                }
            }
        }
        result
    };
    let results = ReservedSearchThreads::reserve(usize::MAX).run_on_each(work);
    watch.check_cancelled()?;
    Ok(ParallelWalkResult { results, unreadable: unreadable.into_inner() })
}

/// A task of the threads that open all files below a folder.
enum ParallelWalkTask {
    Folder(WalkFolder),
    /// The entries of a folder from this index on, at most [`ENTRIES_AT_ONCE`].
    Rest(Arc<WalkFolder>, Arc<OpenWalkFolder>, usize),
}

/// The queue of tasks of the threads that open all files below a folder. The newest task runs
/// first, so that few folders are open at a time.
struct ParallelWalkQueue {
    state: Mutex<ParallelWalkQueueState>,
    wake: Condvar,
}

struct ParallelWalkQueueState {
    pieces: Vec<ParallelWalkTask>,
    /// The number of threads that are running a task, and may therefore queue more tasks.
    busy_threads: usize,
}

impl ParallelWalkQueue {
    fn new(folder: WalkFolder) -> Self {
        let state = ParallelWalkQueueState {
            pieces: vec![ParallelWalkTask::Folder(folder)],
            busy_threads: 0,
        };
        Self { state: Mutex::new(state), wake: Condvar::new() }
    }

    /// Returns the next task. Blocks while other threads may still queue tasks. Returns `None` when
    /// all tasks are done. The caller must create and drop a [`ParallelWalkTaskGuard`] for each
    /// task.
    fn next(&self) -> Option<ParallelWalkTask> {
        let mut state = lock_mutex(&self.state);
        loop {
            if let Some(piece) = state.pieces.pop() {
                state.busy_threads += 1;
                return Some(piece);
            }
            if state.busy_threads == 0 {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Queues tasks for the subfolders of `folder`, and for those of its entries after the first
    /// [`ENTRIES_AT_ONCE`].
    fn push_subtasks(&self, folder: &Arc<WalkFolder>, open: &Arc<OpenWalkFolder>) {
        let dirs = open.entries.iter().filter(|(_, kind)| *kind == EntryKind::Dir);
        let inner = dirs
            .map(|(name, _): &(OsString, EntryKind)| ParallelWalkTask::Folder(folder.child(name)));
        let rest = (ENTRIES_AT_ONCE..open.entries.len()).step_by(ENTRIES_AT_ONCE);
        let rest = rest.map(|from| ParallelWalkTask::Rest(folder.clone(), open.clone(), from));
        let mut state = lock_mutex(&self.state);
        let before = state.pieces.len();
        state.pieces.extend(inner.chain(rest));
        if state.pieces.len() > before {
            self.wake.notify_all();
        }
    }
}

/// Guard of a running task. On drop, also after a panic, marks the task as finished, and wakes the
/// waiting threads if it was the last.
struct ParallelWalkTaskGuard<'q>(&'q ParallelWalkQueue);

impl Drop for ParallelWalkTaskGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock_mutex(&self.0.state);
        state.busy_threads -= 1;
        if state.busy_threads == 0 && state.pieces.is_empty() {
            self.0.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::PathBuf;

    use rustix::fs::{Mode, OFlags, mkdir, open};
    use tempfile::TempDir;

    use super::*;
    use toolgate_world::root::WalkStartPoint;

    /// Creates nested folders, one of them with more files than a single task covers. Returns the
    /// temporary directory and the paths of all files.
    fn tree() -> (TempDir, BTreeSet<PathBuf>) {
        // Files are created faster in memory.
        let space = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
        let mut all = BTreeSet::new();
        let mut put = |path: String| {
            let flags = OFlags::CREATE | OFlags::WRONLY;
            open(space.path().join(&path), flags, Mode::from_raw_mode(0o600)).unwrap();
            all.insert(PathBuf::from(path));
        };
        put("top".into());
        let mut folder = String::new();
        for depth in 0..20 {
            folder += &format!("d{depth}/");
            mkdir(space.path().join(&folder), Mode::from_raw_mode(0o700)).unwrap();
            for file in 0..(if depth == 7 { 3 * ENTRIES_AT_ONCE + 1 } else { 3 }) {
                put(format!("{folder}f{file}"));
            }
        }
        (space, all)
    }

    fn swept(
        space: &TempDir,
        take: impl Fn(&mut Vec<PathBuf>, &Path, WorkspaceFile) + Sync,
    ) -> Result<ParallelWalkResult<Vec<PathBuf>>, ToolError> {
        let root = Root::open(space.path()).unwrap();
        let WalkStartPoint::Folder(folder) = root.walk_start(".").unwrap() else {
            panic!("the root is a folder")
        };
        let filter = WalkFilter { include_ignored: false, include_hidden: true };
        sweep(&root, folder, filter, &DiskWorkMonitor::default(), |_| true, Vec::new, take)
    }

    #[test]
    fn each_file_is_visited_once() {
        let (space, all) = tree();
        let swept = swept(&space, |seen, path, _| seen.push(path.to_owned())).unwrap();
        let seen: Vec<PathBuf> = swept.results.into_iter().flatten().collect();
        assert_eq!((seen.len(), swept.unreadable), (all.len(), 0));
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), all);
    }

    #[test]
    fn a_panic_in_one_thread_ends_the_sweep() {
        let (space, _) = tree();
        let sweep =
            || swept(&space, |_, path, _| assert!(!path.ends_with("f2"), "panics on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(sweep)).is_err());
    }
}
