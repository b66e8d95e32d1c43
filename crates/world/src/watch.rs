//! Notifies subscribers when files of a workspace change. Watches nothing if there are no
//! subscribers.
//!
//! inotify reports the folder in which an entry changed. The module then reads that folder to find
//! the changed files. The module watches a folder by its open handle, so that no path can lead the
//! watch out of the root.

mod folder_watches;
mod watched_files;
mod workspace_listing;
mod watch_set;
mod tracker;

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{ChangeFeed, KeepActiveGuard, ToolError, ToolErrorKind, lock_mutex};
use toolgate_net::spawn_blocking;

use super::Root;
use super::root::FileTime;
use folder_watches::FolderWatches;
pub use tracker::{FileChanges, FileTracker, TrackedFolderUpdate};
use watch_set::RootWatchSet;

/// The delay between a file event and the check of the changed files, in which further events are
/// collected.
const FILES_DELAY: Duration = Duration::from_millis(50);
/// The additional delay before the list of the workspace's files is refreshed.
const LIST_DELAY: Duration = Duration::from_millis(150);

/// A watcher of the files below one root. Clones share their watches and subscriptions.
#[derive(Clone)]
pub struct FileWatcher(Arc<FileWatcherState>);

struct FileWatcherState {
    root: Root,
    watch: Mutex<Weak<ActiveFileWatch>>,
}

/// A running watch, which ends when the last subscription is dropped.
struct ActiveFileWatch(Arc<SharedWatchState>);

/// The state that subscriptions share with the task that watches files.
#[derive(Default)]
struct SharedWatchState {
    requests: Mutex<WatchSubscriptionRequests>,
    /// A signal that wakes the task that watches files when a subscription starts or ends.
    changed: Notify,
    ended: CancellationToken,
}

/// All subscriptions to changes of files and of the file list, by number.
#[derive(Default)]
struct WatchSubscriptionRequests {
    last_number: u64,
    files: BTreeMap<u64, FileWatchRequest>,
    lists: BTreeMap<u64, WorkspaceListWatchRequest>,
}

/// A subscription to the changes of one file.
struct FileWatchRequest {
    /// The path of the watched file, relative to the root.
    path: String,
    /// The URI of the watched file, which notifications contain.
    uri: Arc<str>,
    changes: ChangeFeed,
    /// The channel that receives the result once the file is watched or cannot be watched. `None`
    /// after the result was sent.
    ready: Option<oneshot::Sender<Result<(), ToolError>>>,
}

/// A subscription to changes of the list of the workspace's files.
#[derive(Clone)]
struct WorkspaceListWatchRequest {
    changes: ChangeFeed,
    /// The time from which on changes of the file list are reported.
    since: FileTime,
}

/// A guard of one subscription. Dropping the guard ends the subscription.
struct FileWatchSubscription {
    live: Arc<ActiveFileWatch>,
    number: u64,
}

impl FileWatcher {
    /// Creates a watcher of `root`. Nothing is watched before the first subscription.
    pub fn new(root: &Root) -> Self {
        Self(Arc::new(FileWatcherState { root: root.clone(), watch: Mutex::default() }))
    }

    /// Sends a notification about `uri` to `changes` when the file at `path` changes, appears or
    /// disappears. Ends when the returned guard is dropped.
    ///
    /// # Errors
    /// The system has no free watches.
    pub async fn watch_file(
        &self,
        path: &str,
        uri: &str,
        changes: &ChangeFeed,
    ) -> Result<KeepActiveGuard, ToolError> {
        let live = self.active_watch().map_err(|err| {
            let message = "files cannot be watched now: the system has no free inotify watches; \
                           raise fs.inotify.max_user_watches";
            ToolError {
                cause: Some(err.to_string()),
                ..ToolError::new(ToolErrorKind::Unavailable, message)
            }
        })?;
        let (ready, watched) = oneshot::channel();
        let file = FileWatchRequest {
            path: path.to_owned(),
            uri: uri.into(),
            changes: changes.clone(),
            ready: Some(ready),
        };
        let subscription = FileWatchSubscription::new(live, |wanted, number| {
            wanted.files.insert(number, file);
        });
        match watched.await {
            Ok(watched) => watched.map(|()| KeepActiveGuard::new(subscription)),
            Err(_) => Err(ToolError::failed("the subscription ended; subscribe again")),
        }
    }

    /// Sends a notification to `changes` when files of the workspace appear or disappear. Ends when
    /// the returned guard is dropped.
    pub fn watch_list(&self, changes: &ChangeFeed) -> KeepActiveGuard {
        match self.active_watch() {
            Ok(live) => {
                let list =
                    WorkspaceListWatchRequest { changes: changes.clone(), since: FileTime::now() };
                KeepActiveGuard::new(FileWatchSubscription::new(live, |wanted, number| {
                    wanted.lists.insert(number, list);
                }))
            }
            Err(err) => {
                tracing::warn!(
                    "new files are not reported, because the workspace cannot be watched: {err}"
                );
                KeepActiveGuard::none()
            }
        }
    }

    /// Returns the running watch of the root's files, or starts one.
    fn active_watch(&self) -> io::Result<Arc<ActiveFileWatch>> {
        let mut watch = lock_mutex(&self.0.watch);
        if let Some(live) = watch.upgrade()
            && !live.0.ended.is_cancelled()
        {
            return Ok(live);
        }
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let places = FolderWatches::new()?;
        let queue = queue_reader(places.queue())?;
        let shared = Arc::new(SharedWatchState::default());
        let lookout = RootWatchSet::new(&self.0.root, places);
        toolgate_net::spawn_task_on(
            &runtime,
            run_watch(FileWatchEndGuard(shared.clone()), queue, lookout),
        );
        let live = Arc::new(ActiveFileWatch(shared));
        *watch = Arc::downgrade(&live);
        Ok(live)
    }
}

impl FileWatchSubscription {
    fn new(
        live: Arc<ActiveFileWatch>,
        want: impl FnOnce(&mut WatchSubscriptionRequests, u64),
    ) -> Self {
        let number = {
            let mut wanted = lock_mutex(&live.0.requests);
            wanted.last_number += 1;
            let number = wanted.last_number;
            want(&mut wanted, number);
            number
        };
        live.0.changed.notify_one();
        Self { live, number }
    }
}

impl Drop for FileWatchSubscription {
    fn drop(&mut self) {
        let shared = &self.live.0;
        let mut wanted = lock_mutex(&shared.requests);
        wanted.files.remove(&self.number);
        wanted.lists.remove(&self.number);
        drop(wanted);
        shared.changed.notify_one();
    }
}

impl Drop for ActiveFileWatch {
    fn drop(&mut self) {
        self.0.ended.cancel();
    }
}

/// A guard of the task that watches files. Dropping the guard marks the watch as ended.
struct FileWatchEndGuard(Arc<SharedWatchState>);

impl Drop for FileWatchEndGuard {
    fn drop(&mut self) {
        self.0.ended.cancel();
        // Dropping the senders wakes all subscribers that still wait.
        lock_mutex(&self.0.requests).files.clear();
    }
}

/// Runs the watch until no subscription is left.
///
/// Files are checked on blocking threads. The event queue is read at most once per [`FILES_DELAY`].
async fn run_watch(
    shared: FileWatchEndGuard,
    queue: AsyncFd<Arc<OwnedFd>>,
    mut lookout: RootWatchSet,
) {
    let FileWatchEndGuard(shared) = &shared;
    let mut look_at: Option<Instant> = None;
    let mut list_at: Option<Instant> = None;
    loop {
        let look = tokio::select! {
            biased;
            () = shared.ended.cancelled() => return,
            () = sleep_until_due(look_at) => {
                look_at = None;
                WatchTaskStep::Files
            }
            () = sleep_until_due(list_at) => {
                list_at = None;
                WatchTaskStep::List
            }
            () = shared.changed.notified() => WatchTaskStep::Requests,
            ready = queue.readable(), if look_at.is_none() => {
                let Ok(mut ready) = ready else { return };
                // The queue is drained later, so events from now on wake this again.
                ready.clear_ready();
                look_at = Some(Instant::now() + FILES_DELAY);
                continue;
            }
        };
        let wanted = shared.clone();
        let looked = spawn_blocking(move || {
            match look {
                WatchTaskStep::Files => lookout.process_events(),
                WatchTaskStep::List => lookout.refresh_list(),
                WatchTaskStep::Requests => lookout.apply_requests(&wanted),
            }
            lookout
        });
        lookout = match looked.await {
            Ok(lookout) => lookout,
            Err(err) => {
                tracing::error!("stopped watching files: {err}");
                return;
            }
        };
        if lookout.is_list_due() && list_at.is_none() {
            list_at = Some(Instant::now() + LIST_DELAY);
        }
    }
}

#[allow(unsafe_code, reason = "tokio needs the promise that the descriptor stays open")]
fn queue_reader(queue: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the descriptor is closed when its last owner is dropped, and the watch is one of
    // them. The `Arc` always owns the same descriptor.
    Ok(unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) }?)
}

/// The next step of the task that watches files.
enum WatchTaskStep {
    Files,
    List,
    Requests,
}

/// Sleeps until `moment`, or forever if it is `None`.
pub async fn sleep_until_due(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
