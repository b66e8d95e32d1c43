//! An upstream: toolgate connects to it when needed, watches it for changes, and stores its last
//! listing.

mod schema_repair;
mod tool;
mod dedicated;
mod call_driver;
mod connecting;
mod lists;
mod calls;
mod visits;
mod tasks;
mod changes;
mod failures;
mod health;
mod callers;
mod pin_checks;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    AnyTool, ChangeFeed, ConcurrencyGroup, Effects, ServerChange, ToolId, ToolSpec, lock_mutex,
    lock_read, lock_write,
};

use crate::connection::UpstreamConnection;
use crate::listing::UpstreamListing;
use crate::listing::fetched_skills::FetchedSkills;
use crate::listing::skill_index::SkillIndex;
use crate::listing::uri_ownership::UriOwnership;
use crate::names;
use crate::oauth::UpstreamCredentials;
use crate::pins::PinPolicy;
use crate::results::UpstreamResultStore;
use crate::settings::UpstreamSettings;
use crate::start_report::UpstreamStartReport;
use crate::world::UpstreamSystemAccess;

pub(crate) use calls::{StatelessCall, UpstreamCallRequest};
pub(crate) use tasks::UpstreamTaskGuard;

use call_driver::SuspendedCalls;
use callers::CallerUpstreamInstances;
pub(crate) use callers::UpstreamInstanceOwner;
use changes::{ChangeListenRequest, ResourceWatchCounts};
use connecting::RecentConnectFailures;
use dedicated::PerCallConnectionPool;
pub use health::UpstreamHealth;
use health::UpstreamHealthLog;
use tool::UpstreamTool;

/// Age after which an upstream's stored listing is refreshed in the background.
const LISTING_OLD_AFTER: Duration = Duration::from_secs(3600);
/// Maximum number of an upstream's dedicated connections or processes, each of which one call uses
/// at a time. An upstream that asks its clients questions (revisions before 2026-07-28) needs one
/// for each concurrent call, because a pipe does not show which call asks. Few calls ask at the
/// same time.
const DEDICATED_MAX: usize = 8;

/// The server's services for upstreams: stored listings, pins, and the tool catalog.
pub trait UpstreamHost: Send + Sync + 'static {
    /// Returns the stored listing of an upstream under the key `name`, and the age of the listing.
    /// `None` if no listing is stored.
    fn stored_listing(&self, name: &str) -> Option<(UpstreamListing, Duration)>;
    /// Stores the listing of an upstream under the key `name`.
    fn store_listing(&self, name: &str, listing: &UpstreamListing);
    /// Returns the pins (approved tools and instructions) of all upstreams.
    fn pins(&self) -> PinPolicy;
    /// Returns true if the server itself has tools of `toolset`.
    fn is_own_toolset(&self, toolset: &str) -> bool;
    /// Returns true if `uri` is for the server's own resources, even if no such resource exists.
    fn is_own_uri(&self, uri: &str) -> bool;
    /// Replaces the tools of the upstream `name` in the catalog.
    fn set_tools(&self, name: &str, tools: Vec<Arc<dyn AnyTool>>);
}

/// Connection state of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpstreamState {
    /// No call needs the upstream, so the server is not connected to it.
    Idle,
    /// The last attempt to connect failed, or the connection broke.
    Failing,
    /// The server is connected to the upstream.
    Connected,
}

/// State of an upstream that survives a change of the upstream's settings.
#[derive(Default)]
pub(crate) struct UpstreamPersistentState {
    pub(crate) suspended: SuspendedCalls,
    /// The upstream that is served now under its name.
    current: RwLock<Weak<Upstream>>,
}

impl UpstreamPersistentState {
    /// Returns the upstream that is served now under its name, if any.
    pub(crate) fn upstream(&self) -> Option<Arc<Upstream>> {
        lock_read(&self.current).upgrade()
    }
}

/// Upstream: an MCP server whose tools are served here.
pub struct Upstream {
    pub(crate) name: String,
    /// Key of the upstream's stored listing.
    listing_key: String,
    pub(crate) settings: UpstreamSettings,
    pub(crate) world: Arc<dyn UpstreamSystemAccess>,
    pub(crate) host: Arc<dyn UpstreamHost>,
    pub(crate) changes: ChangeFeed,
    shared_connection: RwLock<Option<Arc<UpstreamConnection>>>,
    /// Recent failures to connect. The lock admits one attempt to connect at a time.
    connecting: tokio::sync::Mutex<RecentConnectFailures>,
    /// True if the last attempt to connect failed.
    failing: AtomicBool,
    /// Reachability of the upstream, as it is shown to people.
    health: UpstreamHealthLog,
    /// Last listing of the upstream. Until `has_listed` is true, it contains only the tools of the
    /// upstream that was replaced, if any.
    listing: RwLock<Arc<UpstreamListing>>,
    /// Index of the skills that the upstream lists.
    skills: RwLock<Arc<SkillIndex>>,
    /// Skills of the upstream that were fetched one by one.
    pub(crate) fetched_skills: FetchedSkills,
    /// True once the upstream has been listed. The flag is set after `listing`, so that a reader of
    /// the flag finds the new listing.
    has_listed: AtomicBool,
    /// True once the offered tools come from a listing of this upstream. Until then, they come from
    /// the upstream that was replaced. The flag changes only while `tools` is locked.
    offers_listed: AtomicBool,
    /// True once the upstream's listing is known or a request for the listing failed.
    listed: watch::Sender<bool>,
    /// True if the upstream's stored listing is outdated.
    is_old: AtomicBool,
    /// True once a refresh was started because the stored listing is outdated.
    has_begun_renewal: AtomicBool,
    /// True while the upstream's listing is unknown and requested repeatedly.
    is_relisting: AtomicBool,
    tools: Mutex<Vec<Arc<UpstreamTool>>>,
    /// Permits for the requests of concurrent calls.
    permits: Arc<Semaphore>,
    pub(crate) lasting: Arc<UpstreamPersistentState>,
    pub(crate) dedicated: PerCallConnectionPool,
    pub(crate) results: UpstreamResultStore,
    claims: UriOwnership,
    /// True if the upstream has asked questions during calls.
    has_asked: AtomicBool,
    /// Signal that a page visit which the upstream requested is complete.
    visit_completed: Notify,
    /// Changes that the upstream announced and that were not processed yet.
    announced: Mutex<Vec<ServerChange>>,
    /// True if the upstream's listing must be refreshed.
    wants_refresh: AtomicBool,
    /// True while the task that refreshes the listing runs.
    is_refreshing: AtomicBool,
    /// Task that refreshes the listing at a scheduled time.
    scheduled_refresh: Mutex<Option<AbortOnDropHandle<()>>>,
    this: Weak<Self>,
    /// True once the upstream is closed, because the server shuts down or no longer has the
    /// upstream.
    closed: AtomicBool,
    /// True once a newer instance replaces this upstream, for example after a change of the
    /// settings. The instances of single callers share the flag.
    retired: Arc<AtomicBool>,
    /// Number of times that the upstream's tools may have changed.
    tools_version: AtomicU64,
    /// Signal to refresh the upstream's listing without a pause.
    refresh_signal: Arc<Notify>,
    /// True if notifications do not arrive, although the upstream declares them.
    is_unheard: AtomicBool,
    /// Resources that are watched at the upstream.
    watches: Arc<ResourceWatchCounts>,
    /// Current request that listens for notifications of the upstream.
    listening: Mutex<Option<ChangeListenRequest>>,
    /// Report on the upstream's last start.
    start_report: Mutex<UpstreamStartReport>,
    /// OAuth credentials for the upstream, once they were needed.
    credentials: OnceLock<Arc<UpstreamCredentials>>,
    /// Owner of this upstream instance: all callers, or one caller or session.
    owner: UpstreamInstanceOwner,
    /// Upstream instances of single callers or sessions.
    callers: CallerUpstreamInstances,
}

impl Upstream {
    pub(crate) fn new(
        name: &str,
        settings: UpstreamSettings,
        (world, host, results, claims): (
            Arc<dyn UpstreamSystemAccess>,
            Arc<dyn UpstreamHost>,
            UpstreamResultStore,
            UriOwnership,
        ),
        changes: ChangeFeed,
        (before, owner): (Option<&Self>, UpstreamInstanceOwner),
    ) -> Arc<Self> {
        let key = listing_key(name, &settings);
        // An empty listing is not reused, because nobody would call the upstream to refresh it.
        let known = host.stored_listing(&key).filter(|(known, _)| !known.is_empty());
        let known_before = known.is_some();
        // A caller's own instance has its own watches, and lists nothing.
        let same = before.filter(|_| owner == UpstreamInstanceOwner::Shared);
        let carried = || same.map(|before| (before.listing().tools_only(), Duration::ZERO));
        let (known, since) = known.or_else(carried).unwrap_or_default();
        let listed = watch::Sender::new(known_before);
        let dedicated = PerCallConnectionPool::new(DEDICATED_MAX);
        let lasting = before.map_or_else(Arc::default, |before| before.lasting.clone());
        let caller_instance = before.filter(|_| owner != UpstreamInstanceOwner::Shared);
        let watches = same.map_or_else(Arc::default, |before| before.watches.clone());
        let upstream = Arc::new_cyclic(|this| Self {
            name: name.to_owned(),
            listing_key: key,
            permits: Arc::new(Semaphore::new(settings.at_once)),
            settings,
            world,
            host,
            changes,
            shared_connection: RwLock::default(),
            connecting: tokio::sync::Mutex::default(),
            failing: AtomicBool::new(false),
            health: UpstreamHealthLog::default(),
            skills: RwLock::new(Arc::new(SkillIndex::from_listing(name, &known))),
            listing: RwLock::new(Arc::new(known)),
            fetched_skills: FetchedSkills::default(),
            has_listed: AtomicBool::new(known_before),
            offers_listed: AtomicBool::new(false),
            listed,
            is_old: AtomicBool::new(since > LISTING_OLD_AFTER),
            has_begun_renewal: AtomicBool::new(false),
            is_relisting: AtomicBool::new(false),
            tools: Mutex::default(),
            lasting,
            dedicated,
            results,
            claims,
            has_asked: AtomicBool::new(false),
            visit_completed: Notify::new(),
            announced: Mutex::default(),
            wants_refresh: AtomicBool::new(false),
            is_refreshing: AtomicBool::new(false),
            scheduled_refresh: Mutex::default(),
            this: this.clone(),
            closed: AtomicBool::new(false),
            retired: caller_instance.map_or_else(Arc::default, |before| before.retired.clone()),
            tools_version: AtomicU64::new(0),
            refresh_signal: Arc::default(),
            is_unheard: AtomicBool::new(false),
            watches,
            listening: Mutex::default(),
            start_report: Mutex::default(),
            credentials: OnceLock::new(),
            owner,
            callers: CallerUpstreamInstances::default(),
        });
        upstream.watches.set_upstream(&upstream);
        if upstream.owner == UpstreamInstanceOwner::Shared {
            upstream.claims.record(name, &upstream.listing());
            let mut now = lock_write(&upstream.lasting.current);
            *now = Arc::downgrade(&upstream);
        }
        upstream
    }

    /// Returns true if this upstream was created with `settings`.
    pub(crate) fn has_settings(&self, settings: &UpstreamSettings) -> bool {
        settings_bytes(&self.settings) == settings_bytes(settings)
    }

    pub(super) fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a method runs only while the upstream exists")
    }

    /// Returns the last listing of the upstream.
    pub(crate) fn listing(&self) -> Arc<UpstreamListing> {
        lock_read(&self.listing).clone()
    }

    /// Returns the report on the upstream's last start.
    pub(crate) fn start_report(&self) -> UpstreamStartReport {
        lock_mutex(&self.start_report).clone()
    }

    /// Returns the index of the skills that the upstream lists.
    pub(crate) fn skill_index(&self) -> Arc<SkillIndex> {
        lock_read(&self.skills).clone()
    }

    /// Returns the tags of the upstream's tools, which policy rules can match.
    pub(crate) fn tags(&self) -> Vec<String> {
        vec!["upstream".to_owned(), self.name.clone()]
    }

    /// Returns the id of the tool `name` with the upstream's name as prefix, if the configured
    /// prefix differs. Policy rules for either id apply to the tool.
    pub(crate) fn ruled_as(&self, name: &str) -> Option<ToolId> {
        (self.prefix() != self.name).then(|| names::tool_id(&self.name, name))
    }

    /// Returns a tool spec that stands for access to `what` of the upstream, such as its resources,
    /// in policy rules.
    pub(crate) fn guard_tool(&self, what: &str, title: String, about: &str) -> ToolSpec {
        let id = names::tool_id(&self.name, what);
        let after_prefix = (self.prefix() != self.name && !self.prefix().is_empty())
            .then(|| names::tool_id(self.prefix(), what));
        ToolSpec {
            tags: self.tags(),
            group: Some(self.limit_group()),
            ruled_as: after_prefix,
            ..ToolSpec::new(id, title, about, Effects::Reads)
        }
    }

    /// Returns the concurrency group of the upstream's calls.
    pub(crate) fn limit_group(&self) -> ConcurrencyGroup {
        ConcurrencyGroup { name: self.name.as_str().into(), concurrency_max: self.settings.at_once }
    }

    /// Returns true if all callers share this upstream instance.
    pub(crate) fn is_shared(&self) -> bool {
        self.owner == UpstreamInstanceOwner::Shared
    }

    /// Returns the prefix of the upstream's tools.
    pub(crate) fn prefix(&self) -> &str {
        self.settings.prefix.as_deref().unwrap_or(&self.name)
    }
}

/// Returns the key of an upstream's stored listing. A change of any setting changes the key.
fn listing_key(name: &str, settings: &UpstreamSettings) -> String {
    format!("{name}-{}", &blake3::hash(&settings_bytes(settings)).to_hex()[..16])
}

fn settings_bytes(settings: &UpstreamSettings) -> Vec<u8> {
    serde_json::to_vec(settings).unwrap_or_default()
}
