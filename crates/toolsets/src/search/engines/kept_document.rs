//! The storage format of a document that callers store.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_chunks::chunks;
use toolgate_contract::exact_json;

use super::StoredDocument;

/// A stored document as JSON. Later versions must be able to read it.
#[derive(Serialize, Deserialize)]
pub(super) struct PersistedDocument {
    path: String,
    /// Fingerprint of the document: a file name as bytes, whose extension selects how the text is
    /// cut into chunks.
    stamp: Vec<u8>,
    etag: String,
    commit: Option<String>,
    lang: Option<String>,
    tags: Vec<String>,
    text: String,
    #[serde(deserialize_with = "exact_json::deserialize_object")]
    metadata: Map<String, Value>,
}

impl PersistedDocument {
    pub(super) fn from_stored(document: &StoredDocument) -> Self {
        let StoredDocument { path, stamp, etag, commit, lang, tags, text, metadata, chunks: _ } =
            document.clone();
        Self { path, stamp, etag, commit, lang, tags, text, metadata }
    }

    /// Converts to a [`StoredDocument`], with the text cut into chunks again.
    pub(super) fn into_stored(self) -> StoredDocument {
        let Self { path, stamp, etag, commit, lang, tags, text, metadata } = self;
        let chunks = chunks(&String::from_utf8_lossy(&stamp), &text);
        StoredDocument { path, stamp, etag, commit, lang, tags, text, chunks, metadata }
    }
}
