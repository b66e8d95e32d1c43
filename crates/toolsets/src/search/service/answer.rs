//! Answers one search: gets candidates from the engine, ranks them, and shows the current text of
//! the files.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use toolgate_chunks::ChunkKind;
use toolgate_contract::{ToolContext, ToolError, ToolErrorKind};
use toolgate_search::embedder::EmbeddingRole;
use toolgate_search::rank::{
    ChunkCandidate, IndexStatistics, RERANK_METHOD, RankedCandidate, RankedFile, RankingRules,
    WeightedQuery, group_by_file, rank, rank_files,
};
use toolgate_search::{ChunkSummary, DocumentFilter, Embedder, static_model};

use super::checkout;
use super::collection::SearchableIndex;
use super::embedding::NO_VECTORS;
use super::progress::{IndexState, IndexStateReport};
use super::query::{SearchQuery, SearchRequest, normalize};
use crate::search::engines::{
    SearchEngineError, SearchEngineMatches, SearchEngineQuery, StoredDocument, VectorOrigin,
};
use query_hints::{correct_query, explain_no_match, keep_exact_if_only_stop_words};
use quoted_phrases::QueryQuotedPhrases;
use title::document_title;
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

mod query_hints;
mod quoted_phrases;
mod title;

/// The maximum number of candidates that the search engine returns for each method of search, such
/// as by words.
const CANDIDATES_MAX: usize = 150;
/// The maximum time to wait for the query's vector. A search also waits at most half of the call's
/// remaining time.
const VECTOR_WAIT_MAX: Duration = Duration::from_secs(2);
/// The minimum cosine similarity (-1 to 1) of a chunk to the query by the built-in static model, if
/// they share no word.
const STATIC_SIMILARITY_MIN: f32 = 0.3;
/// The minimum cosine similarity (-1 to 1) of a chunk to the query by the configured model, if they
/// share no word.
const MODEL_SIMILARITY_MIN: f32 = 0.2;

/// Result of a search by meaning and words.
pub(crate) struct SearchResult {
    /// Passages that the search found, best first.
    pub(crate) hits: Vec<SearchHit>,
    /// The number of matches. `hits` contains only the best.
    pub(crate) total: u64,
    pub(crate) embedding_model: Option<String>,
    pub(crate) embed_time_ms: Option<u64>,
    pub(crate) rerank_model: Option<&'static str>,
    /// The reason why the configured model was not used. `None` if it was used or none is
    /// configured.
    pub(crate) note: Option<String>,
    /// A correction of the query, or the reason why it found nothing.
    pub(crate) hint: Option<String>,
    pub(crate) index: IndexStateReport,
}

/// Passage that a search found.
pub(crate) struct SearchHit {
    pub(crate) id: String,
    pub(crate) score: f64,
    pub(crate) path: String,
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// Name of the definition in the passage.
    pub(crate) symbol: Option<String>,
    pub(crate) lang: Option<String>,
    pub(crate) etag: String,
    /// The git commit of the passage's file. `None` if the file is not in git, or differs from this
    /// commit.
    pub(crate) commit: Option<String>,
    pub(crate) tags: Vec<String>,
    /// The current text of the passage in its file.
    pub(crate) snippet: String,
    /// The title of the document, if it has one.
    pub(crate) title: Option<String>,
    /// The metadata of a document.
    pub(crate) metadata: Map<String, Value>,
    pub(crate) vector: Option<Vec<f64>>,
    /// Further matching passages in the file, best first. Empty unless each hit is a file.
    pub(crate) more: Vec<SearchHitLocation>,
}

/// A further matching passage in the file of a search hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchHitLocation {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// Name of the definition in these lines.
    pub(crate) symbol: Option<String>,
}

/// Reason why a search failed.
pub(super) enum SearchFailure {
    Tool(ToolError),
    Engine(SearchEngineError),
}

impl From<ToolError> for SearchFailure {
    fn from(err: ToolError) -> Self {
        Self::Tool(err)
    }
}

impl From<SearchEngineError> for SearchFailure {
    fn from(err: SearchEngineError) -> Self {
        Self::Engine(err)
    }
}

/// Inputs of one attempt to answer a search.
pub(super) struct SearchAnswerInputs<'a> {
    pub(super) collection: &'a SearchableIndex,
    pub(super) embedder: Option<&'a Arc<dyn Embedder>>,
    pub(super) query: &'a SearchQuery,
    /// The filter on documents. `None` if no document can match the search.
    pub(super) filter: Option<DocumentFilter>,
    pub(super) index: IndexStateReport,
    /// True in the last attempt, which skips changed files. In earlier attempts, a changed file
    /// restarts the search.
    pub(super) is_last: bool,
}

/// The model's vector of a query, and the time that the model took in milliseconds. If there is no
/// vector, a note gives the reason.
#[derive(Clone, Default)]
pub(super) struct QueryVector {
    vector: Option<Vec<f32>>,
    ms: Option<u64>,
    note: Option<String>,
}

impl SearchAnswerInputs<'_> {
    /// Runs the search once. Returns `None` if a file has changed since it was indexed.
    ///
    /// `known` stores the query's vector between attempts, so that the model is called only once.
    /// Fails if the engine fails or the call is canceled.
    pub(super) async fn run(
        self,
        ctx: &ToolContext,
        known: &mut Option<QueryVector>,
    ) -> Result<Option<SearchResult>, SearchFailure> {
        let Self { query, .. } = self;
        let request = &query.request;
        let query_vector = match known {
            Some(query_vector) => query_vector.clone(),
            None => known.insert(self.embed_query(ctx).await).clone(),
        };
        let built_in = query.query.as_deref().and_then(static_model::embed_query);
        let given = |by| query.vector.as_ref().filter(|it| it.0 == by).map(|it| it.1.as_slice());
        let near = combine(built_in, given(VectorOrigin::Static));
        let model = combine(query_vector.vector, given(VectorOrigin::Model));
        let used_model = model.is_some();
        let with_vectors = near.is_some() || request.with_vectors;
        let mut found = SearchResult {
            hits: Vec::new(),
            total: 0,
            embedding_model: match (used_model, with_vectors, self.embedder) {
                (true, _, Some(embedder)) => Some(embedder.space().model.clone()),
                (false, true, _) | (true, _, None) => Some(static_model::space().model),
                (false, false, _) => None,
            },
            embed_time_ms: query_vector.ms,
            rerank_model: (query.query.is_some() && request.rerank).then_some(RERANK_METHOD),
            note: query_vector.note,
            hint: None,
            index: self.index.clone(),
        };
        // The index is not open yet, so it has no matches.
        let is_open = self.index.state != IndexState::Absent;
        let Some(filter) = self.filter.clone().filter(|_| is_open) else { return Ok(Some(found)) };
        let engine_query = SearchEngineQuery {
            query: query.query.clone(),
            static_vector: near,
            model_vector: model,
            filter,
            limit: CANDIDATES_MAX,
        };
        let (matched, hint) = self.find_candidates(engine_query).await?;
        let SearchEngineMatches { question, averages, mut candidates, total, vectors } = matched;
        found.hint = hint;
        if let Some(question) = &question {
            candidates.retain(is_related);
            if query.vector.is_none() {
                keep_exact_if_only_stop_words(question, &mut candidates);
            }
        }
        let quoted = QueryQuotedPhrases::new(question.as_ref(), request);
        // Some files may have changed, so more are ranked than requested.
        let top = quoted.examined().max(request.top_k.saturating_mul(2));
        let ranked = rank_matches(request, question.as_ref(), &averages, &candidates, top);
        let hits = match self.read_hits(ctx, &ranked, &candidates, quoted.examined()).await? {
            Ok(hits) => quoted.put_first(hits),
            Err(path) => {
                self.collection.report_changed(path);
                return Ok(None);
            }
        };
        let mut hit_vectors: HashMap<usize, Vec<f64>> = if request.with_vectors {
            let keys = hits.iter().map(|(at, _)| candidates[*at].key).collect();
            let origin =
                if self.embedder.is_some() { VectorOrigin::Model } else { VectorOrigin::Static };
            let vectors = vectors.load(keys, origin).await?;
            let numbers =
                |it: Vec<f32>| it.into_iter().map(|it| round_score(f64::from(it))).collect();
            let by_index = hits.iter().zip(vectors).map(|((at, _), it)| Some((*at, numbers(it?))));
            by_index.flatten().collect()
        } else {
            HashMap::new()
        };
        found.hits = hits
            .into_iter()
            .map(|(at, hit)| SearchHit { vector: hit_vectors.remove(&at), ..hit })
            .collect();
        let total = total.unwrap_or(candidates.len() as u64);
        found.total = total.max(found.hits.len() as u64);
        if found.hits.is_empty() && query.vector.is_none() {
            found.total = 0;
            found.hint = query.query.as_deref().map(explain_no_match);
        }
        Ok(Some(found))
    }

    /// Returns the candidates for `query`. If the query contains a name that does not exist,
    /// returns the candidates for the corrected query, and a note about the correction. Fails if
    /// the engine fails.
    async fn find_candidates(
        &self,
        query: SearchEngineQuery,
    ) -> Result<(SearchEngineMatches, Option<String>), SearchEngineError> {
        let engine = &*self.collection.engine;
        let matched = engine.candidates(query.clone()).await?;
        let corrected = match &matched.question {
            Some(question) => correct_query(engine, &query, question, &matched.candidates).await?,
            None => None,
        };
        match corrected {
            Some(corrected) => {
                let built_in = static_model::embed_query(&corrected.query);
                let given = self.query.vector.as_ref();
                let given = given.filter(|it| it.0 == VectorOrigin::Static);
                let near = combine(built_in, given.map(|it| it.1.as_slice()));
                let query = SearchEngineQuery {
                    query: Some(corrected.query),
                    static_vector: near,
                    ..query
                };
                Ok((engine.candidates(query).await?, Some(corrected.hint)))
            }
            None => Ok((matched, None)),
        }
    }

    /// Requests the model's vector of the query, unless no indexed passage has a vector to compare
    /// it with.
    async fn embed_query(&self, ctx: &ToolContext) -> QueryVector {
        let (Some(embedder), Some(query)) = (self.embedder, &self.query.query) else {
            return QueryVector::default();
        };
        if self.index.vectors.unwrap_or_default() == 0 {
            let note = self.index.note.clone().filter(|note| note.starts_with(NO_VECTORS));
            let note = note.unwrap_or_else(|| {
                "the files have no vectors of the embedding model yet".to_owned()
            });
            return QueryVector { note: Some(note), ..QueryVector::default() };
        }
        let start = Instant::now();
        let wait_max = VECTOR_WAIT_MAX.min(ctx.deadline.saturating_duration_since(start) / 2);
        let texts = [query.clone()];
        let embedded =
            tokio::time::timeout(wait_max, embedder.embed(&texts, EmbeddingRole::Query)).await;
        let ms = Some(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX));
        let without_model = |why: String| QueryVector {
            ms,
            note: Some(format!("searched by words only, without the embedding model: {why}")),
            vector: None,
        };
        match embedded {
            Err(_) => {
                without_model(format!("the model took longer than {} ms", wait_max.as_millis()))
            }
            Ok(Err(err)) => without_model(err.to_string()),
            Ok(Ok((vectors, _))) => match vectors.into_iter().next() {
                Some(vector)
                    if vector.len() == embedder.space().dimensions
                        && vector.iter().all(|it| it.is_finite()) =>
                {
                    QueryVector { vector: Some(vector), ms, note: None }
                }
                Some(vector) => without_model(format!(
                    "the model returned an invalid vector of {} numbers",
                    vector.len()
                )),
                None => without_model("the model returned no vector".to_owned()),
            },
        }
    }

    /// Reads the best passages, at most `limit`. Returns each hit with the index of its candidate.
    /// Returns an inner error with the path if a file has changed since it was indexed.
    async fn read_hits(
        &self,
        ctx: &ToolContext,
        ranked: &[RankedFile],
        candidates: &[ChunkCandidate],
        limit: usize,
    ) -> Result<Result<Vec<(usize, SearchHit)>, String>, SearchFailure> {
        let is_last = self.is_last;
        let wanted: Vec<UnreadSearchHit> =
            ranked.iter().map(|it| UnreadSearchHit::new(it, candidates)).collect();
        let Some(root) = self.collection.root() else {
            return Ok(Ok(self.read_documents(wanted, limit).await?));
        };
        let checkout = self.collection.checkout().cloned();
        let hits = root
            .run_blocking(ctx, move |root, watch| {
                let checkout = checkout.and_then(|checkout| checkout.current(watch));
                let mut reader = PassageReader { root, watch, checkout, files: BTreeMap::new() };
                let mut hits = Vec::new();
                for UnreadSearchHit { at, score, summary, more } in wanted {
                    if hits.len() >= limit {
                        break;
                    }
                    watch.check_cancelled()?;
                    match reader.read(&summary)? {
                        Some(CurrentFileContent { text, commit, title }) => {
                            let commit = commit.clone();
                            let title = title.clone();
                            let hit = make_hit(score, summary, text, Map::new());
                            hits.push((at, SearchHit { commit, title, more, ..hit }));
                        }
                        None if is_last => {}
                        None => return Ok(Err(summary.path)),
                    }
                }
                Ok(Ok(hits))
            })
            .await?;
        Ok(hits)
    }

    async fn read_documents(
        &self,
        wanted: Vec<UnreadSearchHit>,
        limit: usize,
    ) -> Result<Vec<(usize, SearchHit)>, SearchEngineError> {
        let mut known: BTreeMap<String, Option<(StoredDocument, Option<String>)>> = BTreeMap::new();
        let mut hits = Vec::new();
        for UnreadSearchHit { at, score, summary, more } in wanted {
            if hits.len() >= limit {
                break;
            }
            if !known.contains_key(&summary.path) {
                let document = self.collection.engine.kept_document(summary.path.clone()).await?;
                let document = document.filter(|it| it.etag == summary.etag);
                let with_title = document.map(|document| {
                    let title = document_title(&document.path, &document.text);
                    (document, title)
                });
                known.insert(summary.path.clone(), with_title);
            }
            // The document may just have been removed or replaced.
            if let Some(Some((document, title))) = known.get(&summary.path) {
                let hit = make_hit(score, summary, &document.text, document.metadata.clone());
                hits.push((at, SearchHit { title: title.clone(), more, ..hit }));
            }
        }
        Ok(hits)
    }
}

/// Ranks the candidates by file or by passage, as `request` selects. Returns at most `top` results.
fn rank_matches(
    request: &SearchRequest,
    question: Option<&WeightedQuery>,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
    top: usize,
) -> Vec<RankedFile> {
    let Some(question) = question else {
        // The caller asks for the nearest passages, even if none is similar.
        let ranked = rank_by_vectors(candidates);
        return match request.by_file {
            true => group_by_file(ranked, candidates, top),
            false => ranked.into_iter().take(top).map(RankedFile::from).collect(),
        };
    };
    let mut ranked: Vec<RankedFile> = match request.by_file {
        true => {
            let rules = &RankingRules::TOOLS;
            rank_files(rules, question, averages, candidates, request.rerank, top)
        }
        false => {
            let ranked = rank(question, averages, candidates, request.rerank, top);
            ranked.into_iter().map(RankedFile::from).collect()
        }
    };
    ranked.retain(|it| it.best.score > 0.0);
    ranked
}

/// Adds two vectors and scales the sum to length 1. If one vector is missing, returns the other
/// vector. `None` if both are missing.
fn combine(computed: Option<Vec<f32>>, given: Option<&[f32]>) -> Option<Vec<f32>> {
    match (computed, given) {
        (Some(computed), Some(given)) => {
            Some(normalize(computed.iter().zip(given).map(|(a, b)| a + b).collect()))
        }
        (computed, given) => computed.or_else(|| given.map(<[f32]>::to_vec)),
    }
}

/// Returns true if the candidate shares a word with the query, or if its vector is similar to the
/// query's.
fn is_related(candidate: &ChunkCandidate) -> bool {
    candidate.counts.iter().flatten().any(|count| *count > 0)
        || candidate.static_cosine >= STATIC_SIMILARITY_MIN
        || candidate.model_cosine.is_some_and(|it| it >= MODEL_SIMILARITY_MIN)
}

/// Ranks the candidates by the similarity of their vectors alone.
fn rank_by_vectors(candidates: &[ChunkCandidate]) -> Vec<RankedCandidate> {
    let score = |it: &ChunkCandidate| it.model_cosine.unwrap_or(it.static_cosine).clamp(-1.0, 1.0);
    let scored = candidates
        .iter()
        .enumerate()
        .map(|(at, it)| RankedCandidate { index: at, score: score(it) });
    let mut ranked: Vec<RankedCandidate> = scored.collect();
    let position = |it: &RankedCandidate| {
        let ChunkSummary { path, first, .. } = &candidates[it.index].summary;
        (path, *first)
    };
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| position(a).cmp(&position(b))));
    ranked
}

/// A passage that a search found and whose text is not read yet.
struct UnreadSearchHit {
    /// The index of the hit's candidate in the list of candidates.
    at: usize,
    score: f32,
    summary: ChunkSummary,
    more: Vec<SearchHitLocation>,
}

impl UnreadSearchHit {
    fn new(ranked: &RankedFile, candidates: &[ChunkCandidate]) -> Self {
        let place = |at: &usize| {
            let summary = &candidates[*at].summary;
            let symbol = defined_symbol(summary);
            SearchHitLocation { first: summary.first, last: summary.last, symbol }
        };
        Self {
            at: ranked.best.index,
            score: ranked.best.score,
            summary: candidates[ranked.best.index].summary.clone(),
            more: ranked.more.iter().map(place).collect(),
        }
    }
}

/// Returns the name of the main definition in a passage of code or settings. `None` for other text.
fn defined_symbol(summary: &ChunkSummary) -> Option<String> {
    match summary.kind {
        ChunkKind::Function | ChunkKind::Type | ChunkKind::Code | ChunkKind::Key => {
            summary.names.first().cloned()
        }
        ChunkKind::Section | ChunkKind::Text => None,
    }
}

/// Reader of the files of passages, so that an answer contains the current text of the passages.
struct PassageReader<'r> {
    root: &'r Root,
    watch: &'r DiskWorkMonitor,
    checkout: Option<checkout::GitCheckoutState>,
    files: BTreeMap<String, CurrentFileContent>,
}

/// The current content of a file, from which the text of passages is copied.
struct CurrentFileContent {
    text: String,
    /// The git commit of the file. `None` if the file is not in git, or differs from this commit.
    commit: Option<String>,
    title: Option<String>,
}

impl PassageReader<'_> {
    /// Reads the file of the passage `summary`. Returns `None` if the file has changed since it was
    /// indexed. Fails if the call is canceled.
    fn read(&mut self, summary: &ChunkSummary) -> Result<Option<&CurrentFileContent>, ToolError> {
        let path = &summary.path;
        if !self.files.contains_key(path) {
            let Ok(file) = self.root.open_walked(Path::new(path)) else { return Ok(None) };
            let content = match file.read(0, file.meta().size(), self.watch) {
                Ok(content) => content,
                Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
                Err(_) => return Ok(None),
            };
            if self.root.etag_of_content(&content, file.meta()).as_str() != summary.etag {
                return Ok(None);
            }
            let Ok(text) = String::from_utf8(content) else { return Ok(None) };
            let commit_of =
                |it: &checkout::GitCheckoutState| it.commit_of(path, file.meta(), text.as_bytes());
            let commit = self.checkout.as_ref().and_then(commit_of);
            let title = document_title(path, &text);
            self.files.insert(path.clone(), CurrentFileContent { text, commit, title });
        }
        Ok(self.files.get(path))
    }
}

fn make_hit(
    score: f32,
    summary: ChunkSummary,
    text: &str,
    metadata: Map<String, Value>,
) -> SearchHit {
    let symbol = defined_symbol(&summary);
    let ChunkSummary { path, first, last, lang, tags, etag, commit, .. } = summary;
    let lines = (last as usize + 1).saturating_sub(first as usize);
    let skipped = (first as usize).saturating_sub(1);
    let mut snippet: String = text.split_inclusive('\n').skip(skipped).take(lines).collect();
    if snippet.ends_with('\n') {
        snippet.pop();
        if snippet.ends_with('\r') {
            snippet.pop();
        }
    }
    SearchHit {
        id: format!("{path}:{first}-{last}"),
        score: round_score(f64::from(score)),
        title: None,
        symbol,
        path,
        first,
        last,
        lang,
        etag,
        commit,
        tags,
        snippet,
        metadata,
        vector: None,
        more: Vec::new(),
    }
}

/// Rounds a score or an element of a vector to six decimals.
fn round_score(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
