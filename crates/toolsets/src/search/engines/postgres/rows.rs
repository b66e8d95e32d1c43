//! Encodes words, vectors and texts of chunks as rows of PostgreSQL.

use std::borrow::Cow;
use std::collections::BTreeMap;

use toolgate_chunks::words::words;
use toolgate_chunks::{ChunkKind, TextChunk};
use toolgate_net::spawn_blocking;
use toolgate_search::document::borrow_texts;
use toolgate_search::rank::{ChunkField, ChunkTexts, FIELDS};
use toolgate_search::{ChunkHash, static_model};

use super::super::StoredDocument;
use super::error::PostgresError;

/// The maximum number of occurrences of a word in a chunk that are stored. Further occurrences do
/// not count.
const POSITIONS_MAX: usize = 12;
/// The longest stored name of a definition, in bytes. Longer names are cut, and found by their
/// beginning.
const SYMBOL_BYTES_MAX: usize = 200;

/// The maximum size of all words of a chunk, in bytes. PostgreSQL limits a `tsvector` to 1 MiB.
const WORDS_BYTES_MAX: usize = 900_000;

/// The longest stored name of a workspace or model, in bytes.
const NAME_BYTES_MAX: usize = 800;

/// A document, and the table rows to store for its chunks.
pub(super) struct PostgresDocumentRows {
    pub(super) put: StoredDocument,
    /// The table rows of the document's chunks, in order.
    pub(super) rows: Vec<ChunkRow>,
}

impl PostgresDocumentRows {
    pub(super) fn new(put: StoredDocument) -> Self {
        let rows = put.chunks.iter().map(|chunk| ChunkRow::new(&put, chunk)).collect();
        Self { put, rows }
    }

    /// Returns a copy of the document without chunks and rows.
    pub(super) fn without_content(&self) -> Self {
        Self { put: StoredDocument { chunks: Vec::new(), ..self.put.clone() }, rows: Vec::new() }
    }
}

/// Runs `work` on a blocking thread. Fails if `work` panics.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PostgresError> {
    spawn_blocking(work)
        .await
        .map_err(|err| PostgresError::Rejected(format!("the work was aborted: {err}")))
}

/// Returns the hash of `path` as the key of a document, because a path may be too long for an
/// index.
pub(super) fn document_key(path: &str) -> Vec<u8> {
    blake3::hash(path.as_bytes()).as_bytes()[..16].to_vec()
}

/// Returns `name`. If `name` is too long for an index, returns its beginning and a hash.
pub(super) fn short_name(name: &str) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name.to_owned();
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    format!("{}… {hash}", &name[..name.floor_char_boundary(NAME_BYTES_MAX)])
}

/// A chunk of a document as a table row.
pub(super) struct ChunkRow {
    pub(super) hash: i64,
    pub(super) texts: Vec<String>,
    pub(super) lengths: Vec<i32>,
    /// The words of the chunk in the binary format of `tsvector`.
    pub(super) words: Vec<u8>,
    /// Distinct words of the chunk.
    pub(super) distinct: Vec<String>,
    pub(super) near: Option<Vec<f32>>,
}

impl ChunkRow {
    /// Creates the table row of `chunk`, a chunk of the document `put`.
    fn new(put: &StoredDocument, chunk: &TextChunk) -> Self {
        let document = put.as_document();
        let texts = document.texts(chunk);
        let texts: ChunkTexts<'_> = borrow_texts(&texts);
        let (words, distinct, lengths) = encode_words(&texts);
        Self {
            hash: ChunkHash::for_texts(&texts).0.cast_signed(),
            texts: texts.iter().map(|text| without_nul(text).into_owned()).collect(),
            lengths: lengths.to_vec(),
            words,
            distinct,
            near: static_model::embed_chunk(&texts),
        }
    }
}

/// Returns `text` without NUL characters, which PostgreSQL cannot store.
pub(super) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', " ")) } else { Cow::Borrowed(text) }
}

/// Returns `texts` without NUL characters, which PostgreSQL cannot store.
pub(super) fn without_nuls(texts: &[String]) -> Vec<Cow<'_, str>> {
    texts.iter().map(|text| without_nul(text)).collect()
}

/// Returns the normalized name of a definition, which is used to store and compare names.
pub(super) fn symbol_key(name: &str) -> String {
    let mut symbol = without_nul(name).to_lowercase();
    let end =
        (0..=SYMBOL_BYTES_MAX.min(symbol.len())).rev().find(|at| symbol.is_char_boundary(*at));
    symbol.truncate(end.unwrap_or_default());
    symbol
}

/// Returns `vector` in the binary format of pgvector.
pub(super) fn vector_bytes(vector: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + 4 * vector.len());
    bytes.extend(u16::try_from(vector.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend([0, 0]);
    for number in vector {
        bytes.extend(number.to_be_bytes());
    }
    bytes
}

/// Returns the kind of chunk that has the number `number` in the database.
pub(super) fn chunk_kind(number: i16) -> ChunkKind {
    match number {
        0 => ChunkKind::Function,
        1 => ChunkKind::Type,
        2 => ChunkKind::Code,
        3 => ChunkKind::Section,
        4 => ChunkKind::Key,
        _ => ChunkKind::Text,
    }
}

/// Returns the weight label (A to D) of a field, as the bits that it has in a `tsvector` position.
fn weight_label(field: usize) -> u16 {
    const A: u16 = 3 << 14;
    const B: u16 = 2 << 14;
    const D: u16 = 0;
    if field == ChunkField::Name as usize {
        A
    } else if field == ChunkField::Body as usize {
        D
    } else {
        B
    }
}

/// Returns the words of `texts` as a binary `tsvector`, the distinct words, and the number of words
/// in each field.
fn encode_words(texts: &ChunkTexts<'_>) -> (Vec<u8>, Vec<String>, [i32; FIELDS]) {
    // PostgreSQL requires the words in the order of their bytes.
    let mut positions: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    let mut lengths = [0_i32; FIELDS];
    let mut bytes = 0;
    for (field, text) in texts.iter().enumerate() {
        words(text, |word| {
            lengths[field] = lengths[field].saturating_add(1);
            if bytes > WORDS_BYTES_MAX {
                return;
            }
            let word_positions = match positions.get_mut(word) {
                Some(word_positions) => word_positions,
                None => {
                    // A word also takes the number of its positions, and a byte of padding if its
                    // length is odd.
                    bytes += word.len() + 3;
                    positions.entry(word.to_owned()).or_default()
                }
            };
            if word_positions.len() < POSITIONS_MAX {
                bytes += 2;
                // Only the number and the labels of positions are used, so each word counts its
                // own.
                let position = u16::try_from(word_positions.len() + 1).unwrap_or(u16::MAX);
                word_positions.push(weight_label(field) | position);
            }
        });
    }
    let mut encoded = Vec::new();
    encoded.extend(u32::try_from(positions.len()).unwrap_or(u32::MAX).to_be_bytes());
    for (word, word_positions) in &positions {
        encoded.extend(word.as_bytes());
        encoded.push(0);
        encoded.extend(u16::try_from(word_positions.len()).unwrap_or(u16::MAX).to_be_bytes());
        for position in word_positions {
            encoded.extend(position.to_be_bytes());
        }
    }
    (encoded, positions.into_keys().collect(), lengths)
}

/// Returns `word` quoted for a `tsquery` of PostgreSQL.
pub(super) fn quote_word(word: &str) -> String {
    format!("'{}'", word.replace('\\', "\\\\").replace('\'', "''"))
}
