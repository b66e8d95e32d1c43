//! How chunks and documents are laid out in points.

use std::collections::{BTreeMap, HashMap};

use qdrant_client::Payload;
use qdrant_client::qdrant::{
    NamedVectors, PointId, PointStruct, RetrievedPoint, Value, Vector, VectorsOutput, point_id,
    value, vector_output,
};
use toolgate_chunks::Chunk;
use toolgate_chunks::words::{distinct, words};
use toolgate_search::document::borrowed;
use toolgate_search::rank::{Averages, FIELDS, Field, bm25f};
use toolgate_search::{ChunkHash, Shown, static_model};

use super::super::kept::KeptDocument;
use super::super::{Known, Put};

/// What the vectors of a point are called: the built-in one's, the model's, the words.
pub(super) const NEAR: &str = "static";
pub(super) const MODEL: &str = "model";
pub(super) const WORDS: &str = "words";

/// What a chunk's point says is shown of it.
pub(super) fn shown(payload: &HashMap<String, Value>) -> Option<Shown> {
    serde_json::from_str(text(payload, "shown")?).ok()
}

/// The texts of a chunk's fields.
pub(super) fn texts(payload: &HashMap<String, Value>) -> Option<[String; FIELDS]> {
    serde_json::from_str(text(payload, "texts")?).ok()
}

/// A chunk on its way, and how many words its fields have.
pub(super) struct Row {
    pub(super) point: PointStruct,
    pub(super) id: PointId,
    pub(super) hash: ChunkHash,
    pub(super) lengths: [i64; FIELDS],
}

/// The point of the chunk of `put` that is `at` in it.
pub(super) fn row(put: &Put, at: usize, chunk: &Chunk) -> Row {
    let document = put.document();
    let texts = document.texts(chunk);
    let hash = ChunkHash::of(&borrowed(&texts));
    let near = static_model::chunk(&borrowed(&texts));
    let mut counts: BTreeMap<String, f32> = BTreeMap::new();
    let mut lengths = [0_i64; FIELDS];
    for (field, text) in texts.iter().enumerate() {
        words(text, |word| {
            lengths[field] += 1;
            match counts.get_mut(word) {
                Some(count) => *count += bm25f::WEIGHTS[field],
                None => drop(counts.insert(word.to_owned(), bm25f::WEIGHTS[field])),
            }
        });
    }
    // Two words may fall together: then they count together.
    let mut sparse: BTreeMap<u32, f32> = BTreeMap::new();
    for (word, count) in &counts {
        *sparse.entry(dimension(word)).or_default() += bm25f::saturated(*count);
    }
    let folded: Vec<String> = put.tags.iter().map(|tag| tag.to_ascii_lowercase()).collect();
    let symbols: Vec<String> = chunk.names.iter().map(|name| name.to_lowercase()).collect();
    let named = distinct(&texts[Field::Name as usize]);
    let mut payload = Payload::new();
    payload.insert("kind", "chunk");
    payload.insert("path", put.path.clone());
    payload.insert("hash", hex(hash));
    payload.insert("folded", folded);
    payload.insert("symbols", symbols);
    payload.insert("named", named);
    payload.insert("words", counts.into_keys().collect::<Vec<String>>());
    payload.insert("shown", serde_json::to_string(&document.shown(chunk)).unwrap_or_default());
    payload.insert("texts", serde_json::to_string(&texts).unwrap_or_default());
    let mut vectors = NamedVectors::default();
    if !sparse.is_empty() {
        let sparse: Vec<(u32, f32)> = sparse.into_iter().collect();
        vectors = vectors.add_vector(WORDS, Vector::from(sparse));
    }
    if let Some(near) = near {
        vectors = vectors.add_vector(NEAR, Vector::from(near));
    }
    // By what it says too: other text in its place is another point, and finds no vector there.
    let id: PointId = numbered(&["chunk", &put.path, &at.to_string(), &hex(hash)]).into();
    Row { point: PointStruct::new(id.clone(), vectors, payload), id, hash, lengths }
}

/// A point that remembers the model's vector of what is not said any more.
pub(super) fn left(hash: ChunkHash, vector: Vec<f32>) -> PointStruct {
    let mut payload = Payload::new();
    payload.insert("kind", "left");
    payload.insert("hash", hex(hash));
    let vectors = NamedVectors::default().add_vector(MODEL, Vector::from(vector));
    PointStruct::new(numbered(&["left", &hex(hash)]), vectors, payload)
}

/// The point that says that a collection was made whole.
pub(super) fn whole() -> PointStruct {
    let mut payload = Payload::new();
    payload.insert("kind", "whole");
    PointStruct::new(whole_id(), NamedVectors::default(), payload)
}

pub(super) fn whole_id() -> PointId {
    numbered(&["whole"]).into()
}

/// The point of a document itself: that all its chunks are there.
pub(super) fn document(put: &Put, has: Sums) -> PointStruct {
    let mut payload = Payload::new();
    payload.insert("kind", "document");
    payload.insert("path", put.path.clone());
    let stamp: String = put.stamp.iter().map(|byte| format!("{byte:02x}")).collect();
    payload.insert("stamp", stamp);
    payload.insert("etag", put.etag.clone());
    payload.insert("chunks", has.chunks);
    payload.insert("lengths", has.lengths.to_vec());
    PointStruct::new(document_id(&put.path), NamedVectors::default(), payload)
}

pub(super) fn document_id(path: &str) -> u64 {
    numbered(&["document", path])
}

/// What a document's point says of it.
pub(super) fn known(payload: &HashMap<String, Value>) -> Option<(String, Known)> {
    let hex = text(payload, "stamp")?;
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let stamp: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?;
    let etag = text(payload, "etag")?.to_owned();
    Some((text(payload, "path")?.to_owned(), Known { stamp, etag }))
}

/// A hash as it is kept: Qdrant's numbers have a sign.
pub(super) fn hex(hash: ChunkHash) -> String {
    format!("{:016x}", hash.0)
}

pub(super) fn hash(payload: &HashMap<String, Value>) -> Option<ChunkHash> {
    u64::from_str_radix(text(payload, "hash")?, 16).ok().map(ChunkHash)
}

/// How many chunks there are and how many words their fields have, in a point of their own.
#[derive(Default, Clone, Copy)]
pub(super) struct Sums {
    pub(super) chunks: i64,
    pub(super) lengths: [i64; FIELDS],
}

impl Sums {
    pub(super) fn id() -> PointId {
        numbered(&["sums"]).into()
    }

    /// What the point of a document or of all of them says.
    pub(super) fn of(payload: &HashMap<String, Value>) -> Self {
        let whole = |value: Option<&Value>| match value.and_then(|it| it.kind.as_ref()) {
            Some(value::Kind::IntegerValue(number)) => *number,
            Some(_) | None => 0,
        };
        let lengths = payload.get("lengths").and_then(Value::as_list).unwrap_or_default();
        let chunks = whole(payload.get("chunks"));
        Self { chunks, lengths: std::array::from_fn(|at| whole(lengths.get(at))) }
    }

    pub(super) fn point(&self) -> PointStruct {
        let mut payload = Payload::new();
        payload.insert("kind", "sums");
        payload.insert("chunks", self.chunks);
        payload.insert("lengths", self.lengths.to_vec());
        PointStruct::new(Self::id(), NamedVectors::default(), payload)
    }

    pub(super) fn add(&mut self, other: Self, times: i64) {
        self.chunks += times * other.chunks;
        for (sum, by) in self.lengths.iter_mut().zip(other.lengths) {
            *sum += times * by;
        }
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an average")]
    pub(super) fn averages(&self) -> Averages {
        let chunks = self.chunks.max(0);
        Averages {
            chunks: chunks.cast_unsigned(),
            lengths: self.lengths.map(|sum| (sum.max(0) as f64 / chunks.max(1) as f64) as f32),
        }
    }
}

/// The point of a document that no file holds, as it is kept for `namespace`.
pub(super) fn kept(namespace: &str, put: &Put) -> PointStruct {
    let kept = KeptDocument::of(put);
    let mut payload = Payload::new();
    payload.insert("namespace", namespace);
    payload.insert("document", serde_json::to_string(&kept).unwrap_or_default());
    PointStruct::new(kept_id(namespace, &put.path), vec![1.0_f32], payload)
}

pub(super) fn kept_id(namespace: &str, path: &str) -> PointId {
    numbered(&["kept", namespace, path]).into()
}

/// The document that `point` keeps.
pub(super) fn kept_by(point: &RetrievedPoint) -> Option<Put> {
    let kept: KeptDocument = serde_json::from_str(text(&point.payload, "document")?).ok()?;
    Some(kept.put())
}

/// The dimension that a word has among all there may be.
pub(super) fn dimension(word: &str) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&blake3::hash(word.as_bytes()).as_bytes()[..4]);
    u32::from_le_bytes(bytes)
}

pub(super) fn number(id: Option<&PointId>) -> Option<u64> {
    match id?.point_id_options.as_ref()? {
        point_id::PointIdOptions::Num(number) => Some(*number),
        point_id::PointIdOptions::Uuid(_) => None,
    }
}

pub(super) fn dense(vectors: Option<&VectorsOutput>, name: &str) -> Option<Vec<f32>> {
    match vectors?.get_vector_by_name(name)? {
        vector_output::Vector::Dense(dense) => Some(dense.data),
        vector_output::Vector::Sparse(_) | vector_output::Vector::MultiDense(_) => None,
    }
}

/// How alike two vectors are, of which the second has length 1.
pub(super) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn numbered(parts: &[&str]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&blake3::hash(parts.join("\0").as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

fn text<'p>(payload: &'p HashMap<String, Value>, name: &str) -> Option<&'p str> {
    match payload.get(name)?.kind.as_ref()? {
        value::Kind::StringValue(text) => Some(text),
        value::Kind::NullValue(_)
        | value::Kind::DoubleValue(_)
        | value::Kind::IntegerValue(_)
        | value::Kind::BoolValue(_)
        | value::Kind::StructValue(_)
        | value::Kind::ListValue(_) => None,
    }
}
