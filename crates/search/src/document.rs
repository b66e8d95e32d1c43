//! Documents that an index receives, and descriptions of chunks for search results.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use toolgate_chunks::{ChunkKind, TextChunk};

use crate::fields::{ChunkTexts, FIELDS};

/// Hash of a chunk's text. Chunks with the same text share one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkHash(pub u64);

impl ChunkHash {
    /// Returns the hash of `texts`, the texts of a chunk by field.
    pub fn for_texts(texts: &ChunkTexts<'_>) -> Self {
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

/// A complete file or JSON document. Adding it to an index replaces the indexed content of its
/// `path`.
#[derive(Debug, Clone)]
pub struct IndexDocument<'t> {
    /// Key of the document in the index. For a file, the key is its path relative to the indexed
    /// root folder.
    pub path: &'t str,
    /// Bytes by which the caller detects a changed document, for example a file's modification time
    /// and size.
    pub fingerprint: &'t [u8],
    /// Etag (content version) of the file, as the `files` tools return it.
    pub etag: &'t str,
    /// Commit that last changed the document, if known.
    pub commit: Option<&'t str>,
    /// Programming or markup language of the document, if known.
    pub lang: Option<&'t str>,
    /// Tags of the document, by which a search can filter.
    pub tags: &'t [String],
    /// Full text of the document.
    pub text: &'t str,
    /// Chunks into which the text is divided.
    pub chunks: &'t [TextChunk],
}

impl IndexDocument<'_> {
    /// Returns the texts of a chunk by field. Words, vectors and [`ChunkHash`]es are made from
    /// these texts only.
    pub fn texts(&self, chunk: &TextChunk) -> [Cow<'_, str>; FIELDS] {
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
            remove_ranges(self.text, chunk.bytes.clone(), &chunk.doc_bytes),
        ]
    }

    /// Returns the description of a chunk for search results.
    pub fn summary(&self, chunk: &TextChunk) -> ChunkSummary {
        ChunkSummary {
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

/// Converts the result of [`IndexDocument::texts`] to string slices, in the same order of fields.
pub fn borrow_texts<'t>(texts: &'t [Cow<'_, str>; FIELDS]) -> ChunkTexts<'t> {
    texts.each_ref().map(Cow::as_ref)
}

/// Returns `text[bytes]` without the sorted ranges in `left_out`, which are also byte ranges of
/// `text`. A range outside of `text` counts as empty.
fn remove_ranges<'t>(
    text: &'t str,
    bytes: Range<usize>,
    left_out: &[Range<usize>],
) -> Cow<'t, str> {
    let whole = text.get(bytes.clone()).unwrap_or_default();
    if left_out.is_empty() {
        return Cow::Borrowed(whole);
    }
    let mut remaining = String::with_capacity(whole.len());
    let mut at = bytes.start;
    for gap in left_out {
        remaining.push_str(text.get(at..gap.start.clamp(at, bytes.end)).unwrap_or_default());
        at = gap.end.clamp(at, bytes.end);
    }
    remaining.push_str(text.get(at..bytes.end).unwrap_or_default());
    Cow::Owned(remaining)
}

/// Description of a chunk, available without reading its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChunkSummary {
    /// Path of the chunk's document.
    pub path: String,
    /// First line of the chunk, counted from 1.
    pub first: u32,
    /// Last line of the chunk, counted from 1.
    pub last: u32,
    /// Kind of the chunk, such as a function or a section.
    #[serde(with = "kind")]
    pub kind: ChunkKind,
    /// Names that the chunk defines, the main name first.
    pub names: Vec<String>,
    /// Names of the types, modules or headings that enclose the chunk's definitions, outermost
    /// first.
    pub within: Vec<String>,
    /// Signature of the chunk's main definition.
    pub head: String,
    /// Language of the chunk's [`IndexDocument`].
    pub lang: Option<String>,
    /// Tags of the chunk's [`IndexDocument`].
    pub tags: Vec<String>,
    /// Etag of the chunk's [`IndexDocument`].
    pub etag: String,
    /// Commit of the chunk's [`IndexDocument`].
    pub commit: Option<String>,
}

/// Filter on the documents in which a search looks. An empty filter matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentFilter {
    /// Paths of files or folders. Only documents at or below one of them match: `src` matches
    /// `src/a.rs`, but not `src_old/a.rs`. An empty path matches all documents.
    pub prefixes: Vec<String>,
    /// Tags. Only documents that have all of them match. Case is ignored.
    pub tags: Vec<String>,
}

impl DocumentFilter {
    /// Returns true if the filter matches a document at `path` with `tags`.
    pub fn matches<T: AsRef<str>>(&self, path: &str, tags: &[T]) -> bool {
        let has = |wanted: &String| tags.iter().any(|it| it.as_ref().eq_ignore_ascii_case(wanted));
        let contains = |prefix: &String| is_at_or_below(path, prefix);
        (self.prefixes.is_empty() || self.prefixes.iter().any(contains))
            && self.tags.iter().all(has)
    }
}

/// Returns true if `path` is `prefix` or is inside the folder `prefix`. An empty `prefix` contains
/// all paths. A `prefix` that ends with `/` always means a folder.
pub fn is_at_or_below(path: &str, prefix: &str) -> bool {
    let is_folder = prefix.is_empty() || prefix.ends_with('/');
    path.strip_prefix(prefix)
        .is_some_and(|rest| is_folder || rest.is_empty() || rest.starts_with('/'))
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
