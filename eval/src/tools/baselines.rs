//! Baselines for tool search, measured over the same tools in the same run.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, params};
use rust_stemmers::{Algorithm, Stemmer};
use toolgate_tool_search::ToolSearchDocument;

use super::sets::CatalogTool;
use crate::baselines::STOP_WORDS;
use crate::set::questions::identifier_parts;

/// Function that takes a question and returns the indexes of the best tools, best first.
pub type ToolRanker<'r> = Box<dyn FnMut(&str) -> anyhow::Result<Vec<usize>> + 'r>;

/// Number of tools that a ranker returns.
pub const RESULTS: usize = 10;

/// Returns the document that toolgate's tool search index has for `tool`.
pub fn document(tool: &CatalogTool) -> ToolSearchDocument {
    let CatalogTool { name, server, server_description, description, schema, .. } = tool;
    ToolSearchDocument::new(name, server, server_description, description, schema)
}

/// Returns the indexes of the [`RESULTS`] tools with the best scores. Equal scores keep their
/// order, and tools with score 0 are left out.
pub fn best(scores: &[f32]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).filter(|at| scores[*at] > 0.0).collect();
    places.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    places.truncate(RESULTS);
    places
}

/// Returns a ranker for plain text search: tools with most distinct words of the question come
/// first, then those with most hits.
pub fn any_word(tools: &[CatalogTool]) -> ToolRanker<'static> {
    let texts: Vec<String> = tools
        .iter()
        .map(|tool| format!("{} {} {}", tool.server, tool.name, tool.description).to_lowercase())
        .collect();
    Box::new(move |question| {
        let words: HashSet<String> = plain_words(question).into_iter().collect();
        let score = |text: &String| {
            let hits = words.iter().map(|word| text.matches(word.as_str()).count());
            let hits: Vec<usize> = hits.filter(|hits| *hits > 0).collect();
            #[allow(clippy::cast_precision_loss, reason = "words are few")]
            let score = hits.len() as f32 + hits.iter().sum::<usize>().min(900) as f32 / 1000.0;
            score
        };
        Ok(best(&texts.iter().map(score).collect::<Vec<_>>()))
    })
}

/// Words that ToolHive leaves out of its full-text queries.
const TOOLHIVE_LEFT_OUT: [&str; 4] = ["table", "content", "key", "text"];

/// Returns a ranker with SQLite's FTS5 and its porter stemmer, over name and description, as in
/// ToolHive without an embedding service.
pub fn fts5(tools: &[CatalogTool]) -> anyhow::Result<ToolRanker<'static>> {
    let db = Connection::open_in_memory()?;
    db.execute_batch(
        "CREATE VIRTUAL TABLE tools USING fts5(name, description, tokenize = 'porter unicode61')",
    )?;
    for (at, tool) in tools.iter().enumerate() {
        db.execute(
            "INSERT INTO tools (rowid, name, description) VALUES (?1, ?2, ?3)",
            params![i64::try_from(at)?, tool.name, tool.description],
        )?;
    }
    Ok(Box::new(move |question| {
        let mut words = plain_words(question);
        words.retain(|word| !TOOLHIVE_LEFT_OUT.contains(&word.as_str()));
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        let mut query = db.prepare_cached(
            "SELECT rowid FROM tools WHERE tools MATCH ?1 ORDER BY rank, rowid LIMIT 10",
        )?;
        let rows = query.query_map([words.join(" OR ")], |row| row.get::<_, i64>(0))?;
        rows.map(|row| Ok(usize::try_from(row?)?)).collect()
    }))
}

/// Returns a ranker with the rules of FastMCP: BM25 over the names and descriptions of tools and of
/// their arguments, split at everything but letters and digits.
pub fn fastmcp(tools: &[CatalogTool]) -> ToolRanker<'static> {
    let split = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty());
        words.map(str::to_ascii_lowercase).collect()
    };
    let texts = tools.iter().map(|tool| {
        let ToolSearchDocument { name, description, argument_names, argument_texts, .. } =
            document(tool);
        split(&format!("{name} {description} {argument_names} {argument_texts}"))
    });
    let index = ToolBm25Index::new(texts.collect());
    Box::new(move |question| Ok(best(&index.scores(&split(question)))))
}

/// Returns a ranker with BM25 over name and description. Identifiers are split, words are stemmed,
/// and stop words are left out.
pub fn bm25_split(tools: &[CatalogTool]) -> ToolRanker<'static> {
    let stemmer = Stemmer::create(Algorithm::English);
    let split = move |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let words = words.filter(|it| !it.is_empty()).flat_map(identifier_parts);
        let words = words.filter(|it| !STOP_WORDS.contains(&it.as_str()));
        words.map(|it| stemmer.stem(&it).into_owned()).collect()
    };
    let texts =
        tools.iter().map(|it| split(&format!("{} {} {}", it.server, it.name, it.description)));
    let index = ToolBm25Index::new(texts.collect());
    Box::new(move |question| Ok(best(&index.scores(&split(question)))))
}

fn plain_words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words.filter(|it| !it.is_empty()).map(str::to_lowercase).collect()
}

const K1: f32 = 1.5;
const B: f32 = 0.75;

/// BM25 index of tools by their words, for baselines.
struct ToolBm25Index {
    occurrences: HashMap<String, Vec<(usize, f32)>>,
    lengths: Vec<f32>,
}

#[allow(clippy::cast_precision_loss, reason = "weights need no exact counts")]
impl ToolBm25Index {
    fn new(texts: Vec<Vec<String>>) -> Self {
        let mut index = Self { occurrences: HashMap::new(), lengths: Vec::new() };
        for (at, words) in texts.into_iter().enumerate() {
            index.lengths.push(words.len() as f32);
            let mut counts: HashMap<String, f32> = HashMap::new();
            for word in words {
                *counts.entry(word).or_default() += 1.0;
            }
            for (word, count) in counts {
                index.occurrences.entry(word).or_default().push((at, count));
            }
        }
        index
    }

    fn scores(&self, question: &[String]) -> Vec<f32> {
        let all = self.lengths.len() as f32;
        let average = self.lengths.iter().sum::<f32>() / all.max(1.0);
        let mut scores = vec![0.0; self.lengths.len()];
        let words: HashSet<&String> = question.iter().collect();
        for occurrences in words.into_iter().filter_map(|word| self.occurrences.get(word)) {
            let containing = occurrences.len() as f32;
            let rarity = ((all - containing + 0.5) / (containing + 0.5)).ln_1p();
            for (at, count) in occurrences {
                let length = 1.0 - B + B * self.lengths[*at] / average;
                scores[*at] += rarity * count * (K1 + 1.0) / (count + K1 * length);
            }
        }
        scores
    }
}
