//! A model, open: texts in, vectors out.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::bert::{Bert, Desk};
use crate::folder::Folder;
use crate::tokens::Tokenizer;
use crate::weights::Weights;
use crate::wrong::NotAModel;

/// How many tokens of a text are read at most, with the two around it: what a model of 512 would
/// read beyond costs much and says little about a function.
const TOKENS_MAX: usize = 256;
/// How many tokens pass the network at once; more is not faster, and takes more memory.
const PASS_TOKENS: usize = 512;
/// How many threads compute at most.
const THREADS_MAX: usize = 16;

/// The vectors of one model: only those of the same space can be compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Space {
    /// What the model's folder is called, with a hash of what decides about the vectors.
    pub model: String,
    /// How many numbers a vector has.
    pub dimensions: usize,
}

/// Why there are no vectors of texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model `{model}` gives vectors that are no numbers, so its weights are of no use; copy the \
     model's folder again, whole"
)]
pub struct Failed {
    /// The model.
    pub model: String,
}

/// A folder with a model, looked at: what it says can be used here, and its weights are there.
#[derive(Debug)]
pub struct ModelFolder {
    folder: Folder,
    tokens_max: usize,
    prompts: [String; 2],
}

impl ModelFolder {
    /// Looks at `folder`, which is to be a sentence-transformers model of the BERT family. Reads
    /// some kilobytes.
    pub fn look(folder: &Path) -> Result<Self, NotAModel> {
        let folder = Folder::read(folder)?;
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

    /// How many numbers its vectors have.
    pub fn dimensions(&self) -> usize {
        self.folder.shape.hidden_size
    }

    /// The space of its vectors. Reads all that decides about them once, for its hash: those of
    /// another model must not be taken for these.
    pub fn space(&self) -> Result<Space, NotAModel> {
        self.space_of(&self.tokenizer()?, &self.weights()?)
    }

    /// Opens the model. Takes as long as reading its weights takes.
    pub fn open(&self) -> Result<Model, NotAModel> {
        let Self { folder, tokens_max, prompts } = self;
        let (tokenizer, weights) = (self.tokenizer()?, self.weights()?);
        let bert = Bert::read(folder, &weights, *tokens_max)?;
        let space = self.space_of(&tokenizer, &weights)?;
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let (tokens_max, prompts) = (*tokens_max, prompts.clone());
        Ok(Model { space, tokenizer, bert, tokens_max, threads, prompts })
    }

    fn tokenizer(&self) -> Result<Tokenizer, NotAModel> {
        Tokenizer::read(&self.folder.path, self.folder.shape.vocab_size)
    }

    fn weights(&self) -> Result<Weights, NotAModel> {
        Weights::open(&self.folder.path.join("model.safetensors"))
    }

    fn space_of(&self, tokenizer: &Tokenizer, weights: &Weights) -> Result<Space, NotAModel> {
        let Self { folder: Folder { shape, bend, pooling, .. }, tokens_max, prompts } = self;
        // What is not in the weights decides about the vectors, too.
        let (heads, eps) = (shape.num_attention_heads, shape.layer_norm_eps);
        let rest = format!("{pooling:?} {tokens_max} {prompts:?} {bend:?} {heads} {eps:e}");
        let mut hasher = blake3::Hasher::new();
        hasher.update(weights.hash()?.as_bytes());
        hasher.update(tokenizer.hash().as_bytes());
        hasher.update(rest.as_bytes());
        let hash = hasher.finalize().to_hex();
        let model = format!("{}-{}", self.folder.name(), &hash[..8]);
        Ok(Space { model, dimensions: self.dimensions() })
    }
}

/// A model, open. It needs no network, and computes on the threads of whoever asks.
#[derive(Debug)]
pub struct Model {
    space: Space,
    tokenizer: Tokenizer,
    bert: Bert,
    tokens_max: usize,
    threads: usize,
    prompts: [String; 2],
}

impl Model {
    /// Opens the model in `folder`: a sentence-transformers model of the BERT family. Takes as
    /// long as reading its weights takes.
    pub fn open(folder: &Path) -> Result<Self, NotAModel> {
        ModelFolder::look(folder)?.open()
    }

    /// The same, with no more than `tokens` of a text read.
    #[must_use]
    pub fn with_tokens_max(mut self, tokens: usize) -> Self {
        self.tokens_max = tokens.clamp(3, self.tokens_max);
        self
    }

    /// The same, computing on so many `threads` at most.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.clamp(1, THREADS_MAX);
        self
    }

    /// The space of its vectors.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// How many tokens of a text are read, with the two around it.
    pub fn tokens_max(&self) -> usize {
        self.tokens_max
    }

    /// What the model wants before a query; mostly nothing. Whoever asks puts it there.
    pub fn query_prompt(&self) -> &str {
        &self.prompts[0]
    }

    /// What the model wants before what can be found; mostly nothing.
    pub fn passage_prompt(&self) -> &str {
        &self.prompts[1]
    }

    /// The vectors of `texts`, in order, each of length 1. Computes until it is done, on up to as
    /// many threads as the machine has; how many texts there are does not matter.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Failed> {
        let tokens: Vec<_> =
            texts.iter().map(|text| self.tokenizer.tokens(text, self.tokens_max)).collect();
        let passes = self.passes(&tokens);
        let vectors = Mutex::new(vec![Vec::new(); texts.len()]);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut desk = Desk::default();
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
            return Err(Failed { model: self.space.model.clone() });
        }
        Ok(vectors)
    }

    /// Which texts pass the network together, so that all threads have something to do.
    fn passes(&self, tokens: &[Vec<u32>]) -> Vec<Vec<usize>> {
        let all: usize = tokens.iter().map(Vec::len).sum();
        let room = PASS_TOKENS.min(all.div_ceil(self.threads));
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
