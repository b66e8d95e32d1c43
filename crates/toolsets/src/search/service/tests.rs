//! An index whose engine does not always do what it is asked.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::time::sleep;
use toolgate_contract::{Caller, ToolContext, ToolError};
use toolgate_search::{ChunkHash, DocumentFilter, VectorSpace};

use super::answer::SearchAttempt;
use super::collection::SearchCollection;
use super::query::SearchQuery;
use super::{IndexFolders, IndexReport, IndexState, SearchRequest, SearchService};
use crate::search::Settings;
use crate::search::engines::embedded::EmbeddedEngine;
use crate::search::engines::{
    DocumentSource, EngineError, EngineFuture, EngineMatches, EngineQuery, EngineStatus,
    EngineWriter, IndexOpenOutcome, NamedDefinition, PendingChunk, SearchEngine, StoredDocument,
    StoredVersion,
};
use toolgate_world::{HttpFetcher, Root};

/// An engine that fails to commit so many times, and does something else before it tells what it
/// has.
struct Flaky {
    inner: EmbeddedEngine,
    fails: Arc<AtomicUsize>,
    meanwhile: Box<dyn Fn() + Send + Sync>,
}

impl Flaky {
    fn new(fails: &Arc<AtomicUsize>, meanwhile: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let inner = EmbeddedEngine::new(None, None::<VectorSpace>, DocumentSource::Files, None);
        Arc::new(Self { inner, fails: fails.clone(), meanwhile: Box::new(meanwhile) })
    }
}

struct Pen {
    inner: Box<dyn EngineWriter>,
    fails: Arc<AtomicUsize>,
}

impl SearchEngine for Flaky {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open_index(&self) -> EngineFuture<'_, IndexOpenOutcome> {
        self.inner.open_index()
    }

    fn acquire_writer(&self) -> EngineFuture<'_, Option<Box<dyn EngineWriter>>> {
        let pen =
            |inner| Box::new(Pen { inner, fails: self.fails.clone() }) as Box<dyn EngineWriter>;
        Box::pin(async move { Ok(self.inner.acquire_writer().await?.map(pen)) })
    }

    fn documents(&self) -> EngineFuture<'_, BTreeMap<String, StoredVersion>> {
        self.inner.documents()
    }

    fn status(&self) -> EngineFuture<'_, EngineStatus> {
        self.inner.status()
    }

    fn candidates(&self, sought: EngineQuery) -> EngineFuture<'_, EngineMatches> {
        Box::pin(async move {
            let matched = self.inner.candidates(sought).await;
            (self.meanwhile)();
            matched
        })
    }

    fn find_definitions(
        &self,
        name: String,
        filter: DocumentFilter,
        limit: usize,
    ) -> EngineFuture<'_, Vec<NamedDefinition>> {
        self.inner.find_definitions(name, filter, limit)
    }

    fn pending_chunks(&self, most: usize) -> EngineFuture<'_, Vec<PendingChunk>> {
        self.inner.pending_chunks(most)
    }

    fn kept_document(&self, path: String) -> EngineFuture<'_, Option<StoredDocument>> {
        self.inner.kept_document(path)
    }

    fn reset(&self) -> EngineFuture<'_, ()> {
        self.inner.reset()
    }
}

impl EngineWriter for Pen {
    fn put(&mut self, documents: Vec<StoredDocument>) -> EngineFuture<'_, ()> {
        self.inner.put(documents)
    }

    fn take_rejected(&mut self) -> Vec<(StoredDocument, String)> {
        self.inner.take_rejected()
    }

    fn remove(&mut self, paths: Vec<String>) -> EngineFuture<'_, ()> {
        self.inner.remove(paths)
    }

    fn commit(&mut self) -> EngineFuture<'_, ()> {
        let left =
            self.fails.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1));
        match left {
            Ok(_) => Box::pin(async { Err(EngineError::Failed("the disk hiccups".to_owned())) }),
            Err(_) => self.inner.commit(),
        }
    }

    fn put_vectors(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> EngineFuture<'_, ()> {
        self.inner.put_vectors(vectors)
    }
}

fn service(root: &Root) -> Arc<SearchService> {
    let settings = Settings::default();
    let files = crate::files::FileSettings::default();
    let service = SearchService::new(
        root,
        &settings,
        &files,
        IndexFolders::default(),
        &HttpFetcher::default(),
    );
    service.unwrap().unwrap()
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
async fn what_could_not_be_written_is_tried_again_at_once_and_then_said() {
    let folder = TempDir::new().unwrap();
    let root = Root::open(folder.path()).unwrap();
    let service = service(&root);
    let fails = Arc::new(AtomicUsize::new(0));
    let engine = Flaky::new(&fails, || {});
    let collection = SearchCollection::for_files(root, engine.clone(), &[], &service);
    let put = |name: &str| {
        let text = format!("fn {name}() {{}}\n");
        fs::write(folder.path().join(format!("{name}.rs")), text).unwrap();
    };
    let fresh = async || -> Result<IndexReport, ToolError> {
        let until = Instant::now() + Duration::from_secs(20);
        let ctx = ToolContext::detached(Caller::local(), until);
        collection.catch_up(&ctx, "workspace", until).await
    };
    put("okapi");
    assert_eq!(fresh().await.unwrap().files, 1);
    put("gnu");
    fails.store(1, Ordering::Relaxed);
    let indexed = fresh().await.unwrap();
    assert_eq!((indexed.state, indexed.files, indexed.complete), (IndexState::Ready, 2, true));
    assert!(engine.documents().await.unwrap().contains_key("gnu.rs"));
    // So often in a row is not chance.
    put("kudu");
    fails.store(5, Ordering::Relaxed);
    let indexed = fresh().await.unwrap();
    assert_eq!((indexed.files, indexed.complete), (2, false), "{indexed:?}");
    assert_eq!(indexed.note.as_deref(), Some("the disk hiccups"));
    assert!(!engine.documents().await.unwrap().contains_key("kudu.rs"));
    let begun = Instant::now();
    let indexed = loop {
        match fresh().await {
            Ok(indexed) if indexed.complete => break indexed,
            other => assert!(begun.elapsed() < Duration::from_secs(10), "{other:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((indexed.state, indexed.files), (IndexState::Ready, 3));
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
async fn a_file_that_changes_while_it_is_searched_is_never_shown_as_it_was() {
    let folder = TempDir::new().unwrap();
    let root = Root::open(folder.path()).unwrap();
    let path = folder.path().join("a.rs");
    fs::write(&path, "fn okapi() {}\n").unwrap();
    let service = service(&root);
    let changed = path.clone();
    let meanwhile = move || fs::write(&changed, "fn other() {}\n").unwrap();
    let engine = Flaky::new(&Arc::default(), meanwhile);
    let collection = SearchCollection::for_files(root, engine, &[], &service);
    let until = Instant::now() + Duration::from_secs(20);
    let ctx = ToolContext::detached(Caller::local(), until);
    let wanted =
        SearchRequest { query: Some("okapi".to_owned()), top_k: 5, ..SearchRequest::default() };
    let asked = SearchQuery::new(wanted, None).unwrap();
    // It is begun again while that may help, and left out when it does not.
    for (is_last, expected) in [(false, None), (true, Some(0))] {
        fs::write(&path, "fn okapi() {}\n").unwrap();
        let indexed = collection.catch_up(&ctx, "workspace", until).await.unwrap();
        let filter = Some(DocumentFilter::default());
        let collection = &collection;
        let answer = SearchAttempt {
            collection,
            embedder: None,
            query: &asked,
            filter,
            index: indexed,
            is_last,
        };
        let Ok(found) = answer.run(&ctx, &mut None).await else { panic!("it fails") };
        assert_eq!(found.map(|found| found.hits.len()), expected);
    }
}
