//! One upstream: connected when needed, watched, and known by its last listing.

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

/// Age after which a stored listing is refreshed in the background.
const OLD: Duration = Duration::from_secs(3600);

/// Storage and catalog that upstreams are handed.
pub trait Keeps: Send + Sync + 'static {
    /// Returns the stored listing `name` and its age.
    fn known(&self, name: &str) -> Option<(Listing, Duration)>;
    /// Stores the listing `name`.
    fn keep(&self, name: &str, listing: &Listing);
    /// Returns the pins of all upstreams.
    fn pinned(&self) -> Pinned;
    /// Returns true if the server itself has tools of `toolset`.
    fn is_own(&self, toolset: &str) -> bool;
    /// Returns true if `uri` belongs to the server, even if nothing is there.
    fn is_own_uri(&self, uri: &str) -> bool;
    /// Replaces the tools of the upstream `name` in the catalog.
    fn offer(&self, name: &str, tools: Vec<Arc<dyn AnyTool>>);
}

/// Connection state of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Not connected, because nothing needs it.
    Idle,
    /// Last attempt to connect failed, or the connection broke.
    Failing,
    /// Connected, or its program runs.
    Connected,
}

/// The parts of an upstream that outlive a change of its settings.
#[derive(Default)]
pub(crate) struct Lasting {
    pub(crate) parking: Parking,
    /// The upstream as it is served now.
    now: RwLock<Weak<Upstream>>,
}

impl Lasting {
    /// Returns the upstream as it is served now, if it still is.
    pub(crate) fn upstream(&self) -> Option<Arc<Upstream>> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// An upstream MCP server.
pub struct Upstream {
    pub(crate) name: String,
    /// Key of its stored listing.
    kept_as: String,
    pub(crate) settings: Settings,
    pub(crate) world: Arc<dyn World>,
    pub(crate) keeps: Arc<dyn Keeps>,
    pub(crate) changes: Changes,
    now: RwLock<Option<Arc<Link>>>,
    /// Recent failures. The lock admits one attempt to connect at a time.
    connecting: tokio::sync::Mutex<Failed>,
    /// True if the last attempt failed.
    failing: AtomicBool,
    listing: RwLock<Arc<Listing>>,
    /// Index of the listed skills.
    shelved: RwLock<Arc<Shelved>>,
    /// Skills that were fetched one by one.
    pub(crate) got: Got,
    /// True if the listing was ever known.
    has_listed: AtomicBool,
    /// True once the listing is known or its request failed.
    listed: watch::Sender<bool>,
    /// `old` is true if the listing is only known from long ago, and `renewing` once a refresh was
    /// started for that.
    old: AtomicBool,
    renewing: AtomicBool,
    /// True while an unknown listing is requested again and again.
    asking: AtomicBool,
    tools: Mutex<Vec<Arc<RemoteTool>>>,
    /// Permits for requests of calls.
    places: Arc<Semaphore>,
    pub(crate) lasting: Arc<Lasting>,
    pub(crate) lanes: Lanes,
    pub(crate) results: Results,
    claims: Claims,
    /// True if the server was seen to ask questions.
    asks: AtomicBool,
    /// Signal that a page visit is complete.
    visited: Notify,
    /// Announced changes that were not processed yet.
    said: Mutex<Vec<Change>>,
    /// `stale` is true if a refresh is wanted, and `looking` while the refresh task runs.
    stale: AtomicBool,
    looking: AtomicBool,
    /// Scheduled refresh.
    later: Mutex<Option<AbortOnDropHandle<()>>>,
    this: Weak<Self>,
    /// True once the server shuts down.
    closed: AtomicBool,
    /// True once another upstream is served in its place. Shared with the callers' own instances.
    retired: Arc<AtomicBool>,
    /// Number of times that its tools may have changed.
    turn: AtomicU64,
    /// Signal to refresh the listing without a pause.
    hurry: Arc<Notify>,
    /// True if notifications do not arrive, although the server declares them.
    unheard: AtomicBool,
    /// Watched resources.
    watched: Arc<Watched>,
    /// Current listening request.
    listening: Mutex<Option<Listening>>,
    /// OAuth credentials, once they were needed.
    credentials: OnceLock<Arc<Credentials>>,
    /// Owner of this instance.
    whose: Whose,
    /// Instances of single callers.
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
        // An empty listing is not reused, because nobody would call the upstream to refresh it.
        let known = keeps.known(&kept_as).filter(|(known, _)| !known.is_empty());
        let known_before = known.is_some();
        let (known, since) = known.unwrap_or_default();
        let listed = watch::Sender::new(known_before);
        let lanes = Lanes::new(settings.processes);
        let lasting = before.map_or_else(Arc::default, |before| before.lasting.clone());
        // A caller's own instance has its own watches.
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

    /// Returns true if this upstream was created with `settings`.
    pub(crate) fn is_of(&self, settings: &Settings) -> bool {
        said(&self.settings) == said(settings)
    }

    pub(super) fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("who is asked is there")
    }

    /// Returns the last listing.
    pub(crate) fn listing(&self) -> Arc<Listing> {
        self.listing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the index of the listed skills.
    pub(crate) fn shelved(&self) -> Arc<Shelved> {
        self.shelved.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the tags that policy rules can match.
    pub(crate) fn tags(&self) -> Vec<String> {
        vec!["upstream".to_owned(), self.name.clone()]
    }

    /// Returns the tool's id with the upstream's name as prefix, if its own prefix differs. Rules
    /// for either id apply.
    pub(crate) fn ruled_as(&self, name: &str) -> Option<ToolId> {
        (self.prefix() != self.name).then(|| names::tool(&self.name, name))
    }

    /// Returns a pseudo-tool by which policy controls access to `what`, such as its resources.
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

    /// Returns the limit group of its calls.
    pub(crate) fn among(&self) -> Among {
        Among { name: self.name.as_str().into(), at_once: self.settings.at_once }
    }

    /// Returns true if all callers share this instance.
    pub(crate) fn is_shared(&self) -> bool {
        self.whose == Whose::All
    }

    /// Returns the prefix of its tools.
    pub(crate) fn prefix(&self) -> &str {
        self.settings.prefix.as_deref().unwrap_or(&self.name)
    }
}

/// Returns the key of a stored listing. It depends on all settings except those on result sizes.
fn kept_as(name: &str, settings: &Settings) -> String {
    let Settings { answer_bytes, media_bytes, .. } = Settings::default();
    let said = said(&Settings { answer_bytes, media_bytes, ..settings.clone() });
    format!("{name}-{}", &blake3::hash(&said).to_hex()[..16])
}

fn said(settings: &Settings) -> Vec<u8> {
    serde_json::to_vec(settings).unwrap_or_default()
}
