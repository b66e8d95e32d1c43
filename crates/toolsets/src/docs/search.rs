//! `docs.search`: searches documents by meaning and by words.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use crate::counted::counted;
use crate::search::{SearchHit, SearchRequest, SearchResult, SearchService, distinct_tags};

/// The tool `docs.search`.
pub struct SearchDocuments {
    pub(super) service: Arc<SearchService>,
}

/// Input of `docs.search`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SearchDocumentsInput {
    /// The question.
    #[schemars(length(min = 1))]
    query: String,
    /// Maximum hits.
    #[serde(default = "top_k")]
    #[schemars(range(min = 1, max = 10))]
    top_k: usize,
    /// Documents to search; default: all.
    filters: Option<DocumentSearchFilter>,
}

/// A filter on documents.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DocumentSearchFilter {
    /// Folder or file to search, e.g. `docs/guide`.
    path_prefix: Option<String>,
    /// Only documents with all these tags, e.g. `markdown`.
    #[serde(default)]
    tags: Vec<String>,
}

/// Output of `docs.search`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SearchDocumentsOutput {
    /// The question.
    query: String,
    /// The number of passages that match.
    total: u64,
    /// Matches, best first.
    hits: Vec<DocumentHit>,
}

/// A passage of a document.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct DocumentHit {
    /// File and lines of the passage.
    id: String,
    /// Relevance; comparable only within one answer.
    score: f64,
    /// Rank among the hits, from 1.
    #[schemars(range(min = 1))]
    rank: u64,
    document: MatchedDocument,
}

/// The document that contains the passage.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
struct MatchedDocument {
    /// The first heading, or the file name.
    title: String,
    /// The passage.
    snippet: String,
    /// The file, relative to the workspace root.
    source_path: String,
}

impl Tool for SearchDocuments {
    const NAME: &'static str = "docs.search";
    const TITLE: &'static str = "Search documents";
    const DESCRIPTION: &'static str =
        "Find the passages in the workspace's documents that fit a question.";
    const EFFECTS: Effects = Effects::Reads;
    const RARE_ARGUMENTS: &'static [&'static str] = &["filters"];
    const IDEMPOTENT: bool = true;
    type Input = SearchDocumentsInput;
    type Output = SearchDocumentsOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let SearchDocumentsInput { query, top_k, filters } = input;
        let DocumentSearchFilter { path_prefix, tags } = filters.unwrap_or_default();
        let mut tags = distinct_tags(tags, "/filters/tags")?;
        tags.push("docs".to_owned());
        let request = SearchRequest {
            query: Some(query.clone()),
            top_k,
            path_prefix,
            tags,
            rerank: true,
            ..SearchRequest::default()
        };
        let SearchResult { hits, total, .. } = self.service.search(ctx, request).await?;
        let hits = (1..).zip(hits).map(|(rank, hit)| DocumentHit::from_hit(rank, hit)).collect();
        Ok(SearchDocumentsOutput { query, total, hits })
    }

    fn result_text(output: &SearchDocumentsOutput) -> ResultText {
        let SearchDocumentsOutput { total, hits, .. } = output;
        let mut body = String::new();
        for DocumentHit { id, document, .. } in hits {
            let heading = escape_line(&document.title);
            body += &format!("{} {heading}\n{}\n\n", escape_line(id), document.snippet);
        }
        let note = match total {
            0 => "nothing found".to_owned(),
            total => {
                let total = counted(*total, "matching passage", "matching passages");
                format!("{} of {total}", hits.len())
            }
        };
        ResultText::from_body(body).with_note(note)
    }
}

impl DocumentHit {
    fn from_hit(rank: u64, hit: SearchHit) -> Self {
        let SearchHit { id, score, path, title, snippet, .. } = hit;
        let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
        let document = MatchedDocument { title: title.unwrap_or(name), snippet, source_path: path };
        Self { id, score, rank, document }
    }
}

fn top_k() -> usize {
    5
}
