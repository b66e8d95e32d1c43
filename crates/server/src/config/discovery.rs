//! Settings of tool lists and tool search.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tool lists of MCP clients, and the search that replaces long lists.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiscoverySection {
    /// Tools in the list of an MCP client. `off` lists all tools. `on` lists the favourites, and
    /// the tools that find and call all others (`tools_search`, `tools_call`, `tools_read`). `auto`
    /// lists all tools while those of upstreams have at most `budget_tokens`. Above that, clients
    /// find them by search. Claude Code, VS Code and Windsurf have limits of their own.
    pub mode: ToolDiscoveryMode,
    /// Maximum number of tokens of all upstreams' tools in a list, if `mode` is `auto`. The name,
    /// description and arguments of each tool are counted. The number of tokens is estimated from
    /// their characters. Once folded, a caller's lists stay folded down to 70 % of this number.
    #[schemars(range(min = 0, max = 10_000_000))]
    pub budget_tokens: u32,
    /// Patterns of tools that every list contains, such as `github.create_issue` or `files.*`.
    pub favourites: Vec<String>,
    /// Whether folded lists contain `tools_read`, which calls only tools that read. A client can
    /// always allow it. Without it, agents call all tools by `tools_call`.
    pub read_tool: bool,
    /// Memory of queries that led to a successful call. Such queries rank the called tool higher in
    /// later searches. `session` keeps the queries until the session ends, `caller` until the
    /// server stops, and `off` keeps none. With `shared`, the queries of all callers rank tools for
    /// all callers, so trust them. Nothing is written to disk.
    pub memory: ToolDiscoveryMemory,
}

/// Rule for the tool lists of MCP clients: all tools, or few tools and a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolDiscoveryMode {
    /// Lists contain all tools.
    Off,
    /// Lists contain all tools, unless those of upstreams need more tokens than the budget.
    Auto,
    /// Lists contain the favourites, and the tools that find and call all others.
    On,
}

/// Memory of the queries of tool search that led to a successful call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolDiscoveryMemory {
    /// No query is remembered.
    Off,
    /// Queries are remembered until their session ends.
    Session,
    /// Queries are remembered for their caller.
    Caller,
    /// The queries of all callers are remembered for all callers.
    Shared,
}

impl Default for DiscoverySection {
    fn default() -> Self {
        Self {
            mode: ToolDiscoveryMode::Auto,
            budget_tokens: 10_000,
            favourites: Vec::new(),
            read_tool: true,
            memory: ToolDiscoveryMemory::Session,
        }
    }
}
