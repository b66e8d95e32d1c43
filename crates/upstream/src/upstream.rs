//! One upstream: connected when it is needed, watched over, and known by what it listed last.

mod connecting;
mod lists;
mod calls;
mod visits;
mod tasks;
mod changes;
mod failed;
mod callers;
mod agreed;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{Among, AnyTool, Change, Changes, Effects, ToolId, ToolSpec};

use crate::carried::Parking;
use crate::claims::Claims;
use crate::lanes::Lanes;
use crate::link::Link;
use crate::listing::Listing;
use crate::names;
use crate::oauth::Credentials;
use crate::pins::Pinned;
use crate::results::Results;
use crate::settings::Settings;
use crate::skills::{Got, Shelved};
use crate::tool::RemoteTool;
use crate::world::World;

pub(crate) use agreed::Agreed;
pub(crate) use calls::{Asked, Rounds};
pub use connecting::named;
pub(crate) use connecting::{filled, revision};
pub(crate) use failed::told;
pub(crate) use tasks::EndsTask;

use callers::Callers;
pub(crate) use callers::Whose;
use changes::{Listening, Watched};
use connecting::Failed;

/// What was remembered for longer is asked for again when a list is wanted, which does not wait.
const OLD: Duration = Duration::from_secs(3600);

/// What is kept where, and who is told.
pub trait Keeps: Send + Sync + 'static {
    /// What was kept of the upstream `name`, and for how long it has been.
    fn known(&self, name: &str) -> Option<(Listing, Duration)>;
    /// Keeps what it has now.
    fn keep(&self, name: &str, listing: &Listing);
    /// What was agreed to of upstreams.
    fn pinned(&self) -> Pinned;
    /// Whether the server itself has tools of `toolset`.
    fn is_own(&self, toolset: &str) -> bool;
    /// Whether `uri` is one of the server's own, or would be.
    fn is_own_uri(&self, uri: &str) -> bool;
    /// Offers its tools in place of those it had before.
    fn offer(&self, name: &str, tools: Vec<Arc<dyn AnyTool>>);
}

/// How an upstream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nobody needs it.
    Idle,
    /// It could not be reached when that was last tried, or ended by itself.
    Failing,
    /// There is a connection to it, or its program runs.
    Connected,
}

/// What of an upstream outlives a change of its settings.
#[derive(Default)]
pub(crate) struct Lasting {
    pub(crate) parking: Parking,
    /// The upstream as it is served now.
    now: RwLock<Weak<Upstream>>,
}

impl Lasting {
    /// The upstream as it is served now, if it is.
    pub(crate) fn upstream(&self) -> Option<Arc<Upstream>> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// An upstream.
pub struct Upstream {
    pub(crate) name: String,
    /// What its list is kept as.
    kept_as: String,
    pub(crate) settings: Settings,
    pub(crate) world: Arc<dyn World>,
    pub(crate) keeps: Arc<dyn Keeps>,
    pub(crate) changes: Changes,
    now: RwLock<Option<Arc<Link>>>,
    /// One connects at a time.
    connecting: tokio::sync::Mutex<Failed>,
    /// Whether what was tried last failed.
    failing: AtomicBool,
    listing: RwLock<Arc<Listing>>,
    /// The skills of that.
    shelved: RwLock<Arc<Shelved>>,
    /// Those that were got one by one.
    pub(crate) got: Got,
    /// Whether its list was ever known.
    has_listed: AtomicBool,
    /// Whether its list is known, or was tried to be.
    listed: watch::Sender<bool>,
    /// Whether it is known from long ago alone, and whether it is asked for that.
    old: AtomicBool,
    renewing: AtomicBool,
    /// Whether it is asked again and again what it has.
    asking: AtomicBool,
    tools: Mutex<Vec<Arc<RemoteTool>>>,
    /// Of the requests that are in flight for calls.
    places: Arc<Semaphore>,
    pub(crate) lasting: Arc<Lasting>,
    pub(crate) lanes: Lanes,
    pub(crate) results: Results,
    claims: Claims,
    /// Whether it was seen to ask.
    asks: AtomicBool,
    /// It says that somebody has been to a page.
    visited: Notify,
    /// Which lists it said have changed.
    said: Mutex<Vec<Change>>,
    /// Whether lists are being looked at again, and are to be once more.
    stale: AtomicBool,
    looking: AtomicBool,
    /// What looks at them again once they are not good any more.
    later: Mutex<Option<AbortOnDropHandle<()>>>,
    this: Weak<Self>,
    /// Whether the server stops.
    closed: AtomicBool,
    /// Whether another is served in its place. What single callers have of it is then, too.
    retired: Arc<AtomicBool>,
    /// How often its tools may have become others.
    turn: AtomicU64,
    /// Has it look at its lists again without a pause.
    hurry: Arc<Notify>,
    /// Whether what it says beside is not heard, though it would say that its lists change.
    unheard: AtomicBool,
    /// What is watched of it.
    watched: Arc<Watched>,
    /// What is listened to, over which connection.
    listening: Mutex<Option<Listening>>,
    /// What lets us in, once that was needed.
    credentials: OnceLock<Arc<Credentials>>,
    /// Whose it is.
    whose: Whose,
    /// It, as single callers have it.
    callers: Callers,
}

impl Upstream {
    pub(crate) fn new(
        name: &str,
        settings: Settings,
        (world, keeps, results, claims): (Arc<dyn World>, Arc<dyn Keeps>, Results, Claims),
        changes: Changes,
        (before, whose): (Option<&Self>, Whose),
    ) -> Arc<Self> {
        let kept_as = kept_as(name, &settings);
        // One that had nothing may have something by now, and nobody would call it to see.
        let known = keeps.known(&kept_as).filter(|(known, _)| !known.is_empty());
        let known_before = known.is_some();
        let (known, since) = known.unwrap_or_default();
        let listed = watch::Sender::new(known_before);
        let lanes = Lanes::new(settings.processes);
        let lasting = before.map_or_else(Arc::default, |before| before.lasting.clone());
        // What one caller watches is watched by what is theirs.
        let same = before.filter(|_| whose == Whose::All);
        let theirs = before.filter(|_| whose != Whose::All);
        let watched = same.map_or_else(Arc::default, |before| before.watched.clone());
        let upstream = Arc::new_cyclic(|this| Self {
            name: name.to_owned(),
            kept_as,
            places: Arc::new(Semaphore::new(settings.at_once)),
            settings,
            world,
            keeps,
            changes,
            now: RwLock::default(),
            connecting: tokio::sync::Mutex::default(),
            failing: AtomicBool::new(false),
            shelved: RwLock::new(Arc::new(Shelved::of(name, &known))),
            listing: RwLock::new(Arc::new(known)),
            got: Got::default(),
            has_listed: AtomicBool::new(known_before),
            listed,
            old: AtomicBool::new(since > OLD),
            renewing: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            tools: Mutex::default(),
            lasting,
            lanes,
            results,
            claims,
            asks: AtomicBool::new(false),
            visited: Notify::new(),
            said: Mutex::default(),
            stale: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            later: Mutex::default(),
            this: this.clone(),
            closed: AtomicBool::new(false),
            retired: theirs.map_or_else(Arc::default, |of| of.retired.clone()),
            turn: AtomicU64::new(0),
            hurry: Arc::default(),
            unheard: AtomicBool::new(false),
            watched,
            listening: Mutex::default(),
            credentials: OnceLock::new(),
            whose,
            callers: Callers::default(),
        });
        upstream.watched.is_of(&upstream);
        if upstream.whose == Whose::All {
            upstream.claims.has(name, &upstream.listing());
            let mut now = upstream.lasting.now.write().unwrap_or_else(PoisonError::into_inner);
            *now = Arc::downgrade(&upstream);
        }
        upstream
    }

    /// Whether it is served so, as `settings` say.
    pub(crate) fn is_of(&self, settings: &Settings) -> bool {
        said(&self.settings) == said(settings)
    }

    pub(super) fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("who is asked is there")
    }

    /// What it has, as it said last.
    pub(crate) fn listing(&self) -> Arc<Listing> {
        self.listing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The skills of that.
    pub(crate) fn shelved(&self) -> Arc<Shelved> {
        self.shelved.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What rules know its tools by, beside their ids.
    pub(crate) fn tags(&self) -> Vec<String> {
        vec!["upstream".to_owned(), self.name.clone()]
    }

    /// The id of what it calls `name`, as rules may say it that name the upstream: where its tools
    /// are called after another prefix, what restricts either holds.
    pub(crate) fn ruled_as(&self, name: &str) -> Option<ToolId> {
        (self.prefix() != self.name).then(|| names::tool(&self.name, name))
    }

    /// What policy knows `what` of it by, which is no tool.
    pub(crate) fn guard(&self, what: &str, title: String, about: &str) -> ToolSpec {
        let id = names::tool(&self.name, what);
        let after_prefix = (self.prefix() != self.name && !self.prefix().is_empty())
            .then(|| names::tool(self.prefix(), what));
        ToolSpec {
            tags: self.tags(),
            among: Some(self.among()),
            ruled_as: after_prefix,
            ..ToolSpec::new(id, title, about, Effects::Reads)
        }
    }

    /// Which calls those of it count among.
    pub(crate) fn among(&self) -> Among {
        Among { name: self.name.as_str().into(), at_once: self.settings.at_once }
    }

    /// Whether all who call share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.whose == Whose::All
    }

    /// What its tools are called after.
    pub(crate) fn prefix(&self) -> &str {
        self.settings.prefix.as_deref().unwrap_or(&self.name)
    }
}

/// What the list of `name` is kept as: what it was under other settings says nothing of what it is
/// under these, but for those that are about answers.
fn kept_as(name: &str, settings: &Settings) -> String {
    let Settings { answer_bytes, media_bytes, .. } = Settings::default();
    let said = said(&Settings { answer_bytes, media_bytes, ..settings.clone() });
    format!("{name}-{}", &blake3::hash(&said).to_hex()[..16])
}

fn said(settings: &Settings) -> Vec<u8> {
    serde_json::to_vec(settings).unwrap_or_default()
}
