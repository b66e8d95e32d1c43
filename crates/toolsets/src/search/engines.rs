//! Stores the chunks and vectors of a namespace and searches them.
//!
//! An engine stores documents, not files. The [service](super) decides which documents it stores.
//! Many tasks use an engine at once.

pub mod embedded;
pub mod settings;
mod kept_document;
pub mod postgres;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolgate_chunks::TextChunk;
use toolgate_search::rank::{ChunkCandidate, IndexStatistics, WeightedQuery};
use toolgate_search::{ChunkHash, DocumentFilter, IndexDocument};

pub use toolgate_search::index::{IndexLeaderStatus, IndexOpenOutcome, NamedDefinition};

/// The future of an engine operation. A dropped future cancels the operation, which then has no
/// partial effect.
pub type SearchEngineFuture<'e, T> =
    Pin<Box<dyn Future<Output = Result<T, SearchEngineError>> + Send + 'e>>;

/// The reason why an engine operation failed.
///
/// The message is for the caller: lower-case, with the cause and a way to fix it, and without
/// passwords.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchEngineError {
    /// The engine is unavailable now, but may be available later.
    #[error("{0}")]
    Unavailable(String),
    /// The stored data is damaged. [Reset](SearchEngine::reset) the engine and write it again.
    #[error("{0}")]
    Damaged(String),
    /// Any other failure of the search engine.
    #[error("{0}")]
    Failed(String),
}

/// Storage and search of the chunks and vectors of one namespace.
pub trait SearchEngine: Send + Sync {
    /// Returns the name of the engine in settings and status: `embedded` or `postgres`.
    fn name(&self) -> &'static str;

    /// Prepares the engine: opens, connects, creates or migrates the index. Callers call this
    /// first, and again after [`SearchEngineError::Unavailable`]. The call is cheap if there is
    /// nothing to do.
    fn open_index(&self) -> SearchEngineFuture<'_, IndexOpenOutcome>;

    /// Acquires the write lock of the index, which is released on drop. Returns `None` while
    /// another process holds the lock. The lock of a process that died is released soon.
    fn acquire_writer(&self) -> SearchEngineFuture<'_, Option<Box<dyn SearchEngineWriter>>>;

    /// Returns the committed documents by path.
    fn documents(&self) -> SearchEngineFuture<'_, BTreeMap<String, StoredDocumentVersion>>;

    /// Returns the numbers of committed documents and chunks, and the size of the index on disk.
    fn status(&self) -> SearchEngineFuture<'_, SearchEngineStatus>;

    /// Returns the best candidates among the committed chunks: by words, by static vectors and by
    /// model vectors.
    fn candidates(&self, query: SearchEngineQuery) -> SearchEngineFuture<'_, SearchEngineMatches>;

    /// Returns definitions named like `name`, best match first: exact names, names that differ in
    /// case, prefixes, names of the same words, misspelled names. Functions and types come before
    /// other definitions.
    fn find_definitions(
        &self,
        name: String,
        filter: DocumentFilter,
        limit: usize,
    ) -> SearchEngineFuture<'_, Vec<NamedDefinition>>;

    /// Returns up to `limit` chunks without a model vector. The newest documents come first if
    /// their order is known.
    fn pending_chunks(&self, limit: usize) -> SearchEngineFuture<'_, Vec<UnembeddedEngineChunk>>;

    /// Returns the stored document at `path`, or `None` if there is none. Only namespaces of
    /// [`NamespaceDocumentSource::Documents`] keep complete documents.
    fn kept_document(&self, path: String) -> SearchEngineFuture<'_, Option<StoredDocument>>;

    /// Returns the process that holds the write lock of the index. Returns `None` if this engine
    /// does not know that process.
    fn leader(&self) -> SearchEngineFuture<'_, Option<IndexLeaderStatus>> {
        Box::pin(async { Ok(None) })
    }

    /// Deletes all data of this namespace that can be rebuilt from files. Indexes the documents of
    /// [`SearchEngine::kept_document`] again.
    fn reset(&self) -> SearchEngineFuture<'_, ()>;
}

/// Writer of an engine's index, which holds the write lock. Searches see changes only after
/// [`SearchEngineWriter::commit`].
pub trait SearchEngineWriter: Send {
    /// Stores `documents`, each of which replaces the document at its path. If the engine rejects a
    /// document, the other documents are still stored. See [`SearchEngineWriter::take_rejected`].
    fn put(&mut self, documents: Vec<StoredDocument>) -> SearchEngineFuture<'_, ()>;

    /// Returns the documents that were rejected since the last call, with the reasons.
    fn take_rejected(&mut self) -> Vec<(StoredDocument, String)> {
        Vec::new()
    }

    /// Removes the documents at `paths`. Ignores paths without a document.
    fn remove(&mut self, paths: Vec<String>) -> SearchEngineFuture<'_, ()>;

    /// Makes all changes since the last commit durable and visible to searches. If the commit
    /// fails, no change is visible.
    fn commit(&mut self) -> SearchEngineFuture<'_, ()>;

    /// Stores model vectors for all chunks with these hashes. Vectors must have length 1 and belong
    /// to the vector space with which the engine was opened.
    ///
    /// # Errors
    /// Fails with [`SearchEngineError::Failed`] if a vector has a wrong size or a number that is
    /// not finite.
    fn put_vectors(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> SearchEngineFuture<'_, ()>;

    /// Publishes to other servers whether the index is complete. After that, also publishes
    /// regularly that this server is alive.
    fn publish_complete(&mut self, complete: bool) -> SearchEngineFuture<'_, ()> {
        let _ = complete;
        Box::pin(async { Ok(()) })
    }

    /// Releases resources that only speed up writes. Call this when no write is expected for a
    /// while.
    fn release_resources(&mut self) -> SearchEngineFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Origin of the documents in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NamespaceDocumentSource {
    /// Files of a folder. Texts are read from the files.
    Files,
    /// Documents that callers store. The engine keeps their complete texts.
    Documents,
}

/// Identity of the namespace that an engine stores.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SearchNamespaceIdentity {
    /// The folder of the files, or the workspace to which the documents belong. All symlinks are
    /// resolved.
    pub root: PathBuf,
    /// The name of the namespace.
    pub namespace: String,
    /// The origin of the namespace's documents.
    pub source: NamespaceDocumentSource,
}

/// Owned copy of an [`IndexDocument`].
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDocument {
    /// Path of the document, see [`IndexDocument::path`].
    pub path: String,
    /// Fingerprint of the document, see [`IndexDocument::fingerprint`].
    pub stamp: Vec<u8>,
    /// Etag of the document, see [`IndexDocument::etag`].
    pub etag: String,
    /// Commit that last changed the document, see [`IndexDocument::commit`].
    pub commit: Option<String>,
    /// Language of the document, see [`IndexDocument::lang`].
    pub lang: Option<String>,
    /// Tags of the document, see [`IndexDocument::tags`].
    pub tags: Vec<String>,
    /// Full text of the document, see [`IndexDocument::text`].
    pub text: String,
    /// Chunks of the document, see [`IndexDocument::chunks`]. The list is empty if the document has
    /// no words. A document without chunks is stored, too.
    pub chunks: Vec<TextChunk>,
    /// Metadata to return with a document. Empty for files.
    pub metadata: Map<String, Value>,
}

impl StoredDocument {
    /// Returns the document as a borrowed [`IndexDocument`].
    pub fn as_document(&self) -> IndexDocument<'_> {
        IndexDocument {
            path: &self.path,
            fingerprint: &self.stamp,
            etag: &self.etag,
            commit: self.commit.as_deref(),
            lang: self.lang.as_deref(),
            tags: &self.tags,
            text: &self.text,
            chunks: &self.chunks,
        }
    }
}

/// Version of a stored document: its fingerprint and etag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocumentVersion {
    /// Fingerprint that was stored with the document.
    pub stamp: Vec<u8>,
    /// Etag that was stored with the document.
    pub etag: String,
}

/// Status of a search index: numbers of documents and chunks, and size on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SearchEngineStatus {
    /// The number of documents in the index, including those without chunks.
    pub documents: u64,
    /// Number of chunks in the index.
    pub chunks: u64,
    /// Number of chunks that have a vector of the configured model.
    pub with_vectors: u64,
    /// Size of the index on disk, in bytes. `None` if unknown.
    pub bytes: Option<u64>,
}

/// Query for the candidates in an engine: words, vectors, filter and limit.
#[derive(Debug, Clone, Default)]
pub struct SearchEngineQuery {
    /// Text of the query, if it contains any words.
    pub query: Option<String>,
    /// Vector of the query by the built-in static model.
    pub static_vector: Option<Vec<f32>>,
    /// Vector of the query by the configured model.
    pub model_vector: Option<Vec<f32>>,
    /// The filter on documents. Only chunks of documents that pass the filter can be candidates.
    pub filter: DocumentFilter,
    /// The maximum number of candidates for each method of search: by words, by static vectors and
    /// by model vectors.
    pub limit: usize,
}

/// The candidates of a search, from one consistent state of the index.
pub struct SearchEngineMatches {
    /// The analyzed and weighted query. `None` if the search has no words.
    pub question: Option<WeightedQuery>,
    /// Statistics of the complete index, from which word weights are computed.
    pub averages: IndexStatistics,
    /// The candidates without duplicates, in no order. All have word counts and similarities,
    /// regardless of the method of search that found them.
    pub candidates: Vec<ChunkCandidate>,
    /// The number of matching chunks. `None` if the engine cannot count them cheaply.
    pub total: Option<u64>,
    /// Access to the vectors of the candidates, by key.
    pub vectors: Arc<dyn VectorLookup>,
}

/// Access to the vectors of the candidates of a search.
pub trait VectorLookup: Send + Sync {
    /// Returns the vectors of the chunks with these keys, in order. `by` selects the model that
    /// computed the vectors. A chunk without a vector gives `None`.
    fn load(
        &self,
        keys: Vec<u64>,
        by: VectorOrigin,
    ) -> SearchEngineFuture<'_, Vec<Option<Vec<f32>>>>;
}

/// Model that computed a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VectorOrigin {
    /// Static model that is built in.
    Static,
    /// Embedding model that the settings name.
    Model,
}

/// Chunk that has no vector of the configured model yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnembeddedEngineChunk {
    /// The hash of the chunk's text.
    pub hash: ChunkHash,
    /// The path of the chunk's document.
    pub path: String,
    /// First line of the chunk, counted from 1.
    pub first: u32,
    /// Last line of the chunk, counted from 1.
    pub last: u32,
}
