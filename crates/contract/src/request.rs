//! What a dialect can ask of the host, and what the host answers.

use std::sync::Arc;

use serde_json::Value;

use crate::{AnyTool, Output, ToolId};

/// What a dialect read in a frame, with the wire's spelling gone.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The tools on offer, from after the one named.
    ListTools {
        /// The last tool of the page before, or the start.
        after: Option<ToolId>,
    },
    /// One tool, run.
    CallTool {
        /// Its name as the wire spells it.
        tool: String,
        /// Its arguments.
        input: Value,
    },
}

/// What the host answers.
#[derive(Clone)]
pub enum Answer {
    /// A page of tools.
    Tools(ToolPage),
    /// What the tool gave back.
    Output(Output),
}

/// A page of the catalog, in order of id.
#[derive(Clone)]
pub struct ToolPage {
    /// The tools.
    pub tools: Vec<Arc<dyn AnyTool>>,
    /// Where the next page starts after, if there is one.
    pub next: Option<ToolId>,
}
