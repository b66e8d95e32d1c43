//! Counts the tokens of tool search: in lists, answers and sessions.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use toolgate_tool_search::{
    BestToolConfidence, CALL_DESCRIPTION, FoundTool, READ_DESCRIPTION, ToolQueryResults,
    ToolSearchQuery, call_schema, search_description, search_schema, signature, write_findings,
};

use super::ours::IndexedTools;
use super::sets::{CatalogTool, ToolSet};

fn count(text: &str) -> usize {
    bpe_openai::cl100k_base().count(text)
}

/// Returns the number of tokens of a tool in `tools/list`: name, description and arguments.
fn listed(name: &str, description: &str, schema: &Value) -> usize {
    count(&json!({ "name": name, "description": description, "inputSchema": schema }).to_string())
}

/// Returns the number of tokens of a list in which `tools` are folded into search tools.
pub fn folded_list(tools: &[CatalogTool]) -> usize {
    let mut servers: Vec<(String, usize)> = Vec::new();
    for tool in tools {
        match servers.iter_mut().find(|(name, _)| *name == tool.server) {
            Some((_, count)) => *count += 1,
            None => servers.push((tool.server.clone(), 1)),
        }
    }
    listed("tools_search", &search_description(&servers), &search_schema())
        + listed("tools_call", CALL_DESCRIPTION, &call_schema())
        + listed("tools_read", READ_DESCRIPTION, &call_schema())
}

/// Returns the name under which toolgate lists `tool`: the name of its server, then its own.
fn served_name(tool: &CatalogTool) -> String {
    if tool.server.is_empty() {
        return tool.name.clone();
    }
    let server = tool.server.replace(|c: char| !c.is_alphanumeric(), "_").to_lowercase();
    format!("{server}_{}", tool.name)
}

/// Returns the text of the answer to `question`, with the best `limit` tools.
pub fn answer(
    tools: &[CatalogTool],
    indexed: &IndexedTools,
    question: &str,
    limit: usize,
) -> String {
    answer_in_session(tools, indexed, question, limit, &mut HashSet::new())
}

/// Returns the text of the answer to `question` in a session that has received the tools with the
/// indexes `shown`. Adds the tools of the answer to `shown`.
fn answer_in_session(
    tools: &[CatalogTool],
    indexed: &IndexedTools,
    question: &str,
    limit: usize,
    shown: &mut HashSet<usize>,
) -> String {
    let ranked = indexed.rank(&ToolSearchQuery::new(question), None);
    let found = ranked.into_iter().take(limit).map(|at| FoundTool {
        name: served_name(&tools[at]).into(),
        effects: "runs",
        description: &tools[at].description,
        input_schema: &tools[at].schema,
        was_shown: !shown.insert(at),
    });
    let findings = ToolQueryResults {
        query: question,
        tools: found.collect(),
        coverage: BestToolConfidence::Fits,
    };
    write_findings(&[findings], 0)
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn ratio(some: usize, all: usize) -> f64 {
    some as f64 / all.max(1) as f64
}

/// Returns the tables of token counts, measured on the searches of `sessions`.
pub fn tables(sessions: &ToolSet) -> String {
    let tools = &sessions.tools;
    let indexed = IndexedTools::new(tools);
    let whole: usize = tools.iter().map(|it| listed(&it.name, &it.description, &it.schema)).sum();
    let folded = folded_list(tools);
    let mut text = format!(
        "| list of the {} tools | tokens |\n|---|---|\n| whole list | {whole} |\n\
         | short list, with tool search | {folded} |\n\n",
        tools.len()
    );
    let questions: Vec<&String> = sessions.tasks.iter().flat_map(|it| &it.questions).collect();
    text.push_str("| answer | median | 95th percentile | maximum |\n|---|---|---|---|\n");
    for (limit, name) in [(5, "5 tools"), (10, "10 tools")] {
        let answers = questions.iter().map(|it| count(&answer(tools, &indexed, it, limit)));
        let mut counts: Vec<usize> = answers.collect();
        counts.sort_unstable();
        let at = |share: usize| counts[(counts.len() - 1) * share / 100];
        _ = writeln!(text, "| {name} | {} | {} | {} |", at(50), at(95), at(100));
    }
    let answers = sessions.tasks.iter().map(|task| {
        let mut shown = HashSet::new();
        let asked = task.questions.iter();
        asked
            .map(|it| count(&answer_in_session(tools, &indexed, it, 10, &mut shown)))
            .sum::<usize>()
    });
    let per_session = ratio(answers.sum(), sessions.tasks.len());
    let lossy = tools.iter().filter(|it| signature(&it.schema).is_lossy).count();
    let searches = ratio(questions.len(), sessions.tasks.len());
    let session = ratio(folded, 1) + per_session;
    _ = writeln!(
        text,
        "\nA session with 10 tools for each of its {searches:.1} searches costs {session:.0} tokens \
         with the short list, {:.1} % less than the whole list. If the session \
         has already found a tool, the answer repeats only the tool's name. {:.1} % of the lines in \
         answers leave out part of a tool's schema.",
        100.0 * (1.0 - session / ratio(whole, 1)),
        100.0 * ratio(lossy, tools.len()),
    );
    text
}
