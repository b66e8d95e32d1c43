//! The engine behind the tools: a question in, passages of the workspace out, the best first.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::Mutex as Turn;
use toolgate_contract::{Ctx, Fault, ToolError};

use super::index::{Index, Text};
use super::language::Kind;
use super::rank::{self, Measure, Question, RERANK, Ranked, rank};
use super::vectors::{self, Vector};
use super::words::{Concept, concepts};
use super::{Settings, WORKSPACE};
use crate::world::Root;
use crate::world::root::Watch;
use crate::{files, front_matter};

/// How long a search reads files that it does not know yet, before it answers from those it does.
const READING_MAX: Duration = Duration::from_secs(10);
/// How often a search begins again since a file it was to show had changed meanwhile.
const AGAIN_MAX: usize = 3;
/// A longer question is no question.
const QUERY_BYTES_MAX: usize = 4 << 10;
/// More tags than any file has are no filter.
const TAGS_MAX: usize = 32;

/// Searches a workspace by meaning. Each namespace has an index of its own, built when it is
/// searched first.
pub struct Engine {
    root: Root,
    settings: Settings,
    namespaces: BTreeMap<String, Namespace>,
}

struct Namespace {
    folder: String,
    index: Arc<Turn<Index>>,
}

/// What is looked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// In words.
    pub(crate) query: Option<String>,
    /// As a vector; beside a query, both count alike.
    pub(crate) embedding: Option<Vec<f64>>,
    /// How many passages at most.
    pub(crate) top_k: usize,
    /// In which namespace; without one, in the whole workspace.
    pub(crate) namespace: Option<String>,
    /// Only in files whose path begins with it.
    pub(crate) path_prefix: Option<String>,
    /// Only in files that have all of them.
    pub(crate) tags: Vec<String>,
    /// Whether a closer look is taken at what matches the words.
    pub(crate) rerank: bool,
    /// Whether the passages' vectors are wanted too.
    pub(crate) vectors: bool,
}

/// What was found.
pub(crate) struct Found {
    /// The best first.
    pub(crate) hits: Vec<Hit>,
    /// How many there are in all.
    pub(crate) total: u64,
    pub(crate) embedding_model: Option<&'static str>,
    pub(crate) rerank_model: Option<&'static str>,
    pub(crate) index: Indexed,
}

/// A passage that was found.
pub(crate) struct Hit {
    pub(crate) id: String,
    pub(crate) score: f64,
    pub(crate) path: String,
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) lang: Option<&'static str>,
    pub(crate) etag: String,
    pub(crate) tags: Vec<&'static str>,
    /// Its lines, as they are in the file now.
    pub(crate) snippet: String,
    /// What the document is called, where it is one and says.
    pub(crate) title: Option<String>,
    pub(crate) vector: Option<Vec<f64>>,
}

/// How much of the workspace the index knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Indexed {
    /// How many files are in it.
    pub files: u64,
    /// How many passages they have.
    pub chunks: u64,
    /// Whether that is every text file; `false` while it is being built and where a limit cut it.
    pub complete: bool,
}

impl Engine {
    /// The engine for the workspace `root`, whose etags are as `files` says; `None` where
    /// `settings` want none. It reads nothing before it is asked.
    pub fn new(root: &Root, settings: &Settings, files: &files::Settings) -> Option<Arc<Self>> {
        let Settings { enabled, namespaces, .. } = settings;
        let whole = [(WORKSPACE.to_owned(), ".".to_owned())];
        let namespaces = namespaces
            .clone()
            .into_iter()
            .chain(whole)
            .map(|(name, folder)| (name, Namespace { folder, index: Arc::default() }));
        enabled.then(|| {
            Arc::new(Self {
                root: root.clone().with_rules(&files.rules()),
                settings: settings.clone(),
                namespaces: namespaces.collect(),
            })
        })
    }

    /// The passages that are likeliest meant by `wanted`.
    pub(crate) async fn search(&self, ctx: &Ctx, wanted: Wanted) -> Result<Found, ToolError> {
        wanted.check()?;
        let name = wanted.namespace.as_deref().unwrap_or(WORKSPACE);
        let Some(Namespace { folder, index }) = self.namespaces.get(name) else {
            let names: Vec<&str> = self.namespaces.keys().map(String::as_str).collect();
            let message = format!("no namespace is named `{name}`; there are {}", names.join(", "));
            return Err(ToolError::invalid("/namespace", message));
        };
        // One at a time searches a namespace: the next finds what this one read.
        let mut index = tokio::select! {
            index = index.clone().lock_owned() => index,
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        let now = Instant::now();
        let until = now + READING_MAX.min(ctx.deadline.saturating_duration_since(now) / 2);
        let (settings, folder) = (self.settings.clone(), folder.clone());
        let away = format!("the index of `{name}` cannot be brought up to date");
        let work = move |root: &Root, watch: &Watch| {
            let asked = Asked::new(&wanted)?;
            for _ in 0..AGAIN_MAX {
                let looked = index.refresh(root, &folder, &settings, until, watch);
                looked.map_err(|err| unavailable(&away, err))?;
                let found = asked.answer(root, &index, &wanted, watch)?;
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            let message = format!("{away}: files change while they are read; try again");
            Err(ToolError::new(Fault::Unavailable, message))
        };
        self.root.work(ctx, work).await
    }
}

fn unavailable(away: &str, err: ToolError) -> ToolError {
    if err.fault == Fault::Canceled {
        return err;
    }
    let ToolError { message, cause, .. } = err;
    ToolError { fault: Fault::Unavailable, message: format!("{away}: {message}"), cause }
}

impl Wanted {
    /// Refuses what is too large or no vector, without a look at the words.
    fn check(&self) -> Result<(), ToolError> {
        let Self { query, embedding, .. } = self;
        if let Some(len) = query.as_ref().map(String::len).filter(|len| *len > QUERY_BYTES_MAX) {
            let message = format!("it has {len} bytes; at most {QUERY_BYTES_MAX} are allowed");
            return Err(ToolError::invalid("/query", message));
        }
        if let Some(Err(why)) = embedding.as_deref().map(Vector::given) {
            return Err(ToolError::invalid("/embedding", why));
        }
        Ok(())
    }
}

/// The tags that a caller gave at `pointer`, each once.
pub(crate) fn distinct_tags(given: Vec<String>, pointer: &str) -> Result<Vec<String>, ToolError> {
    let mut known = HashSet::new();
    let mut tags = Vec::new();
    for tag in given {
        if !known.insert(tag.to_ascii_lowercase()) {
            continue;
        }
        if tags.len() == TAGS_MAX {
            let message = format!("it has more than {TAGS_MAX} different tags; name fewer");
            return Err(ToolError::invalid(pointer, message));
        }
        tags.push(tag);
    }
    Ok(tags)
}

/// What is wanted, its words taken apart.
struct Asked {
    question: Option<(String, Vec<Concept>)>,
    direction: Option<Vec<f64>>,
}

impl Asked {
    fn new(wanted: &Wanted) -> Result<Self, ToolError> {
        let Wanted { query, embedding, .. } = wanted;
        let question = query.clone().map(|query| {
            let concepts = concepts(&query);
            (query, concepts)
        });
        let question = question.filter(|(_, concepts)| !concepts.is_empty());
        if question.is_none() && embedding.is_none() {
            return Err(ToolError::invalid(
                "/query",
                "it is missing or has no words in it; say what is looked for, or pass an embedding",
            ));
        }
        Ok(Self { question, direction: embedding.clone() })
    }

    /// What `index` knows; `None` if a file is not any more as it was when it was read.
    fn answer(
        &self,
        root: &Root,
        index: &Index,
        wanted: &Wanted,
        watch: &Watch,
    ) -> Result<Option<Found>, ToolError> {
        let question = |(query, concepts): &(String, Vec<Concept>)| {
            Question::new(query, concepts.clone(), index)
        };
        let measure = Measure {
            question: self.question.as_ref().map(question),
            direction: self.direction.as_deref().and_then(|it| Vector::given(it).ok()),
            rerank: wanted.rerank,
        };
        let prefix = wanted.path_prefix.as_deref().map(|it| beneath(root, it)).unwrap_or_default();
        let fits = |text: &Text| {
            let tags = text.sort.tags();
            let has = |tag: &String| tags.iter().any(|it| it.eq_ignore_ascii_case(tag));
            text.path.starts_with(&prefix) && wanted.tags.iter().all(has)
        };
        let (ranked, total) = rank(index, &measure, fits, watch)?;
        let mut reader = Reader { root, watch, texts: BTreeMap::new() };
        let mut hits = Vec::new();
        for ranked in ranked.iter().take(wanted.top_k) {
            watch.check()?;
            let Some(read) = reader.read(&ranked.text)? else { return Ok(None) };
            let vector = wanted.vectors.then(|| numbers(&rank::vector(index, ranked.passage())));
            hits.push(hit(ranked, read, vector));
        }
        let with_vectors = measure.direction.is_some() || wanted.vectors;
        let reranked = measure.question.is_some() && wanted.rerank;
        Ok(Some(Found {
            hits,
            total,
            embedding_model: with_vectors.then_some(vectors::MODEL),
            rerank_model: reranked.then_some(RERANK),
            index: index.indexed(),
        }))
    }
}

/// `prefix` as the paths of the workspace begin.
fn beneath(root: &Root, prefix: &str) -> String {
    let at = root
        .path()
        .to_str()
        .and_then(|root| prefix.strip_prefix(root.trim_end_matches('/'))?.strip_prefix('/'));
    let mut prefix = at.unwrap_or(prefix);
    while let Some(rest) = prefix.strip_prefix("./") {
        prefix = rest.trim_start_matches('/');
    }
    if prefix == "." { String::new() } else { prefix.to_owned() }
}

/// Reads again what is shown: an answer says what is in the file now.
struct Reader<'r> {
    root: &'r Root,
    watch: &'r Watch,
    texts: BTreeMap<String, String>,
}

impl Reader<'_> {
    /// What `text` says, if that is what it said when it was indexed.
    fn read(&mut self, text: &Text) -> Result<Option<&str>, ToolError> {
        if !self.texts.contains_key(&text.path) {
            let Ok(file) = self.root.open_walked(text.path.as_ref()) else { return Ok(None) };
            let content = match file.read(0, file.meta().size(), self.watch) {
                Ok(content) => content,
                Err(err) if err.fault == Fault::Canceled => return Err(err),
                Err(_) => return Ok(None),
            };
            if self.root.etag_of(&content, file.meta()) != text.etag {
                return Ok(None);
            }
            let Ok(content) = String::from_utf8(content) else { return Ok(None) };
            self.texts.insert(text.path.clone(), content);
        }
        Ok(self.texts.get(&text.path).map(String::as_str))
    }
}

fn hit(ranked: &Ranked, read: &str, vector: Option<Vec<f64>>) -> Hit {
    let (text, chunk) = (&ranked.text, ranked.passage());
    let (first, last) = (chunk.first as usize, chunk.last as usize);
    let lines = read.split_inclusive('\n').skip(first - 1).take(last + 1 - first);
    let mut snippet: String = lines.collect();
    if snippet.ends_with('\n') {
        snippet.pop();
        if snippet.ends_with('\r') {
            snippet.pop();
        }
    }
    Hit {
        id: format!("{}:{}-{}", text.path, chunk.first, chunk.last),
        score: rounded(ranked.score),
        path: text.path.clone(),
        first: chunk.first,
        last: chunk.last,
        lang: text.sort.lang,
        etag: text.etag.to_string(),
        tags: text.sort.tags(),
        snippet,
        title: title(text, read),
        vector,
    }
}

fn numbers(vector: &Vector) -> Vec<f64> {
    vector.numbers().iter().copied().map(rounded).collect()
}

/// As many digits as tell anything.
fn rounded(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}

/// What the document `text`, which reads `read`, is called: as its front matter says, else by its
/// first heading.
fn title(text: &Text, read: &str) -> Option<String> {
    if text.sort.kind != Kind::Docs {
        return None;
    }
    let head = front_matter::split_if_any(read).map(|parts| parts.head).unwrap_or_default();
    let said: Option<Map<String, Value>> = front_matter::parse(head, &[]).ok();
    let said = said.as_ref().and_then(|it| it.get("title")?.as_str()).map(str::to_owned);
    let mut headings = text.chunks.iter().flat_map(|chunk| chunk.names.first());
    said.or_else(|| headings.next().map(ToString::to_string))
}
