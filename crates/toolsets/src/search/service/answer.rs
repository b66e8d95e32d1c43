//! One answer: what may be meant is asked of the engine, ranked, and shown as it is now.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use toolgate_chunks::ChunkKind;
use toolgate_contract::{Ctx, Fault, ToolError};
use toolgate_search::embedder::Role;
use toolgate_search::rank::{Candidate, RERANK, Ranked, rank};
use toolgate_search::{Embedder, Filter, Shown, static_model};

use super::asked::{Asked, normalised};
use super::checkout;
use super::collection::Collection;
use super::embedding::NO_VECTORS;
use super::progress::{Indexed, State};
use crate::search::engines::{By, EngineError, Matched, Put, Sought};
use crate::world::Root;
use crate::world::root::Watch;
use title::title;

mod title;

/// How many are looked at more closely, by each way they are found.
const CANDIDATES: usize = 150;
/// How long a vector of the query is waited for, or half of what the call has left if that is less.
const VECTOR_MAX: Duration = Duration::from_secs(2);
/// What shares no word with the query is told only if it is as near as this by the vectors that are
/// built in.
const NEAR_MIN: f32 = 0.3;
/// And by the model's.
const MODEL_MIN: f32 = 0.2;

/// What was found.
pub(crate) struct Found {
    /// The best first.
    pub(crate) hits: Vec<Hit>,
    /// How many there are in all.
    pub(crate) total: u64,
    pub(crate) embedding_model: Option<String>,
    pub(crate) embed_time_ms: Option<u64>,
    pub(crate) rerank_model: Option<&'static str>,
    /// Why the configured model was not asked, where there is one.
    pub(crate) note: Option<String>,
    pub(crate) index: Indexed,
}

/// A passage that was found.
pub(crate) struct Hit {
    pub(crate) id: String,
    pub(crate) score: f64,
    pub(crate) path: String,
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The name it defines.
    pub(crate) symbol: Option<String>,
    pub(crate) lang: Option<String>,
    pub(crate) etag: String,
    /// The commit its file is of, if it is as git has it.
    pub(crate) commit: Option<String>,
    pub(crate) tags: Vec<String>,
    /// Its lines, as they are in the file now.
    pub(crate) snippet: String,
    /// What the document is called, where it is one and says.
    pub(crate) title: Option<String>,
    /// What was put beside a document.
    pub(crate) metadata: Map<String, Value>,
    pub(crate) vector: Option<Vec<f64>>,
}

/// Why there is no answer.
pub(super) enum Failure {
    Tool(ToolError),
    Engine(EngineError),
}

impl From<ToolError> for Failure {
    fn from(err: ToolError) -> Self {
        Self::Tool(err)
    }
}

impl From<EngineError> for Failure {
    fn from(err: EngineError) -> Self {
        Self::Engine(err)
    }
}

/// All that an answer is made of.
pub(super) struct Answer<'a> {
    pub(super) collection: &'a Collection,
    pub(super) embedder: Option<&'a Arc<dyn Embedder>>,
    pub(super) asked: &'a Asked,
    /// Where it is looked; `None` for nowhere.
    pub(super) filter: Option<Filter>,
    pub(super) indexed: Indexed,
    /// Whether what is not as it was indexed is left out; else it is begun again.
    pub(super) is_last: bool,
}

/// The model's vector of a query, if there is one, and how that went.
#[derive(Clone, Default)]
pub(super) struct Direction {
    vector: Option<Vec<f32>>,
    ms: Option<u64>,
    note: Option<String>,
}

impl Answer<'_> {
    /// What was found; `None` if a file is not any more as it was when it was indexed. The model is
    /// asked only where `known` has nothing from an earlier try.
    pub(super) async fn find(
        self,
        ctx: &Ctx,
        known: &mut Option<Direction>,
    ) -> Result<Option<Found>, Failure> {
        let Self { asked, .. } = self;
        let wanted = &asked.wanted;
        let direction = match known {
            Some(direction) => direction.clone(),
            None => known.insert(self.direction(ctx).await).clone(),
        };
        let own = asked.query.as_deref().and_then(static_model::query);
        let given = |by| asked.given.as_ref().filter(|it| it.0 == by).map(|it| it.1.as_slice());
        let near = both(own, given(By::Static));
        let model = both(direction.vector, given(By::Model));
        let used_model = model.is_some();
        let with_vectors = near.is_some() || wanted.vectors;
        let mut found = Found {
            hits: Vec::new(),
            total: 0,
            embedding_model: match (used_model, with_vectors, self.embedder) {
                (true, _, Some(embedder)) => Some(embedder.space().model.clone()),
                (false, true, _) | (true, _, None) => Some(static_model::space().model),
                (false, false, _) => None,
            },
            embed_time_ms: direction.ms,
            rerank_model: (asked.query.is_some() && wanted.rerank).then_some(RERANK),
            note: direction.note,
            index: self.indexed.clone(),
        };
        // Not open yet: there is nothing to be found in it.
        let is_open = self.indexed.state != State::Absent;
        let Some(filter) = self.filter.clone().filter(|_| is_open) else { return Ok(Some(found)) };
        let sought = Sought { query: asked.query.clone(), near, model, filter, limit: CANDIDATES };
        let matched = self.collection.engine.candidates(sought).await?;
        let Matched { question, averages, mut candidates, total, vectors } = matched;
        candidates.retain(is_related);
        // Some may turn out not to be as they were.
        let top = wanted.top_k.saturating_mul(2);
        let ranked = match &question {
            Some(question) => rank(question, &averages, &candidates, wanted.rerank, top),
            None => by_vectors(&candidates, top),
        };
        let ranked: Vec<Ranked> = ranked.into_iter().filter(|it| it.score > 0.0).collect();
        let shown = match self.shown(ctx, &ranked, &candidates).await? {
            Ok(shown) => shown,
            Err(path) => {
                self.collection.is_changed(path);
                return Ok(None);
            }
        };
        let of: HashMap<usize, Vec<f64>> = if wanted.vectors {
            let keys = shown.iter().map(|(at, _)| candidates[*at].key).collect();
            let by = if self.embedder.is_some() { By::Model } else { By::Static };
            let vectors = vectors.of(keys, by).await?;
            let numbers = |it: Vec<f32>| it.into_iter().map(rounded).collect();
            let of = shown.iter().zip(vectors).map(|((at, _), it)| Some((*at, numbers(it?))));
            of.flatten().collect()
        } else {
            HashMap::new()
        };
        let mut of = of;
        found.hits =
            shown.into_iter().map(|(at, hit)| Hit { vector: of.remove(&at), ..hit }).collect();
        let all = total.unwrap_or(candidates.len() as u64);
        found.total = all.max(found.hits.len() as u64);
        Ok(Some(found))
    }

    /// The model's vector of the query, where some of what is indexed has one to hold it against.
    async fn direction(&self, ctx: &Ctx) -> Direction {
        let (Some(embedder), Some(query)) = (self.embedder, &self.asked.query) else {
            return Direction::default();
        };
        if self.indexed.vectors.unwrap_or_default() == 0 {
            let note = self.indexed.note.clone().filter(|note| note.starts_with(NO_VECTORS));
            let note = note.unwrap_or_else(|| "there are no vectors by the model yet".to_owned());
            return Direction { note: Some(note), ..Direction::default() };
        }
        let begun = Instant::now();
        let most = VECTOR_MAX.min(ctx.deadline.saturating_duration_since(begun) / 2);
        let texts = [query.clone()];
        let made = tokio::time::timeout(most, embedder.embed(&texts, Role::Query)).await;
        let ms = Some(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let away = |why: String| Direction {
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
                    Direction { vector: Some(vector), ms, note: None }
                }
                Some(vector) => away(format!("its vector of {} numbers is none", vector.len())),
                None => away("it gave no vector".to_owned()),
            },
        }
    }

    /// What is shown of the best, each with which candidate it is; else the path of a file that is
    /// not any more as it was indexed.
    async fn shown(
        &self,
        ctx: &Ctx,
        ranked: &[Ranked],
        candidates: &[Candidate],
    ) -> Result<Result<Vec<(usize, Hit)>, String>, Failure> {
        let (top_k, is_last) = (self.asked.wanted.top_k, self.is_last);
        let wanted: Vec<(usize, f32, Shown)> =
            ranked.iter().map(|it| (it.at, it.score, candidates[it.at].shown.clone())).collect();
        let Some(root) = self.collection.root() else {
            return Ok(Ok(self.documents(wanted).await?));
        };
        let checkout = self.collection.checkout().cloned();
        let shown = root
            .work(ctx, move |root, watch| {
                let checkout = checkout.and_then(|checkout| checkout.now(watch));
                let mut reader = Reader { root, watch, checkout, files: BTreeMap::new() };
                let mut hits = Vec::new();
                for (at, score, shown) in wanted {
                    if hits.len() >= top_k {
                        break;
                    }
                    watch.check()?;
                    match reader.read(&shown)? {
                        Some(Read { text, commit, title }) => {
                            let (commit, title) = (commit.clone(), title.clone());
                            let hit = hit(score, shown, text, Map::new());
                            hits.push((at, Hit { commit, title, ..hit }));
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

    async fn documents(
        &self,
        wanted: Vec<(usize, f32, Shown)>,
    ) -> Result<Vec<(usize, Hit)>, EngineError> {
        let mut known: BTreeMap<String, Option<(Put, Option<String>)>> = BTreeMap::new();
        let mut hits = Vec::new();
        for (at, score, shown) in wanted {
            if hits.len() >= self.asked.wanted.top_k {
                break;
            }
            if !known.contains_key(&shown.path) {
                let put = self.collection.engine.kept(shown.path.clone()).await?;
                let put = put.filter(|put| put.etag == shown.etag);
                let titled = put.map(|put| {
                    let title = title(&put.path, &put.text);
                    (put, title)
                });
                known.insert(shown.path.clone(), titled);
            }
            // It may have been taken out, or put again, a moment ago.
            if let Some(Some((put, title))) = known.get(&shown.path) {
                let hit = hit(score, shown, &put.text, put.metadata.clone());
                hits.push((at, Hit { title: title.clone(), ..hit }));
            }
        }
        Ok(hits)
    }
}

/// The direction of both, where there are both.
fn both(own: Option<Vec<f32>>, given: Option<&[f32]>) -> Option<Vec<f32>> {
    match (own, given) {
        (Some(own), Some(given)) => {
            Some(normalised(own.iter().zip(given).map(|(a, b)| a + b).collect()))
        }
        (own, given) => own.or_else(|| given.map(<[f32]>::to_vec)),
    }
}

/// Whether a candidate has anything to do with what is looked for.
fn is_related(candidate: &Candidate) -> bool {
    candidate.counts.iter().flatten().any(|count| *count > 0)
        || candidate.near >= NEAR_MIN
        || candidate.model.is_some_and(|it| it >= MODEL_MIN)
}

/// The candidates by vectors alone.
fn by_vectors(candidates: &[Candidate], top: usize) -> Vec<Ranked> {
    let score = |it: &Candidate| it.model.unwrap_or(it.near).clamp(0.0, 1.0);
    let scored = candidates.iter().enumerate().map(|(at, it)| Ranked { at, score: score(it) });
    let mut ranked: Vec<Ranked> = scored.collect();
    let place = |it: &Ranked| {
        let Shown { path, first, .. } = &candidates[it.at].shown;
        (path, *first)
    };
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b))));
    ranked.truncate(top);
    ranked
}

/// Reads again what is shown: an answer says what is in the file now.
struct Reader<'r> {
    root: &'r Root,
    watch: &'r Watch,
    checkout: Option<checkout::Now>,
    files: BTreeMap<String, Read>,
}

/// A file as it is now.
struct Read {
    text: String,
    /// The commit it is of.
    commit: Option<String>,
    title: Option<String>,
}

impl Reader<'_> {
    /// The file of `shown`, if that says what it said when it was indexed.
    fn read(&mut self, shown: &Shown) -> Result<Option<&Read>, ToolError> {
        let path = &shown.path;
        if !self.files.contains_key(path) {
            let Ok(file) = self.root.open_walked(Path::new(path)) else { return Ok(None) };
            let content = match file.read(0, file.meta().size(), self.watch) {
                Ok(content) => content,
                Err(err) if err.fault == Fault::Canceled => return Err(err),
                Err(_) => return Ok(None),
            };
            if self.root.etag_of(&content, file.meta()).as_str() != shown.etag {
                return Ok(None);
            }
            let Ok(text) = String::from_utf8(content) else { return Ok(None) };
            let commit_of = |it: &checkout::Now| it.commit_of(path, file.meta(), text.as_bytes());
            let commit = self.checkout.as_ref().and_then(commit_of);
            let title = title(path, &text);
            self.files.insert(path.clone(), Read { text, commit, title });
        }
        Ok(self.files.get(path))
    }
}

fn hit(score: f32, shown: Shown, read: &str, metadata: Map<String, Value>) -> Hit {
    let Shown { path, first, last, kind, names, lang, tags, etag, commit, .. } = shown;
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
    Hit {
        id: format!("{path}:{first}-{last}"),
        score: rounded(score),
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

/// As many digits as tell anything.
fn rounded(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}
