//! How chunks are laid out in rows: words, vectors and texts as PostgreSQL reads them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tokio::task::spawn_blocking;
use toolgate_chunks::words::words;
use toolgate_chunks::{Chunk, ChunkKind};
use toolgate_search::document::borrowed;
use toolgate_search::rank::{FIELDS, Field, Texts};
use toolgate_search::{ChunkHash, static_model};

use super::super::Put;
use super::trouble::Trouble;

/// How many places of a word are kept: more of them count no more.
const PLACES_MAX: usize = 12;
/// A longer name is found by its beginning.
const SYMBOL_BYTES_MAX: usize = 200;

/// How many bytes of words a chunk has at most, as PostgreSQL counts them: what takes more than
/// 1 MiB is no `tsvector`.
const WORDS_BYTES_MAX: usize = 900_000;

/// A longer workspace or model is not called by its whole name.
const NAME_BYTES_MAX: usize = 800;

/// A document as it is written.
pub(super) struct Written {
    pub(super) put: Put,
    /// Those of its chunks, in order.
    pub(super) rows: Vec<Row>,
}

impl Written {
    pub(super) fn of(put: Put) -> Self {
        let rows = put.chunks.iter().map(|chunk| Row::of(&put, chunk)).collect();
        Self { put, rows }
    }

    /// The same with nothing to be found in it.
    pub(super) fn bare(&self) -> Self {
        Self { put: Put { chunks: Vec::new(), ..self.put.clone() }, rows: Vec::new() }
    }
}

/// What `work` comes to, on a thread where thinking keeps nobody waiting.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Trouble> {
    spawn_blocking(work).await.map_err(|err| Trouble::Refused(format!("it was given up: {err}")))
}

/// By what the document at `path` is known where a path may be too long for an index.
pub(super) fn key(path: &str) -> Vec<u8> {
    blake3::hash(path.as_bytes()).as_bytes()[..16].to_vec()
}

/// `name`, or of one that is too long for an index its beginning and a hash.
pub(super) fn short(name: &str) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name.to_owned();
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    format!("{}… {hash}", &name[..name.floor_char_boundary(NAME_BYTES_MAX)])
}

/// A chunk as it is written.
pub(super) struct Row {
    pub(super) hash: i64,
    pub(super) texts: Vec<String>,
    pub(super) lengths: Vec<i32>,
    /// As `tsvector` is sent.
    pub(super) words: Vec<u8>,
    /// The words, each once.
    pub(super) distinct: Vec<String>,
    pub(super) near: Option<Vec<f32>>,
}

impl Row {
    /// The row of `chunk`, which is of `put`.
    fn of(put: &Put, chunk: &Chunk) -> Self {
        let document = put.document();
        let texts = document.texts(chunk);
        let texts: Texts<'_> = borrowed(&texts);
        let (words, distinct, lengths) = counted(&texts);
        Self {
            hash: ChunkHash::of(&texts).0.cast_signed(),
            texts: texts.iter().map(|text| clean(text).into_owned()).collect(),
            lengths: lengths.to_vec(),
            words,
            distinct,
            near: static_model::chunk(&texts),
        }
    }
}

/// `text` without what PostgreSQL takes in no text.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', " ")) } else { Cow::Borrowed(text) }
}

/// The same of many.
pub(super) fn cleaned(texts: &[String]) -> Vec<Cow<'_, str>> {
    texts.iter().map(|text| clean(text)).collect()
}

/// A name as names are looked for.
pub(super) fn symbol(name: &str) -> String {
    let mut symbol = clean(name).to_lowercase();
    let end =
        (0..=SYMBOL_BYTES_MAX.min(symbol.len())).rev().find(|at| symbol.is_char_boundary(*at));
    symbol.truncate(end.unwrap_or_default());
    symbol
}

/// A vector as pgvector is sent one.
pub(super) fn sent(vector: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + 4 * vector.len());
    bytes.extend(u16::try_from(vector.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend([0, 0]);
    for number in vector {
        bytes.extend(number.to_be_bytes());
    }
    bytes
}

/// By which a kind of chunk is known again.
pub(super) fn kind(number: i16) -> ChunkKind {
    match number {
        0 => ChunkKind::Function,
        1 => ChunkKind::Type,
        2 => ChunkKind::Code,
        3 => ChunkKind::Section,
        4 => ChunkKind::Key,
        _ => ChunkKind::Text,
    }
}

/// How much a word in each field is worth there, as a label from A to D.
fn label(field: usize) -> u16 {
    const A: u16 = 3 << 14;
    const B: u16 = 2 << 14;
    const D: u16 = 0;
    if field == Field::Name as usize {
        A
    } else if field == Field::Body as usize {
        D
    } else {
        B
    }
}

/// The words of `texts`: as a `tsvector` is sent, each once, and how many each field has.
fn counted(texts: &Texts<'_>) -> (Vec<u8>, Vec<String>, [i32; FIELDS]) {
    // In the order of their bytes, as PostgreSQL wants them.
    let mut places: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    let mut lengths = [0_i32; FIELDS];
    let mut bytes = 0;
    for (field, text) in texts.iter().enumerate() {
        words(text, |word| {
            lengths[field] = lengths[field].saturating_add(1);
            if bytes > WORDS_BYTES_MAX {
                return;
            }
            let of_word = match places.get_mut(word) {
                Some(of_word) => of_word,
                None => {
                    // Beside it stand the number of its places, and a byte where it is odd.
                    bytes += word.len() + 3;
                    places.entry(word.to_owned()).or_default()
                }
            };
            if of_word.len() < PLACES_MAX {
                bytes += 2;
                // Only their number and labels tell, so each word counts its own.
                let place = u16::try_from(of_word.len() + 1).unwrap_or(u16::MAX);
                of_word.push(label(field) | place);
            }
        });
    }
    let mut sent = Vec::new();
    sent.extend(u32::try_from(places.len()).unwrap_or(u32::MAX).to_be_bytes());
    for (word, of_word) in &places {
        sent.extend(word.as_bytes());
        sent.push(0);
        sent.extend(u16::try_from(of_word.len()).unwrap_or(u16::MAX).to_be_bytes());
        for place in of_word {
            sent.extend(place.to_be_bytes());
        }
    }
    (sent, places.into_keys().collect(), lengths)
}

/// A word as a `tsquery` spells it.
pub(super) fn asked(word: &str) -> String {
    format!("'{}'", word.replace('\\', "\\\\").replace('\'', "''"))
}
