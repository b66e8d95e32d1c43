//! Folded lists. A list is decided once for a session, or once a day for a caller without one, so
//! that clients keep their prompt caches.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use toolgate_contract::{AnyTool, Caller, Effects, ToolId, ToolPage, ToolSpec, with_spec};
use toolgate_tool_search::search_description;

use super::{CALL, READ, SEARCH, ToolListMode, ToolSearch};
use crate::Gate;
use crate::catalog::{CallerVisibility, Catalog, CatalogEntry};

/// Most lists that are kept. Beyond it, the oldest is decided again.
const LISTS_MAX: usize = 4096;
/// Field that asks clients with a search of their own to keep a tool in the context.
const ALWAYS_LOAD: &str = "anthropic/alwaysLoad";

/// A client whose list is decided.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ListKey {
    Session(Arc<str>),
    /// A caller without a session, on one day (in UTC).
    Day(CallerVisibility, i64),
}

/// A decided list.
#[derive(Clone)]
pub(super) enum ListDecision {
    /// All tools, as they are now.
    Whole,
    /// Only the tools in the field.
    Folded(Arc<[Arc<dyn AnyTool>]>),
}

/// Decided lists, with the order in which they were decided.
#[derive(Default)]
pub(super) struct DecidedLists {
    known: HashMap<ListKey, (u64, ListDecision)>,
    count: u64,
}

impl DecidedLists {
    fn find(&self, key: &ListKey) -> Option<ListDecision> {
        self.known.get(key).map(|(_, decision)| decision.clone())
    }

    fn keep(&mut self, key: ListKey, decision: ListDecision) {
        if self.known.len() >= LISTS_MAX && !self.known.contains_key(&key) {
            let oldest = self.known.iter().min_by_key(|(_, (number, _))| *number);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.known.remove(&oldest);
            }
        }
        self.count += 1;
        self.known.insert(key, (self.count, decision));
    }

    pub(super) fn end_session(&mut self, session: &str) {
        self.known.remove(&ListKey::Session(session.into()));
    }
}

impl ListKey {
    fn new(caller: &Caller, session: Option<&Arc<str>>) -> Self {
        const DAY_S: i64 = 86_400;
        match session {
            Some(session) => Self::Session(session.clone()),
            None => Self::Day(
                CallerVisibility::new(caller),
                Timestamp::now().as_second().div_euclid(DAY_S),
            ),
        }
    }
}

impl Gate {
    /// Returns a page of the list of `caller`, folded if the settings say so.
    pub(crate) fn listed_tools(
        &self,
        caller: &Caller,
        dialect: &str,
        session: Option<&Arc<str>>,
        after: Option<&ToolId>,
    ) -> ToolPage {
        let size = self.settings.page_size;
        match self.list_decision(caller, dialect, session) {
            ListDecision::Whole => self.tool_page(caller, after, size),
            ListDecision::Folded(tools) => {
                // Another rule may have hidden a tool since the list was decided.
                let shown = tools.iter().filter(|tool| self.policy.shows(caller, tool.spec()));
                let shown: Vec<_> = shown.cloned().collect();
                let place = |id: &ToolId| shown.iter().position(|tool| tool.spec().id == *id);
                let start = after.and_then(place).map_or(0, |at| at + 1);
                let rest = &shown[start.min(shown.len())..];
                let tools: Vec<_> = rest.iter().take(size).cloned().collect();
                let next = tools.last().filter(|_| rest.len() > tools.len());
                ToolPage { next: next.map(|tool| tool.spec().id.clone()), tools }
            }
        }
    }

    /// Returns true if a change of the catalog changes the list of `caller`. A folded list stays as
    /// it was decided.
    pub(crate) fn lists_follow_catalog(&self, caller: &Caller, session: Option<&Arc<str>>) -> bool {
        let known = self.tool_search.lists().find(&ListKey::new(caller, session));
        !matches!(known, Some(ListDecision::Folded(_)))
    }

    fn list_decision(
        &self,
        caller: &Caller,
        dialect: &str,
        session: Option<&Arc<str>>,
    ) -> ListDecision {
        let ToolSearch { settings, .. } = &self.tool_search;
        if settings.mode == ToolListMode::Whole || !settings.dialects.contains(&dialect) {
            return ListDecision::Whole;
        }
        let key = ListKey::new(caller, session);
        if let Some(known) = self.tool_search.lists().find(&key) {
            return known;
        }
        let catalog = self.catalog.snapshot();
        let decision = self.decide_list(&catalog, caller);
        // While an upstream is missing, a list may be whole only because of that, and a list for
        // the whole day would lack its favourites.
        let is_folded_session = session.is_some() && matches!(decision, ListDecision::Folded(_));
        if is_folded_session || self.catalog.is_complete() {
            self.tool_search.lists().keep(key, decision.clone());
        }
        decision
    }

    fn decide_list(&self, catalog: &Catalog, caller: &Caller) -> ListDecision {
        let settings = &self.tool_search.settings;
        let meta = |id: &str| {
            let entry = catalog.entry(&ToolId::new(id)?)?;
            self.policy.shows(caller, entry.spec()).then_some(entry)
        };
        // Without these, the caller could not reach the other tools.
        let (Some(search), Some(call)) = (meta(SEARCH), meta(CALL)) else {
            return ListDecision::Whole;
        };
        let seen = catalog.entries().iter().filter(|it| self.is_searchable(caller, it.spec()));
        let seen: Vec<&Arc<CatalogEntry>> = seen.collect();
        let foreign = || seen.iter().filter(|entry| entry.is_foreign());
        let tokens = || foreign().map(|entry| entry.listed_tokens()).sum::<usize>();
        if settings.mode == ToolListMode::Auto && tokens() <= settings.budget_tokens {
            return ListDecision::Whole;
        }
        let is_favourite = |entry: &CatalogEntry| self.tool_search.is_favourite(&entry.spec().id);
        let is_own =
            |entry: &CatalogEntry| settings.mode == ToolListMode::Auto && !entry.is_foreign();
        let (kept, folded): (Vec<_>, Vec<_>) =
            seen.into_iter().partition(|entry| is_favourite(entry) || is_own(entry));
        if folded.is_empty() {
            return ListDecision::Whole;
        }
        let (favourites, own): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|entry| is_favourite(entry));
        // What may differ from day to day comes last.
        let mut tools: Vec<_> =
            favourites.into_iter().chain(own).map(|entry| always_loaded(entry, None)).collect();
        tools.push(always_loaded(&search, Some(search_description(&counts(&folded)))));
        tools.push(always_loaded(&call, None));
        let has_reading = folded.iter().any(|entry| entry.spec().effects == Effects::Reads);
        let read = meta(READ).filter(|_| has_reading);
        tools.extend(read.map(|read| always_loaded(&read, None)));
        ListDecision::Folded(tools.into())
    }
}

/// Returns the number of tools of each server.
fn counts(entries: &[&Arc<CatalogEntry>]) -> Vec<(String, usize)> {
    let mut servers: Vec<(String, usize)> = Vec::new();
    for entry in entries {
        match servers.iter_mut().find(|(name, _)| name == entry.server()) {
            Some((_, count)) => *count += 1,
            None => servers.push((entry.server().to_owned(), 1)),
        }
    }
    servers
}

/// Returns the tool of `entry` for a folded list, with another `description` if there is one.
fn always_loaded(entry: &CatalogEntry, description: Option<String>) -> Arc<dyn AnyTool> {
    let mut spec: ToolSpec = entry.spec().clone();
    spec.meta.insert(ALWAYS_LOAD.to_owned(), Value::Bool(true));
    if let Some(description) = description {
        spec.description = description;
    }
    with_spec(entry.shared_tool().clone(), spec)
}
