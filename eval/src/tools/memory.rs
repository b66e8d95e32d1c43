//! Measures the gain if a session remembers questions that led to a call.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use toolgate_tool_search::{RememberedToolQueries, ToolSearchQuery};

use super::ours::IndexedTools;
use super::sets::ToolSet;

/// Number of tools for which each measured session remembers questions.
const TOOLS: usize = 64;

/// Returns a table of the recall on the questions of `measured` if a session remembers questions of
/// `others`. Both are halves of one data set. Each session remembers questions of the right tool,
/// and of 63 tools that do not help.
pub fn table(measured: &ToolSet, others: &ToolSet) -> String {
    let indexed = IndexedTools::new(&measured.tools);
    let known = questions_by_tool(others);
    let tools: Vec<usize> = known.keys().copied().collect();
    let tasks = measured.tasks.iter().filter_map(|task| {
        let (Some(question), [need]) = (task.questions.first(), &task.needs[..]) else {
            return None;
        };
        let tool = need.iter().copied().find(|tool| known.contains_key(tool))?;
        Some((ToolSearchQuery::new(question), need, tool))
    });
    let tasks: Vec<(ToolSearchQuery, &Vec<usize>, usize)> = tasks.collect();
    let mut text = format!(
        "{} questions of {} that need one tool, if the other half of the set \
         also has questions for this tool:\n\n| remembered questions | R@1 | R@5 |\n|---|---|---|\n",
        tasks.len(),
        measured.name
    );
    for count in [0, 1, 3, 10] {
        let mut met = [0_usize; 2];
        for (question, need, tool) in &tasks {
            let memory = remember(&known, &tools, *tool, count, &indexed);
            let ranked = indexed.rank_with(question, &memory, None);
            let rank = ranked.iter().position(|at| need.contains(at));
            met[0] += usize::from(rank == Some(0));
            met[1] += usize::from(rank.is_some_and(|rank| rank < 5));
        }
        #[allow(clippy::cast_precision_loss, reason = "tasks are few")]
        let share = |met: usize| met as f64 / tasks.len().max(1) as f64;
        _ = writeln!(text, "| {count} | {:.3} | {:.3} |", share(met[0]), share(met[1]));
    }
    text
}

/// Returns the questions of the tasks that need exactly one tool, by the index of that tool.
fn questions_by_tool(set: &ToolSet) -> BTreeMap<usize, Vec<ToolSearchQuery>> {
    let mut known: BTreeMap<usize, Vec<ToolSearchQuery>> = BTreeMap::new();
    for task in &set.tasks {
        if let ([need], Some(question)) = (&task.needs[..], task.questions.first())
            && let Some(tool) = need.first()
        {
            known.entry(*tool).or_default().push(ToolSearchQuery::new(question));
        }
    }
    known
}

/// Returns the memory of a session that called `tool` and the tools after it in the list `tools`,
/// with up to `count` questions for each tool.
fn remember(
    known: &BTreeMap<usize, Vec<ToolSearchQuery>>,
    tools: &[usize],
    tool: usize,
    count: usize,
    indexed: &IndexedTools,
) -> RememberedToolQueries {
    let mut memory = RememberedToolQueries::default();
    let start = tools.iter().position(|it| *it == tool).unwrap_or_default();
    for at in tools.iter().cycle().skip(start).take(TOOLS.min(tools.len())) {
        for question in known[at].iter().take(count) {
            memory.remember(indexed.index.id(*at), question);
        }
    }
    memory
}
