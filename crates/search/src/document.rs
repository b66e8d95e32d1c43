//! What goes into an index, and what is told of what is found in it.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use toolgate_chunks::{Chunk, ChunkKind};

use crate::rank::{FIELDS, Texts};

/// What a chunk says, as a number: chunks of the same texts have the same vectors, wherever and
/// whenever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkHash(pub u64);

impl ChunkHash {
    /// Of a chunk's texts by field.
    pub fn of(texts: &Texts<'_>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for text in texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Self(u64::from_le_bytes(first))
    }
}

/// A file or a JSON document, whole: what is in the index of its `path` is replaced by it.
#[derive(Debug, Clone)]
pub struct Document<'t> {
    /// By what it is known in the index: of a file its path beneath the root.
    pub path: &'t str,
    /// By what its owner knows again whether it is as it was: of a file its time and size.
    pub stamp: &'t [u8],
    /// Its etag, as the `files` tools tell it.
    pub etag: &'t str,
    /// The commit it was last changed in, where that is known.
    pub commit: Option<&'t str>,
    /// Its language, where it is one we know.
    pub lang: Option<&'t str>,
    /// What it is found by.
    pub tags: &'t [String],
    /// What it says.
    pub text: &'t str,
    /// Its parts.
    pub chunks: &'t [Chunk],
}

impl Document<'_> {
    /// What one of its chunks says, by field: the only texts that words, vectors and
    /// [`ChunkHash`]es of it are made of.
    pub fn texts(&self, chunk: &Chunk) -> [Cow<'_, str>; FIELDS] {
        let joined = |parts: &[String]| match parts {
            [] => Cow::Borrowed(""),
            parts => Cow::Owned(parts.join(" ")),
        };
        [
            joined(&chunk.names),
            joined(&chunk.within),
            Cow::Borrowed(self.path),
            Cow::Owned(chunk.head.clone()),
            Cow::Owned(chunk.doc.clone()),
            without(self.text, chunk.bytes.clone(), &chunk.doc_bytes),
        ]
    }

    /// What is told of one of its chunks where that is found.
    pub fn shown(&self, chunk: &Chunk) -> Shown {
        Shown {
            path: self.path.to_owned(),
            first: chunk.first,
            last: chunk.last,
            kind: chunk.kind,
            names: chunk.names.clone(),
            within: chunk.within.clone(),
            head: chunk.head.clone(),
            lang: self.lang.map(str::to_owned),
            tags: self.tags.to_vec(),
            etag: self.etag.to_owned(),
            commit: self.commit.map(str::to_owned),
        }
    }
}

/// [`Document::texts`], borrowed.
pub fn borrowed<'t>(texts: &'t [Cow<'_, str>; FIELDS]) -> Texts<'t> {
    texts.each_ref().map(Cow::as_ref)
}

/// The part of `text` at `bytes` without what is at `left_out`, which is in order. Ranges that are
/// not of this text count as empty.
fn without<'t>(text: &'t str, bytes: Range<usize>, left_out: &[Range<usize>]) -> Cow<'t, str> {
    let whole = text.get(bytes.clone()).unwrap_or_default();
    if left_out.is_empty() {
        return Cow::Borrowed(whole);
    }
    let mut kept = String::with_capacity(whole.len());
    let mut at = bytes.start;
    for gap in left_out {
        kept.push_str(text.get(at..gap.start.clamp(at, bytes.end)).unwrap_or_default());
        at = gap.end.clamp(at, bytes.end);
    }
    kept.push_str(text.get(at..bytes.end).unwrap_or_default());
    Cow::Owned(kept)
}

/// What is known of a chunk without reading its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// Its document.
    pub path: String,
    /// Its first line, from 1.
    pub first: u32,
    /// Its last line.
    pub last: u32,
    /// What it is.
    #[serde(with = "kind")]
    pub kind: ChunkKind,
    /// The names it defines, the main one first.
    pub names: Vec<String>,
    /// What they stand in, from the outermost.
    pub within: Vec<String>,
    /// How its main definition reads.
    pub head: String,
    /// As of its [`Document`].
    pub lang: Option<String>,
    /// As of its [`Document`].
    pub tags: Vec<String>,
    /// As of its [`Document`].
    pub etag: String,
    /// As of its [`Document`].
    pub commit: Option<String>,
}

/// Where it is looked. Empty, everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only documents whose path begins with one of these.
    pub prefixes: Vec<String>,
    /// Only documents that have all of these tags, whatever their case.
    pub tags: Vec<String>,
}

impl Filter {
    /// Whether a document at `path` with `tags` is looked at.
    pub fn fits<T: AsRef<str>>(&self, path: &str, tags: &[T]) -> bool {
        let has = |wanted: &String| tags.iter().any(|it| it.as_ref().eq_ignore_ascii_case(wanted));
        let begins = |prefix: &String| path.starts_with(prefix.as_str());
        (self.prefixes.is_empty() || self.prefixes.iter().any(begins)) && self.tags.iter().all(has)
    }
}

mod kind {
    use serde::{Deserialize, Deserializer, Serializer};
    use toolgate_chunks::ChunkKind;

    pub(super) fn serialize<S: Serializer>(kind: &ChunkKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(*kind as u8)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<ChunkKind, D::Error> {
        Ok(match u8::deserialize(from)? {
            0 => ChunkKind::Function,
            1 => ChunkKind::Type,
            2 => ChunkKind::Code,
            3 => ChunkKind::Section,
            4 => ChunkKind::Key,
            _ => ChunkKind::Text,
        })
    }
}
