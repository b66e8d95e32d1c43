//! Notifies subscribers when files of a workspace change. Without subscribers nothing runs.
//!
//! inotify reports the folder in which something happened. The module then looks below the root to
//! find out more. A folder is watched by its handle, so that no path can lead the watch out of the
//! root.

mod places;
mod content;
mod listing;
mod lookout;
mod tracker;

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{Changes, Fault, Hold, ToolError};

use super::Root;
use super::root::Moment;
use lookout::Lookout;
use places::Places;
pub(crate) use tracker::{Looked, News, Tracker};

/// The delay between an event and looking at files, to collect more events.
const GATHERED: Duration = Duration::from_millis(50);
/// The additional delay before the file list is refreshed.
const LISTED: Duration = Duration::from_millis(150);

/// Watches the files below one root. Clones share one watch.
#[derive(Clone)]
pub struct Watcher(Arc<Post>);

struct Post {
    root: Root,
    watch: Mutex<Weak<Live>>,
}

/// A running watch. It ends when the last subscription drops it.
struct Live(Arc<Shared>);

/// The state that subscriptions share with the watching task.
#[derive(Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    /// Wakes the task when the subscriptions change.
    changed: Notify,
    ended: CancellationToken,
}

/// All subscriptions by number.
#[derive(Default)]
struct Wanted {
    next: u64,
    files: BTreeMap<u64, WantedFile>,
    lists: BTreeMap<u64, WantedList>,
}

struct WantedFile {
    /// The path relative to the root.
    path: String,
    /// The URI to report.
    uri: Arc<str>,
    changes: Changes,
    /// Completed once the file is watched.
    ready: Option<oneshot::Sender<Result<(), ToolError>>>,
}

#[derive(Clone)]
struct WantedList {
    changes: Changes,
    /// Changes from this time on are reported.
    since: Moment,
}

/// A guard that ends one subscription when dropped.
struct Subscription {
    live: Arc<Live>,
    number: u64,
}

impl Watcher {
    /// Creates a watcher of `root`. Nothing is watched before the first subscription.
    pub fn new(root: &Root) -> Self {
        Self(Arc::new(Post { root: root.clone(), watch: Mutex::default() }))
    }

    /// Notifies `changes` under the name `uri` when the file at `path` changes, appears or
    /// disappears.
    ///
    /// # Errors
    /// If the system has no free watches.
    pub async fn file(&self, path: &str, uri: &str, changes: &Changes) -> Result<Hold, ToolError> {
        let live = self.live().map_err(|err| {
            let message = "files cannot be watched now: the system gives no more watches";
            ToolError {
                cause: Some(err.to_string()),
                ..ToolError::new(Fault::Unavailable, message)
            }
        })?;
        let (ready, watched) = oneshot::channel();
        let file = WantedFile {
            path: path.to_owned(),
            uri: uri.into(),
            changes: changes.clone(),
            ready: Some(ready),
        };
        let subscription = Subscription::of(live, |wanted, number| {
            wanted.files.insert(number, file);
        });
        match watched.await {
            Ok(watched) => watched.map(|()| Hold::of(subscription)),
            Err(_) => Err(ToolError::failed("the watch ended; subscribe again")),
        }
    }

    /// Notifies `changes` when files of the workspace appear or disappear.
    pub fn list(&self, changes: &Changes) -> Hold {
        match self.live() {
            Ok(live) => {
                let list = WantedList { changes: changes.clone(), since: Moment::now() };
                Hold::of(Subscription::of(live, |wanted, number| {
                    wanted.lists.insert(number, list);
                }))
            }
            Err(err) => {
                tracing::warn!("new files are not told of, since none can be watched: {err}");
                Hold::nothing()
            }
        }
    }

    /// Returns the running watch, or starts one.
    fn live(&self) -> io::Result<Arc<Live>> {
        let mut watch = self.0.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = watch.upgrade()
            && !live.0.ended.is_cancelled()
        {
            return Ok(live);
        }
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let places = Places::new()?;
        let queue = readable(places.queue())?;
        let shared = Arc::new(Shared::default());
        let lookout = Lookout::new(&self.0.root, places);
        runtime.spawn(keep(Ending(shared.clone()), queue, lookout));
        let live = Arc::new(Live(shared));
        *watch = Arc::downgrade(&live);
        Ok(live)
    }
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    fn of(live: Arc<Live>, want: impl FnOnce(&mut Wanted, u64)) -> Self {
        let number = {
            let mut wanted = live.0.wanted();
            wanted.next += 1;
            let number = wanted.next;
            want(&mut wanted, number);
            number
        };
        live.0.changed.notify_one();
        Self { live, number }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let shared = &self.live.0;
        let mut wanted = shared.wanted();
        wanted.files.remove(&self.number);
        wanted.lists.remove(&self.number);
        drop(wanted);
        shared.changed.notify_one();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.ended.cancel();
    }
}

/// A guard that marks the watch as ended when dropped.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ended.cancel();
        // Dropping the senders wakes all subscribers that still wait.
        self.0.wanted().files.clear();
    }
}

/// Runs the watch until nobody subscribes any more.
///
/// Files are looked at on blocking threads. At any event rate, the queue is read at most once per
/// [`GATHERED`].
async fn keep(shared: Ending, queue: AsyncFd<Arc<OwnedFd>>, mut lookout: Lookout) {
    let Ending(shared) = &shared;
    let mut look_at: Option<Instant> = None;
    let mut list_at: Option<Instant> = None;
    loop {
        let look = tokio::select! {
            biased;
            () = shared.ended.cancelled() => return,
            () = at(look_at) => {
                look_at = None;
                Look::Files
            }
            () = at(list_at) => {
                list_at = None;
                Look::List
            }
            () = shared.changed.notified() => Look::Wanted,
            ready = queue.readable(), if look_at.is_none() => {
                let Ok(mut ready) = ready else { return };
                // The queue is drained later, so events from now on wake this again.
                ready.clear_ready();
                look_at = Some(Instant::now() + GATHERED);
                continue;
            }
        };
        let wanted = shared.clone();
        let looked = spawn_blocking(move || {
            match look {
                Look::Files => lookout.look(),
                Look::List => lookout.list(),
                Look::Wanted => lookout.arrange(&wanted),
            }
            lookout
        });
        lookout = match looked.await {
            Ok(lookout) => lookout,
            Err(err) => {
                tracing::error!("files are not watched any more: {err}");
                return;
            }
        };
        if lookout.is_list_due() && list_at.is_none() {
            list_at = Some(Instant::now() + LISTED);
        }
    }
}

#[allow(unsafe_code, reason = "tokio watches descriptors it is promised stay open")]
fn readable(queue: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the descriptor is closed when its last owner is dropped, and the watch is one of
    // them. The `Arc` always owns the same descriptor.
    Ok(unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) }?)
}

/// The work to do next.
enum Look {
    Files,
    List,
    Wanted,
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
