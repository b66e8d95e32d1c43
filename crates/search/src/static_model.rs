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
const MAGIC: [u8; 8] = *b"tg-word2";
/// Size of a model file's head in bytes: magic bytes, word count, dimensions, weight of each field,
/// and a mark that identifies the table of word vectors.
const HEAD_BYTES: usize = 8 + 4 + 4 + 4 * FIELDS + MARK_BYTES;
const MARK_BYTES: usize = 4;
/// Maximum number of distinct words of a chunk's field that contribute to the chunk's vector.
const WORDS_MAX: usize = 512;

/// Model that turns texts into vectors by a table of vectors for words.
pub struct StaticEmbeddingModel {
    bytes: std::borrow::Cow<'static, [u8]>,
    words: usize,
    dimensions: usize,
    gains: [f32; FIELDS],
}

/// Vector of a word: numbers from -7 to 7 and their scale. A byte contains two numbers, each stored
/// plus 8.
#[derive(Debug, Clone, Copy)]
pub struct WordVector<'m> {
    scale: f32,
    numbers: &'m [u8],
}

/// Largest absolute value of a number in a stored word vector.
const NUMBER_MAX: f32 = 7.0;
/// Numbers at which a word's vector may be clipped for storage, as a share of its largest number.
/// The share that loses the least precision is used.
const CLIP_SHARES: [f32; 5] = [0.6, 0.7, 0.8, 0.9, 1.0];

impl WordVector<'_> {
    fn add_to(&self, sum: &mut [f32], weight: f32) {
        let weight = weight * self.scale;
        let (sum, _) = sum.as_chunks_mut::<2>();
        for ([one, two], both) in sum.iter_mut().zip(self.numbers) {
            *one += weight * f32::from(decode_number(both & 15));
            *two += weight * f32::from(decode_number(both >> 4));
        }
    }

    /// Returns the similarity of two words as a cosine.
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    pub fn cosine(&self, other: &WordVector<'_>) -> f32 {
        let mut along = 0_i32;
        let mut one = 0_i32;
        let mut two = 0_i32;
        for (a, b) in self.numbers.iter().zip(other.numbers) {
            for (a, b) in [(a & 15, b & 15), (a >> 4, b >> 4)] {
                let a = i32::from(decode_number(a));
                let b = i32::from(decode_number(b));
                along += a * b;
                one += a * a;
                two += b * b;
            }
        }
        along as f32 / ((one as f32).sqrt() * (two as f32).sqrt()).max(1.0)
    }
}

fn decode_number(four_bits: u8) -> i8 {
    four_bits.cast_signed() - 8
}

/// Appends the word's vector `row` to `bytes` in the format of a model file: the scale that loses
/// the least precision, then the numbers as multiples of this scale.
fn push_row(row: &[f32], bytes: &mut Vec<u8>) {
    let most = row.iter().fold(1e-12_f32, |most, it| most.max(it.abs()));
    let steps =
        |step: f32| row.iter().map(move |it| (it / step).round().clamp(-NUMBER_MAX, NUMBER_MAX));
    let lost = |step: f32| -> f32 {
        row.iter().zip(steps(step)).map(|(it, kept)| (it - kept * step).powi(2)).sum()
    };
    let clipped = CLIP_SHARES.map(|clip| most * clip / NUMBER_MAX);
    let step = clipped.into_iter().min_by(|a, b| lost(*a).total_cmp(&lost(*b))).unwrap_or(most);
    bytes.extend(step.to_bits().to_le_bytes());
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 15")]
    let numbers: Vec<u8> = steps(step).map(|it| (it + 8.0) as u8).collect();
    bytes.extend(numbers.chunks(2).map(|two| two[0] | two.get(1).unwrap_or(&8) << 4));
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
        let row = 4 + dimensions / 2;
        let long = HEAD_BYTES + words * (8 + 2 * row);
        let is_whole = bytes.len() == long && dimensions > 0 && dimensions.is_multiple_of(2);
        is_whole.then_some(Self { bytes, words, dimensions, gains })
    }

    /// Serializes a model file. `gains` are the weights of the fields of a chunk. For each word,
    /// `table` contains the vector in queries and the vector in code. The words may be in any
    /// order.
    pub fn encode(gains: [f32; FIELDS], table: &[(String, Vec<f32>, Vec<f32>)]) -> Vec<u8> {
        let dimensions = table.first().map_or(0, |it| it.1.len());
        let mut rows: Vec<_> = table.iter().map(|it| (hash_word(&it.0), [&it.1, &it.2])).collect();
        rows.sort_unstable_by_key(|it| it.0);
        rows.dedup_by_key(|it| it.0);
        let mut bytes = MAGIC.to_vec();
        for number in [rows.len(), dimensions] {
            bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        }
        bytes.extend(gains.iter().flat_map(|gain| gain.to_bits().to_le_bytes()));
        let marked = bytes.len();
        bytes.extend([0; MARK_BYTES]);
        bytes.extend(rows.iter().flat_map(|it| it.0.to_le_bytes()));
        for table in [0, 1] {
            for (_, both) in &rows {
                push_row(both[table], &mut bytes);
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
            let from = HEAD_BYTES + 8 * at;
            u64::from_le_bytes(self.bytes[from..from + 8].try_into().unwrap_or_default())
        };
        let mut low = 0;
        let mut high = self.words;
        while low < high {
            let middle = usize::midpoint(low, high);
            if key(middle) < hash { low = middle + 1 } else { high = middle }
        }
        (low < self.words && key(low) == hash).then_some(low)
    }

    fn row(&self, table: usize, at: usize) -> WordVector<'_> {
        let long = 4 + self.dimensions / 2;
        let from = HEAD_BYTES + 8 * self.words + long * (table * self.words + at);
        let scale = self.bytes[from..from + 4].try_into().unwrap_or_default();
        WordVector {
            scale: f32::from_bits(u32::from_le_bytes(scale)),
            numbers: &self.bytes[from + 4..from + long],
        }
    }

    /// Returns the vector that `word` has in queries. `None` if the model does not know `word`.
    pub fn word_in_query(&self, word: &str) -> Option<WordVector<'_>> {
        self.row_index(word).map(|at| self.row(0, at))
    }

    /// Returns the vector that `word` has in code. `None` if the model does not know `word`.
    pub fn word_in_code(&self, word: &str) -> Option<WordVector<'_>> {
        self.row_index(word).map(|at| self.row(1, at))
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
        self.add_words(&mut sum, 0, counts, 1.0);
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
            let table = usize::from(field != ChunkField::Doc as usize);
            self.add_words(&mut sum, table, counts, self.gains[field]);
        }
        normalize(sum)
    }

    #[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
    fn add_words(&self, sum: &mut [f32], table: usize, counts: HashMap<usize, u32>, gain: f32) {
        let mut counts: Vec<(usize, f32)> =
            counts.into_iter().map(|(at, count)| (at, 1.0 + (count as f32).ln())).collect();
        // A fixed order of additions makes the sum reproducible.
        counts.sort_unstable_by_key(|it| it.0);
        let length = counts.iter().map(|it| it.1 * it.1).sum::<f32>().sqrt().max(1e-6);
        for (at, weight) in counts {
            self.row(table, at).add_to(sum, gain * weight / length);
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

/// Hashes a word with FNV-1a, then the final mix of SplitMix64.
fn hash_word(word: &str) -> u64 {
    let hash = word.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
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
