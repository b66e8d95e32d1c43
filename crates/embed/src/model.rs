//! An open model, which turns texts into vectors.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::bert::{BertNetwork, ForwardPassBuffers};
use crate::error::ModelFolderError;
use crate::folder::ParsedModelFolder;
use crate::tokens::Tokenizer;
use crate::weights::ModelWeights;

/// Maximum number of tokens that are read of a text, including the start and end tokens. For code,
/// more tokens take much time and add little meaning.
const TOKENS_MAX: usize = 256;
/// Maximum number of tokens in one pass through the network. Larger passes need more memory and are
/// no faster.
const PASS_TOKENS_MAX: usize = 512;
/// Maximum number of threads that compute vectors.
const THREADS_MAX: usize = 16;

/// Vector space of one model. Only vectors of the same space are comparable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelVectorSpace {
    /// Name of the model's folder, and a hash of everything that determines the vectors.
    pub model: String,
    /// Number of dimensions of the vectors.
    pub dimensions: usize,
}

/// Reason that a model cannot embed a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddingError {
    /// A vector contains NaN or infinite numbers.
    #[error(
        "the model `{model}` returns vectors with invalid numbers, so its weights are damaged; \
         copy the whole model folder again"
    )]
    InvalidVectors {
        /// Name of the model.
        model: String,
    },
    /// The tokenizer cannot split the text into tokens.
    #[error("the tokenizer of the model `{model}` cannot read a text: {why}; use another model")]
    Tokenizer {
        /// Name of the model.
        model: String,
        /// Error of the tokenizer.
        why: String,
    },
}

/// A checked folder with a supported model, before its weights are loaded.
#[derive(Debug)]
pub struct CheckedModelFolder {
    folder: ParsedModelFolder,
    tokens_max: usize,
    prompts: [String; 2],
}

impl CheckedModelFolder {
    /// Checks that `folder` contains a sentence-transformers model of the BERT family. Reads only
    /// some kilobytes.
    ///
    /// # Errors
    ///
    /// Fails if a file is missing, damaged or unsupported.
    pub fn check(folder: &Path) -> Result<Self, ModelFolderError> {
        let folder = ParsedModelFolder::read(folder)?;
        let tokens_max = folder.tokens_max.min(TOKENS_MAX);
        let prompt = |names: &[&str]| {
            let found = names.iter().find_map(|name| folder.prompts.get(*name));
            found.cloned().unwrap_or_default()
        };
        let prompts = [prompt(&["query"]), prompt(&["document", "passage", "corpus"])];
        let looked = Self { folder, tokens_max, prompts };
        looked.weights()?;
        Ok(looked)
    }

    /// Returns the number of dimensions of the model's vectors.
    pub fn dimensions(&self) -> usize {
        self.folder.shape.hidden_size
    }

    /// Returns the vector space of the model. Reads and hashes all files that determine the
    /// vectors, so that models are never confused. Fails if a file cannot be read.
    pub fn space(&self) -> Result<ModelVectorSpace, ModelFolderError> {
        self.compute_space(&self.tokenizer()?, &self.weights()?)
    }

    /// Loads the model. This takes as long as reading the weights. Fails if a file is damaged or
    /// unsupported.
    pub fn open(&self) -> Result<EmbeddingModel, ModelFolderError> {
        let Self { folder, tokens_max, prompts } = self;
        let mut tokenizer = self.tokenizer()?;
        tokenizer.limit(*tokens_max);
        let weights = self.weights()?;
        let bert = BertNetwork::read(folder, &weights, *tokens_max)?;
        let space = self.compute_space(&tokenizer, &weights)?;
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let tokens_max = *tokens_max;
        let prompts = prompts.clone();
        Ok(EmbeddingModel { space, tokenizer, bert, tokens_max, threads, prompts })
    }

    fn tokenizer(&self) -> Result<Tokenizer, ModelFolderError> {
        Tokenizer::read(&self.folder.path, self.folder.shape.vocab_size)
    }

    fn weights(&self) -> Result<ModelWeights, ModelFolderError> {
        ModelWeights::open(&self.folder.path.join("model.safetensors"))
    }

    fn compute_space(
        &self,
        tokenizer: &Tokenizer,
        weights: &ModelWeights,
    ) -> Result<ModelVectorSpace, ModelFolderError> {
        let Self {
            folder: ParsedModelFolder { shape, activation: bend, pooling, .. },
            tokens_max,
            prompts,
        } = self;
        // Settings outside of the weights determine the vectors, too.
        let heads = shape.num_attention_heads;
        let eps = shape.layer_norm_eps;
        let rest = format!("{pooling:?} {tokens_max} {prompts:?} {bend:?} {heads} {eps:e}");
        let mut hasher = blake3::Hasher::new();
        hasher.update(weights.hash()?.as_bytes());
        hasher.update(tokenizer.hash().as_bytes());
        hasher.update(rest.as_bytes());
        let hash = hasher.finalize().to_hex();
        let model = format!("{}-{}", self.folder.name(), &hash[..8]);
        Ok(ModelVectorSpace { model, dimensions: self.dimensions() })
    }
}

/// A loaded model. It uses no network connection, and computes on the caller's threads.
#[derive(Debug)]
pub struct EmbeddingModel {
    space: ModelVectorSpace,
    tokenizer: Tokenizer,
    bert: BertNetwork,
    tokens_max: usize,
    threads: usize,
    prompts: [String; 2],
}

impl EmbeddingModel {
    /// Loads the model in `folder`: a sentence-transformers model of the BERT family. This takes as
    /// long as reading the weights. Fails if a file is missing, damaged or unsupported.
    pub fn open(folder: &Path) -> Result<Self, ModelFolderError> {
        CheckedModelFolder::check(folder)?.open()
    }

    /// Limits the number of tokens that are read of a text: at least 3, and at most the current
    /// limit.
    #[must_use]
    pub fn with_tokens_max(mut self, tokens: usize) -> Self {
        self.tokens_max = tokens.clamp(3, self.tokens_max);
        self.tokenizer.limit(self.tokens_max);
        self
    }

    /// Limits the number of threads that compute vectors, from 1 to 16.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.clamp(1, THREADS_MAX);
        self
    }

    /// Returns the vector space of the model.
    pub fn space(&self) -> &ModelVectorSpace {
        &self.space
    }

    /// Returns the highest number of tokens that are read of a text, including the start and end
    /// tokens.
    pub fn tokens_max(&self) -> usize {
        self.tokens_max
    }

    /// Returns the prefix that the model expects before a query, usually empty. The caller must add
    /// it.
    pub fn query_prompt(&self) -> &str {
        &self.prompts[0]
    }

    /// Returns the prefix that the model expects before content, usually empty. The caller must add
    /// it.
    pub fn passage_prompt(&self) -> &str {
        &self.prompts[1]
    }

    /// Embeds `texts` and returns one vector of length 1 for each text, in order. Blocks until
    /// done, and uses up to one thread per processor. The number of texts is not limited. Fails if
    /// the tokenizer cannot read a text, or if a vector contains NaN or infinite numbers.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbeddingError> {
        let tokens = texts.iter().map(|text| self.tokenizer.tokenize(text));
        let tokens = tokens.collect::<Result<Vec<_>, _>>().map_err(|err| {
            EmbeddingError::Tokenizer { model: self.space.model.clone(), why: err.to_string() }
        })?;
        let passes = self.group_passes(&tokens);
        let vectors = Mutex::new(vec![Vec::new(); texts.len()]);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut desk = ForwardPassBuffers::default();
            while let Some(pass) = passes.get(next.fetch_add(1, Ordering::Relaxed)) {
                let texts: Vec<_> = pass.iter().map(|at| tokens[*at].as_slice()).collect();
                let made = self.bert.vectors(&texts, &mut desk);
                let mut vectors = vectors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                pass.iter().zip(made).for_each(|(at, vector)| vectors[*at] = vector);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.threads.min(passes.len()) {
                scope.spawn(work);
            }
            work();
        });
        let vectors = vectors.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if vectors.iter().flatten().any(|number| !number.is_finite()) {
            return Err(EmbeddingError::InvalidVectors { model: self.space.model.clone() });
        }
        Ok(vectors)
    }

    /// Groups the indexes of texts into passes through the network, so that all threads are busy.
    /// `tokens` contains the tokens of each text.
    fn group_passes(&self, tokens: &[Vec<u32>]) -> Vec<Vec<usize>> {
        let all: usize = tokens.iter().map(Vec::len).sum();
        let room = PASS_TOKENS_MAX.min(all.div_ceil(self.threads));
        let mut passes: Vec<Vec<usize>> = Vec::new();
        let mut filled = room;
        for (at, text) in tokens.iter().enumerate() {
            match passes.last_mut() {
                Some(pass) if filled + text.len() <= room => {
                    pass.push(at);
                    filled += text.len();
                }
                Some(_) | None => {
                    passes.push(vec![at]);
                    filled = text.len();
                }
            }
        }
        passes
    }
}
