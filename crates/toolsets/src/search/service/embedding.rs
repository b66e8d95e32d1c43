//! Converts texts to vectors with the configured model in the background, so that searches do not
//! wait for vectors.

use std::collections::{BTreeSet, HashSet};
use std::future::pending;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_chunks::chunks;
use toolgate_net::spawn_blocking;
use toolgate_search::document::borrow_texts;
use toolgate_search::embedder::{EmbeddingRole, embedding_text};
use toolgate_search::{ChunkHash, Embedder, IndexDocument};

use crate::counted::counted;
use crate::search::engines::{SearchEngine, SearchEngineError, UnembeddedEngineChunk};
use toolgate_net::RetryBackoff;
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

/// The first pause after the embedding model failed. The pause doubles after each further failure.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest pause after the embedding model failed.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// The start of a note that the embedding model currently returns no vectors. The reason follows
/// after this text.
pub(super) const NO_VECTORS: &str = "the embedding model returns no vectors now: ";

/// Vectors, each with the hash of its chunk.
type VectorsByChunkHash = Vec<(ChunkHash, Vec<f32>)>;

/// The task that embeds a batch of texts. The task returns `None` if there was no text to embed.
type EmbeddingBatchTask =
    Pin<Box<dyn Future<Output = Result<Option<VectorsByChunkHash>, String>> + Send>>;

/// Creator of vectors for the chunks that have none, used by the task that updates an index.
pub(super) struct ChunkVectorBuilder {
    embedder: Option<Arc<dyn Embedder>>,
    /// The root of the files of the chunks; `None` if the engine stores their texts.
    root: Option<Root>,
    task: Option<EmbeddingBatchTask>,
    /// True if no more vectors can be created until more documents are stored.
    is_done: bool,
    backoff: RetryBackoff,
    not_before: Option<Instant>,
    failure: Option<String>,
    cancel: CancellationToken,
}

/// The result of embedding a batch of texts.
pub(super) struct EmbeddingBatchResult {
    /// Vectors to store in the search engine. `None` if there was no text to embed, or the
    /// embedding model failed.
    pub(super) vectors: Option<VectorsByChunkHash>,
}

impl ChunkVectorBuilder {
    pub(super) fn new(
        embedder: Option<Arc<dyn Embedder>>,
        root: Option<&Root>,
        cancel: &CancellationToken,
    ) -> Self {
        Self {
            embedder,
            root: root.cloned(),
            task: None,
            is_done: false,
            backoff: RetryBackoff::new(PAUSE_MIN, PAUSE_MAX),
            not_before: None,
            failure: None,
            cancel: cancel.clone(),
        }
    }

    /// Returns true if an embedding model is configured.
    pub(super) fn is_configured(&self) -> bool {
        self.embedder.is_some()
    }

    /// Returns the reason why there are currently no vectors, if the embedding model failed.
    pub(super) fn failure_note(&self) -> Option<String> {
        self.failure.as_ref().map(|why| format!("{NO_VECTORS}{why}"))
    }

    /// Makes the builder look for chunks without a vector again, because there may be new chunks.
    pub(super) fn resume(&mut self) {
        self.is_done = false;
    }

    /// Waits for the next batch of vectors. Waits forever if no model is configured or no chunk
    /// lacks a vector. If the future is dropped, the next call continues the batch.
    pub(super) async fn next_batch(
        &mut self,
        engine: &Arc<dyn SearchEngine>,
    ) -> EmbeddingBatchResult {
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
        let task = self.task.get_or_insert_with(|| {
            Box::pin(embed_batch(engine.clone(), embedder, root, cancel.clone()))
        });
        let result = task.await;
        self.task = None;
        match result {
            Ok(Some(vectors)) => {
                self.backoff.reset();
                self.failure = None;
                EmbeddingBatchResult { vectors: Some(vectors) }
            }
            Ok(None) => {
                (self.is_done, self.failure) = (true, None);
                EmbeddingBatchResult { vectors: None }
            }
            Err(why) => {
                if self.failure.as_ref() != Some(&why) {
                    tracing::warn!(
                        "the embedding model returns no vectors for the search index now: {why}"
                    );
                }
                self.failure = Some(why);
                self.not_before = Some(Instant::now() + self.backoff.next_pause());
                EmbeddingBatchResult { vectors: None }
            }
        }
    }
}

/// Creates vectors for some chunks without a vector. Returns `None` if there is no such chunk whose
/// text can be read. Fails if the engine or the model fails.
async fn embed_batch(
    engine: Arc<dyn SearchEngine>,
    embedder: Arc<dyn Embedder>,
    root: Option<Root>,
    cancel: CancellationToken,
) -> Result<Option<VectorsByChunkHash>, String> {
    let message = |err: SearchEngineError| err.to_string();
    let batch_max = embedder.batch_max().max(1);
    // More than one batch is requested, because some chunks may have changed.
    let waiting = engine.pending_chunks(batch_max.saturating_mul(4)).await.map_err(message)?;
    let (hashes, texts) = match root {
        Some(root) => {
            let watch = DiskWorkMonitor::silent(cancel);
            let read = spawn_blocking(move || read_texts(&root, &waiting, batch_max, &watch)).await;
            read.map_err(|err| format!("reading the workspace failed: {err}"))?
        }
        None => kept_texts(&*engine, &waiting, batch_max).await.map_err(message)?,
    };
    if texts.is_empty() {
        return Ok(None);
    }
    let (vectors, _) =
        embedder.embed(&texts, EmbeddingRole::Chunk).await.map_err(|err| err.to_string())?;
    if vectors.len() != hashes.len() {
        let vectors = counted(vectors.len() as u64, "vector", "vectors");
        let texts = counted(hashes.len() as u64, "text", "texts");
        return Err(format!("the model returned {vectors} for {texts}"));
    }
    let space = embedder.space();
    for vector in &vectors {
        check_vector(vector, space.dimensions)
            .map_err(|why| format!("a vector of the model {why}"))?;
    }
    Ok(Some(hashes.into_iter().zip(vectors).collect()))
}

/// Checks that a vector from a model has `dimensions` finite numbers.
fn check_vector(vector: &[f32], dimensions: usize) -> Result<(), String> {
    if vector.len() != dimensions {
        return Err(format!("has {} numbers; {dimensions} are expected", vector.len()));
    }
    match vector.iter().position(|it| !it.is_finite()) {
        Some(at) => Err(format!("has a number ({at}) that is not finite")),
        None => Ok(()),
    }
}

/// Returns the hashes and texts of those `waiting` chunks that their files still contain, at most
/// `batch_max`.
fn read_texts(
    root: &Root,
    waiting: &[UnembeddedEngineChunk],
    batch_max: usize,
    watch: &DiskWorkMonitor,
) -> (Vec<ChunkHash>, Vec<String>) {
    let mut batch = TextsToEmbed::new(waiting);
    for path in batch.paths() {
        if batch.hashes.len() >= batch_max || watch.check_cancelled().is_err() {
            break;
        }
        let Ok(file) = root.open_walked(Path::new(&path)) else { continue };
        let Ok(content) = file.read(0, file.meta().size(), watch) else { continue };
        let Ok(text) = String::from_utf8(content) else { continue };
        batch.add_document(&path, &text, &chunks(&path, &text), batch_max);
    }
    (batch.hashes, batch.texts)
}

async fn kept_texts(
    engine: &dyn SearchEngine,
    waiting: &[UnembeddedEngineChunk],
    batch_max: usize,
) -> Result<(Vec<ChunkHash>, Vec<String>), SearchEngineError> {
    let mut batch = TextsToEmbed::new(waiting);
    for path in batch.paths() {
        if batch.hashes.len() >= batch_max {
            break;
        }
        if let Some(document) = engine.kept_document(path.clone()).await? {
            batch.add_document(&path, &document.text, &document.chunks, batch_max);
        }
    }
    Ok((batch.hashes, batch.texts))
}

/// Texts for the embedding model, collected document by document.
struct TextsToEmbed {
    wanted: HashSet<ChunkHash>,
    paths: BTreeSet<String>,
    hashes: Vec<ChunkHash>,
    texts: Vec<String>,
}

impl TextsToEmbed {
    fn new(waiting: &[UnembeddedEngineChunk]) -> Self {
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

    fn add_document(
        &mut self,
        path: &str,
        text: &str,
        chunks: &[toolgate_chunks::TextChunk],
        batch_max: usize,
    ) {
        let document = IndexDocument {
            path,
            fingerprint: &[],
            etag: "",
            commit: None,
            lang: None,
            tags: &[],
            text,
            chunks,
        };
        for chunk in chunks {
            let texts = document.texts(chunk);
            let texts = borrow_texts(&texts);
            let hash = ChunkHash::for_texts(&texts);
            if self.hashes.len() < batch_max && self.wanted.remove(&hash) {
                self.hashes.push(hash);
                self.texts.push(embedding_text(&texts));
            }
        }
    }
}
