//! Stores the chunks and vectors of a namespace and finds them again.
//!
//! An engine knows documents, not files: the [service](super) decides what is in it. Many tasks use
//! it at once.

pub mod embedded;
pub mod settings;
mod kept;
pub mod postgres;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolgate_chunks::Chunk;
use toolgate_search::rank::{Averages, Candidate, Question};
use toolgate_search::{ChunkHash, Document, Filter};

pub use toolgate_search::index::{Begun, Leader, Named};

/// The future of an engine operation. Dropping it cancels the operation without leaving it half
/// done.
pub type Doing<'e, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'e>>;

/// The reason why an engine operation failed.
///
/// The message is for the caller: lower-case, with the cause and a way to fix it, and without
/// passwords.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The engine is unavailable now, but may be available later.
    #[error("{0}")]
    Away(String),
    /// The stored data is damaged. [Reset](Engine::reset) the engine and write it again.
    #[error("{0}")]
    Damaged(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

/// Stores the chunks and vectors of one namespace.
pub trait Engine: Send + Sync {
    /// The name of the engine in settings and status: `embedded` or `postgres`.
    fn name(&self) -> &'static str;

    /// Makes the engine ready: opens, connects, creates, migrates. Called first, and again after
    /// [`EngineError::Away`]. It is cheap if there is nothing to do.
    fn open(&self) -> Doing<'_, Begun>;

    /// Acquires the right to write, which is released on drop. Returns `None` while another process
    /// has it. The right of a process that died is free soon.
    fn writer(&self) -> Doing<'_, Option<Box<dyn Writer>>>;

    /// Returns the committed documents by path.
    fn documents(&self) -> Doing<'_, BTreeMap<String, Known>>;

    /// Returns the size of the committed index.
    fn status(&self) -> Doing<'_, Status>;

    /// Returns the best candidates among the committed chunks: by words, by static vectors and by
    /// model vectors.
    fn candidates(&self, sought: Sought) -> Doing<'_, Matched>;

    /// Returns definitions named like `name`, best match first: exact, other capitals, prefix, same
    /// words, misspelt. Functions and types come before others.
    fn named(&self, name: String, filter: Filter, limit: usize) -> Doing<'_, Vec<Named>>;

    /// Returns up to `most` chunks without a model vector. The newest documents come first if their
    /// order is known.
    fn unembedded(&self, most: usize) -> Doing<'_, Vec<Unembedded>>;

    /// Returns the document at `path` as it was put, or `None` if there is none. Only namespaces of
    /// [`Source::Documents`] keep documents.
    fn kept(&self, path: String) -> Doing<'_, Option<Put>>;

    /// Returns the process that has the right to write, if this engine knows it.
    fn leader(&self) -> Doing<'_, Option<Leader>> {
        Box::pin(async { Ok(None) })
    }

    /// Deletes everything in this namespace that can be built again from files. Puts the documents
    /// of [`Engine::kept`] again.
    fn reset(&self) -> Doing<'_, ()>;
}

/// The right to write into an engine. Searches see changes after [`Writer::commit`].
pub trait Writer: Send {
    /// Puts `documents`, each in place of the one at its path. Documents that the engine rejects do
    /// not stop the others: see [`Writer::refused`].
    fn put(&mut self, documents: Vec<Put>) -> Doing<'_, ()>;

    /// Returns the documents that were rejected since the last call, with the reasons.
    fn refused(&mut self) -> Vec<(Put, String)> {
        Vec::new()
    }

    /// Removes the documents at `paths`. Ignores missing ones.
    fn remove(&mut self, paths: Vec<String>) -> Doing<'_, ()>;

    /// Makes all changes since the last commit durable and visible, or none of them if it fails.
    fn commit(&mut self) -> Doing<'_, ()>;

    /// Stores model vectors for all chunks with these hashes. Vectors have length 1 and the space
    /// that the engine was opened with.
    ///
    /// # Errors
    ///
    /// [`EngineError::Failed`] if a vector has another size or a number that is not finite.
    fn give(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> Doing<'_, ()>;

    /// Publishes to other servers whether the index is complete, and from then on that this server
    /// lives.
    fn tell(&mut self, complete: bool) -> Doing<'_, ()> {
        let _ = complete;
        Box::pin(async { Ok(()) })
    }

    /// Releases resources that only make writing quick, because no write is expected for a while.
    fn rest(&mut self) -> Doing<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// The origin of a namespace's documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Files of a folder. Texts are read from there.
    Files,
    /// Documents that callers put. The engine keeps their texts.
    Documents,
}

/// The namespace of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The folder of the files. For documents, the workspace that they belong to. All symlinks are
    /// resolved.
    pub root: PathBuf,
    /// The name of the namespace.
    pub namespace: String,
    /// The origin of its documents.
    pub source: Source,
}

/// An owned [`Document`].
#[derive(Debug, Clone, PartialEq)]
pub struct Put {
    /// See [`Document::path`].
    pub path: String,
    /// See [`Document::stamp`].
    pub stamp: Vec<u8>,
    /// See [`Document::etag`].
    pub etag: String,
    /// See [`Document::commit`].
    pub commit: Option<String>,
    /// See [`Document::lang`].
    pub lang: Option<String>,
    /// See [`Document::tags`].
    pub tags: Vec<String>,
    /// See [`Document::text`].
    pub text: String,
    /// See [`Document::chunks`]. Empty if the document has no words: it is stored all the same.
    pub chunks: Vec<Chunk>,
    /// Metadata to return with a document. Empty for files.
    pub metadata: Map<String, Value>,
}

impl Put {
    /// Borrows the document.
    pub fn document(&self) -> Document<'_> {
        Document {
            path: &self.path,
            stamp: &self.stamp,
            etag: &self.etag,
            commit: self.commit.as_deref(),
            lang: self.lang.as_deref(),
            tags: &self.tags,
            text: &self.text,
            chunks: &self.chunks,
        }
    }
}

/// The version of a stored document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The stamp that was put.
    pub stamp: Vec<u8>,
    /// The etag that was put.
    pub etag: String,
}

/// The size of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// The number of documents, including those without chunks.
    pub documents: u64,
    /// The number of chunks.
    pub chunks: u64,
    /// The number of chunks with a model vector.
    pub with_vectors: u64,
    /// The size on disk in bytes, if known.
    pub bytes: Option<u64>,
}

/// A search for candidates.
#[derive(Debug, Clone, Default)]
pub struct Sought {
    /// The query, in words.
    pub query: Option<String>,
    /// The static vector of the query.
    pub near: Option<Vec<f32>>,
    /// The model vector of the query.
    pub model: Option<Vec<f32>>,
    /// The filter, applied before the best candidates are taken.
    pub filter: Filter,
    /// The largest number of candidates for each way: by words, by static and by model vectors.
    pub limit: usize,
}

/// The candidates of a search, from one consistent state of the index.
pub struct Matched {
    /// The analyzed and weighted query, if there was one.
    pub question: Option<Question>,
    /// Statistics of the whole index.
    pub averages: Averages,
    /// The candidates, each once, in no order. All have word counts and similarities, however they
    /// were found.
    pub candidates: Vec<Candidate>,
    /// The number of matching chunks, if the engine knows it without extra cost.
    pub total: Option<u64>,
    /// Access to the candidates' vectors, by key.
    pub vectors: Arc<dyn Vectors>,
}

/// Access to the vectors of candidates.
pub trait Vectors: Send + Sync {
    /// Returns the vectors of the candidates with these keys, in order.
    fn of(&self, keys: Vec<u64>, by: By) -> Doing<'_, Vec<Option<Vec<f32>>>>;
}

/// The origin of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// The built-in static vectors.
    Static,
    /// The configured model.
    Model,
}

/// A chunk without a model vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unembedded {
    /// The hash of its text.
    pub hash: ChunkHash,
    /// The path of its document.
    pub path: String,
    /// The first line, from 1.
    pub first: u32,
    /// The last line.
    pub last: u32,
}
