//! Decides tool lists that contain tool search in place of most tools. A list is decided once for a
//! session, or once a day for a caller without a session, so that clients keep their prompt caches.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use toolgate_contract::{
    AnyTool, CallMetadata, Caller, ClientProfile, Effects, ToolCall, ToolId, ToolPage, ToolSpec,
    fold_name, lock_mutex, with_spec,
};
use toolgate_tool_search::{RememberedToolQueries, search_description};

use super::{CALL, READ, SEARCH, ToolListSelection, ToolSearch, ToolSearchMemoryScope};
use crate::Gate;
use crate::catalog::{CallerVisibilityKey, Catalog, CatalogToolEntry};

/// Maximum number of clients whose tool lists are remembered. Above it, the oldest list is
/// forgotten. A new list is decided when that client asks again.
const LISTS_MAX: usize = 4096;
/// Share of the token budget, in percent. A list with tool search in place of most tools contains
/// all tools again only below this share. So a list whose size is near the budget does not switch
/// between both from session to session.
const UNFOLD_PERCENT: usize = 70;
/// Length of a day, in seconds.
const DAY_S: i64 = 86_400;
/// Metadata field of a tool that asks clients with a tool search of their own to keep the tool in
/// the context.
const ALWAYS_LOAD: &str = "anthropic/alwaysLoad";
/// Metadata field with words by which clients with a tool search of their own find a tool, in
/// addition to its name and description.
const SEARCH_HINT: &str = "anthropic/searchHint";

/// Key of a remembered tool list: the session that received the list, or a caller without a
/// session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ToolListKey {
    Session(Arc<str>),
    /// A caller without a session, on one day (in UTC), with the name of the client's profile.
    Day(CallerVisibilityKey, i64, Option<&'static str>),
}

/// Content of a tool list that a client received.
#[derive(Clone)]
pub(super) enum SentToolListContent {
    /// The list contains all current tools. Hints for clients with a tool search of their own come
    /// from the queries that were remembered when the client received the list.
    Whole(Arc<RememberedToolQueries>),
    /// The list contains only these tools, which include the tools that search and call all others.
    Folded(Arc<[Arc<dyn AnyTool>]>),
}

/// Tool lists that clients have received, in the order in which they received them.
#[derive(Default)]
pub(super) struct SentToolLists {
    known: HashMap<ToolListKey, (u64, SentToolListContent)>,
    count: u64,
    /// Callers whose newest tool list has tool search in place of most tools, each with the name of
    /// the client's profile.
    folded: HashSet<ToolListRecipient>,
}

/// A caller who receives tool lists, with the name of the client's profile.
type ToolListRecipient = (CallerVisibilityKey, Option<&'static str>);

impl SentToolLists {
    fn find(&self, key: &ToolListKey) -> Option<SentToolListContent> {
        self.known.get(key).map(|(_, decision)| decision.clone())
    }

    fn keep(&mut self, key: ToolListKey, decision: SentToolListContent) {
        if self.known.len() >= LISTS_MAX && !self.known.contains_key(&key) {
            let oldest = self.known.iter().min_by_key(|(_, (number, _))| *number);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.known.remove(&oldest);
            }
        }
        self.count += 1;
        self.known.insert(key, (self.count, decision));
    }

    /// Records whether the newest tool list of `owner` has tool search in place of most tools.
    fn note_form(&mut self, owner: ToolListRecipient, is_folded: bool) {
        if !is_folded {
            self.folded.remove(&owner);
            return;
        }
        if self.folded.len() >= LISTS_MAX && !self.folded.contains(&owner) {
            // The lists of these callers are decided as if they were new.
            self.folded.clear();
        }
        self.folded.insert(owner);
    }

    /// Returns true if a tool list of the owner of `key` has tool search in place of most tools,
    /// whatever the client.
    fn has_folded(&self, key: &ToolListKey) -> bool {
        let folded = |it: &SentToolListContent| matches!(it, SentToolListContent::Folded(_));
        self.known
            .iter()
            .any(|(known, (_, decision))| folded(decision) && known.is_equal_except_client(key))
    }

    pub(super) fn end_session(&mut self, session: &str) {
        self.known.remove(&ToolListKey::Session(session.into()));
    }
}

impl ToolListKey {
    fn new(
        caller: &Caller,
        session: Option<&Arc<str>>,
        client: Option<&'static ClientProfile>,
    ) -> Self {
        match session {
            Some(session) => Self::Session(session.clone()),
            None => Self::Day(
                CallerVisibilityKey::new(caller),
                Timestamp::now().as_second().div_euclid(DAY_S),
                client.map(|client| client.name),
            ),
        }
    }

    /// Returns true if the two keys are equal, apart from the client's profile.
    fn is_equal_except_client(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Day(caller, day, _), Self::Day(other_caller, other_day, _)) => {
                day == other_day && caller == other_caller
            }
            _ => self == other,
        }
    }
}

impl Gate {
    /// Returns a page of the tool list of `caller`, with tool search in place of most tools if the
    /// settings demand that.
    pub(crate) fn listed_tools(
        &self,
        caller: &Caller,
        dialect: &str,
        metadata: &CallMetadata,
        after: Option<&ToolId>,
    ) -> ToolPage {
        let size = self.settings.page_size;
        let session = metadata.session.as_ref();
        let client = metadata.client;
        match self.list_decision(caller, dialect, session, client) {
            SentToolListContent::Whole(remembered) => {
                let page = self.tool_page(caller, after, size);
                match client.is_some_and(|client| client.has_search) {
                    true => self.with_loading_hints(page, &remembered),
                    false => page,
                }
            }
            SentToolListContent::Folded(tools) => {
                // Another rule may have hidden a tool since the list was decided.
                let shown = tools.iter().filter(|tool| self.policy.shows(caller, tool.spec()));
                let shown: Vec<_> = shown.cloned().collect();
                let place = |id: &ToolId| shown.iter().position(|tool| tool.spec().id == *id);
                let start = after.and_then(place).map_or(0, |at| at + 1);
                let rest = &shown[start.min(shown.len())..];
                let tools: Vec<_> = rest.iter().take(size).cloned().collect();
                let next = tools.last().filter(|_| rest.len() > tools.len());
                let next = next.map(|tool| tool.spec().id.clone());
                ToolPage { tools, next, unchanged_for: session.is_none().then(rest_of_day) }
            }
        }
    }

    /// Returns true if a change of the catalog changes the list of `caller`. A list with the search
    /// tools in place of most tools stays so for the session, or for the day of a caller without a
    /// session.
    pub(crate) fn lists_follow_catalog(&self, caller: &Caller, session: Option<&Arc<str>>) -> bool {
        !lock_mutex(&self.tool_search.lists).has_folded(&ToolListKey::new(caller, session, None))
    }

    /// Returns true if `call` names a tool of the shortened list that its client received.
    pub(super) fn has_listed(&self, call: &ToolCall) -> bool {
        let CallMetadata { session, client, .. } = &call.metadata;
        let key = ToolListKey::new(&call.caller, session.as_ref(), *client);
        let Some(SentToolListContent::Folded(tools)) =
            lock_mutex(&self.tool_search.lists).find(&key)
        else {
            return false;
        };
        let name = fold_name(&call.tool);
        tools.iter().any(|tool| fold_name(tool.spec().id.as_str()) == name)
    }

    fn list_decision(
        &self,
        caller: &Caller,
        dialect: &str,
        session: Option<&Arc<str>>,
        client: Option<&'static ClientProfile>,
    ) -> SentToolListContent {
        let ToolSearch { settings, .. } = &self.tool_search;
        if settings.mode == ToolListSelection::Whole || !settings.dialects.contains(&dialect) {
            return SentToolListContent::Whole(Arc::default());
        }
        let key = ToolListKey::new(caller, session, client);
        if let Some(known) = lock_mutex(&self.tool_search.lists).find(&key) {
            return known;
        }
        let catalog = self.catalog.snapshot();
        let owner = (CallerVisibilityKey::new(caller), client.map(|client| client.name));
        let was_folded = lock_mutex(&self.tool_search.lists).folded.contains(&owner);
        let folded = self.fold_list(&catalog, caller, client, was_folded);
        let is_folded = folded.is_some();
        let decision = folded.map_or_else(
            || match settings.memory {
                // Questions of other callers are never shown.
                ToolSearchMemoryScope::Shared => SentToolListContent::Whole(Arc::default()),
                scope => {
                    let memory = lock_mutex(&self.tool_search.memory);
                    SentToolListContent::Whole(memory.learned(scope, caller, session))
                }
            },
            SentToolListContent::Folded,
        );
        let is_complete = self.catalog.is_complete();
        let mut lists = lock_mutex(&self.tool_search.lists);
        // While an upstream is missing, a list may be whole only because of that, and a list for
        // the whole day would lack its favourites.
        if (is_folded && session.is_some()) || is_complete {
            lists.keep(key, decision.clone());
        }
        if is_folded || is_complete {
            lists.note_form(owner, is_folded);
        }
        drop(lists);
        decision
    }

    /// Asks the client to keep favourite tools in the context of its model, and adds the queries by
    /// which the caller has found tools before.
    fn with_loading_hints(&self, page: ToolPage, remembered: &RememberedToolQueries) -> ToolPage {
        let tools = page.tools.into_iter().map(|tool| {
            let tool = match self.tool_search.is_favourite(&tool.spec().id) {
                true => always_loaded(&tool, None),
                false => tool,
            };
            match remembered.hint(tool.spec().id.as_str()) {
                Some(hint) => {
                    let mut spec: ToolSpec = tool.spec().clone();
                    let hint = self.secrets.redact(&hint).into_owned();
                    spec.meta.insert(SEARCH_HINT.to_owned(), Value::String(hint));
                    with_spec(tool, spec)
                }
                None => tool,
            }
        });
        ToolPage { tools: tools.collect(), ..page }
    }

    /// Returns the tools of a list with tool search in place of most tools, or `None` if the list
    /// has to contain all tools.
    fn fold_list(
        &self,
        catalog: &Catalog,
        caller: &Caller,
        client: Option<&ClientProfile>,
        was_folded: bool,
    ) -> Option<Arc<[Arc<dyn AnyTool>]>> {
        let settings = &self.tool_search.settings;
        let meta = |id: &str| {
            let entry = catalog.entry(&ToolId::new(id)?)?;
            self.policy.shows(caller, entry.spec()).then_some(entry)
        };
        // Without these, the caller could not reach the other tools.
        let (Some(search), Some(call)) = (meta(SEARCH), meta(CALL)) else {
            return None;
        };
        let seen = catalog.entries().iter().filter(|it| self.is_searchable(caller, it.spec()));
        let seen: Vec<&Arc<CatalogToolEntry>> = seen.collect();
        let foreign = || seen.iter().filter(|entry| entry.is_foreign());
        let tokens = || foreign().map(|entry| entry.listed_tokens()).sum::<usize>();
        let budget = match was_folded {
            true => settings.budget_tokens.saturating_mul(UNFOLD_PERCENT) / 100,
            false => settings.budget_tokens,
        };
        let is_short = || match client {
            Some(client) if seen.len() > client.tools_max => false,
            Some(client) if client.has_search => true,
            Some(_) | None => tokens() <= budget,
        };
        if settings.mode == ToolListSelection::Auto && is_short() {
            return None;
        }
        let is_favourite =
            |entry: &CatalogToolEntry| self.tool_search.is_favourite(&entry.spec().id);
        let is_own = |entry: &CatalogToolEntry| {
            settings.mode == ToolListSelection::Auto && !entry.is_foreign()
        };
        let (kept, folded): (Vec<_>, Vec<_>) =
            seen.into_iter().partition(|entry| is_favourite(entry) || is_own(entry));
        if folded.is_empty() {
            return None;
        }
        let (favourites, own): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|entry| is_favourite(entry));
        // What may differ from day to day comes last.
        let mut tools: Vec<_> = favourites
            .into_iter()
            .chain(own)
            .map(|it| always_loaded(it.shared_tool(), None))
            .collect();
        let description = search_description(&counts(&folded));
        tools.push(always_loaded(search.shared_tool(), Some(description)));
        tools.push(always_loaded(call.shared_tool(), None));
        let has_reading = folded.iter().any(|entry| entry.spec().effects == Effects::Reads);
        let read = meta(READ).filter(|_| has_reading && settings.lists_read_tool);
        tools.extend(read.map(|read| always_loaded(read.shared_tool(), None)));
        Some(tools.into())
    }
}

/// Returns the time until the end of the current day in UTC.
fn rest_of_day() -> Duration {
    let left = DAY_S - Timestamp::now().as_second().rem_euclid(DAY_S);
    Duration::from_secs(left.unsigned_abs())
}

/// Returns the number of tools of each server among `entries`.
fn counts(entries: &[&Arc<CatalogToolEntry>]) -> Vec<(String, usize)> {
    let mut servers: Vec<(String, usize)> = Vec::new();
    for entry in entries {
        match servers.iter_mut().find(|(name, _)| name == entry.server()) {
            Some((_, count)) => *count += 1,
            None => servers.push((entry.server().to_owned(), 1)),
        }
    }
    servers
}

/// Returns `tool` with a mark that asks clients to keep the tool in the context. Replaces its
/// description by `description`, if given.
fn always_loaded(tool: &Arc<dyn AnyTool>, description: Option<String>) -> Arc<dyn AnyTool> {
    let mut spec: ToolSpec = tool.spec().clone();
    spec.meta.insert(ALWAYS_LOAD.to_owned(), Value::Bool(true));
    if let Some(description) = description {
        spec.description = description;
    }
    with_spec(tool.clone(), spec)
}
