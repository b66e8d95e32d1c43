//! Computes the vectors of tool descriptions with a sentence model, in the background.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use blake3::Hash;
use foldhash::HashMap;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{BoxFuture, lock_mutex};

/// Longest time that a tool search waits for the vector of its query.
const QUESTION_WAIT: Duration = Duration::from_secs(1);
/// Number of tools whose sentences are sent to the sentence model at once.
const BATCH: usize = 32;
/// Maximum number of tools whose vectors are held in memory.
const VECTORS_MAX: usize = 50_000;

/// A model that turns sentences into vectors of length 1.
pub trait SentenceModel: Send + Sync + 'static {
    /// Returns the vector of the query `question`, or the reason why the model cannot compute it.
    fn embed_question(&self, question: String) -> BoxFuture<'_, Result<Vec<f32>, String>>;
    /// Returns the vectors of tool descriptions, in the order of `sentences`, or the reason why the
    /// model cannot compute them.
    fn embed_tools(&self, sentences: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, String>>;
}

/// Vectors of tools, computed by a sentence model. Clones share the vectors, which therefore
/// outlive a change of the settings.
#[derive(Clone)]
pub struct ToolVectors(Arc<ToolVectorState>);

struct ToolVectorState {
    model: Arc<dyn SentenceModel>,
    /// Vectors of sentences, by the hash of the sentence.
    known: Mutex<HashMap<Hash, Arc<[f32]>>>,
    /// The task that computes vectors of tools, while the task runs.
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl ToolVectors {
    /// Creates an empty set of vectors, which `model` will compute.
    pub fn new(model: Arc<dyn SentenceModel>) -> Self {
        Self(Arc::new(ToolVectorState { model, known: Mutex::default(), task: Mutex::default() }))
    }

    /// Returns the similarity (cosine) of each of `sentences` with `question`, or `None` for
    /// sentences whose vector is not ready. Starts to compute the missing vectors. Returns `None`
    /// if the question has no vector.
    pub(super) async fn cosines(
        &self,
        sentences: &[String],
        question: &str,
    ) -> Option<Vec<Option<f32>>> {
        let hashes: Vec<Hash> =
            sentences.iter().map(|text| blake3::hash(text.as_bytes())).collect();
        self.make_missing(sentences, &hashes);
        let asked = self.0.model.embed_question(question.to_owned());
        let asked = tokio::time::timeout(QUESTION_WAIT, asked).await.ok()?.ok()?;
        let known = lock_mutex(&self.0.known);
        let cosine = |hash: &Hash| {
            let vector = known.get(hash)?;
            Some(vector.iter().zip(&asked).map(|(a, b)| a * b).sum())
        };
        Some(hashes.iter().map(cosine).collect())
    }

    /// Starts a task that computes the vectors of sentences that have none, unless such a task runs
    /// already.
    fn make_missing(&self, sentences: &[String], hashes: &[Hash]) {
        let missing: Vec<(Hash, String)> = {
            let known = lock_mutex(&self.0.known);
            let pairs = hashes.iter().zip(sentences).filter(|(hash, _)| !known.contains_key(*hash));
            pairs.map(|(hash, text)| (*hash, text.clone())).collect()
        };
        let mut task = lock_mutex(&self.0.task);
        if missing.is_empty() || task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let making = make_vectors(Arc::downgrade(&self.0), missing);
        *task = Some(AbortOnDropHandle::new(toolgate_net::spawn_task(making)));
    }
}

/// Computes the vectors of the `missing` sentences in batches. Stops at the first failure, and the
/// next search tries again.
async fn make_vectors(state: Weak<ToolVectorState>, missing: Vec<(Hash, String)>) {
    for batch in missing.chunks(BATCH) {
        let Some(state) = state.upgrade() else { return };
        let sentences = batch.iter().map(|(_, text)| text.clone()).collect();
        let vectors = match state.model.embed_tools(sentences).await {
            Ok(vectors) => vectors,
            Err(why) => {
                tracing::debug!("tool search continues without vectors: {why}");
                return;
            }
        };
        let mut known = lock_mutex(&state.known);
        if known.len() + batch.len() > VECTORS_MAX {
            // Vectors of tools that are gone are not worth a search for them.
            known.clear();
        }
        known.extend(batch.iter().zip(vectors).map(|((hash, _), vector)| (*hash, vector.into())));
    }
}
