//! Settings of tool lists and tool search.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tool lists of MCP clients, and the search that replaces long lists.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiscoverySection {
    /// Tools in the list of an MCP client. `off` lists all tools. `on` lists the favourites, and
    /// the tools that find and call all others: `tools_search`, `tools_call`, `tools_read`. `auto`
    /// lists all tools if the tools of upstreams have at most `budget_tokens`. Otherwise, clients
    /// find the tools of upstreams by search. Claude Code, VS Code and Windsurf have their own
    /// limits.
    pub mode: ToolDiscoveryMode,
    /// Maximum number of tokens for the tools of all upstreams. If `mode = "auto"` and the tools
    /// need more, clients get tool search instead of the whole list. toolgate counts the name,
    /// description and arguments of each tool, and estimates the tokens from the number of
    /// characters. Once a caller has got tool search, the caller gets the whole list again only if
    /// the tools need at most 70 % of this number.
    #[schemars(range(min = 0, max = 10_000_000))]
    pub budget_tokens: u32,
    /// Patterns of tools that every list contains, such as `github.create_issue` or `files.*`.
    pub favourites: Vec<String>,
    /// Adds `tools_read` to the short list of tools. `tools_read` calls only tools that change
    /// nothing, so a client can allow `tools_read` without asking a person. Without `tools_read`,
    /// agents call all tools with `tools_call`.
    pub read_tool: bool,
    /// Memory of search queries that led to a successful call. In later searches with similar
    /// words, the called tool ranks higher. `session` keeps the queries until the session ends.
    /// `caller` keeps the queries until the server stops, and `off` keeps no queries. With
    /// `shared`, queries of each caller affect the results of all others, so use `shared` only if
    /// you trust all callers. toolgate does not write the queries to disk.
    pub memory: ToolDiscoveryMemory,
}

/// Rule for the tool lists of MCP clients: all tools, or few tools and a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolDiscoveryMode {
    /// Lists contain all tools.
    Off,
    /// Lists contain all tools, unless the tools of upstreams need more tokens than
    /// `budget_tokens`.
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
