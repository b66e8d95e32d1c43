//! Text that answers a search for tools.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

use crate::BestToolConfidence;
use crate::lines::tool_line;

/// A found tool, as the answer of a search shows it.
#[derive(Debug, Clone)]
pub struct FoundTool<'t> {
    /// Name by which the caller calls the tool.
    pub name: Cow<'t, str>,
    /// Effect of the tool in one word: reads, adds, changes or runs.
    pub effects: &'static str,
    /// Description of the tool.
    pub description: &'t str,
    /// JSON Schema of the tool's arguments.
    pub input_schema: &'t Value,
    /// True if the caller has received the tool's arguments already. The answer then contains only
    /// its name.
    pub was_shown: bool,
}

/// The tools that one query found.
#[derive(Debug, Clone)]
pub struct ToolQueryResults<'t> {
    /// Query as the caller wrote it.
    pub query: &'t str,
    /// Found tools, best first.
    pub tools: Vec<FoundTool<'t>>,
    /// Estimate of whether the best tool fits the query.
    pub coverage: BestToolConfidence,
}

/// Returns the answer to a search with `queries` as text. `left_out` is the number of tools that
/// were not searched because they do not belong to the server that the caller chose.
pub fn write_findings(queries: &[ToolQueryResults<'_>], left_out: usize) -> String {
    let mut text = String::new();
    let mut has_lossy = false;
    let mut has_shown = false;
    for ToolQueryResults { query, tools, coverage } in queries {
        if queries.len() > 1 {
            _ = writeln!(text, "{}", query.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        match (coverage, tools.is_empty()) {
            (_, true) => text.push_str("  no tool for this\n"),
            (BestToolConfidence::NearestOnly, false) => {
                text.push_str("  no tool for this; nearest by words:\n");
            }
            (BestToolConfidence::Fits, false) => {}
        }
        for tool in tools {
            if tool.was_shown {
                has_shown = true;
                _ = writeln!(text, "  {}  {}", tool.name, tool.effects);
                continue;
            }
            let line = tool_line(&tool.name, tool.effects, tool.description, tool.input_schema);
            has_lossy |= line.lines().next().is_some_and(|line| line.contains(") ~"));
            text.push_str(&line);
            text.push('\n');
        }
    }
    if left_out > 0 {
        _ = writeln!(text, "{left_out} tools of other servers were not searched.");
    }
    if has_shown {
        text.push_str("Arguments that were shown before are left out; `names` shows them again.\n");
    }
    if has_lossy {
        text.push_str("`~` marks a shortened schema; `names` shows the whole schema.");
    }
    text
}
