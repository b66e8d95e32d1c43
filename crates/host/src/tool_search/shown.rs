//! Remembers the tools that each session has received, so that search answers need not repeat their
//! arguments.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use blake3::{Hash, Hasher};
use toolgate_contract::{Caller, ToolSpec};

use super::ToolSearchMemoryScope;
use super::memory::ToolSearchMemoryKey;
use crate::catalog::CatalogToolEntry;

/// Maximum number of sessions whose received tools are remembered. Beyond it, the tools of all
/// sessions are forgotten and sent again.
const SESSIONS_MAX: usize = 1024;
/// Maximum number of tools that are remembered for one session.
const NOTES_MAX: usize = 4096;
/// Maximum number of queries that are remembered for one session. Callers choose them, unlike the
/// tools.
const QUERIES_MAX: usize = 256;

/// Id of a tool that a search answer contains, with the hash of the tool's current definition.
#[derive(Clone)]
pub(super) struct ShownToolVersion {
    id: String,
    hash: Hash,
}

impl ShownToolVersion {
    /// Creates the identity of the tool `entry`. The first call for a tool serializes its schema,
    /// so do not hold a lock.
    pub(super) fn new(entry: &CatalogToolEntry) -> Self {
        let id = entry.spec().id.as_str().to_owned();
        Self { id, hash: entry.search_hash(definition_hash) }
    }
}

/// The tools that each session has received from searches.
#[derive(Default)]
pub(super) struct SessionShownTools {
    sessions: HashMap<ToolSearchMemoryKey, SessionSearchHistory>,
}

/// Tools that one session has received from searches, and queries that it has sent.
#[derive(Default)]
struct SessionSearchHistory {
    /// Tools whose one-line description the session has received, by id, with the hash of their
    /// definitions.
    lines: HashMap<String, Hash>,
    /// Tools whose schemas the session has received, by id, with the hash of their definitions.
    schemas: HashMap<String, Hash>,
    /// Hashes of the queries that the session has sent.
    queries: HashSet<Hash>,
}

impl SessionShownTools {
    /// Records that the session receives a tool's one-line description. Returns true if the session
    /// has received the same line before.
    pub(super) fn note_line(
        &mut self,
        caller: &Caller,
        session: Option<&Arc<str>>,
        tool: ShownToolVersion,
    ) -> bool {
        self.notes(caller, session).is_some_and(|notes| note_tool(&mut notes.lines, tool))
    }

    /// Records that the session receives a tool's schema. Returns true if the session has received
    /// the same schema before.
    pub(super) fn note_schema(
        &mut self,
        caller: &Caller,
        session: Option<&Arc<str>>,
        tool: ShownToolVersion,
    ) -> bool {
        self.notes(caller, session).is_some_and(|notes| note_tool(&mut notes.schemas, tool))
    }

    /// Records that `query` is answered. Returns true if the session has sent this query before:
    /// the model of the session has then probably lost the earlier answer.
    pub(super) fn note_query(
        &mut self,
        caller: &Caller,
        session: Option<&Arc<str>>,
        query: &str,
    ) -> bool {
        let Some(notes) = self.notes(caller, session) else { return false };
        if notes.queries.len() >= QUERIES_MAX {
            notes.queries.clear();
        }
        !notes.queries.insert(blake3::hash(query.as_bytes()))
    }

    pub(super) fn end_session(&mut self, session: &str) {
        self.sessions.remove(&ToolSearchMemoryKey::Session(session.into()));
    }

    /// Returns the search history of the session, or `None` for a caller without a session.
    fn notes(
        &mut self,
        caller: &Caller,
        session: Option<&Arc<str>>,
    ) -> Option<&mut SessionSearchHistory> {
        let key = ToolSearchMemoryKey::new(ToolSearchMemoryScope::Session, caller, session)?;
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&key) {
            self.sessions.clear();
        }
        Some(self.sessions.entry(key).or_default())
    }
}

/// Records in `known` that the session receives `tool`. Returns true if the session has already
/// received the current definition of the tool.
fn note_tool(known: &mut HashMap<String, Hash>, tool: ShownToolVersion) -> bool {
    if known.len() >= NOTES_MAX {
        known.clear();
    }
    let ShownToolVersion { id, hash } = tool;
    known.insert(id, hash) == Some(hash)
}

/// Returns the hash of the effects, description and schema of a tool, which a search shows.
fn definition_hash(spec: &ToolSpec) -> Hash {
    let schema = serde_json::to_string(&*spec.input_schema).unwrap_or_default();
    let mut hasher = Hasher::new();
    for part in [spec.effects.as_str(), &spec.description, &schema] {
        hasher.update(part.as_bytes());
        hasher.update(&[0]);
    }
    hasher.finalize()
}
