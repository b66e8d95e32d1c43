//! Tests of the search service with an engine that fails or is slow.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::time::sleep;
use toolgate_contract::{Caller, ToolContext, ToolError};
use toolgate_search::{ChunkHash, DocumentFilter, VectorSpace};

use super::answer::SearchAnswerInputs;
use super::collection::SearchableIndex;
use super::query::SearchQuery;
use super::{IndexFolders, IndexState, IndexStateReport, SearchRequest, SearchService};
use crate::search::SearchSettings;
use crate::search::engines::embedded::EmbeddedSearchEngine;
use crate::search::engines::{
    IndexOpenOutcome, NamedDefinition, NamespaceDocumentSource, SearchEngine, SearchEngineError,
    SearchEngineFuture, SearchEngineMatches, SearchEngineQuery, SearchEngineStatus,
    SearchEngineWriter, StoredDocument, StoredDocumentVersion, UnembeddedEngineChunk,
};
use toolgate_world::{HttpFetcher, Root};

/// Engine whose next commits fail. It calls a function before it answers a search.
struct FailingEngine {
    inner: EmbeddedSearchEngine,
    /// The number of commits that still fail.
    failures: Arc<AtomicUsize>,
    after_search: Box<dyn Fn() + Send + Sync>,
}

impl FailingEngine {
    fn new(
        failures: &Arc<AtomicUsize>,
        after_search: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        let inner = EmbeddedSearchEngine::new(
            None,
            None::<VectorSpace>,
            NamespaceDocumentSource::Files,
            None,
        );
        let after_search = Box::new(after_search);
        Arc::new(Self { inner, failures: failures.clone(), after_search })
    }
}

/// Writer of an engine whose next commits fail.
struct FailingWriter {
    inner: Box<dyn SearchEngineWriter>,
    failures: Arc<AtomicUsize>,
}

impl SearchEngine for FailingEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open_index(&self) -> SearchEngineFuture<'_, IndexOpenOutcome> {
        self.inner.open_index()
    }

    fn acquire_writer(&self) -> SearchEngineFuture<'_, Option<Box<dyn SearchEngineWriter>>> {
        let wrap = |inner| {
            let failures = self.failures.clone();
            Box::new(FailingWriter { inner, failures }) as Box<dyn SearchEngineWriter>
        };
        Box::pin(async move { Ok(self.inner.acquire_writer().await?.map(wrap)) })
    }

    fn documents(&self) -> SearchEngineFuture<'_, BTreeMap<String, StoredDocumentVersion>> {
        self.inner.documents()
    }

    fn status(&self) -> SearchEngineFuture<'_, SearchEngineStatus> {
        self.inner.status()
    }

    fn candidates(&self, query: SearchEngineQuery) -> SearchEngineFuture<'_, SearchEngineMatches> {
        Box::pin(async move {
            let matched = self.inner.candidates(query).await;
            (self.after_search)();
            matched
        })
    }

    fn find_definitions(
        &self,
        name: String,
        filter: DocumentFilter,
        limit: usize,
    ) -> SearchEngineFuture<'_, Vec<NamedDefinition>> {
        self.inner.find_definitions(name, filter, limit)
    }

    fn pending_chunks(&self, limit: usize) -> SearchEngineFuture<'_, Vec<UnembeddedEngineChunk>> {
        self.inner.pending_chunks(limit)
    }

    fn kept_document(&self, path: String) -> SearchEngineFuture<'_, Option<StoredDocument>> {
        self.inner.kept_document(path)
    }

    fn reset(&self) -> SearchEngineFuture<'_, ()> {
        self.inner.reset()
    }
}

impl SearchEngineWriter for FailingWriter {
    fn put(&mut self, documents: Vec<StoredDocument>) -> SearchEngineFuture<'_, ()> {
        self.inner.put(documents)
    }

    fn take_rejected(&mut self) -> Vec<(StoredDocument, String)> {
        self.inner.take_rejected()
    }

    fn remove(&mut self, paths: Vec<String>) -> SearchEngineFuture<'_, ()> {
        self.inner.remove(paths)
    }

    fn commit(&mut self) -> SearchEngineFuture<'_, ()> {
        let before = self
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1));
        match before {
            Ok(_) => {
                Box::pin(async { Err(SearchEngineError::Failed("the disk hiccups".to_owned())) })
            }
            Err(_) => self.inner.commit(),
        }
    }

    fn put_vectors(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> SearchEngineFuture<'_, ()> {
        self.inner.put_vectors(vectors)
    }
}

fn service(root: &Root) -> Arc<SearchService> {
    let settings = SearchSettings::default();
    let files = crate::files::FileSettings::default();
    let service = SearchService::new(
        root,
        &settings,
        &files,
        IndexFolders::default(),
        &HttpFetcher::default(),
    );
    service.unwrap()
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
async fn failed_commits_are_retried_at_once_and_reported_if_they_keep_failing() {
    let folder = TempDir::new().unwrap();
    let root = Root::open(folder.path()).unwrap();
    let service = service(&root);
    let failures = Arc::new(AtomicUsize::new(0));
    let engine = FailingEngine::new(&failures, || {});
    let collection = SearchableIndex::for_files(root, engine.clone(), &[], &service);
    let put = |name: &str| {
        let text = format!("fn {name}() {{}}\n");
        fs::write(folder.path().join(format!("{name}.rs")), text).unwrap();
    };
    let catch_up = async || -> Result<IndexStateReport, ToolError> {
        let until = Instant::now() + Duration::from_secs(20);
        let ctx = ToolContext::detached(Caller::local(), until);
        collection.catch_up(&ctx, "workspace", until).await
    };
    put("okapi");
    assert_eq!(catch_up().await.unwrap().files, 1);
    put("gnu");
    failures.store(1, Ordering::Relaxed);
    let report = catch_up().await.unwrap();
    assert_eq!((report.state, report.files, report.complete), (IndexState::Ready, 2, true));
    assert!(engine.documents().await.unwrap().contains_key("gnu.rs"));
    // So many failures in a row are reported.
    put("kudu");
    failures.store(5, Ordering::Relaxed);
    let report = catch_up().await.unwrap();
    assert_eq!((report.files, report.complete), (2, false), "{report:?}");
    assert_eq!(report.note.as_deref(), Some("the disk hiccups"));
    assert!(!engine.documents().await.unwrap().contains_key("kudu.rs"));
    let start = Instant::now();
    let report = loop {
        match catch_up().await {
            Ok(report) if report.complete => break report,
            other => assert!(start.elapsed() < Duration::from_secs(10), "{other:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((report.state, report.files), (IndexState::Ready, 3));
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
async fn a_file_that_changes_during_a_search_is_never_shown_with_old_text() {
    let folder = TempDir::new().unwrap();
    let root = Root::open(folder.path()).unwrap();
    let path = folder.path().join("a.rs");
    fs::write(&path, "fn okapi() {}\n").unwrap();
    let service = service(&root);
    let file = path.clone();
    let change_file = move || fs::write(&file, "fn other() {}\n").unwrap();
    let engine = FailingEngine::new(&Arc::default(), change_file);
    let collection = SearchableIndex::for_files(root, engine, &[], &service);
    let until = Instant::now() + Duration::from_secs(20);
    let ctx = ToolContext::detached(Caller::local(), until);
    let request =
        SearchRequest { query: Some("okapi".to_owned()), top_k: 5, ..SearchRequest::default() };
    let query = SearchQuery::new(request, None).unwrap();
    // The search starts again, except for the last attempt, which leaves the file out.
    for (is_last, expected) in [(false, None), (true, Some(0))] {
        fs::write(&path, "fn okapi() {}\n").unwrap();
        let index = collection.catch_up(&ctx, "workspace", until).await.unwrap();
        let filter = Some(DocumentFilter::default());
        let collection = &collection;
        let attempt = SearchAnswerInputs {
            collection,
            embedder: None,
            query: &query,
            filter,
            index,
            is_last,
        };
        let Ok(found) = attempt.run(&ctx, &mut None).await else { panic!("the search failed") };
        assert_eq!(found.map(|found| found.hits.len()), expected);
    }
}
