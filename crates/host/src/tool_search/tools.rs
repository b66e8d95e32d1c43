//! The tools `tools.search`, `tools.call` and `tools.read`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use toolgate_contract::{
    AnyTool, Effects, JobSupport, Tool, ToolContext, ToolError, ToolSpec, UnstructuredResult,
    erase_tool, with_spec,
};
use toolgate_tool_search::{CALL_DESCRIPTION, READ_DESCRIPTION, call_schema, search_schema};

use super::answers::CallerToolSearch;
use super::{CALL, READ, SEARCH, ToolSearchHandle};

/// Creates the three tools `tools.search`, `tools.call` and `tools.read`.
pub(super) fn all(handle: &ToolSearchHandle) -> Vec<Arc<dyn AnyTool>> {
    let call = erase_tool(CallTool);
    let spec = ToolSpec { announced_effects: Some(Effects::Runs), ..call.spec().clone() };
    vec![
        erase_tool(SearchTools(handle.clone())),
        with_spec(call, spec),
        erase_tool(CallReadOnlyTool),
    ]
}

/// Tool `tools.search`, which finds tools for a query.
struct SearchTools(ToolSearchHandle);

/// Input of `tools.search`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SearchToolsInput {
    /// One query for each need.
    queries: Vec<String>,
    /// A single query.
    query: Option<String>,
    /// Names of tools, to get their schemas.
    pub(super) names: Vec<String>,
    /// Server to search, or whose tools to list.
    pub(super) server: Option<String>,
    /// Number of tools for each query.
    pub(super) limit: Option<usize>,
    /// Page of the tools of a server, from 1.
    pub(super) page: Option<usize>,
}

impl SearchToolsInput {
    /// Returns all queries that are not empty.
    pub(super) fn all_queries(&self) -> impl Iterator<Item = &str> {
        let all = self.queries.iter().chain(&self.query);
        all.map(|query| query.trim()).filter(|query| !query.is_empty())
    }
}

impl Tool for SearchTools {
    const NAME: &'static str = SEARCH;
    const TITLE: &'static str = "Search tools";
    const DESCRIPTION: &'static str = "Find tools by what they do; call them with tools_call. Write \
        one query for each need. `names` returns whole schemas, `server` lists the tools of one \
        server.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const JOB: JobSupport = JobSupport::Never;
    type Input = SearchToolsInput;
    type Output = UnstructuredResult;

    fn input_schema() -> Value {
        search_schema()
    }

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let gate = self.0.gate()?;
        gate.catalog.wait_for_listings(None).await;
        Ok(UnstructuredResult::text(CallerToolSearch::new(&gate, ctx).answer(&input).await?))
    }
}

/// Tool `tools.call`, which calls the tool that its arguments name. The host runs the named tool,
/// so the code of `tools.call` itself never runs.
struct CallTool;

/// Tool `tools.read`, which calls the tool that its arguments name if that tool only reads.
struct CallReadOnlyTool;

/// The tool to call, and its arguments.
#[derive(Debug, Deserialize, JsonSchema)]
struct CallToolInput {
    name: String,
    #[serde(default)]
    #[allow(dead_code, reason = "part of the schema")]
    arguments: Map<String, Value>,
}

fn not_passed_on(tool: &str) -> ToolError {
    let message = format!("a call of `{tool}` cannot be passed on here; call the tool by its name");
    ToolError::invalid("/name", message)
}

impl Tool for CallTool {
    const NAME: &'static str = CALL;
    const TITLE: &'static str = "Call tool";
    const DESCRIPTION: &'static str = CALL_DESCRIPTION;
    // The called tool is checked by its own effects.
    const EFFECTS: Effects = Effects::Reads;
    type Input = CallToolInput;
    type Output = UnstructuredResult;

    fn input_schema() -> Value {
        call_schema()
    }

    async fn run(&self, _ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        Err(not_passed_on(&input.name))
    }
}

impl Tool for CallReadOnlyTool {
    const NAME: &'static str = READ;
    const TITLE: &'static str = "Call read-only tool";
    const DESCRIPTION: &'static str = READ_DESCRIPTION;
    const EFFECTS: Effects = Effects::Reads;
    type Input = CallToolInput;
    type Output = UnstructuredResult;

    fn input_schema() -> Value {
        call_schema()
    }

    async fn run(&self, _ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        Err(not_passed_on(&input.name))
    }
}
