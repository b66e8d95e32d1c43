//! Built-in word vectors, which need no separate model. Each word has two pre-trained vectors: one
//! for its use in a query and one for its use in code. The vector of a text is the sum of the
//! vectors of its words.
//!
//! `cargo xtask train-search` makes `static_model.bin`; docs/design/search.md describes it.

use std::collections::HashMap;
use std::sync::LazyLock;

use data_encoding::HEXLOWER;
use toolgate_chunks::words::{concepts, words};

use crate::VectorSpace;
use crate::fields::{ChunkField, ChunkTexts, FIELDS};

/// The built-in model, which turns words into vectors.
static BUILT_IN: LazyLock<StaticEmbeddingModel> = LazyLock::new(|| {
    StaticEmbeddingModel::parse(std::borrow::Cow::Borrowed(include_bytes!("static_model.bin")))
        .expect("the built-in word table is valid")
});

/// First bytes of a model file. The last of them is the version.
const MAGIC: [u8; 8] = *b"tg-word3";
/// Size of a model file's head in bytes: magic bytes, word count, dimensions, weight of each field,
/// the step of the numbers, and a mark that identifies the table of word vectors.
const HEAD_BYTES: usize = 8 + 4 + 4 + 4 * FIELDS + 4 + MARK_BYTES;
const MARK_BYTES: usize = 4;
/// Size of a word's hash in a model file, in bytes.
const HASH_BYTES: usize = 4;
/// Maximum number of distinct words of a chunk's field that contribute to the chunk's vector.
const WORDS_MAX: usize = 512;

/// Model that turns texts into vectors by a table of vectors for words.
///
/// The two vectors of a word are similar. For each word, the table therefore contains their mean
/// and half of their difference, both as multiples of one step, from -7 to 7. A byte contains two
/// of these numbers, each stored plus 8. The differences are mostly 0, so the table can be
/// compressed.
pub struct StaticEmbeddingModel {
    bytes: std::borrow::Cow<'static, [u8]>,
    words: usize,
    dimensions: usize,
    gains: [f32; FIELDS],
    step: f32,
}

/// Use of a word. A word has one vector for each use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordUse {
    Query,
    Code,
}

/// Direction of a word's vector, in whole numbers.
#[derive(Debug, Clone)]
pub struct WordVector {
    numbers: Vec<i8>,
    length: f32,
}

/// Largest absolute value of a stored number.
const NUMBER_MAX: f32 = 7.0;
/// Step of the stored numbers, as a share of the root mean square of all components. A larger step
/// loses precision, and makes the compressed table smaller.
const STEP_SHARE: f32 = 0.7;

impl WordVector {
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    fn new(numbers: Vec<i8>) -> Self {
        let length = (dot(&numbers, &numbers) as f32).sqrt();
        Self { numbers, length }
    }

    /// Returns the similarity of two words as a cosine.
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    pub fn cosine(&self, other: &Self) -> f32 {
        dot(&self.numbers, &other.numbers) as f32 / (self.length * other.length).max(1.0)
    }
}

fn dot(one: &[i8], two: &[i8]) -> i32 {
    one.iter().zip(two).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

/// Returns the stored numbers of each dimension of a word's vector, in order, from the stored bytes
/// of the mean and of half of the difference.
fn decode(means: &[u8], halves: &[u8], word_use: WordUse) -> impl Iterator<Item = [i8; 2]> {
    means.iter().zip(halves).map(move |(mean, half)| {
        let number = |mean: u8, half: u8| match word_use {
            WordUse::Query => (mean + half).cast_signed() - 16,
            WordUse::Code => mean.cast_signed() - half.cast_signed(),
        };
        [number(mean & 15, half & 15), number(mean >> 4, half >> 4)]
    })
}

/// Returns `row` as multiples of `step`, two numbers in a byte.
fn encode_numbers(row: impl Iterator<Item = f32>, step: f32) -> Vec<u8> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 15")]
    let numbers: Vec<u8> =
        row.map(|it| ((it / step).round().clamp(-NUMBER_MAX, NUMBER_MAX) + 8.0) as u8).collect();
    numbers.chunks(2).map(|two| two[0] | two.get(1).unwrap_or(&8) << 4).collect()
}

/// Returns the step with which the vectors of `table` are stored.
#[allow(clippy::cast_precision_loss, reason = "a mean")]
fn choose_step(table: &[(String, Vec<f32>, Vec<f32>)]) -> f32 {
    let numbers = || table.iter().flat_map(|it| it.1.iter().chain(&it.2));
    let squares: f64 = numbers().map(|it| f64::from(it * it)).sum();
    let mean = squares / numbers().count().max(1) as f64;
    #[allow(clippy::cast_possible_truncation, reason = "the precision of f32 is enough")]
    let root = mean.sqrt() as f32;
    (STEP_SHARE * root).max(1e-6)
}

impl StaticEmbeddingModel {
    /// Returns the built-in model.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// Parses a model file. Returns `None` if `bytes` is malformed.
    pub fn parse(bytes: std::borrow::Cow<'static, [u8]>) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if bytes.get(..8)? != MAGIC {
            return None;
        }
        let words = number(8)? as usize;
        let dimensions = number(12)? as usize;
        let mut gains = [0.0; FIELDS];
        for (field, gain) in gains.iter_mut().enumerate() {
            *gain = f32::from_bits(number(16 + 4 * field)?);
        }
        let step = f32::from_bits(number(16 + 4 * FIELDS)?);
        let size = words.checked_mul(HASH_BYTES + dimensions)?.checked_add(HEAD_BYTES)?;
        let is_whole = bytes.len() == size && dimensions > 0 && dimensions.is_multiple_of(2);
        (is_whole && step.is_finite() && step > 0.0).then_some(Self {
            bytes,
            words,
            dimensions,
            gains,
            step,
        })
    }

    /// Serializes a model file. `gains` are the weights of the fields of a chunk. For each word,
    /// `table` contains the vector in queries and the vector in code. The words may be in any
    /// order.
    pub fn encode(gains: [f32; FIELDS], table: &[(String, Vec<f32>, Vec<f32>)]) -> Vec<u8> {
        let dimensions = table.first().map_or(0, |it| it.1.len());
        let step = choose_step(table);
        let mut rows: Vec<_> = table.iter().map(|it| (hash_word(&it.0), &it.1, &it.2)).collect();
        rows.sort_unstable_by_key(|it| it.0);
        rows.dedup_by_key(|it| it.0);
        let mut bytes = MAGIC.to_vec();
        for number in [rows.len(), dimensions] {
            bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        }
        bytes.extend(gains.iter().chain([&step]).flat_map(|it| it.to_bits().to_le_bytes()));
        let marked = bytes.len();
        bytes.extend([0; MARK_BYTES]);
        bytes.extend(rows.iter().flat_map(|it| it.0.to_le_bytes()));
        for sign in [1.0, -1.0] {
            for (_, query, code) in &rows {
                let halves =
                    query.iter().zip(*code).map(|(query, code)| (query + sign * code) / 2.0);
                bytes.extend(encode_numbers(halves, step));
            }
        }
        let mark = blake3::hash(&bytes);
        bytes[marked..marked + MARK_BYTES].copy_from_slice(&mark.as_bytes()[..MARK_BYTES]);
        bytes
    }

    /// Returns the name of the model and the number of dimensions of its vectors.
    pub fn space(&self) -> VectorSpace {
        let mark = &self.bytes[HEAD_BYTES - MARK_BYTES..HEAD_BYTES];
        let mark = HEXLOWER.encode(mark);
        VectorSpace { model: format!("toolgate-static-{mark}"), dimensions: self.dimensions }
    }

    /// Returns the row number of `word` in the model's table. `None` if the model does not know
    /// `word`.
    fn row_index(&self, word: &str) -> Option<usize> {
        let hash = hash_word(word);
        let key = |at: usize| {
            let from = HEAD_BYTES + HASH_BYTES * at;
            u32::from_le_bytes(self.bytes[from..from + HASH_BYTES].try_into().unwrap_or_default())
        };
        let mut low = 0;
        let mut high = self.words;
        while low < high {
            let middle = usize::midpoint(low, high);
            if key(middle) < hash { low = middle + 1 } else { high = middle }
        }
        (low < self.words && key(low) == hash).then_some(low)
    }

    /// Returns the numbers of the vector that the word of row `at` has in a use.
    fn row(&self, word_use: WordUse, at: usize) -> impl Iterator<Item = [i8; 2]> {
        let row_bytes = self.dimensions / 2;
        let part = |index: usize| {
            let from = HEAD_BYTES + HASH_BYTES * self.words + row_bytes * index;
            &self.bytes[from..from + row_bytes]
        };
        decode(part(at), part(self.words + at), word_use)
    }

    /// Returns the vector that `word` has in queries. `None` if the model does not know `word`.
    pub fn word_in_query(&self, word: &str) -> Option<WordVector> {
        self.word_vector(WordUse::Query, word)
    }

    /// Returns the vector that `word` has in code. `None` if the model does not know `word`.
    pub fn word_in_code(&self, word: &str) -> Option<WordVector> {
        self.word_vector(WordUse::Code, word)
    }

    fn word_vector(&self, word_use: WordUse, word: &str) -> Option<WordVector> {
        let at = self.row_index(word)?;
        Some(WordVector::new(self.row(word_use, at).flatten().collect()))
    }

    /// Returns the vector of a query, scaled to length 1. `None` if the model knows no word of the
    /// query.
    pub fn embed_query(&self, text: &str) -> Option<Vec<f32>> {
        let mut counts = HashMap::new();
        for concept in concepts(text) {
            if let Some(at) = self.row_index(&concept.word) {
                *counts.entry(at).or_insert(0) += 1;
            }
        }
        let mut sum = vec![0.0; self.dimensions];
        self.add_words(&mut sum, WordUse::Query, counts, 1.0);
        normalize(sum)
    }

    /// Returns the vector of a chunk, scaled to length 1. `None` if the model knows no word of the
    /// chunk.
    pub fn embed_chunk(&self, texts: &ChunkTexts<'_>) -> Option<Vec<f32>> {
        let mut sum = vec![0.0; self.dimensions];
        for (field, text) in texts.iter().enumerate() {
            let mut counts: HashMap<usize, u32> = HashMap::new();
            words(text, |word| {
                if let Some(at) = self.row_index(word)
                    && (counts.len() < WORDS_MAX || counts.contains_key(&at))
                {
                    *counts.entry(at).or_insert(0) += 1;
                }
            });
            // Doc comments use the language of queries.
            let is_doc = field == ChunkField::Doc as usize;
            let word_use = if is_doc { WordUse::Query } else { WordUse::Code };
            self.add_words(&mut sum, word_use, counts, self.gains[field]);
        }
        normalize(sum)
    }

    #[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
    fn add_words(
        &self,
        sum: &mut [f32],
        word_use: WordUse,
        counts: HashMap<usize, u32>,
        gain: f32,
    ) {
        let mut counts: Vec<(usize, f32)> =
            counts.into_iter().map(|(at, count)| (at, 1.0 + (count as f32).ln())).collect();
        // A fixed order of additions makes the sum reproducible.
        counts.sort_unstable_by_key(|it| it.0);
        let length = counts.iter().map(|it| it.1 * it.1).sum::<f32>().sqrt().max(1e-6);
        for (at, weight) in counts {
            let weight = self.step * gain * weight / length;
            let (sum, _) = sum.as_chunks_mut::<2>();
            for (sum, numbers) in sum.iter_mut().zip(self.row(word_use, at)) {
                sum[0] += weight * f32::from(numbers[0]);
                sum[1] += weight * f32::from(numbers[1]);
            }
        }
    }
}

fn normalize(mut sum: Vec<f32>) -> Option<Vec<f32>> {
    let length = sum.iter().map(|it| it * it).sum::<f32>().sqrt();
    (length > 1e-6).then(|| {
        sum.iter_mut().for_each(|it| *it /= length);
        sum
    })
}

/// Hashes a word with FNV-1a, then the final mix of SplitMix64, and returns the upper half.
#[allow(clippy::cast_possible_truncation, reason = "the upper half has 32 bits")]
fn hash_word(word: &str) -> u32 {
    let hash = word.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((hash ^ (hash >> 31)) >> 32) as u32
}

/// Returns the vector space of the built-in model.
pub fn space() -> VectorSpace {
    StaticEmbeddingModel::built_in().space()
}

/// Returns the built-in model's vector of the query `text`. `None` if the model knows no word of
/// the query.
pub fn embed_query(text: &str) -> Option<Vec<f32>> {
    StaticEmbeddingModel::built_in().embed_query(text)
}

/// Returns the built-in model's vector of a chunk. `None` if the model knows no word of the chunk.
pub fn embed_chunk(texts: &ChunkTexts<'_>) -> Option<Vec<f32>> {
    StaticEmbeddingModel::built_in().embed_chunk(texts)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    /// Returns the vectors of four words in queries and in code, with components from -1 to 1.
    fn any_table() -> impl Strategy<Value = Vec<(String, Vec<f32>, Vec<f32>)>> {
        let row = || prop::collection::vec(-1.0_f32..1.0, 16);
        prop::collection::vec((row(), row()), 4).prop_map(|rows| {
            let words = ["parse", "header", "retry", "socket"];
            words.into_iter().zip(rows).map(|(word, it)| (word.to_owned(), it.0, it.1)).collect()
        })
    }

    proptest! {
        #[test]
        fn each_stored_vector_differs_by_less_than_one_step_in_each_component(table in any_table()) {
            let bytes = StaticEmbeddingModel::encode([1.0; FIELDS], &table);
            let model = StaticEmbeddingModel::parse(Cow::Owned(bytes)).unwrap();
            for (word, query, code) in &table {
                for (word_use, row) in [(WordUse::Query, query), (WordUse::Code, code)] {
                    let stored = model.word_vector(word_use, word).unwrap();
                    for (number, component) in stored.numbers.iter().zip(row) {
                        let lost = (f32::from(*number) * model.step - component).abs();
                        prop_assert!(lost <= model.step * 1.001, "{lost} of {}", model.step);
                    }
                }
            }
            prop_assert!(model.word_in_query("unknown").is_none());
        }
    }

    #[test]
    fn a_table_with_missing_or_added_bytes_is_refused() {
        let row = vec![0.5, -0.5];
        let whole = StaticEmbeddingModel::encode([1.0; FIELDS], &[("a".into(), row.clone(), row)]);
        for bytes in [&whole[..whole.len() - 1], &[&whole[..], &[0]].concat(), &whole[..20]] {
            assert!(StaticEmbeddingModel::parse(Cow::Owned(bytes.to_vec())).is_none());
        }
        assert!(StaticEmbeddingModel::parse(Cow::Owned(whole)).is_some());
    }
}
