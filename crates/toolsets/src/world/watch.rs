//! Who is told when files of a workspace change. Nothing runs and nothing is held while nobody
//! listens.
//!
//! The kernel says in which watched folder something happened (inotify); what that means is
//! found out by looking, beneath the root. A folder is watched by its handle, so that no path
//! can lead the watch out.

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

/// How long what happens is gathered before files are looked at.
const GATHERED: Duration = Duration::from_millis(50);
/// How much longer before the list of files is.
const LISTED: Duration = Duration::from_millis(150);

/// Tells of changes beneath one root. Clones share one watch.
#[derive(Clone)]
pub struct Watcher(Arc<Post>);

struct Post {
    root: Root,
    watch: Mutex<Weak<Live>>,
}

/// A watch that goes on; it ends when the last subscription drops it.
struct Live(Arc<Shared>);

/// What subscriptions and the task that watches for them share.
#[derive(Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    /// Something else is wanted.
    changed: Notify,
    ended: CancellationToken,
}

/// Who wants to be told of what, by numbers.
#[derive(Default)]
struct Wanted {
    next: u64,
    files: BTreeMap<u64, WantedFile>,
    lists: BTreeMap<u64, WantedList>,
}

struct WantedFile {
    /// Where it is, relative to the root.
    path: String,
    /// What it is called when it is told of.
    uri: Arc<str>,
    changes: Changes,
    /// Told once it is watched.
    ready: Option<oneshot::Sender<Result<(), ToolError>>>,
}

#[derive(Clone)]
struct WantedList {
    changes: Changes,
    /// What changes from here on is told.
    since: Moment,
}

/// One subscription.
struct Subscription {
    live: Arc<Live>,
    number: u64,
}

impl Watcher {
    /// Watches what is beneath `root` once somebody asks for it.
    pub fn new(root: &Root) -> Self {
        Self(Arc::new(Post { root: root.clone(), watch: Mutex::default() }))
    }

    /// Tells `changes` when the file at `path` changes, comes or goes, calling it `uri`.
    ///
    /// # Errors
    /// When the system has no more watches to give.
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

    /// Tells `changes` when files come or go that are the workspace's own.
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

    /// The watch that goes on, or a new one.
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

/// Says that the watch has ended, however it did.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ended.cancel();
        // Whoever waits to be watched learns of it.
        self.0.wanted().files.clear();
    }
}

/// Watches until nobody wants it any more.
///
/// What looks at files is done on threads that may wait. However much happens, the queue is
/// read and files are looked at no more often than [`GATHERED`] says.
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
                // The queue is read to its end later, so what comes from now on is heard of.
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
    // SAFETY: it is closed when its last owner is dropped, and the watch is one; what it owns is
    // always the same descriptor.
    Ok(unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) }?)
}

/// What is to be looked at.
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
