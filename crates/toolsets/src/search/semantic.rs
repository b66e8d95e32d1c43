//! `search.semantic`: searches passages of code and text by meaning.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::index_status::{partial_line, status_line};
use super::{
    IndexState, IndexStateReport, SearchHit, SearchHitLocation, SearchRequest, SearchResult,
    SearchService, WORKSPACE, distinct_tags, explain_narrowing,
};
use crate::counted::counted;

/// The tool `search.semantic`.
pub struct SearchByMeaning {
    service: Arc<SearchService>,
}

/// Input of `search.semantic`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchByMeaningInput {
    /// A question, or a name.
    query: Option<String>,
    /// A vector to find similar passages, e.g. the `vector` of a match. A query and a vector have
    /// equal weight.
    embedding: Option<Vec<f64>>,
    /// Maximum files.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 50))]
    limit: usize,
    /// Namespace to search.
    namespace: Option<String>,
    /// Folder or file to search.
    path: Option<String>,
    /// A language such as `rust`, or `code`, `docs`, `config`, `test`, `example`.
    #[serde(default)]
    tags: Vec<String>,
    /// Return the vector of each match.
    #[serde(default)]
    include_vectors: bool,
    /// Rerank by names and paths. Tests come last.
    #[serde(default = "crate::input_defaults::yes")]
    rerank: bool,
    /// Return each file once, with its best passage; otherwise each passage is a match, and `limit`
    /// counts passages.
    #[serde(default = "crate::input_defaults::yes")]
    by_file: bool,
}

/// Output of `search.semantic`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SearchByMeaningOutput {
    /// Best match first.
    matches: Vec<PassageMatch>,
    /// Models that the search used.
    usage: SearchModelsUsed,
    /// The correction of a misspelled name in the query, or the reason why nothing was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// State of the searched index.
    index: IndexStateReport,
}

/// A file with its best passage.
#[derive(Debug, Serialize, JsonSchema)]
struct PassageMatch {
    /// File and lines of the passage.
    id: String,
    /// Relevance; comparable only within one answer.
    score: f64,
    /// The file, relative to the workspace or to the folder of its namespace; for a document, its
    /// id.
    path: String,
    /// The first line, from 1.
    line_start: u32,
    /// The last line of the passage.
    line_end: u32,
    /// The name that the passage defines, if any.
    symbol: Option<String>,
    /// The language, if known.
    lang: Option<String>,
    /// The etag of the file.
    etag: String,
    /// Tags of the file.
    tags: Vec<String>,
    /// The checked-out commit, if the file is unchanged in git. Null if the file has changed, git
    /// does not track the file, or git is updating the checkout.
    commit: Option<String>,
    /// Always null.
    shard_id: Option<String>,
    /// The lines of the passage.
    snippet: String,
    /// The metadata of a document.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Map<String, Value>>,
    /// The vector, if requested and available.
    #[serde(skip_serializing_if = "Option::is_none")]
    vector: Option<Vec<f64>>,
    /// Up to three more places in the file, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    more: Vec<AdditionalMatchLocation>,
}

/// A further matching place in the file of a match.
#[derive(Debug, Serialize, JsonSchema)]
struct AdditionalMatchLocation {
    /// The first line, from 1.
    line_start: u32,
    /// The last line of this place.
    line_end: u32,
    /// The name that this place defines, if any.
    symbol: Option<String>,
}

/// Models that found the matches.
#[derive(Debug, Serialize, JsonSchema)]
struct SearchModelsUsed {
    /// Embedding model that the search used: the configured or the built-in one.
    embedding_model: Option<String>,
    /// Milliseconds that the configured model took for the query; null if it was not used.
    embed_time_ms: Option<u64>,
    /// The model that reranked the matches, if any.
    rerank_model: Option<String>,
    /// The reason why the configured model was not used, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl SearchByMeaning {
    /// Creates the tool, which searches with `service`.
    pub fn new(service: &Arc<SearchService>) -> Self {
        Self { service: service.clone() }
    }

    /// Explains that a search found nothing because no file can match its path or one of its tags.
    /// Returns `None` if there is a different reason.
    async fn explain_narrowing(
        &self,
        ctx: &ToolContext,
        (namespace, path, tags): (Option<String>, Option<String>, Vec<String>),
    ) -> Option<String> {
        // Documents that callers put have no files, and any tags.
        let (root, _) = self.service.resolve_files(namespace.as_deref()).await.ok()?;
        explain_narrowing(ctx, &root, path.as_deref(), &tags).await
    }
}

impl Tool for SearchByMeaning {
    const NAME: &'static str = "search.semantic";
    const TITLE: &'static str = "Search by meaning";
    const DESCRIPTION: &'static str = "Find the passages of code and documents that answer a \
        question, best first. For every occurrence of a text, use search_text.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = crate::files::FOLDER_ALIASES;
    const RARE_ARGUMENTS: &'static [&'static str] =
        &["embedding", "include_vectors", "rerank", "by_file"];
    const IDEMPOTENT: bool = true;
    type Input = SearchByMeaningInput;
    type Output = SearchByMeaningOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let namespace = input.namespace.filter(|it| it != WORKSPACE);
        let tags = distinct_tags(input.tags, "/tags")?;
        let narrowing = (namespace.clone(), input.path.clone(), tags.clone());
        let request = SearchRequest {
            query: input.query,
            embedding: input.embedding,
            top_k: input.limit,
            by_file: input.by_file,
            namespace,
            path_prefix: input.path,
            tags,
            rerank: input.rerank,
            with_vectors: input.include_vectors,
        };
        let found = self.service.search(ctx, request).await?;
        let SearchResult {
            hits,
            embedding_model,
            embed_time_ms,
            rerank_model,
            note,
            hint,
            index,
            ..
        } = found;
        let hint = match hits.is_empty() {
            true => self.explain_narrowing(ctx, narrowing).await.or(hint),
            false => hint,
        };
        let rerank_model = rerank_model.map(str::to_owned);
        let usage = SearchModelsUsed { embedding_model, embed_time_ms, rerank_model, note };
        Ok(SearchByMeaningOutput {
            matches: hits.into_iter().map(PassageMatch::from_hit).collect(),
            usage,
            hint,
            index,
        })
    }

    fn result_text(output: &SearchByMeaningOutput) -> ResultText {
        let SearchByMeaningOutput { matches, index, .. } = output;
        let mut body = partial_line(index);
        for it in matches {
            let path = escape_line(&it.path);
            body += &format!("{path}:{}-{}\n{}\n", it.line_start, it.line_end, it.snippet);
            if !it.more.is_empty() {
                let places: Vec<String> =
                    it.more.iter().map(AdditionalMatchLocation::line).collect();
                body += &format!("also {}\n", places.join(", "));
            }
            body.push('\n');
        }
        let found = match matches.len() as u64 {
            0 => "nothing found".to_owned(),
            count => counted(count, "passage", "passages"),
        };
        let searched = match index.state {
            IndexState::Ready if index.complete && index.note.is_none() => {
                format!("{} searched", counted(index.files, "file", "files"))
            }
            IndexState::Absent | IndexState::Building => "search again for more".to_owned(),
            IndexState::Ready
            | IndexState::Rebuilding
            | IndexState::Following
            | IndexState::Away => format!("index: {}", status_line(index)),
        };
        let model = output.usage.note.as_ref().map(|it| format!("; {it}")).unwrap_or_default();
        let hint = output.hint.as_ref().map(|it| format!("; {it}")).unwrap_or_default();
        ResultText::from_body(body).with_note(format!("{found}; {searched}{model}{hint}"))
    }
}

impl PassageMatch {
    fn from_hit(hit: SearchHit) -> Self {
        let SearchHit { id, score, path, first, last, symbol, lang, etag, commit, .. } = hit;
        let SearchHit { tags, snippet, metadata, vector, more, .. } = hit;
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
            more: more.into_iter().map(AdditionalMatchLocation::from_place).collect(),
        }
    }
}

impl AdditionalMatchLocation {
    fn from_place(place: SearchHitLocation) -> Self {
        let SearchHitLocation { first, last, symbol } = place;
        Self { line_start: first, line_end: last, symbol }
    }

    /// Formats the lines of this location and the name that they define, for a text answer.
    fn line(&self) -> String {
        let symbol = self.symbol.as_ref().map(|it| format!(" {}", escape_line(it)));
        format!("{}-{}{}", self.line_start, self.line_end, symbol.unwrap_or_default())
    }
}

fn limit() -> usize {
    5
}
