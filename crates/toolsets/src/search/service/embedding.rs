//! Makes vectors with the configured model in the background, so that searches do not wait for
//! them.

use std::collections::{BTreeSet, HashSet};
use std::future::pending;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_chunks::chunks;
use toolgate_search::document::borrowed;
use toolgate_search::embedder::{Role, told};
use toolgate_search::{ChunkHash, Document, Embedder};

use crate::search::engines::{Engine, EngineError, Unembedded};
use crate::world::Root;
use crate::world::root::Watch;

/// The first pause after the model failed. It doubles after each further failure.
const REST: Duration = Duration::from_secs(2);
/// The longest pause after the model failed.
const REST_MAX: Duration = Duration::from_secs(300);

/// The prefix of a note that there are no vectors.
pub(super) const NO_VECTORS: &str = "no vectors by the model now: ";

/// Vectors by the hash of their chunk.
type Vectors = Vec<(ChunkHash, Vec<f32>)>;

/// A batch in progress; `None` if there was nothing to do.
type Making = Pin<Box<dyn Future<Output = Result<Option<Vectors>, String>> + Send>>;

/// Makes vectors for the chunks that have none.
pub(super) struct Embedding {
    embedder: Option<Arc<dyn Embedder>>,
    /// The folder of the texts; `None` if the engine keeps them.
    root: Option<Root>,
    making: Option<Making>,
    /// True if there is nothing to do until documents are put.
    is_done: bool,
    rest: Duration,
    not_before: Option<Instant>,
    trouble: Option<String>,
    cancel: CancellationToken,
}

/// The result of a batch.
pub(super) struct Made {
    /// Vectors for the engine.
    pub(super) vectors: Option<Vectors>,
}

impl Embedding {
    pub(super) fn new(
        embedder: Option<Arc<dyn Embedder>>,
        root: Option<&Root>,
        cancel: &CancellationToken,
    ) -> Self {
        Self {
            embedder,
            root: root.cloned(),
            making: None,
            is_done: false,
            rest: REST,
            not_before: None,
            trouble: None,
            cancel: cancel.clone(),
        }
    }

    /// Returns true if a model is configured.
    pub(super) fn is_wanted(&self) -> bool {
        self.embedder.is_some()
    }

    /// Returns why there are no vectors now, if the model failed.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.as_ref().map(|why| format!("{NO_VECTORS}{why}"))
    }

    /// Resumes the work, because there may be new chunks.
    pub(super) fn wake(&mut self) {
        self.is_done = false;
    }

    /// Waits for the next batch. Cancel safe: the next call continues the batch.
    pub(super) async fn next(&mut self, engine: &Arc<dyn Engine>) -> Made {
        let Some(embedder) = &self.embedder else { return pending().await };
        if self.is_done {
            return pending().await;
        }
        if let Some(moment) = self.not_before {
            sleep_until(moment).await;
            self.not_before = None;
        }
        let embedder = embedder.clone();
        let root = self.root.clone();
        let cancel = &self.cancel;
        let making = self
            .making
            .get_or_insert_with(|| Box::pin(batch(engine.clone(), embedder, root, cancel.clone())));
        let made = making.await;
        self.making = None;
        match made {
            Ok(Some(vectors)) => {
                (self.rest, self.trouble) = (REST, None);
                Made { vectors: Some(vectors) }
            }
            Ok(None) => {
                (self.is_done, self.trouble) = (true, None);
                Made { vectors: None }
            }
            Err(why) => {
                if self.trouble.as_ref() != Some(&why) {
                    tracing::warn!("vectors for searching are not made now: {why}");
                }
                self.trouble = Some(why);
                self.not_before = Some(Instant::now() + self.rest);
                self.rest = (self.rest * 2).min(REST_MAX);
                Made { vectors: None }
            }
        }
    }
}

/// Makes vectors for some chunks without one. Returns `None` if no such chunk can be read.
async fn batch(
    engine: Arc<dyn Engine>,
    embedder: Arc<dyn Embedder>,
    root: Option<Root>,
    cancel: CancellationToken,
) -> Result<Option<Vectors>, String> {
    let said = |err: EngineError| err.to_string();
    let most = embedder.batch_max().max(1);
    // More than one batch is requested, because some chunks may have changed.
    let waiting = engine.unembedded(most.saturating_mul(4)).await.map_err(said)?;
    let (hashes, texts) = match root {
        Some(root) => {
            let watch = Watch::quiet(cancel);
            let read = spawn_blocking(move || read(&root, &waiting, most, &watch)).await;
            read.map_err(|err| format!("reading the workspace failed: {err}"))?
        }
        None => kept(&*engine, &waiting, most).await.map_err(said)?,
    };
    if texts.is_empty() {
        return Ok(None);
    }
    let (vectors, _) = embedder.embed(&texts, Role::Chunk).await.map_err(|err| err.to_string())?;
    if vectors.len() != hashes.len() {
        let got = vectors.len();
        let asked = hashes.len();
        return Err(format!("the model gave {got} vectors for {asked} texts"));
    }
    let space = embedder.space();
    for vector in &vectors {
        check(vector, space.dimensions).map_err(|why| format!("the model's vector {why}"))?;
    }
    Ok(Some(hashes.into_iter().zip(vectors).collect()))
}

/// Checks that the vector has `dimensions` finite numbers.
fn check(vector: &[f32], dimensions: usize) -> Result<(), String> {
    if vector.len() != dimensions {
        return Err(format!("has {} numbers; {dimensions} are expected", vector.len()));
    }
    match vector.iter().position(|it| !it.is_finite()) {
        Some(at) => Err(format!("has a number ({at}) that is not finite")),
        None => Ok(()),
    }
}

/// Collects the texts of the `waiting` chunks that their files still contain.
fn read(
    root: &Root,
    waiting: &[Unembedded],
    most: usize,
    watch: &Watch,
) -> (Vec<ChunkHash>, Vec<String>) {
    let mut told = Told::new(waiting);
    for path in told.paths() {
        if told.hashes.len() >= most || watch.check().is_err() {
            break;
        }
        let Ok(file) = root.open_walked(Path::new(&path)) else { continue };
        let Ok(content) = file.read(0, file.meta().size(), watch) else { continue };
        let Ok(text) = String::from_utf8(content) else { continue };
        told.take(&path, &text, &chunks(&path, &text), most);
    }
    (told.hashes, told.texts)
}

async fn kept(
    engine: &dyn Engine,
    waiting: &[Unembedded],
    most: usize,
) -> Result<(Vec<ChunkHash>, Vec<String>), EngineError> {
    let mut told = Told::new(waiting);
    for path in told.paths() {
        if told.hashes.len() >= most {
            break;
        }
        if let Some(put) = engine.kept(path.clone()).await? {
            told.take(&path, &put.text, &put.chunks, most);
        }
    }
    Ok((told.hashes, told.texts))
}

/// Texts for the model, collected document by document.
struct Told {
    wanted: HashSet<ChunkHash>,
    paths: BTreeSet<String>,
    hashes: Vec<ChunkHash>,
    texts: Vec<String>,
}

impl Told {
    fn new(waiting: &[Unembedded]) -> Self {
        Self {
            wanted: waiting.iter().map(|it| it.hash).collect(),
            paths: waiting.iter().map(|it| it.path.clone()).collect(),
            hashes: Vec::new(),
            texts: Vec::new(),
        }
    }

    fn paths(&self) -> Vec<String> {
        self.paths.iter().cloned().collect()
    }

    fn take(&mut self, path: &str, text: &str, chunks: &[toolgate_chunks::Chunk], most: usize) {
        let document = Document {
            path,
            stamp: &[],
            etag: "",
            commit: None,
            lang: None,
            tags: &[],
            text,
            chunks,
        };
        for chunk in chunks {
            let texts = document.texts(chunk);
            let texts = borrowed(&texts);
            let hash = ChunkHash::of(&texts);
            if self.hashes.len() < most && self.wanted.remove(&hash) {
                self.hashes.push(hash);
                self.texts.push(told(&texts));
            }
        }
    }
}
