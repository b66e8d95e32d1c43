//! `search.semantic`: passages of code and text by what they are about.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::index_status::line;
use super::{Found, Hit, Indexed, Service, State, WORKSPACE, Wanted, distinct_tags};

/// Searches by meaning.
pub struct Semantic {
    service: Arc<Service>,
}

/// What to look for, and where.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// What is looked for, in words or as an identifier, e.g. `authentication middleware` or
    /// `parseHeader`.
    query: Option<String>,
    /// A vector to look for what is like it, e.g. the `vector` of a match found before. Beside a
    /// query, both count alike.
    embedding: Option<Vec<f64>>,
    /// How many matches at most.
    #[serde(default = "top_k")]
    #[schemars(range(min = 1, max = 50))]
    top_k: usize,
    /// Which namespace to search (search_index_status lists them); without one, the whole workspace.
    namespace: Option<String>,
    /// Only files whose path begins with this, e.g. `src/auth`.
    path_prefix: Option<String>,
    /// Only files that have all of these: a language such as `rust`, and `code`, `docs`, `config`,
    /// `test` or `example`.
    #[serde(default)]
    tags: Vec<String>,
    /// Whether each match comes with its vector.
    #[serde(default)]
    include_vectors: bool,
    /// Whether matches are put in order by a closer look: names, paths, tests last.
    #[serde(default = "yes")]
    rerank: bool,
}

/// What was found.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The best first.
    matches: Vec<Match>,
    /// What they were found by.
    usage: Usage,
    /// How much of the workspace was searched.
    index: Indexed,
}

/// A passage of a file.
#[derive(Debug, Serialize, JsonSchema)]
struct Match {
    /// Which passage it is.
    id: String,
    /// How well it matches; only to be compared within one answer.
    score: f64,
    /// The file, relative to the workspace, or to the root of its namespace, where only the search
    /// tools read; of a document its id.
    path: String,
    /// Its first line, from 1.
    line_start: u32,
    /// Its last line.
    line_end: u32,
    /// What it defines, if it defines something.
    symbol: Option<String>,
    /// The language, if it is one we know.
    lang: Option<String>,
    /// The etag of the file.
    etag: String,
    /// What kind of file it is.
    tags: Vec<String>,
    /// The commit that is checked out, if git has the file as it is: null where it was changed since,
    /// where git does not know it, and while git is changing what is checked out.
    commit: Option<String>,
    /// Always null: there is one index.
    shard_id: Option<String>,
    /// Its lines, as they are in the file.
    snippet: String,
    /// What was put beside a document.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Map<String, Value>>,
    /// Its vector, where it was asked for and there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    vector: Option<Vec<f64>>,
}

/// What matches were found by.
#[derive(Debug, Serialize, JsonSchema)]
struct Usage {
    /// What made the vectors that were of use: the configured model, else what is built in.
    embedding_model: Option<String>,
    /// How long the configured model took to make a vector of the query; null where it was not
    /// asked.
    embed_time_ms: Option<u64>,
    /// What took the closer look, where one was taken.
    rerank_model: Option<String>,
    /// Why the configured model was of no use, where one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Semantic {
    /// The tool that asks `service`.
    pub fn new(service: &Arc<Service>) -> Self {
        Self { service: service.clone() }
    }
}

impl Tool for Semantic {
    const NAME: &'static str = "search.semantic";
    const TITLE: &'static str = "Search by meaning";
    const ABOUT: &'static str = "Finds the passages of code and documents that a question in words \
        is about, or that define an identifier, the best first, with their lines. Leaves out \
        binary and generated files, files over 1 MiB and what .gitignore names. For exact text, \
        or every occurrence, use search_text.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let namespace = input.namespace.filter(|it| it != WORKSPACE);
        let wanted = Wanted {
            query: input.query,
            embedding: input.embedding,
            top_k: input.top_k,
            namespace,
            path_prefix: input.path_prefix,
            tags: distinct_tags(input.tags, "/tags")?,
            rerank: input.rerank,
            vectors: input.include_vectors,
        };
        let found = self.service.search(ctx, wanted).await?;
        let Found { hits, embedding_model, embed_time_ms, rerank_model, note, index, .. } = found;
        let rerank_model = rerank_model.map(str::to_owned);
        let usage = Usage { embedding_model, embed_time_ms, rerank_model, note };
        Ok(Output { matches: hits.into_iter().map(Match::of).collect(), usage, index })
    }

    fn text(output: &Output) -> Text {
        let Output { matches, index, .. } = output;
        let mut body = String::new();
        for it in matches {
            body += &format!("{}:{}-{}\n{}\n\n", it.path, it.line_start, it.line_end, it.snippet);
        }
        let found = match matches.len() {
            0 => "nothing found".to_owned(),
            1 => "1 passage".to_owned(),
            many => format!("{many} passages"),
        };
        let how = match index.state {
            State::Ready if index.complete && index.note.is_none() => {
                format!("{} files searched", index.files)
            }
            State::Ready
            | State::Absent
            | State::Building
            | State::Rebuilding
            | State::Following
            | State::Away => format!("index: {}", line(index)),
        };
        let model = output.usage.note.as_ref().map(|it| format!("; {it}")).unwrap_or_default();
        Text::body(body).with_note(format!("{found}; {how}{model}"))
    }
}

impl Match {
    fn of(hit: Hit) -> Self {
        let Hit { id, score, path, first, last, symbol, lang, etag, commit, .. } = hit;
        let Hit { tags, snippet, metadata, vector, .. } = hit;
        Self {
            id,
            score,
            path,
            line_start: first,
            line_end: last,
            symbol,
            lang,
            etag,
            tags,
            commit,
            shard_id: None,
            snippet,
            metadata: Some(metadata).filter(|it| !it.is_empty()),
            vector,
        }
    }
}

fn top_k() -> usize {
    5
}

fn yes() -> bool {
    true
}
