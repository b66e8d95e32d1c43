//! Remembers queries that led to calls, by session or caller.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use toolgate_contract::{Caller, CallerKind};
use toolgate_tool_search::{RememberedToolQueries, ToolSearchQuery};

use super::ToolSearchMemoryScope;

/// Longest time between a search for tools and the call that it led to.
const PAIR_WINDOW: Duration = Duration::from_secs(600);
/// Maximum number of sessions or callers whose queries are remembered.
const KEYS_MAX: usize = 256;
/// Maximum number of queries of one search that are remembered.
const QUERIES_MAX: usize = 20;

/// Remembered queries of all sessions or callers, for tool search.
#[derive(Default)]
pub(super) struct ToolSearchMemory {
    known: HashMap<ToolSearchMemoryKey, RememberedSearches>,
    /// Queries of all callers, in the scope [`ToolSearchMemoryScope::Shared`].
    shared: Arc<RememberedToolQueries>,
}

/// Key of remembered queries: a session or a caller.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum ToolSearchMemoryKey {
    Session(Arc<str>),
    Caller(Caller),
}

/// Remembered queries of one session or caller.
struct RememberedSearches {
    learned: Arc<RememberedToolQueries>,
    /// The last search: each query, and the ids of the tools that it found.
    last: Vec<(ToolSearchQuery, Vec<String>)>,
    used: Instant,
}

impl ToolSearchMemoryKey {
    /// Returns the key under which the queries of `caller` or of `session` are remembered. Returns
    /// `None` if queries are not remembered.
    pub(super) fn new(
        scope: ToolSearchMemoryScope,
        caller: &Caller,
        session: Option<&Arc<str>>,
    ) -> Option<Self> {
        match scope {
            ToolSearchMemoryScope::Off => None,
            ToolSearchMemoryScope::Session => match session {
                Some(session) => Some(Self::Session(session.clone())),
                // Over stdio, a process serves one conversation.
                None if caller.kind == CallerKind::Local => Some(Self::new_caller(caller)),
                None => None,
            },
            ToolSearchMemoryScope::Caller | ToolSearchMemoryScope::Shared => {
                Some(Self::new_caller(caller))
            }
        }
    }

    fn new_caller(caller: &Caller) -> Self {
        Self::Caller(Caller::new(&caller.name, caller.kind))
    }
}

impl ToolSearchMemory {
    /// Returns the remembered queries that led to calls: those of the session, of the caller or of
    /// all callers, depending on `scope`.
    pub(super) fn learned(
        &self,
        scope: ToolSearchMemoryScope,
        caller: &Caller,
        session: Option<&Arc<str>>,
    ) -> Arc<RememberedToolQueries> {
        if scope == ToolSearchMemoryScope::Shared {
            return self.shared.clone();
        }
        let key = ToolSearchMemoryKey::new(scope, caller, session);
        key.and_then(|key| self.known.get(&key)).map(|it| it.learned.clone()).unwrap_or_default()
    }

    /// Records a search for tools, so that a following call can be assigned to its queries. Removes
    /// the queries for tools whose id `is_known` refuses.
    pub(super) fn note_search(
        &mut self,
        scope: ToolSearchMemoryScope,
        caller: &Caller,
        session: Option<&Arc<str>>,
        mut searched: Vec<(ToolSearchQuery, Vec<String>)>,
        is_known: impl Fn(&str) -> bool,
    ) {
        let Some(key) = ToolSearchMemoryKey::new(scope, caller, session) else { return };
        searched.truncate(QUERIES_MAX);
        if !self.known.contains_key(&key) && self.known.len() >= KEYS_MAX {
            self.known.retain(|_, kept| kept.used.elapsed() < PAIR_WINDOW);
            if self.known.len() >= KEYS_MAX {
                return;
            }
        }
        let used = Instant::now();
        let kept = self.known.entry(key).or_insert_with(|| RememberedSearches {
            learned: Arc::default(),
            last: Vec::new(),
            used,
        });
        (kept.last, kept.used) = (searched, used);
        let learned = match scope {
            ToolSearchMemoryScope::Shared => &mut self.shared,
            _ => &mut kept.learned,
        };
        if learned.has_unknown(&is_known) {
            Arc::make_mut(learned).forget_unknown(&is_known);
        }
    }

    /// Records that the last search for tools led to a successful call of the tool `id`.
    pub(super) fn note_call(
        &mut self,
        scope: ToolSearchMemoryScope,
        caller: &Caller,
        session: Option<&Arc<str>>,
        id: &str,
    ) {
        let key = ToolSearchMemoryKey::new(scope, caller, session);
        let Some(kept) = key.and_then(|key| self.known.get_mut(&key)) else { return };
        if kept.used.elapsed() > PAIR_WINDOW {
            return;
        }
        let found = kept.last.iter().filter(|(_, ids)| ids.iter().any(|known| known == id));
        let learned = match scope {
            ToolSearchMemoryScope::Shared => &mut self.shared,
            _ => &mut kept.learned,
        };
        for (question, _) in found {
            Arc::make_mut(learned).remember(id, question);
        }
    }

    pub(super) fn end_session(&mut self, session: &str) {
        self.known.remove(&ToolSearchMemoryKey::Session(session.into()));
    }
}
