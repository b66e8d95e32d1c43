//! Answers one search: gets candidates from the engine, ranks them, and shows them as the files are
//! now.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use toolgate_chunks::ChunkKind;
use toolgate_contract::{ToolContext, ToolError, ToolFault};
use toolgate_search::embedder::EmbeddingRole;
use toolgate_search::rank::{Candidate, RERANK_METHOD, RankedCandidate, rank};
use toolgate_search::{ChunkSummary, DocumentFilter, Embedder, static_model};

use super::checkout;
use super::collection::SearchCollection;
use super::embedding::NO_VECTORS;
use super::progress::{IndexReport, IndexState};
use super::query::{SearchQuery, normalize};
use crate::search::engines::{
    EngineError, EngineMatches, EngineQuery, StoredDocument, VectorOrigin,
};
use title::document_title;
use toolgate_world::Root;
use toolgate_world::root::WorkMonitor;

mod title;

/// The number of candidates that the engine returns for each way of searching.
const CANDIDATES_MAX: usize = 150;
/// The time limit for the query's vector. It is also limited to half of the call's remaining time.
const VECTOR_WAIT_MAX: Duration = Duration::from_secs(2);
/// The smallest similarity of a static vector for a match that shares no word with the query.
const STATIC_SIMILARITY_MIN: f32 = 0.3;
/// The smallest similarity of a model vector for a match that shares no word with the query.
const MODEL_SIMILARITY_MIN: f32 = 0.2;

/// The result of a search.
pub(crate) struct SearchResult {
    /// The hits, best first.
    pub(crate) hits: Vec<SearchHit>,
    /// The number of matches.
    pub(crate) total: u64,
    pub(crate) embedding_model: Option<String>,
    pub(crate) embed_time_ms: Option<u64>,
    pub(crate) rerank_model: Option<&'static str>,
    /// The reason why the configured model was not used, if there is one.
    pub(crate) note: Option<String>,
    pub(crate) index: IndexReport,
}

/// A passage that was found.
pub(crate) struct SearchHit {
    pub(crate) id: String,
    pub(crate) score: f64,
    pub(crate) path: String,
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The name that it defines.
    pub(crate) symbol: Option<String>,
    pub(crate) lang: Option<String>,
    pub(crate) etag: String,
    /// The commit of its file, if the file is unchanged in git.
    pub(crate) commit: Option<String>,
    pub(crate) tags: Vec<String>,
    /// The lines of the passage, as the file has them now.
    pub(crate) snippet: String,
    /// The title of the document, if it has one.
    pub(crate) title: Option<String>,
    /// The metadata of a document.
    pub(crate) metadata: Map<String, Value>,
    pub(crate) vector: Option<Vec<f64>>,
}

/// The reason why a search failed.
pub(super) enum SearchFailure {
    Tool(ToolError),
    Engine(EngineError),
}

impl From<ToolError> for SearchFailure {
    fn from(err: ToolError) -> Self {
        Self::Tool(err)
    }
}

impl From<EngineError> for SearchFailure {
    fn from(err: EngineError) -> Self {
        Self::Engine(err)
    }
}

/// The inputs of one answer.
pub(super) struct SearchAttempt<'a> {
    pub(super) collection: &'a SearchCollection,
    pub(super) embedder: Option<&'a Arc<dyn Embedder>>,
    pub(super) query: &'a SearchQuery,
    /// The filter, or `None` if nothing can match.
    pub(super) filter: Option<DocumentFilter>,
    pub(super) index: IndexReport,
    /// True in the last attempt: changed files are left out. Otherwise a changed file restarts the
    /// search.
    pub(super) is_last: bool,
}

/// The model's vector of a query, if there is one, and how long it took.
#[derive(Clone, Default)]
pub(super) struct QueryVector {
    vector: Option<Vec<f32>>,
    ms: Option<u64>,
    note: Option<String>,
}

impl SearchAttempt<'_> {
    /// Searches. Returns `None` if a file has changed since it was indexed.
    ///
    /// `known` keeps the query's vector between attempts, so that the model is called only once.
    pub(super) async fn run(
        self,
        ctx: &ToolContext,
        known: &mut Option<QueryVector>,
    ) -> Result<Option<SearchResult>, SearchFailure> {
        let Self { query: asked, .. } = self;
        let wanted = &asked.request;
        let direction = match known {
            Some(direction) => direction.clone(),
            None => known.insert(self.embed_query(ctx).await).clone(),
        };
        let own = asked.query.as_deref().and_then(static_model::embed_query);
        let given = |by| asked.vector.as_ref().filter(|it| it.0 == by).map(|it| it.1.as_slice());
        let near = combine(own, given(VectorOrigin::Static));
        let model = combine(direction.vector, given(VectorOrigin::Model));
        let used_model = model.is_some();
        let with_vectors = near.is_some() || wanted.with_vectors;
        let mut found = SearchResult {
            hits: Vec::new(),
            total: 0,
            embedding_model: match (used_model, with_vectors, self.embedder) {
                (true, _, Some(embedder)) => Some(embedder.space().model.clone()),
                (false, true, _) | (true, _, None) => Some(static_model::space().model),
                (false, false, _) => None,
            },
            embed_time_ms: direction.ms,
            rerank_model: (asked.query.is_some() && wanted.rerank).then_some(RERANK_METHOD),
            note: direction.note,
            index: self.index.clone(),
        };
        // The index is not open yet, so it has no matches.
        let is_open = self.index.state != IndexState::Absent;
        let Some(filter) = self.filter.clone().filter(|_| is_open) else { return Ok(Some(found)) };
        let sought = EngineQuery {
            query: asked.query.clone(),
            static_vector: near,
            model_vector: model,
            filter,
            limit: CANDIDATES_MAX,
        };
        let matched = self.collection.engine.candidates(sought).await?;
        let EngineMatches { question, averages, mut candidates, total, vectors } = matched;
        candidates.retain(is_related);
        // Some files may have changed, so more passages are ranked than requested.
        let top = wanted.top_k.saturating_mul(2);
        let ranked = match &question {
            Some(question) => rank(question, &averages, &candidates, wanted.rerank, top),
            None => rank_by_vectors(&candidates, top),
        };
        let ranked: Vec<RankedCandidate> = ranked.into_iter().filter(|it| it.score > 0.0).collect();
        let shown = match self.read_hits(ctx, &ranked, &candidates).await? {
            Ok(shown) => shown,
            Err(path) => {
                self.collection.report_changed(path);
                return Ok(None);
            }
        };
        let of: HashMap<usize, Vec<f64>> = if wanted.with_vectors {
            let keys = shown.iter().map(|(at, _)| candidates[*at].key).collect();
            let by =
                if self.embedder.is_some() { VectorOrigin::Model } else { VectorOrigin::Static };
            let vectors = vectors.load(keys, by).await?;
            let numbers = |it: Vec<f32>| it.into_iter().map(round_score).collect();
            let of = shown.iter().zip(vectors).map(|((at, _), it)| Some((*at, numbers(it?))));
            of.flatten().collect()
        } else {
            HashMap::new()
        };
        let mut of = of;
        found.hits = shown
            .into_iter()
            .map(|(at, hit)| SearchHit { vector: of.remove(&at), ..hit })
            .collect();
        let all = total.unwrap_or(candidates.len() as u64);
        found.total = all.max(found.hits.len() as u64);
        Ok(Some(found))
    }

    /// Requests the model's vector of the query, if any indexed passage has one to compare it with.
    async fn embed_query(&self, ctx: &ToolContext) -> QueryVector {
        let (Some(embedder), Some(query)) = (self.embedder, &self.query.query) else {
            return QueryVector::default();
        };
        if self.index.vectors.unwrap_or_default() == 0 {
            let note = self.index.note.clone().filter(|note| note.starts_with(NO_VECTORS));
            let note = note.unwrap_or_else(|| "there are no vectors by the model yet".to_owned());
            return QueryVector { note: Some(note), ..QueryVector::default() };
        }
        let begun = Instant::now();
        let most = VECTOR_WAIT_MAX.min(ctx.deadline.saturating_duration_since(begun) / 2);
        let texts = [query.clone()];
        let made = tokio::time::timeout(most, embedder.embed(&texts, EmbeddingRole::Query)).await;
        let ms = Some(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let away = |why: String| QueryVector {
            ms,
            note: Some(format!("answered by words, without the model: {why}")),
            vector: None,
        };
        match made {
            Err(_) => away(format!("it took longer than {} ms", most.as_millis())),
            Ok(Err(err)) => away(err.to_string()),
            Ok(Ok((vectors, _))) => match vectors.into_iter().next() {
                Some(vector)
                    if vector.len() == embedder.space().dimensions
                        && vector.iter().all(|it| it.is_finite()) =>
                {
                    QueryVector { vector: Some(vector), ms, note: None }
                }
                Some(vector) => away(format!("its vector of {} numbers is none", vector.len())),
                None => away("it gave no vector".to_owned()),
            },
        }
    }

    /// Reads the best passages. Returns each with the index of its candidate, or the path of a file
    /// that has changed since it was indexed.
    async fn read_hits(
        &self,
        ctx: &ToolContext,
        ranked: &[RankedCandidate],
        candidates: &[Candidate],
    ) -> Result<Result<Vec<(usize, SearchHit)>, String>, SearchFailure> {
        let top_k = self.query.request.top_k;
        let is_last = self.is_last;
        let wanted: Vec<(usize, f32, ChunkSummary)> = ranked
            .iter()
            .map(|it| (it.index, it.score, candidates[it.index].summary.clone()))
            .collect();
        let Some(root) = self.collection.root() else {
            return Ok(Ok(self.read_documents(wanted).await?));
        };
        let checkout = self.collection.checkout().cloned();
        let shown = root
            .run_blocking(ctx, move |root, watch| {
                let checkout = checkout.and_then(|checkout| checkout.current(watch));
                let mut reader = PassageReader { root, watch, checkout, files: BTreeMap::new() };
                let mut hits = Vec::new();
                for (at, score, shown) in wanted {
                    if hits.len() >= top_k {
                        break;
                    }
                    watch.check_cancelled()?;
                    match reader.read(&shown)? {
                        Some(CurrentFile { text, commit, title }) => {
                            let commit = commit.clone();
                            let title = title.clone();
                            let hit = make_hit(score, shown, text, Map::new());
                            hits.push((at, SearchHit { commit, title, ..hit }));
                        }
                        None if is_last => {}
                        None => return Ok(Err(shown.path)),
                    }
                }
                Ok(Ok(hits))
            })
            .await?;
        Ok(shown)
    }

    async fn read_documents(
        &self,
        wanted: Vec<(usize, f32, ChunkSummary)>,
    ) -> Result<Vec<(usize, SearchHit)>, EngineError> {
        let mut known: BTreeMap<String, Option<(StoredDocument, Option<String>)>> = BTreeMap::new();
        let mut hits = Vec::new();
        for (at, score, shown) in wanted {
            if hits.len() >= self.query.request.top_k {
                break;
            }
            if !known.contains_key(&shown.path) {
                let put = self.collection.engine.kept_document(shown.path.clone()).await?;
                let put = put.filter(|put| put.etag == shown.etag);
                let titled = put.map(|put| {
                    let title = document_title(&put.path, &put.text);
                    (put, title)
                });
                known.insert(shown.path.clone(), titled);
            }
            // The document may just have been removed or replaced.
            if let Some(Some((put, title))) = known.get(&shown.path) {
                let hit = make_hit(score, shown, &put.text, put.metadata.clone());
                hits.push((at, SearchHit { title: title.clone(), ..hit }));
            }
        }
        Ok(hits)
    }
}

/// Adds two vectors and normalizes the sum. Returns the only one if the other is missing.
fn combine(own: Option<Vec<f32>>, given: Option<&[f32]>) -> Option<Vec<f32>> {
    match (own, given) {
        (Some(own), Some(given)) => {
            Some(normalize(own.iter().zip(given).map(|(a, b)| a + b).collect()))
        }
        (own, given) => own.or_else(|| given.map(<[f32]>::to_vec)),
    }
}

/// Returns true if the candidate shares a word with the query or is similar to it.
fn is_related(candidate: &Candidate) -> bool {
    candidate.counts.iter().flatten().any(|count| *count > 0)
        || candidate.static_cosine >= STATIC_SIMILARITY_MIN
        || candidate.model_cosine.is_some_and(|it| it >= MODEL_SIMILARITY_MIN)
}

/// Ranks the candidates by vectors alone.
fn rank_by_vectors(candidates: &[Candidate], top: usize) -> Vec<RankedCandidate> {
    let score = |it: &Candidate| it.model_cosine.unwrap_or(it.static_cosine).clamp(0.0, 1.0);
    let scored = candidates
        .iter()
        .enumerate()
        .map(|(at, it)| RankedCandidate { index: at, score: score(it) });
    let mut ranked: Vec<RankedCandidate> = scored.collect();
    let place = |it: &RankedCandidate| {
        let ChunkSummary { path, first, .. } = &candidates[it.index].summary;
        (path, *first)
    };
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b))));
    ranked.truncate(top);
    ranked
}

/// Reads the files of passages again, so that an answer has their current text.
struct PassageReader<'r> {
    root: &'r Root,
    watch: &'r WorkMonitor,
    checkout: Option<checkout::CheckoutState>,
    files: BTreeMap<String, CurrentFile>,
}

/// A file as it is now.
struct CurrentFile {
    text: String,
    /// The commit of the file.
    commit: Option<String>,
    title: Option<String>,
}

impl PassageReader<'_> {
    /// Reads the file of `shown`. Returns `None` if it has changed since it was indexed.
    fn read(&mut self, shown: &ChunkSummary) -> Result<Option<&CurrentFile>, ToolError> {
        let path = &shown.path;
        if !self.files.contains_key(path) {
            let Ok(file) = self.root.open_walked(Path::new(path)) else { return Ok(None) };
            let content = match file.read(0, file.meta().size(), self.watch) {
                Ok(content) => content,
                Err(err) if err.fault == ToolFault::Canceled => return Err(err),
                Err(_) => return Ok(None),
            };
            if self.root.etag_of_content(&content, file.meta()).as_str() != shown.etag {
                return Ok(None);
            }
            let Ok(text) = String::from_utf8(content) else { return Ok(None) };
            let commit_of =
                |it: &checkout::CheckoutState| it.commit_of(path, file.meta(), text.as_bytes());
            let commit = self.checkout.as_ref().and_then(commit_of);
            let title = document_title(path, &text);
            self.files.insert(path.clone(), CurrentFile { text, commit, title });
        }
        Ok(self.files.get(path))
    }
}

fn make_hit(
    score: f32,
    shown: ChunkSummary,
    read: &str,
    metadata: Map<String, Value>,
) -> SearchHit {
    let ChunkSummary { path, first, last, kind, names, lang, tags, etag, commit, .. } = shown;
    let lines = (last as usize + 1).saturating_sub(first as usize);
    let skipped = (first as usize).saturating_sub(1);
    let mut snippet: String = read.split_inclusive('\n').skip(skipped).take(lines).collect();
    if snippet.ends_with('\n') {
        snippet.pop();
        if snippet.ends_with('\r') {
            snippet.pop();
        }
    }
    let symbol = match kind {
        ChunkKind::Function | ChunkKind::Type | ChunkKind::Code | ChunkKind::Key => names.first(),
        ChunkKind::Section | ChunkKind::Text => None,
    };
    SearchHit {
        id: format!("{path}:{first}-{last}"),
        score: round_score(score),
        title: None,
        symbol: symbol.cloned(),
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
    }
}

/// Rounds a score or vector element to six decimals.
fn round_score(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}
