//! Provides the tools `tools.search`, `tools.call` and `tools.read`, and the tool lists that
//! contain them in place of most other tools.

mod memory;
mod shown;
mod vectors;
mod lists;
mod answers;
mod tools;
mod forwarding;
mod replies;

use std::sync::{Arc, Mutex, OnceLock, Weak};

use toolgate_contract::{AnyTool, Caller, ToolError, ToolErrorKind, ToolId, ToolSpec, lock_mutex};

use crate::Gate;
use crate::catalog::ServerDescriptionMap;
use crate::live_gate::ReloadableGate;
use crate::policy::{ToolPattern, ToolRuleError};
use answers::CallerToolSearch;
use lists::SentToolLists;
use memory::ToolSearchMemory;
use shown::SessionShownTools;

pub use forwarding::forwarded_tool;
pub use toolgate_tool_search::ToolWordScore;
pub use vectors::{SentenceModel, ToolVectors};

#[cfg(any(fuzzing, test))]
pub(crate) use forwarding::fuzz_call;
pub(crate) use forwarding::{forward, is_forwarder, run_forwarded};
pub(crate) use replies::explain_gone;

/// Id of the tool that finds tools.
const SEARCH: &str = "tools.search";
/// Id of the tool that calls other tools.
const CALL: &str = "tools.call";
/// Id of the tool that calls only tools that read and change nothing.
pub(crate) const READ: &str = "tools.read";

/// Name of the setting with the patterns of favourites, which every tool list contains.
const FAVOURITES: &str = "discovery.favourites";

/// Selection of the tools that a tool list contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolListSelection {
    /// Selects all tools.
    #[default]
    Whole,
    /// Selects all tools, if those of other servers are within the token budget. Otherwise selects
    /// this server's own tools and favourites.
    Auto,
    /// Selects only the favourites, and the tools that find and call all other tools.
    Folded,
}

/// Callers for whom the search remembers the queries that led to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolSearchMemoryScope {
    /// No queries are remembered.
    Off,
    /// Queries are remembered for the session in which they were asked.
    #[default]
    Session,
    /// Queries are remembered for the caller who asked them, until the server stops.
    Caller,
    /// Queries are remembered for all callers, until the server stops. They rank tools, and no
    /// caller sees them.
    Shared,
}

/// Settings of tool search.
#[derive(Debug, Clone)]
pub struct ToolSearchSettings {
    /// Selection of the tools in a list.
    pub mode: ToolListSelection,
    /// Maximum number of tokens of the tools of other servers in a list of
    /// [`ToolListSelection::Auto`].
    pub budget_tokens: usize,
    /// Callers for whom queries of tool search are remembered.
    pub memory: ToolSearchMemoryScope,
    /// Dialects whose tool lists may contain tool search in place of most tools. All other dialects
    /// promise certain tools by name.
    pub dialects: &'static [&'static str],
    /// Patterns of tools (favourites) that every list contains.
    pub favourites: Vec<String>,
    /// True if a list that replaces most tools by tool search contains `tools.read`.
    pub lists_read_tool: bool,
}

impl Default for ToolSearchSettings {
    fn default() -> Self {
        Self {
            mode: ToolListSelection::default(),
            budget_tokens: 0,
            memory: ToolSearchMemoryScope::default(),
            dialects: &[],
            favourites: Vec::new(),
            lists_read_tool: true,
        }
    }
}

/// A tool that a search finds, with the words of the query that found it.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedToolMatch {
    /// Name by which callers call the tool.
    pub name: String,
    /// Score of the match, which is comparable only within one search.
    pub score: f32,
    /// Words of the query that the tool contains, highest score first.
    pub words: Vec<ToolWordScore>,
}

/// Tool search: its settings, the tool lists that clients have received, and remembered queries.
#[derive(Default)]
pub(crate) struct ToolSearch {
    settings: ToolSearchSettings,
    favourites: Vec<ToolPattern>,
    lists: Mutex<SentToolLists>,
    memory: Mutex<ToolSearchMemory>,
    shown: Mutex<SessionShownTools>,
    /// Vectors of the tools by a sentence model, if one is configured.
    vectors: Option<ToolVectors>,
}

impl ToolSearch {
    pub(crate) fn new(
        settings: ToolSearchSettings,
        vectors: Option<ToolVectors>,
    ) -> Result<Self, ToolRuleError> {
        let favourites = settings.favourites.iter();
        let favourites = favourites.map(|pattern| ToolPattern::new(FAVOURITES, pattern));
        let favourites = favourites.collect::<Result<_, _>>()?;
        Ok(Self { settings, favourites, vectors, ..Self::default() })
    }

    fn is_favourite(&self, id: &ToolId) -> bool {
        self.favourites.iter().any(|pattern| pattern.matches(id))
    }

    /// Removes the tool list of `session`, its queries and the tools that it has received from
    /// memory.
    pub(crate) fn end_session(&self, session: &str) {
        lock_mutex(&self.lists).end_session(session);
        lock_mutex(&self.memory).end_session(session);
        lock_mutex(&self.shown).end_session(session);
    }
}

/// Reference from the tools of tool search to the gate (catalog, policy and limits) through which
/// they find and call all tools. The reference is set later, because tools are created before the
/// host.
#[derive(Clone, Default)]
pub struct ToolSearchHandle(Arc<OnceLock<Weak<ReloadableGate>>>);

impl ToolSearchHandle {
    pub(crate) fn set(&self, gate: &Arc<ReloadableGate>) {
        // The tools belong to the first host that offers them.
        let _ = self.0.set(Arc::downgrade(gate));
    }

    fn gate(&self) -> Result<Arc<Gate>, ToolError> {
        let live = self.0.get().and_then(Weak::upgrade);
        live.map(|live| live.current()).ok_or_else(|| {
            ToolError::new(ToolErrorKind::Unavailable, "this server has no tool search")
        })
    }
}

/// Creates the tools that find and call other tools, which they reach through `handle`.
pub(crate) fn tools(handle: &ToolSearchHandle) -> Vec<Arc<dyn AnyTool>> {
    tools::all(handle)
}

/// Returns true if the tool `id` finds or calls other tools.
pub(crate) fn is_meta_tool(id: &ToolId) -> bool {
    [SEARCH, CALL, READ].contains(&id.as_str())
}

impl Gate {
    /// Returns up to `count` tools that `caller` finds by the words of `question`, best first.
    pub(crate) fn explain_search(
        &self,
        caller: &Caller,
        question: &str,
        count: usize,
    ) -> Vec<ExplainedToolMatch> {
        CallerToolSearch::of_caller(self, caller, None).explain(question, count)
    }

    /// Returns the first sentence of each server's instructions, by server. Servers without
    /// instructions are left out.
    fn server_descriptions(&self) -> ServerDescriptionMap {
        let sources = self.library.dynamic_sources.as_ref();
        let instructions = sources.map(|sources| sources.instructions()).unwrap_or_default();
        let first = instructions
            .into_iter()
            .map(|(server, text)| (server, toolgate_tool_search::first_sentence(&text)));
        first.collect()
    }

    /// Returns true if `caller` may find the tool by a search. Tools that lists omit are never
    /// found, because a listed tool does the same.
    fn is_searchable(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        spec.listed && !is_meta_tool(&spec.id) && self.policy.shows(caller, spec)
    }
}
