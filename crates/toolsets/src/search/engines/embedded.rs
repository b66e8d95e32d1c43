//! An engine in this process. The index is in the user's cache folder or in memory.

mod document_store;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use toolgate_contract::lock_mutex;
use toolgate_net::spawn_blocking;
use toolgate_search::index::{
    self, IndexError, IndexLocation, IndexSnapshot, SearchIndex, VectorSource,
};
use toolgate_search::{DocumentFilter, VectorSpace};

use super::{
    IndexLeaderStatus, IndexOpenOutcome, NamedDefinition, NamespaceDocumentSource, SearchEngine,
    SearchEngineError, SearchEngineFuture, SearchEngineMatches, SearchEngineQuery,
    SearchEngineStatus, SearchEngineWriter, StoredDocument, StoredDocumentVersion,
    UnembeddedEngineChunk, VectorLookup, VectorOrigin,
};
use document_store::DocumentFileStore;
use writer::EmbeddedIndexWriter;

/// A search engine in this process. Other processes share the index through its folder.
pub struct EmbeddedSearchEngine {
    /// The folder of the search index; `None` if the index is in memory.
    folder: Option<PathBuf>,
    model: Option<VectorSpace>,
    /// The documents that callers stored. `None` for a namespace of files.
    document_store: Option<Arc<DocumentFileStore>>,
    opened: Arc<Mutex<Option<SearchIndex>>>,
}

impl EmbeddedSearchEngine {
    /// Creates the engine with its index in `folder`, for vectors of the space `model`. Documents
    /// that callers store are kept in the folder `documents`. Reads nothing yet.
    pub fn new(
        folder: Option<PathBuf>,
        model: Option<VectorSpace>,
        source: NamespaceDocumentSource,
        documents: Option<PathBuf>,
    ) -> Self {
        // Documents in memory belong to this server alone, so their index is in memory too.
        let folder =
            folder.filter(|_| source == NamespaceDocumentSource::Files || documents.is_some());
        let document_store = match source {
            NamespaceDocumentSource::Files => None,
            NamespaceDocumentSource::Documents => Some(Arc::new(DocumentFileStore::new(documents))),
        };
        Self { folder, model, document_store, opened: Arc::default() }
    }

    fn index(&self) -> Result<SearchIndex, SearchEngineError> {
        let opened = lock_mutex(&self.opened).clone();
        opened.ok_or_else(|| {
            SearchEngineError::Unavailable("the search index is not open yet; try again".to_owned())
        })
    }

    fn blocking<'e, T: Send + 'static>(
        &self,
        work: impl FnOnce(&SearchIndex, &dyn Fn() -> bool) -> Result<T, SearchEngineError>
        + Send
        + 'static,
    ) -> SearchEngineFuture<'e, T> {
        let index = self.index();
        Box::pin(async move {
            let index = index?;
            blocking(move |is_wanted| work(&index, is_wanted)).await
        })
    }

    fn snapshot<'e, T: Send + 'static>(
        &self,
        work: impl FnOnce(&IndexSnapshot, &dyn Fn() -> bool) -> Result<T, IndexError> + Send + 'static,
    ) -> SearchEngineFuture<'e, T> {
        self.blocking(|index, is_wanted| Ok(work(&index.snapshot()?, is_wanted)?))
    }
}

/// Runs `work` on a blocking thread. `work` receives a function that returns false once the
/// caller's future was dropped. Fails if `work` fails or panics.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, SearchEngineError> + Send + 'static,
) -> Result<T, SearchEngineError> {
    /// Flag that cancels a search when its future is dropped.
    struct SearchCancelFlag(Arc<AtomicBool>);
    impl Drop for SearchCancelFlag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let flag = SearchCancelFlag(Arc::default());
    let cancelled = flag.0.clone();
    let done = spawn_blocking(move || work(&|| !cancelled.load(Ordering::Relaxed))).await;
    drop(flag);
    done.map_err(|err| SearchEngineError::Failed(format!("the search index failed: {err}")))?
}

impl From<IndexError> for SearchEngineError {
    fn from(err: IndexError) -> Self {
        let message = err.to_string();
        match err {
            IndexError::Damaged(_) => Self::Damaged(message),
            IndexError::Busy(_) => Self::Unavailable(message),
            IndexError::Refused(_) | IndexError::Canceled | IndexError::Failed(_) => {
                Self::Failed(message)
            }
        }
    }
}

impl SearchEngine for EmbeddedSearchEngine {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn open_index(&self) -> SearchEngineFuture<'_, IndexOpenOutcome> {
        let folder = self.folder.clone();
        let model = self.model.clone();
        let opened = self.opened.clone();
        let store = self.document_store.clone();
        Box::pin(blocking(move |_| {
            // The lock is not held while the disk is busy, because searches take it.
            if lock_mutex(&opened).is_some() {
                return Ok(IndexOpenOutcome::Existing);
            }
            let (index, outcome) = open(folder.as_deref(), model.as_ref())?;
            store.map_or(Ok(()), |store| sync_documents(&index, &store))?;
            *lock_mutex(&opened) = Some(index);
            Ok(outcome)
        }))
    }

    fn acquire_writer(&self) -> SearchEngineFuture<'_, Option<Box<dyn SearchEngineWriter>>> {
        let store = self.document_store.clone();
        let folder = self.folder.clone();
        self.blocking(move |index, _| {
            let Some(writer) = index.writer()? else { return Ok(None) };
            Ok(Some(Box::new(EmbeddedIndexWriter::new(writer, store, folder))
                as Box<dyn SearchEngineWriter>))
        })
    }

    fn documents(&self) -> SearchEngineFuture<'_, BTreeMap<String, StoredDocumentVersion>> {
        self.snapshot(|snapshot, _| {
            let version = |it: index::IndexedDocumentVersion| StoredDocumentVersion {
                stamp: it.fingerprint,
                etag: it.etag,
            };
            Ok(snapshot.documents()?.into_iter().map(|(path, it)| (path, version(it))).collect())
        })
    }

    fn status(&self) -> SearchEngineFuture<'_, SearchEngineStatus> {
        let on_disk = self.folder.is_some();
        self.blocking(move |index, _| {
            let index::IndexCounts { documents, chunks, with_vectors } = index.snapshot()?.counts();
            let bytes = on_disk.then(|| index.bytes());
            Ok(SearchEngineStatus { documents, chunks, with_vectors, bytes })
        })
    }

    fn candidates(&self, query: SearchEngineQuery) -> SearchEngineFuture<'_, SearchEngineMatches> {
        self.snapshot(move |snapshot, is_wanted| {
            let SearchEngineQuery { query, static_vector, model_vector, filter, limit } = query;
            let question = query.map(|query| snapshot.weigh_question(&query)).transpose()?;
            let candidate_query = index::CandidateSearchQuery {
                static_vector: static_vector.as_deref(),
                model_vector: model_vector.as_deref(),
                filter: &filter,
                limit,
            };
            let found = snapshot.candidates(question.as_ref(), &candidate_query, is_wanted)?;
            Ok(SearchEngineMatches {
                question,
                averages: snapshot.statistics(),
                candidates: found.candidates,
                total: Some(found.total),
                vectors: Arc::new(EmbeddedVectorLookup(snapshot.clone())),
            })
        })
    }

    fn find_definitions(
        &self,
        name: String,
        filter: DocumentFilter,
        limit: usize,
    ) -> SearchEngineFuture<'_, Vec<NamedDefinition>> {
        self.snapshot(move |snapshot, _| snapshot.find_named(&name, &filter, limit))
    }

    fn pending_chunks(&self, limit: usize) -> SearchEngineFuture<'_, Vec<UnembeddedEngineChunk>> {
        self.snapshot(move |snapshot, _| {
            let pending = |it: index::UnembeddedChunk| {
                let index::UnembeddedChunk { hash, path, first, last } = it;
                UnembeddedEngineChunk { hash, path, first, last }
            };
            Ok(snapshot.unembedded(limit)?.into_iter().map(pending).collect())
        })
    }

    fn leader(&self) -> SearchEngineFuture<'_, Option<IndexLeaderStatus>> {
        self.blocking(|index, _| Ok(index.leader()))
    }

    fn kept_document(&self, path: String) -> SearchEngineFuture<'_, Option<StoredDocument>> {
        let store = self.document_store.clone();
        Box::pin(blocking(move |_| store.map_or(Ok(None), |store| store.get(&path))))
    }

    fn reset(&self) -> SearchEngineFuture<'_, ()> {
        let folder = self.folder.clone();
        let model = self.model.clone();
        let opened = self.opened.clone();
        let store = self.document_store.clone();
        Box::pin(blocking(move |_| {
            *lock_mutex(&opened) = None;
            let location = folder.as_deref().map_or(IndexLocation::Memory, IndexLocation::Folder);
            let (index, _) = match SearchIndex::remove(location) {
                Ok(()) => open(folder.as_deref(), model.as_ref())?,
                // Another process writes the index and may have rebuilt it.
                Err(IndexError::Busy(_)) => SearchIndex::open(location, model.as_ref())?,
                Err(err) => return Err(err.into()),
            };
            store.map_or(Ok(()), |store| sync_documents(&index, &store))?;
            *lock_mutex(&opened) = Some(index);
            Ok(())
        }))
    }
}

/// Opens the index in `folder`. If that index cannot be written or has another version, opens a new
/// index in memory. Fails if the index is damaged.
fn open(
    folder: Option<&std::path::Path>,
    model: Option<&VectorSpace>,
) -> Result<(SearchIndex, IndexOpenOutcome), SearchEngineError> {
    let Some(folder) = folder else { return Ok(SearchIndex::open(IndexLocation::Memory, model)?) };
    match SearchIndex::open(IndexLocation::Folder(folder), model) {
        Err(IndexError::Busy(why) | IndexError::Failed(why)) => {
            tracing::warn!("the search index is kept in memory, for this server alone: {why}");
            Ok(SearchIndex::open(IndexLocation::Memory, model)?)
        }
        opened => Ok(opened?),
    }
}

/// Updates `index` to match the documents in `store`. The two differ if an earlier server died
/// after writing only one of them. Does nothing while another process writes the index.
fn sync_documents(index: &SearchIndex, store: &DocumentFileStore) -> Result<(), SearchEngineError> {
    // Another process has the right to write and does this itself.
    let Some(mut writer) = index.writer()? else { return Ok(()) };
    store.undo()?;
    let documents = store.load()?;
    let indexed = index.snapshot()?.documents()?;
    let paths: BTreeSet<&str> = documents.iter().map(|it| it.path.as_str()).collect();
    let removed = indexed.keys().filter(|path| !paths.contains(path.as_str()));
    let is_changed =
        |it: &&StoredDocument| indexed.get(&it.path).is_none_or(|version| version.etag != it.etag);
    for path in removed {
        writer.remove(path)?;
    }
    for document in documents.iter().filter(is_changed) {
        writer.put(&document.as_document())?;
    }
    Ok(writer.commit()?)
}

/// Lookup of vectors in a snapshot of the embedded index.
struct EmbeddedVectorLookup(IndexSnapshot);

impl VectorLookup for EmbeddedVectorLookup {
    fn load(
        &self,
        keys: Vec<u64>,
        by: VectorOrigin,
    ) -> SearchEngineFuture<'_, Vec<Option<Vec<f32>>>> {
        let snapshot = self.0.clone();
        let source = match by {
            VectorOrigin::Static => VectorSource::Static,
            VectorOrigin::Model => VectorSource::Model,
        };
        Box::pin(blocking(move |_| {
            Ok(keys.into_iter().map(|key| snapshot.vector(key, source)).collect())
        }))
    }
}
