//! One upstream: connected when it is needed, watched over, and known by what it listed last.

mod connecting;
mod lists;
mod calls;
mod tasks;
mod changes;
mod failed;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use tokio::sync::{Semaphore, watch};
use toolgate_contract::{AnyTool, Change, Changes};

use crate::carried::Parking;
use crate::lanes::Lanes;
use crate::link::Link;
use crate::listing::Listing;
use crate::pins::Pinned;
use crate::ready::Ready;
use crate::results::Results;
use crate::settings::Settings;
use crate::tool::RemoteTool;
use crate::world::World;

pub(crate) use calls::Asked;
pub(crate) use failed::told;

use changes::Listening;
use connecting::Failed;

/// What is kept where, and who is told.
pub trait Keeps: Send + Sync + 'static {
    /// What was kept of the upstream `name`.
    fn known(&self, name: &str) -> Option<Listing>;
    /// Keeps what it has now.
    fn keep(&self, name: &str, listing: &Listing);
    /// What was agreed to of the tools of upstreams.
    fn pinned(&self) -> Pinned;
    /// Offers its tools in place of those it had before.
    fn offer(&self, name: &str, tools: Vec<Arc<dyn AnyTool>>);
}

/// An upstream.
pub struct Upstream {
    pub(crate) name: String,
    /// What its list is kept as.
    kept_as: String,
    pub(crate) settings: Settings,
    world: Arc<dyn World>,
    keeps: Arc<dyn Keeps>,
    pub(crate) changes: Changes,
    now: RwLock<Option<Arc<Link>>>,
    /// One connects at a time.
    connecting: tokio::sync::Mutex<Failed>,
    listing: RwLock<Arc<Listing>>,
    /// Whether its list was ever known.
    has_listed: AtomicBool,
    /// Whether its list is known, or was tried to be.
    listed: watch::Sender<bool>,
    tools: Mutex<Vec<Arc<RemoteTool>>>,
    places: Semaphore,
    pub(crate) parking: Parking,
    pub(crate) lanes: Lanes,
    pub(crate) ready: Ready,
    pub(crate) results: Results,
    /// Whether it was seen to ask.
    asks: AtomicBool,
    /// Which lists it said have changed.
    said: Mutex<Vec<Change>>,
    /// Whether lists are being looked at again, and are to be once more.
    stale: AtomicBool,
    looking: AtomicBool,
    this: Weak<Self>,
    /// Whether the server stops.
    closed: AtomicBool,
    /// The URIs that are watched, and how often.
    watched: Mutex<BTreeMap<String, usize>>,
    /// What is listened to, over which connection.
    listening: Mutex<Option<Listening>>,
}

impl Upstream {
    pub(crate) fn new(
        name: &str,
        settings: Settings,
        (world, keeps, results): (Arc<dyn World>, Arc<dyn Keeps>, Results),
        changes: Changes,
    ) -> Arc<Self> {
        // What it was under other settings says nothing of what it is under these.
        let said = serde_json::to_vec(&settings).unwrap_or_default();
        let kept_as = format!("{name}-{}", &blake3::hash(&said).to_hex()[..16]);
        let known = keeps.known(&kept_as);
        let known_before = known.is_some();
        let listed = watch::Sender::new(known_before);
        let lanes = Lanes::new(settings.processes);
        Arc::new_cyclic(|this| Self {
            name: name.to_owned(),
            kept_as,
            places: Semaphore::new(settings.at_once),
            settings,
            world,
            keeps,
            changes,
            now: RwLock::default(),
            connecting: tokio::sync::Mutex::default(),
            listing: RwLock::new(Arc::new(known.unwrap_or_default())),
            has_listed: AtomicBool::new(known_before),
            listed,
            tools: Mutex::default(),
            parking: Parking::default(),
            lanes,
            ready: Ready::default(),
            results,
            asks: AtomicBool::new(false),
            said: Mutex::default(),
            stale: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            this: this.clone(),
            closed: AtomicBool::new(false),
            watched: Mutex::default(),
            listening: Mutex::default(),
        })
    }

    pub(super) fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("who is asked is there")
    }

    /// What it has, as it said last.
    pub(crate) fn listing(&self) -> Arc<Listing> {
        self.listing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What its tools are called after.
    pub(crate) fn prefix(&self) -> &str {
        self.settings.prefix.as_deref().unwrap_or(&self.name)
    }
}
