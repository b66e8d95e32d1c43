//! Measures the duration of a search in a large catalog, and the size of the index.

use std::time::{Duration, Instant};

use super::ours::IndexedTools;
use super::sets::{CatalogTool, ToolSet};
use super::tokens;

/// Number of tools in the large catalog whose search is timed.
const TOOLS: usize = 10_000;
/// Number of questions whose search is timed.
const QUESTIONS: usize = 1_000;

/// Returns the tools of all sets, repeated under other server names until there are 10,000.
fn many_tools(sets: &[&ToolSet]) -> Vec<CatalogTool> {
    let all: Vec<&CatalogTool> = sets.iter().flat_map(|set| &set.tools).collect();
    let repeated = all.iter().cycle().take(TOOLS).enumerate().map(|(at, tool)| {
        let copy = at / all.len();
        CatalogTool {
            id: format!("{at:06}"),
            server: format!("{}{copy}", tool.server),
            ..(*tool).clone()
        }
    });
    repeated.collect()
}

/// Measures searches in a large catalog. Returns a sentence about their latency, which includes
/// rendering the answer but no transport.
pub fn measure(sets: &[&ToolSet], questions: &[&str]) -> String {
    let tools = many_tools(sets);
    let started = Instant::now();
    let indexed = IndexedTools::new(&tools);
    let built = started.elapsed();
    let mut times: Vec<Duration> = questions
        .iter()
        .cycle()
        .take(QUESTIONS)
        .map(|question| {
            let started = Instant::now();
            let answer = tokens::answer(&tools, &indexed, question, 10);
            let time = started.elapsed();
            assert!(!answer.is_empty());
            time
        })
        .collect();
    times.sort_unstable();
    let millis = |at: usize| times[(times.len() - 1) * at / 100].as_secs_f64() * 1000.0;
    #[allow(clippy::cast_precision_loss, reason = "megabytes need no exact bytes")]
    let megabytes = indexed.index.bytes() as f64 / 1e6;
    format!(
        "A search of {TOOLS} tools takes, with its answer and without its transport, p50 {:.2} ms and \
         p99 {:.2} ms. Building the index takes {:.0} ms, and the index has {megabytes:.1} MB.\n",
        millis(50),
        millis(99),
        built.as_secs_f64() * 1000.0,
    )
}
