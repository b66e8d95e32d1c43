//! A document that no file holds, as engines on servers keep it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_chunks::chunks;

use super::Put;

/// What is written of it, in JSON. Those that were written by servers before are read, too.
#[derive(Serialize, Deserialize)]
pub(super) struct KeptDocument {
    path: String,
    /// By which its text is cut into chunks, in bytes.
    stamp: Vec<u8>,
    etag: String,
    commit: Option<String>,
    lang: Option<String>,
    tags: Vec<String>,
    text: String,
    metadata: Map<String, Value>,
}

impl KeptDocument {
    pub(super) fn of(put: &Put) -> Self {
        let Put { path, stamp, etag, commit, lang, tags, text, metadata, chunks: _ } = put.clone();
        Self { path, stamp, etag, commit, lang, tags, text, metadata }
    }

    /// The document as it was put, its text cut into chunks again.
    pub(super) fn put(self) -> Put {
        let Self { path, stamp, etag, commit, lang, tags, text, metadata } = self;
        let chunks = chunks(&String::from_utf8_lossy(&stamp), &text);
        Put { path, stamp, etag, commit, lang, tags, text, chunks, metadata }
    }
}
