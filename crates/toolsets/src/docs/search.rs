//! `docs.search`: passages of documents by what they are about.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use crate::search::{Found, Hit, Service, Wanted, distinct_tags};

/// Searches documents.
pub struct Search {
    service: Arc<Service>,
}

/// What to look for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// What is looked for, in words.
    #[schemars(length(min = 1))]
    query: String,
    /// How many hits at most.
    #[serde(default = "top_k")]
    #[schemars(range(min = 1, max = 10))]
    top_k: usize,
    /// Which documents to look into; without, all.
    filters: Option<Filters>,
}

/// Which documents.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Filters {
    /// Only those whose path begins with this, e.g. `docs/guide`.
    path_prefix: Option<String>,
    /// Only those that have all of these, e.g. `markdown`.
    #[serde(default)]
    tags: Vec<String>,
}

/// What was found.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Output {
    /// What was looked for.
    query: String,
    /// How many passages match in all.
    total: u64,
    /// The best of them, first the likeliest.
    hits: Vec<DocHit>,
}

/// A passage of a document.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct DocHit {
    /// Which passage it is: its file and its lines.
    id: String,
    /// How well it matches; only to be compared within one answer.
    score: f64,
    /// Its place among the hits, from 1.
    #[schemars(range(min = 1))]
    rank: u64,
    document: Document,
}

/// The document a passage is of.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
struct Document {
    /// What it is called: its first heading, else the name of its file.
    title: String,
    /// The passage.
    snippet: String,
    /// The file, relative to the workspace root.
    source_path: String,
}

impl Search {
    /// The tool that asks `service`.
    pub fn new(service: &Arc<Service>) -> Self {
        Self { service: service.clone() }
    }
}

impl Tool for Search {
    const NAME: &'static str = "docs.search";
    const TITLE: &'static str = "Search documents";
    const ABOUT: &'static str = "Finds the passages of the workspace's documents (Markdown, \
        reStructuredText, AsciiDoc, plain text) that a question in words is about, the best first. \
        search_semantic looks into code too.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { query, top_k, filters } = input;
        let Filters { path_prefix, tags } = filters.unwrap_or_default();
        let mut tags = distinct_tags(tags, "/filters/tags")?;
        tags.push("docs".to_owned());
        let wanted = Wanted {
            query: Some(query.clone()),
            top_k,
            path_prefix,
            tags,
            rerank: true,
            ..Wanted::default()
        };
        let Found { hits, total, .. } = self.service.search(ctx, wanted).await?;
        let hits = (1..).zip(hits).map(|(rank, hit)| DocHit::of(rank, hit)).collect();
        Ok(Output { query, total, hits })
    }

    fn text(output: &Output) -> Text {
        let Output { total, hits, .. } = output;
        let mut body = String::new();
        for DocHit { id, document, .. } in hits {
            body += &format!("{id} {}\n{}\n\n", document.title, document.snippet);
        }
        let note = match total {
            0 => "nothing found".to_owned(),
            total => format!("{} of {total} passages that match", hits.len()),
        };
        Text::body(body).with_note(note)
    }
}

impl DocHit {
    fn of(rank: u64, hit: Hit) -> Self {
        let Hit { id, score, path, title, snippet, .. } = hit;
        let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
        let document = Document { title: title.unwrap_or(name), snippet, source_path: path };
        Self { id, score, rank, document }
    }
}

fn top_k() -> usize {
    5
}
