//! Serves other MCP servers (upstreams) as toolsets: connects when needed, watches them, and
//! translates between protocol revisions.
//!
//! The server passes access to programs and the network in as [`UpstreamSystemAccess`]. It passes
//! storage and the catalog in as [`UpstreamHost`].

mod world;
mod address;
mod settings;
mod names;
mod definition_texts;
mod instructions;
pub mod pins;
mod message;
mod start_report;
mod transport;
mod server_requests;
mod oauth;
mod transports;
mod connection;
mod listing;
mod results;
mod upstream;
mod resources;
mod skills;
mod prompts;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

use std::sync::{Arc, RwLock};

use futures_util::future::join_all;
use toolgate_contract::{
    BoxFuture, ChangeFeed, PromptSource, ResourceSource, ServerChange, SkillSource, ToolSpec,
    lock_read, lock_write,
};

use listing::uri_ownership::UriOwnership;
use upstream::UpstreamInstanceOwner;

pub use listing::UpstreamListing;
pub use oauth::{AuthorizationStepCallback, PendingSignIn, UpstreamOAuthAccess};
pub use results::UpstreamResultStore;
pub use settings::{
    ConnectionSharing, EXCLUSION, OAuthGrant, OAuthSettings, ServedUpstreamFeature, UpstreamLimits,
    UpstreamSettings, UpstreamSettingsByName, UpstreamTransport,
};
pub use start_report::{UpstreamStartReport, split_error_output};
pub use upstream::{Upstream, UpstreamHealth, UpstreamHost, UpstreamState};
pub use world::{
    NetworkAddress, RefusedHostsFn, RunningUpstreamProgram, UpstreamOutputReader,
    UpstreamProgramStart, UpstreamRefusedHost, UpstreamSystemAccess,
};

/// All upstreams of a server. Clones share one set.
#[derive(Clone)]
pub struct Upstreams(Arc<UpstreamSet>);

/// The current upstreams, and everything that is needed to create new ones.
struct UpstreamSet {
    current: RwLock<Arc<[ServedUpstream]>>,
    results: UpstreamResultStore,
    claims: UriOwnership,
    world: Arc<dyn UpstreamSystemAccess>,
    host: Arc<dyn UpstreamHost>,
    changes: ChangeFeed,
}

/// An upstream, with the sources of its resources, prompts and skills.
#[derive(Clone)]
struct ServedUpstream {
    upstream: Arc<Upstream>,
    resources: Option<Arc<dyn ResourceSource>>,
    prompts: Option<Arc<dyn PromptSource>>,
    skills: Option<Arc<dyn SkillSource>>,
}

impl ServedUpstream {
    fn new(upstream: Arc<Upstream>) -> Self {
        let settings = &upstream.settings;
        let source = settings
            .serves(ServedUpstreamFeature::Resources)
            .then(|| resources::UpstreamResources::new(&upstream));
        let resources = source.clone().map(|source| source as _);
        let skills = source.map(|source| source as _);
        let prompts = settings
            .serves(ServedUpstreamFeature::Prompts)
            .then(|| Arc::new(prompts::UpstreamPrompts(upstream.clone())) as _);
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
        tables: &UpstreamSettingsByName,
        world: Arc<dyn UpstreamSystemAccess>,
        host: Arc<dyn UpstreamHost>,
        changes: ChangeFeed,
    ) -> Result<Self, String> {
        check(tables)?;
        let current = RwLock::new(Arc::default());
        let results = UpstreamResultStore::default();
        let claims = UriOwnership::default();
        let set = Self(Arc::new(UpstreamSet { current, results, claims, world, host, changes }));
        let all = enabled(tables).map(|(name, settings)| set.create(name, settings, None));
        set.replace(all.collect());
        Ok(set)
    }

    fn create(
        &self,
        name: &str,
        settings: &UpstreamSettings,
        before: Option<&Upstream>,
    ) -> ServedUpstream {
        let UpstreamSet { results, claims, world, host, changes, .. } = &*self.0;
        let handed = (world.clone(), host.clone(), results.clone(), claims.clone());
        let of = (before, UpstreamInstanceOwner::Shared);
        ServedUpstream::new(Upstream::new(name, settings.clone(), handed, changes.clone(), of))
    }

    fn current(&self) -> Arc<[ServedUpstream]> {
        lock_read(&self.0.current).clone()
    }

    fn replace(&self, all: Vec<ServedUpstream>) -> Arc<[ServedUpstream]> {
        let mut now = lock_write(&self.0.current);
        std::mem::replace(&mut *now, all.into())
    }

    /// Removes the upstreams that are not in `tables`. Of upstreams whose settings `tables`
    /// changes, withdraws the tools that the new settings rename or leave out.
    ///
    /// Before [`Upstreams::change`] is called, the rules about the upstreams' tools can be
    /// replaced.
    ///
    /// # Errors
    ///
    /// Returns an error that names an upstream with invalid settings, and the reason. In that case
    /// nothing has changed.
    pub fn begin_change(
        &self,
        tables: &UpstreamSettingsByName,
    ) -> Result<Vec<(String, &'static str)>, String> {
        check(tables)?;
        let removed = self.change(&self.settings_in_use(tables), |_| false)?;
        for served in self.current().iter() {
            let name = &served.upstream.name;
            let changed = tables.get(name).filter(|next| !served.upstream.has_settings(next));
            if let Some(next) = changed {
                served.upstream.withdraw_tools_before(next);
            }
        }
        Ok(removed)
    }

    /// Replaces the upstreams by those of `tables`. Opens new connections to upstreams with
    /// unchanged settings that `restarts` selects.
    ///
    /// Other upstreams with unchanged settings stay. A new connection offers the tools that the
    /// replaced one listed, until it has listed its own. Removed upstreams are closed once their
    /// calls have ended. Returns the names of the changed upstreams, each with a short text about
    /// the change.
    ///
    /// # Errors
    ///
    /// Returns an error that names an upstream with invalid settings, and the reason. In that case
    /// nothing has changed.
    pub fn change(
        &self,
        tables: &UpstreamSettingsByName,
        restarts: impl Fn(&UpstreamSettings) -> bool,
    ) -> Result<Vec<(String, &'static str)>, String> {
        check(tables)?;
        let before = self.current();
        let mut changed = Vec::new();
        let find = |name: &str| before.iter().find(|one| one.upstream.name == name);
        let mut fresh = Vec::new();
        let all = enabled(tables).map(|(name, settings)| {
            let known = find(name);
            let same = known.filter(|one| one.upstream.has_settings(settings));
            let change = match (known, same) {
                (Some(_), Some(same)) if !restarts(settings) => return same.clone(),
                (Some(_), Some(_)) => "starts again",
                (Some(_), None) => "has new settings",
                (None, _) => "is new",
            };
            changed.push((name.clone(), change));
            if let Some(known) = known {
                known.upstream.retire();
            }
            let created = self.create(name, settings, known.map(|one| &*one.upstream));
            fresh.push(created.upstream.clone());
            created
        });
        let all: Vec<_> = all.collect();
        let stays = |name: &str| all.iter().any(|one| one.upstream.name == name);
        for removed in before.iter().filter(|one| !stays(&one.upstream.name)) {
            removed.upstream.retire();
            self.0.host.set_tools(&removed.upstream.name, Vec::new());
            self.0.claims.record(&removed.upstream.name, &UpstreamListing::default());
            changed.push((removed.upstream.name.clone(), "was removed"));
        }
        self.replace(all);
        for upstream in fresh {
            upstream.offer();
            upstream.reconnect_to_watch();
            upstream.list_in_background();
        }
        if !changed.is_empty() {
            self.0.changes.publish(&ServerChange::Resources);
            self.0.changes.publish(&ServerChange::Prompts);
        }
        Ok(changed)
    }

    /// Returns `tables` without new upstreams, and with the settings in use for each changed
    /// upstream.
    fn settings_in_use(&self, tables: &UpstreamSettingsByName) -> UpstreamSettingsByName {
        let now = self.current();
        let served = |name: &String| now.iter().find(|one| one.upstream.name == *name);
        let same = enabled(tables)
            .filter_map(|(name, _)| Some((name.clone(), served(name)?.upstream.settings.clone())));
        same.collect()
    }

    /// Returns the store of results that were too long to return at once.
    pub fn results(&self) -> &UpstreamResultStore {
        &self.0.results
    }

    /// Returns true if there are no upstreams.
    pub fn is_empty(&self) -> bool {
        self.current().is_empty()
    }

    /// Returns the state of each upstream, by name.
    pub fn states(&self) -> Vec<(String, UpstreamState)> {
        let now = self.current();
        now.iter().map(|one| (one.upstream.name.clone(), one.upstream.state())).collect()
    }

    /// Returns the reachability of each upstream, by name.
    pub fn health(&self) -> Vec<(String, UpstreamHealth)> {
        let now = self.current();
        now.iter().map(|one| (one.upstream.name.clone(), one.upstream.health())).collect()
    }

    /// Returns the reason why the upstream with the prefix of the tool `name` cannot be reached.
    /// Returns `None` if no unreachable upstream has this prefix.
    pub fn unavailable_reason(&self, name: &str) -> Option<String> {
        let now = self.current();
        let all = now.iter().map(|one| &one.upstream);
        let mut may_have = all.filter(|it| !it.prefix().is_empty() && it.may_have(Some(name)));
        may_have.find_map(|upstream| upstream.unavailable_reason())
    }

    /// Returns the reason why the tool `name` is missing, if it may belong to an upstream that
    /// cannot be reached and has not listed its tools.
    ///
    /// The spec is a stand-in for the tool. Only callers that would see a tool with this spec may
    /// know the reason.
    pub fn unreachable_tool(&self, name: &str) -> Option<(ToolSpec, String)> {
        self.current().iter().find_map(|one| one.upstream.unreachable_tool(name))
    }

    /// Returns true if the settings of the upstream `name` offer its tool `tool`.
    pub fn offers_tool(&self, name: &str, tool: &str) -> bool {
        let now = self.current();
        now.iter().any(|one| one.upstream.name == name && one.upstream.serves(tool))
    }

    /// Closes the connections of the upstream `name` as soon as no call uses them, connects again
    /// and lists the upstream. The future returns the number of its tools, or the reason why it
    /// cannot be reached or listed. `None` if there is no such upstream.
    pub fn reconnect(&self, name: &str) -> Option<BoxFuture<'static, Result<usize, String>>> {
        let now = self.current();
        let upstream = now.iter().find(|one| one.upstream.name == name)?.upstream.clone();
        Some(Box::pin(async move { upstream.reconnect().await }))
    }

    /// Adds the known tools of each upstream to the server's catalog.
    pub fn offer(&self) {
        self.current().iter().for_each(|one| one.upstream.offer());
    }

    /// Returns true if each upstream has been listed (its tools, resources and prompts). With
    /// `name`, only upstreams that may have a tool of that name count.
    pub fn are_listings_known(&self, name: Option<&str>) -> bool {
        let now = self.current();
        let mut wanted = now.iter().filter(|one| one.upstream.may_have(name));
        wanted.all(|one| one.upstream.is_listing_known())
    }

    /// Refreshes outdated listings of upstreams, in the background.
    pub fn refresh_old(&self) {
        self.current().iter().for_each(|one| one.upstream.refresh_if_old());
    }

    /// Returns the resources of all upstreams.
    pub fn resources(&self) -> Vec<Arc<dyn ResourceSource>> {
        self.current().iter().filter_map(|one| one.resources.clone()).collect()
    }

    /// Returns the prompts of all upstreams.
    pub fn prompts(&self) -> Vec<Arc<dyn PromptSource>> {
        self.current().iter().filter_map(|one| one.prompts.clone()).collect()
    }

    /// Returns the skills of all upstreams.
    pub fn skills(&self) -> Vec<Arc<dyn SkillSource>> {
        self.current().iter().filter_map(|one| one.skills.clone()).collect()
    }

    /// Returns the instructions of each upstream that has any, by name.
    pub fn instructions(&self) -> Vec<(String, String)> {
        let now = self.current();
        if now.iter().all(|one| one.upstream.listing().instructions.is_none()) {
            return Vec::new();
        }
        let pinned = self.0.host.pins();
        let upstreams = now.iter().map(|one| &one.upstream);
        upstreams.filter_map(|one| Some((one.name.clone(), one.instructions(&pinned)?))).collect()
    }

    /// Lists the tools, resources and prompts of each upstream whose name is `wanted`. Returns the
    /// listing, or the reason why it failed.
    pub async fn list_each(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(String, Result<UpstreamListing, String>)> {
        let now = self.current();
        let chosen = now.iter().map(|one| &one.upstream).filter(|it| wanted(&it.name));
        let listings = chosen.map(async |upstream| (upstream.name.clone(), upstream.list().await));
        join_all(listings).await
    }

    /// Returns the last listing of each upstream that has been listed since the server started.
    /// Sends no request.
    pub fn known_listings(&self) -> Vec<(String, UpstreamListing)> {
        let now = self.current();
        let upstreams = now.iter().map(|one| &one.upstream);
        let known = upstreams.filter_map(|it| Some((it.name.clone(), it.known_listing()?)));
        known.map(|(name, listing)| (name, UpstreamListing::clone(&listing))).collect()
    }

    /// Returns the report on the last start of the upstream `name`.
    pub fn start_report(&self, name: &str) -> UpstreamStartReport {
        let now = self.current();
        let named = now.iter().find(|one| one.upstream.name == name);
        named.map(|one| one.upstream.start_report()).unwrap_or_default()
    }

    /// Waits until each upstream has been listed for the first time. With `name`, waits only for
    /// upstreams that may have a tool of that name.
    ///
    /// The wait ends at the latest when the upstreams' start timeouts expire.
    pub fn wait_listed<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let now = self.current();
            let wanted = now.iter().filter(|one| one.upstream.may_have(name));
            join_all(wanted.map(|one| one.upstream.wait_listed())).await;
        })
    }

    /// Closes the upstream connections and programs that belong to `session`, which has ended.
    pub fn end_session(&self, session: &str) {
        self.current().iter().for_each(|one| one.upstream.end_session(session));
    }

    /// Closes the connections and programs of all upstreams.
    pub fn close(&self) {
        self.current().iter().for_each(|one| one.upstream.close());
    }
}

fn enabled(tables: &UpstreamSettingsByName) -> impl Iterator<Item = (&String, &UpstreamSettings)> {
    tables.iter().filter(|(_, settings)| settings.enabled)
}

/// Checks the names and settings of the upstreams in `tables`.
///
/// # Errors
///
/// Returns an error that names an upstream with invalid settings, and the reason.
pub fn check(tables: &UpstreamSettingsByName) -> Result<(), String> {
    for (name, settings) in enabled(tables) {
        let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if name.is_empty() || !name.bytes().all(is_allowed) {
            return Err(format!("[upstream.{name}]: a name may only contain a-z, 0-9 and `_`"));
        }
        settings.check().map_err(|why| format!("[upstream.{name}]: {why}"))?;
    }
    Ok(())
}
