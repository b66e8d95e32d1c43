//! Serves other MCP servers (upstreams) as toolsets: connects when needed, watches them, and
//! translates between protocol revisions.
//!
//! Programs and network connections are handed in as a [`World`]. Storage and the catalog are
//! handed in as [`Keeps`].

mod settings;
mod world;
mod oauth;
mod message;
mod wire;
mod wires;
mod link;
mod listing;
mod names;
pub mod pins;
mod instructions;
mod hearing;
mod carried;
mod lanes;
mod results;
mod upstream;
mod tool;
mod claims;
mod resources;
mod skills;
mod prompts;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

use std::sync::{Arc, PoisonError, RwLock};

use futures_util::future::join_all;
use toolgate_contract::{BoxFuture, Change, Changes, Prompts, Resources, Skills};

use claims::Claims;
use upstream::Whose;

pub use listing::Listing;
pub use oauth::{Access, Grant, OAuth, Pending, Told};
pub use results::Results;
pub use settings::{Settings, SharedBy, Tables, Transport};
pub use upstream::{Keeps, State, Upstream, named};
pub use world::{Bytes, Output, Place, Program, Started, World};

/// All upstreams of a server. Clones share one set.
#[derive(Clone)]
pub struct Upstreams(Arc<Set>);

/// The current upstreams and everything that new ones are made with.
struct Set {
    now: RwLock<Arc<[Served]>>,
    results: Results,
    claims: Claims,
    world: Arc<dyn World>,
    keeps: Arc<dyn Keeps>,
    changes: Changes,
}

/// An upstream, with its resources, prompts and skills.
#[derive(Clone)]
struct Served {
    upstream: Arc<Upstream>,
    resources: Option<Arc<dyn Resources>>,
    prompts: Option<Arc<dyn Prompts>>,
    skills: Option<Arc<dyn Skills>>,
}

impl Served {
    fn new(upstream: Arc<Upstream>) -> Self {
        let settings = &upstream.settings;
        let source = settings.resources.then(|| resources::Source::new(&upstream));
        let resources = source.clone().map(|source| source as _);
        let skills = source.map(|source| source as _);
        let prompts = settings.prompts.then(|| Arc::new(prompts::Source(upstream.clone())) as _);
        Self { upstream, resources, prompts, skills }
    }
}

impl Upstreams {
    /// Creates the upstreams of `tables` without connecting to them.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first upstream whose settings are invalid, and the reason.
    pub fn new(
        tables: &Tables,
        world: Arc<dyn World>,
        keeps: Arc<dyn Keeps>,
        changes: Changes,
    ) -> Result<Self, String> {
        check(tables)?;
        let now = RwLock::new(Arc::default());
        let results = Results::default();
        let claims = Claims::default();
        let set = Self(Arc::new(Set { now, results, claims, world, keeps, changes }));
        let all = enabled(tables).map(|(name, settings)| set.begun(name, settings, None));
        set.put(all.collect());
        Ok(set)
    }

    fn begun(&self, name: &str, settings: &Settings, before: Option<&Upstream>) -> Served {
        let Set { results, claims, world, keeps, changes, .. } = &*self.0;
        let handed = (world.clone(), keeps.clone(), results.clone(), claims.clone());
        let of = (before, Whose::All);
        Served::new(Upstream::new(name, settings.clone(), handed, changes.clone(), of))
    }

    fn now(&self) -> Arc<[Served]> {
        self.0.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, all: Vec<Served>) -> Arc<[Served]> {
        let mut now = self.0.now.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *now, all.into())
    }

    /// Replaces the upstreams by those of `tables`.
    ///
    /// Upstreams with unchanged settings stay. Upstreams that are removed are closed once their
    /// calls have ended. Returns the names of the upstreams that changed, each with a short text on
    /// the change.
    ///
    /// # Errors
    ///
    /// Returns an error that names an upstream with invalid settings, and the reason. Nothing has
    /// changed then.
    pub fn change(&self, tables: &Tables) -> Result<Vec<(String, &'static str)>, String> {
        check(tables)?;
        let before = self.now();
        let mut became = Vec::new();
        let named = |name: &str| before.iter().find(|one| one.upstream.name == name);
        let mut fresh = Vec::new();
        let all = enabled(tables).map(|(name, settings)| {
            let known = named(name);
            if let Some(same) = known.filter(|one| one.upstream.is_of(settings)) {
                return same.clone();
            }
            became.push((name.clone(), known.map_or("is new", |_| "is another")));
            if let Some(known) = known {
                known.upstream.retire();
            }
            let begun = self.begun(name, settings, known.map(|one| &*one.upstream));
            fresh.push(begun.upstream.clone());
            begun
        });
        let all: Vec<_> = all.collect();
        let stays = |name: &str| all.iter().any(|one| one.upstream.name == name);
        for gone in before.iter().filter(|one| !stays(&one.upstream.name)) {
            gone.upstream.retire();
            self.0.keeps.offer(&gone.upstream.name, Vec::new());
            self.0.claims.has(&gone.upstream.name, &Listing::default());
            became.push((gone.upstream.name.clone(), "is not served any more"));
        }
        self.put(all);
        for upstream in fresh {
            upstream.offer();
            upstream.goes_on_watching();
        }
        if !became.is_empty() {
            self.0.changes.tell(&Change::Resources);
            self.0.changes.tell(&Change::Prompts);
        }
        Ok(became)
    }

    /// Returns `tables` without new upstreams, and with the settings in use for changed ones.
    pub fn as_they_are(&self, tables: &Tables) -> Tables {
        let now = self.now();
        let served = |name: &String| now.iter().find(|one| one.upstream.name == *name);
        let same = enabled(tables)
            .filter_map(|(name, _)| Some((name.clone(), served(name)?.upstream.settings.clone())));
        same.collect()
    }

    /// Returns the store of results that were too long to return at once.
    pub fn results(&self) -> &Results {
        &self.0.results
    }

    /// Returns true if there are no upstreams.
    pub fn is_empty(&self) -> bool {
        self.now().is_empty()
    }

    /// Returns the state of each upstream, by name.
    pub fn states(&self) -> Vec<(String, State)> {
        let now = self.now();
        now.iter().map(|one| (one.upstream.name.clone(), one.upstream.state())).collect()
    }

    /// Adds the known tools of each upstream to the catalog.
    pub fn offer(&self) {
        self.now().iter().for_each(|one| one.upstream.offer());
    }

    /// Returns true if the listing of each upstream is known. With `name`, only upstreams that may
    /// have a tool of that name count.
    pub fn are_known(&self, name: Option<&str>) -> bool {
        let now = self.now();
        let mut wanted = now.iter().filter(|one| one.upstream.may_have(name));
        wanted.all(|one| one.upstream.is_known())
    }

    /// Refreshes listings that are only known from long ago, in the background.
    pub fn renew(&self) {
        self.now().iter().for_each(|one| one.upstream.renew());
    }

    /// Returns the resources of all upstreams.
    pub fn resources(&self) -> Vec<Arc<dyn Resources>> {
        self.now().iter().filter_map(|one| one.resources.clone()).collect()
    }

    /// Returns the prompts of all upstreams.
    pub fn prompts(&self) -> Vec<Arc<dyn Prompts>> {
        self.now().iter().filter_map(|one| one.prompts.clone()).collect()
    }

    /// Returns the skills of all upstreams.
    pub fn skills(&self) -> Vec<Arc<dyn Skills>> {
        self.now().iter().filter_map(|one| one.skills.clone()).collect()
    }

    /// Returns the instructions of each upstream that has any, by name.
    pub fn instructions(&self) -> Vec<(String, String)> {
        let now = self.now();
        if now.iter().all(|one| one.upstream.listing().instructions.is_none()) {
            return Vec::new();
        }
        let pinned = self.0.keeps.pinned();
        let said = now.iter().map(|one| &one.upstream);
        said.filter_map(|one| Some((one.name.clone(), one.instructions(&pinned)?))).collect()
    }

    /// Lists each upstream whose name is `wanted`, or returns the reason why listing failed.
    pub async fn ask(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(String, Result<Listing, String>)> {
        let now = self.now();
        let some = now.iter().map(|one| &one.upstream).filter(|it| wanted(&it.name));
        let asked = some.map(async |upstream| (upstream.name.clone(), upstream.ask_all().await));
        join_all(asked).await
    }

    /// Waits until the first listing of each upstream is done, or of each that may have the tool
    /// `name`.
    ///
    /// The wait ends when the upstreams' start timeouts expire.
    pub fn listed<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let now = self.now();
            let wanted = now.iter().filter(|one| one.upstream.may_have(name));
            join_all(wanted.map(|one| one.upstream.is_listed())).await;
        })
    }

    /// Closes the connections and programs that belong to `session`, which has ended.
    pub fn left(&self, session: &str) {
        self.now().iter().for_each(|one| one.upstream.left(session));
    }

    /// Closes all connections and programs.
    pub fn close(&self) {
        self.now().iter().for_each(|one| one.upstream.close());
    }
}

fn enabled(tables: &Tables) -> impl Iterator<Item = (&String, &Settings)> {
    tables.iter().filter(|(_, settings)| settings.enabled)
}

/// Checks the names and settings of `tables`.
fn check(tables: &Tables) -> Result<(), String> {
    for (name, settings) in enabled(tables) {
        let sound = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if name.is_empty() || !name.bytes().all(sound) {
            return Err(format!("[upstream.{name}]: a name has a-z, 0-9 and `_` alone"));
        }
        settings.check().map_err(|why| format!("[upstream.{name}]: {why}"))?;
    }
    Ok(())
}
