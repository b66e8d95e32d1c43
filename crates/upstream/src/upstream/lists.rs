//! Waits for the listing of an upstream, refreshes it and announces its changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{AnyTool, ServerChange, fold_name, lock_mutex, lock_write};
use toolgate_dialects::mcp::upstream::SessionModel;

use super::failures::duration_text;
use super::{Upstream, UpstreamInstanceOwner};
use crate::connection::{LISTING_LIFETIME, UpstreamConnection};
use crate::listing::UpstreamListing;
use crate::listing::skill_index::SkillIndex;
use crate::pins::{PinPolicy, ServedUpstreamTool};
use crate::settings::{EXCLUSION, ServedUpstreamFeature, UpstreamSettings};
use crate::transport::UpstreamRequestFailure;
use crate::transport::describe_failure;
use crate::upstream::tool::UpstreamTool;
use crate::{instructions, names};

/// Pause in which notifications of changed lists are collected.
const GATHER_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause for collecting notifications. The pause grows for an upstream whose notifications
/// bring no changes.
const GATHER_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Number of refreshes in a row that find no change, after which the pause grows.
const UNCHANGED_MAX: u32 = 10;
/// First pause before an unknown listing of an upstream is requested again.
const RELIST_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait, after the start timeout, for the failure of an attempt to connect.
const FAILURE_WAIT: Duration = Duration::from_millis(500);
/// Number of times that the pause before a repeated listing request doubles.
const RELIST_DOUBLES: u32 = 8;

impl Upstream {
    /// Records that the upstream's lists could not be fetched. Callers that wait for the lists
    /// continue without them. Requests unknown lists again, with growing pauses.
    pub(super) fn record_list_failure(&self) {
        self.withdraw_carried_tools();
        self.listed.send_replace(true);
        let is_known = || self.has_listed.load(Ordering::Acquire);
        if self.owner != UpstreamInstanceOwner::Shared
            || is_known()
            || self.is_relisting.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let this = self.this.clone();
        toolgate_net::spawn_task(async move {
            for times in 0_u32.. {
                let wait = RELIST_PAUSE * 2_u32.pow(times.min(RELIST_DOUBLES));
                tokio::time::sleep(wait).await;
                let Some(this) = this.upgrade() else { return };
                if this.has_listed.load(Ordering::Acquire) || this.closed.load(Ordering::Acquire) {
                    break;
                }
                if this.connection().await.is_ok() {
                    this.refresh();
                }
            }
        });
    }

    /// Waits until the upstream's listing is known or the start timeout expires.
    pub(crate) async fn wait_listed(&self) {
        let mut listed = self.listed.subscribe();
        if *listed.borrow() {
            self.refresh_if_old();
            return;
        }
        let this = self.this();
        let attempt = toolgate_net::spawn_task(async move {
            match this.connection().await {
                Ok(_) => this.refresh(),
                // The failure was logged when the attempt ended.
                Err(_) => this.record_list_failure(),
            }
        });
        let within = Duration::from_millis(self.settings.start_ms);
        if tokio::time::timeout(within, listed.wait_for(|listed| *listed)).await.is_err() {
            // The attempt has the same timeout and began later. Its failure explains the missing
            // tools to the caller.
            let _ = tokio::time::timeout(FAILURE_WAIT, attempt).await;
            tracing::warn!(
                "the upstream `{}` did not answer within {}; lists omit its tools until it answers",
                self.name,
                duration_text(within)
            );
            self.record_list_failure();
        }
    }

    /// Connects in the background if the upstream's listing is unknown, so that a failed start is
    /// logged at once.
    pub(crate) fn list_in_background(&self) {
        if self.is_listing_known() {
            return;
        }
        let this = self.this();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            toolgate_net::spawn_task_on(&runtime, async move { this.wait_listed().await });
        }
    }

    /// Refreshes the upstream's listing in the background if it is outdated.
    pub(crate) fn refresh_if_old(&self) {
        if !self.is_old.load(Ordering::Acquire)
            || self.has_begun_renewal.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let this = self.this();
        toolgate_net::spawn_task(async move {
            if let Err(why) = this.connection().await {
                tracing::warn!("{}; its last known listing is used", why.message);
            }
        });
    }

    /// Connects to the upstream if needed and lists its tools, resources, prompts and skills.
    pub(crate) async fn list(&self) -> Result<UpstreamListing, String> {
        let link = self.connection().await.map_err(|why| why.message)?;
        let listed = self.list_over(&link).await;
        listed.map(|(listing, _)| listing).map_err(|failure| describe_failure(&failure))
    }

    /// Lists the upstream's tools, resources, prompts and skills over `link`. The second value is
    /// the lifetime of the listing.
    async fn list_over(
        &self,
        link: &UpstreamConnection,
    ) -> Result<(UpstreamListing, Option<Duration>), UpstreamRequestFailure> {
        let within = Duration::from_millis(self.settings.start_ms);
        let listed =
            tokio::time::timeout(within, UpstreamListing::list_all(&self.name, link)).await;
        listed.unwrap_or_else(|_| {
            Err(UpstreamRequestFailure::Lost(format!(
                "it did not answer within {}",
                duration_text(within)
            )))
        })
    }

    /// Returns true if the upstream may have a tool named `name`. Always true for `None`.
    pub(crate) fn may_have(&self, name: Option<&str>) -> bool {
        let Some(name) = name.filter(|_| !self.prefix().is_empty()) else { return true };
        let begins = format!("{}.", self.prefix());
        // A name of maximal length may have lost part of its prefix.
        name.len() >= names::NAME_MAX || fold_name(name).starts_with(&*fold_name(&begins))
    }

    /// Returns true if the upstream's listing is known or could not be fetched.
    pub(crate) fn is_listing_known(&self) -> bool {
        *self.listed.borrow()
    }

    /// Returns the last listing, if the upstream has been listed since the server started.
    pub(crate) fn known_listing(&self) -> Option<Arc<UpstreamListing>> {
        self.has_listed.load(Ordering::Acquire).then(|| self.listing())
    }

    /// Refreshes the listing of the upstream in the background.
    pub(crate) fn refresh(&self) {
        if self.owner != UpstreamInstanceOwner::Shared || self.retired.load(Ordering::Acquire) {
            // Only the current shared instance refreshes the listing.
            return;
        }
        self.wants_refresh.store(true, Ordering::Release);
        if self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.this.clone();
        toolgate_net::spawn_task(async move {
            let mut unchanged = 0_u32;
            loop {
                let Some(this) = this.upgrade() else { return };
                if !this.wants_refresh.swap(false, Ordering::AcqRel) {
                    break;
                }
                let Some(link) = this.live_connection() else { break };
                let announced = lock_mutex(&this.announced).split_off(0);
                match this.list_over(&link).await {
                    Ok((listing, good_for)) => {
                        let has_changed = this.update_listing(listing, announced);
                        unchanged = if has_changed { 0 } else { unchanged + 1 };
                        let unnotified =
                            this.is_unheard.load(Ordering::Acquire).then_some(LISTING_LIFETIME);
                        this.refresh_later(&link, good_for.or(unnotified));
                    }
                    Err(_) if this.closed.load(Ordering::Acquire) => break,
                    Err(failure) => {
                        let why = describe_failure(&failure);
                        tracing::warn!("listing the upstream `{}` failed: {why}", this.name);
                        this.record_list_failure();
                        this.refresh_later(&link, Some(LISTING_LIFETIME));
                    }
                }
                this.listed.send_replace(true);
                if link.revision.era == SessionModel::Stateless {
                    this.listen(&link);
                }
                // The upstream is not kept alive during the pause.
                let signal = this.refresh_signal.clone();
                drop((this, link));
                let doubles = unchanged.saturating_sub(UNCHANGED_MAX).min(RELIST_DOUBLES);
                let pause = (GATHER_PAUSE * 2_u32.pow(doubles)).min(GATHER_PAUSE_MAX);
                if tokio::time::timeout(pause, signal.notified()).await.is_ok() {
                    unchanged = 0;
                }
            }
            let Some(this) = this.upgrade() else { return };
            this.is_refreshing.store(false, Ordering::Release);
            if this.wants_refresh.load(Ordering::Acquire) {
                this.refresh();
            }
        });
    }

    /// Schedules a refresh of the listing after the time `good_for`. The refresh takes place only
    /// if the connection `link` is still in use then.
    pub(super) fn refresh_later(&self, link: &Arc<UpstreamConnection>, good_for: Option<Duration>) {
        let Some(good_for) = good_for else { return };
        let this = self.this.clone();
        let link = Arc::downgrade(link);
        let later = toolgate_net::spawn_task(async move {
            tokio::time::sleep(good_for).await;
            let Some(this) = this.upgrade() else { return };
            if this.live_connection().is_some_and(|live| link.ptr_eq(&Arc::downgrade(&live))) {
                this.refresh();
            }
        });
        let mut scheduled = lock_mutex(&self.scheduled_refresh);
        *scheduled = Some(AbortOnDropHandle::new(later));
    }

    /// Stores the upstream's `listing` and announces changes. Returns true if the listing changed.
    fn update_listing(&self, listing: UpstreamListing, mut announced: Vec<ServerChange>) -> bool {
        if self.retired.load(Ordering::Acquire) {
            return false;
        }
        let is_first = !self.has_listed.load(Ordering::Acquire);
        let before = self.listing();
        let tools =
            before.tools != listing.tools || before.call_properties() != listing.call_properties();
        let resources = before.resources != listing.resources
            || before.templates != listing.templates
            || before.skills != listing.skills;
        let prompts = before.prompts != listing.prompts;
        let has_changed = *before != listing;
        let instructions = before.instructions != listing.instructions;
        if tools {
            self.invalidate_checks();
        }
        // An unchanged listing is stored as well, to renew its age, or under its new key.
        let was_old = self.is_old.swap(false, Ordering::AcqRel);
        if has_changed || was_old || is_first {
            self.host.store_listing(&self.listing_key, &listing);
            if resources {
                self.claims.record(&self.name, &listing);
                self.warn_refused(&listing);
            }
            if before.skills != listing.skills {
                let index = Arc::new(SkillIndex::from_listing(&self.name, &listing));
                *lock_write(&self.skills) = index;
            }
            let mut stored = lock_write(&self.listing);
            *stored = Arc::new(listing);
            self.has_listed.store(true, Ordering::Release);
        }
        if tools || !self.is_offered() {
            // Offering tools announces the change.
            self.offer();
            announced.retain(|change| *change != ServerChange::Tools);
        } else if instructions || is_first {
            self.offer();
        }
        for (changed, change) in
            [(resources, ServerChange::Resources), (prompts, ServerChange::Prompts)]
        {
            if changed && !announced.contains(&change) {
                announced.push(change);
            }
        }
        announced.iter().for_each(|change| self.changes.publish(change));
        has_changed
    }

    /// Marks an upstream that is replaced or removed. Running calls finish, but the upstream no
    /// longer changes the catalog.
    pub(crate) fn retire(&self) {
        let _known = lock_mutex(&self.tools);
        self.retired.store(true, Ordering::Release);
    }

    /// Records that the upstream's notifications do not arrive, so that lists are refreshed at
    /// intervals.
    pub(super) fn record_unheard(&self) {
        self.is_unheard.store(true, Ordering::Release);
        if let Some(link) = self.live_connection() {
            self.refresh_later(&link, Some(LISTING_LIFETIME));
        }
    }

    /// Records a `change` that the upstream announced, and refreshes the listing.
    pub(super) fn record_change(&self, change: ServerChange) {
        self.invalidate_checks();
        if self.owner != UpstreamInstanceOwner::Shared {
            // Only the shared instance refreshes the listing.
            if let Some(served) = self.lasting.upstream() {
                served.record_change(change);
            }
            return;
        }
        let mut announced = lock_mutex(&self.announced);
        if !announced.contains(&change) {
            announced.push(change);
        }
        drop(announced);
        self.refresh();
    }

    /// Refreshes the upstream's listing and the server's catalog, and waits for both.
    pub(crate) async fn refresh_now(&self) {
        if let Ok(link) = self.connection().await
            && let Ok((listing, _)) = self.list_over(&link).await
        {
            self.update_listing(listing, Vec::new());
        }
        self.offer();
    }

    /// Returns the reason why calls of the tool `name` are refused, or `None` if they are not.
    pub(crate) fn withheld_reason(&self, name: &str) -> Option<String> {
        let tools = lock_mutex(&self.tools);
        let Some(tool) = tools.iter().find(|tool| tool.name() == name) else {
            return Some(format!("`{name}` of the upstream `{}` no longer exists", self.name));
        };
        tool.withheld().map(str::to_owned)
    }

    /// Returns true if the upstream has listed its tools and offers exactly the tool `served`.
    pub(crate) fn offers(&self, served: &ServedUpstreamTool) -> bool {
        let tools = lock_mutex(&self.tools);
        let offers_listed = self.offers_listed.load(Ordering::Acquire);
        offers_listed && tools.iter().any(|tool| tool.served() == served)
    }

    /// Withdraws the tools that `settings`, which will replace this upstream's settings, do not
    /// offer under the same names. The other tools stay available until the new connection has
    /// listed its own.
    pub(crate) fn withdraw_tools_before(&self, settings: &UpstreamSettings) {
        let known = lock_mutex(&self.tools);
        let has_same_names = self.settings.prefix == settings.prefix;
        let kept = known.iter().filter(|tool| has_same_names && settings.offers_tool(tool.name()));
        let kept = kept.map(|tool| tool.clone() as Arc<dyn AnyTool>).collect();
        self.host.set_tools(&self.name, kept);
    }

    /// Withdraws the tools of the replaced upstream that stayed available, because listing the
    /// tools of this upstream failed.
    fn withdraw_carried_tools(&self) {
        let mut listing = lock_write(&self.listing);
        if self.has_listed.load(Ordering::Acquire) || listing.tools.is_empty() {
            return;
        }
        *listing = Arc::default();
        drop(listing);
        self.offer();
    }

    fn is_offered(&self) -> bool {
        let tools = lock_mutex(&self.tools);
        !tools.is_empty() || self.listing().tools.is_empty()
    }

    /// Puts the upstream's listed tools into the server's catalog. Reuses unchanged tools.
    pub(crate) fn offer(&self) {
        // The lock is held until the tools are offered, so that the later list wins.
        let mut known = lock_mutex(&self.tools);
        if self.retired.load(Ordering::Acquire) {
            return;
        }
        // Read first: a listing that is read afterwards is one of this upstream.
        let has_listed = self.has_listed.load(Ordering::Acquire);
        let listing = self.listing();
        if has_listed {
            self.warn_unmatched(&listing);
        }
        let serves = |entry: &&Value| self.serves(entry["name"].as_str().unwrap_or_default());
        let served = listing.tools.iter().filter(serves);
        let pinned = self.host.pins();
        let served = pinned.served_tools(&self.name, served);
        // An unreadable lock file is reported with the tools. Before the first listing, the
        // instructions are unknown, which is no difference.
        if self.settings.serves(ServedUpstreamFeature::Instructions)
            && has_listed
            && pinned.lock.is_ok()
            && let Err(why) = pinned.check_instructions(&self.name, listing.instructions.as_deref())
        {
            tracing::warn!("{why}");
        }
        let tools: Vec<_> = self
            .without_ambiguous(served)
            .filter_map(|served_tool| {
                let same = known
                    .iter()
                    .find(|tool| tool.is_made_from(&served_tool, listing.call_properties()));
                same.cloned().or_else(|| UpstreamTool::new(self, served_tool).map(Arc::new))
            })
            .collect();
        self.offers_listed.store(has_listed, Ordering::Release);
        let is_same = |(a, b): (&Arc<UpstreamTool>, &Arc<UpstreamTool>)| Arc::ptr_eq(a, b);
        if !tools.is_empty() && tools.len() == known.len() && tools.iter().zip(&*known).all(is_same)
        {
            return;
        }
        known.clone_from(&tools);
        let tools = tools.into_iter().map(|tool| tool as Arc<dyn AnyTool>).collect();
        self.host.set_tools(&self.name, tools);
    }

    /// Returns the upstream's instructions for clients, if they match their pin in `pinned`.
    pub(crate) fn instructions(&self, pinned: &PinPolicy) -> Option<String> {
        let listing = self.listing();
        let is_served = self.settings.serves(ServedUpstreamFeature::Instructions);
        let text = listing.instructions.as_deref().filter(|_| is_served)?;
        pinned
            .passes_instructions(&self.name, text)
            .then(|| instructions::quote_instructions(&self.name, self.prefix(), text))
    }

    /// Removes tools whose names would be equal in some dialect, and tools that look like the
    /// server's own tools.
    fn without_ambiguous(
        &self,
        tools: Vec<ServedUpstreamTool>,
    ) -> impl Iterator<Item = ServedUpstreamTool> {
        let name =
            |tool: &ServedUpstreamTool| tool.entry["name"].as_str().unwrap_or_default().to_owned();
        let names: Vec<_> = tools.iter().map(name).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let unique = names::are_unique(self.prefix(), &names);
        for (name, _) in names.iter().zip(&unique).filter(|(_, unique)| !**unique) {
            tracing::warn!(
                "the tool `{}` is not served: the upstream `{}` lists `{name}` twice, or lists \
                 tools whose names become equal here; rename them in the upstream, or leave them \
                 out with `!{name}` \
                 in `tools`",
                names::tool_id(self.prefix(), name),
                self.name
            );
        }
        let served =
            names.iter().zip(unique).map(|(name, unique)| unique && !self.is_own_tool(name));
        let served: Vec<_> = served.collect();
        tools.into_iter().zip(served).filter_map(|(tool, served)| served.then_some(tool))
    }

    /// Returns true if the tool `name` looks like a tool of the server's own toolsets. Logs a
    /// warning in that case.
    fn is_own_tool(&self, name: &str) -> bool {
        let id = names::tool_id(self.prefix(), name);
        let has_toolset = self.prefix().is_empty() && id.as_str().contains('.');
        let is_own = has_toolset && self.host.is_own_toolset(id.toolset());
        if is_own {
            tracing::warn!(
                "the tool `{id}` of the upstream `{}` is not served: its name looks like that of \
                 a built-in tool; set a `prefix`, or leave it out with `!{name}` in `tools`",
                self.name
            );
        }
        is_own
    }

    /// Logs the resources of `listing` that are not served because their URIs belong to this
    /// server.
    fn warn_refused(&self, listing: &UpstreamListing) {
        let of = |all: &[Value], key| {
            let uris = all.iter().filter_map(|entry| Some(entry.get(key)?.as_str()?.to_owned()));
            uris.filter(|uri| self.host.is_own_uri(uri)).collect::<Vec<_>>()
        };
        let uris = of(&listing.resources, "uri").into_iter();
        let mut refused = uris.chain(of(&listing.templates, "uriTemplate"));
        if let Some(first) = refused.next() {
            tracing::warn!(
                "resources of the upstream `{}` are not served, because their URIs belong to this \
                 server: {first:?} and {} more",
                self.name,
                refused.count()
            );
        }
    }

    /// Logs patterns in the settings that match no tool of `listing`.
    fn warn_unmatched(&self, listing: &UpstreamListing) {
        for entry in self.settings.unmatched_tools(listing) {
            tracing::warn!(
                "`tools` of the upstream `{}` has {entry:?}, which matches no tool",
                self.name
            );
        }
    }

    /// Returns true if the settings offer the tool `name`.
    pub(crate) fn serves(&self, name: &str) -> bool {
        self.settings.offers_tool(name)
    }
}

impl UpstreamSettings {
    /// Returns true if the setting `tools` selects the tool `name`.
    pub fn offers_tool(&self, name: &str) -> bool {
        selects(&self.tools, name)
    }

    /// Returns the entries of the setting `tools` that match no tool of `listing`. The entry `*` is
    /// left out.
    pub fn unmatched_tools(&self, listing: &UpstreamListing) -> impl Iterator<Item = &str> {
        self.tools.iter().map(String::as_str).filter(move |entry| {
            let pattern = entry.strip_prefix(EXCLUSION).unwrap_or(entry);
            let mut names = listing.tools.iter().filter_map(|tool| tool["name"].as_str());
            pattern != "*" && !names.any(|name| matches_pattern(pattern, name))
        })
    }
}

/// Returns true if the `entries` of the setting `tools` select the tool `name`.
///
/// An exclusion takes precedence. If there are only exclusions, all other tools are selected. If
/// there are no entries, none is selected.
fn selects(entries: &[String], name: &str) -> bool {
    let mut excluded = entries.iter().filter_map(|entry| entry.strip_prefix(EXCLUSION));
    if excluded.any(|pattern| matches_pattern(pattern, name)) {
        return false;
    }
    let mut included = entries.iter().filter(|entry| !entry.starts_with(EXCLUSION)).peekable();
    let only_excludes = !entries.is_empty() && included.peek().is_none();
    only_excludes || included.any(|pattern| matches_pattern(pattern, name))
}

/// Returns true if `name` matches `pattern`, in which `*` matches any text.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    // Leftmost matches leave the most text for the other parts.
    for part in parts {
        let Some((_, after)) = name.split_once(part) else { return false };
        name = after;
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exclusion_wins_and_exclusions_alone_select_all_other_tools() {
        let selected = |entries: &[&str]| {
            let entries: Vec<_> = entries.iter().map(|entry| (*entry).to_owned()).collect();
            let names = ["get_a", "get_b", "rm_a"].into_iter();
            names.filter(|name| selects(&entries, name)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(selected(&["*"]), "get_a get_b rm_a");
        assert_eq!(selected(&["get_*", "!*_a"]), "get_b");
        assert_eq!(selected(&["!*_a", "get_*"]), "get_b");
        assert_eq!(selected(&["!get_a", "get_a"]), "");
        assert_eq!(selected(&["!rm_*"]), "get_a get_b");
        assert_eq!(selected(&["!rm_*", "!get_b"]), "get_a");
        assert_eq!(selected(&["!*"]), "");
        assert_eq!(selected(&[]), "");
    }

    #[test]
    fn a_star_in_a_pattern_matches_any_text() {
        assert!(
            matches_pattern("*", "")
                && matches_pattern("get_*", "get_x")
                && matches_pattern("a*b*c", "a1b2c")
        );
        assert!(
            !matches_pattern("get_*", "set_x")
                && !matches_pattern("a", "ab")
                && !matches_pattern("a*b", "ac")
        );
        assert!(
            matches_pattern("**", "x")
                && matches_pattern("*b*b", "bb")
                && !matches_pattern("*b*b", "b")
        );
        // Backtracking over all parts would take hours.
        assert!(!matches_pattern(&"*_".repeat(50), &"_".repeat(40)));
    }
}
