//! An index whose engine does not always do what it is asked.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::time::sleep;
use toolgate_contract::{Caller, Ctx, ToolError};
use toolgate_search::{ChunkHash, Filter, Space};

use super::answer::Answer;
use super::asked::Asked;
use super::collection::Collection;
use super::{Folders, Indexed, Service, State, Wanted};
use crate::search::Settings;
use crate::search::engines::embedded::Embedded;
use crate::search::engines::{
    Begun, Doing, Engine, EngineError, Known, Matched, Named, Put, Sought, Source, Status,
    Unembedded, Writer,
};
use crate::world::{Fetch, Root};

/// An engine that fails to commit so many times, and does something else before it tells what it
/// has.
struct Flaky {
    inner: Embedded,
    fails: Arc<AtomicUsize>,
    meanwhile: Box<dyn Fn() + Send + Sync>,
}

impl Flaky {
    fn new(fails: &Arc<AtomicUsize>, meanwhile: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let inner = Embedded::new(None, None::<Space>, Source::Files, None);
        Arc::new(Self { inner, fails: fails.clone(), meanwhile: Box::new(meanwhile) })
    }
}

struct Pen {
    inner: Box<dyn Writer>,
    fails: Arc<AtomicUsize>,
}

impl Engine for Flaky {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open(&self) -> Doing<'_, Begun> {
        self.inner.open()
    }

    fn writer(&self) -> Doing<'_, Option<Box<dyn Writer>>> {
        let pen = |inner| Box::new(Pen { inner, fails: self.fails.clone() }) as Box<dyn Writer>;
        Box::pin(async move { Ok(self.inner.writer().await?.map(pen)) })
    }

    fn documents(&self) -> Doing<'_, BTreeMap<String, Known>> {
        self.inner.documents()
    }

    fn status(&self) -> Doing<'_, Status> {
        self.inner.status()
    }

    fn candidates(&self, sought: Sought) -> Doing<'_, Matched> {
        Box::pin(async move {
            let matched = self.inner.candidates(sought).await;
            (self.meanwhile)();
            matched
        })
    }

    fn named(&self, name: String, filter: Filter, limit: usize) -> Doing<'_, Vec<Named>> {
        self.inner.named(name, filter, limit)
    }

    fn unembedded(&self, most: usize) -> Doing<'_, Vec<Unembedded>> {
        self.inner.unembedded(most)
    }

    fn kept(&self, path: String) -> Doing<'_, Option<Put>> {
        self.inner.kept(path)
    }

    fn reset(&self) -> Doing<'_, ()> {
        self.inner.reset()
    }
}

impl Writer for Pen {
    fn put(&mut self, documents: Vec<Put>) -> Doing<'_, ()> {
        self.inner.put(documents)
    }

    fn refused(&mut self) -> Vec<(Put, String)> {
        self.inner.refused()
    }

    fn remove(&mut self, paths: Vec<String>) -> Doing<'_, ()> {
        self.inner.remove(paths)
    }

    fn commit(&mut self) -> Doing<'_, ()> {
        let left =
            self.fails.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1));
        match left {
            Ok(_) => Box::pin(async { Err(EngineError::Failed("the disk hiccups".to_owned())) }),
            Err(_) => self.inner.commit(),
        }
    }

    fn give(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> Doing<'_, ()> {
        self.inner.give(vectors)
    }
}

fn service(root: &Root) -> Arc<Service> {
    let settings = Settings::default();
    let files = crate::files::Settings::default();
    let service = Service::new(root, &settings, &files, Folders::default(), &Fetch::default());
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
    let collection = Collection::files(root, engine.clone(), &[], &service);
    let put = |name: &str| {
        let text = format!("fn {name}() {{}}\n");
        fs::write(folder.path().join(format!("{name}.rs")), text).unwrap();
    };
    let fresh = async || -> Result<Indexed, ToolError> {
        let until = Instant::now() + Duration::from_secs(20);
        let ctx = Ctx::alone(Caller::local(), until);
        collection.fresh(&ctx, "workspace", until).await
    };
    put("okapi");
    assert_eq!(fresh().await.unwrap().files, 1);
    put("gnu");
    fails.store(1, Ordering::Relaxed);
    let indexed = fresh().await.unwrap();
    assert_eq!((indexed.state, indexed.files, indexed.complete), (State::Ready, 2, true));
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
    assert_eq!((indexed.state, indexed.files), (State::Ready, 3));
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
    let collection = Collection::files(root, engine, &[], &service);
    let until = Instant::now() + Duration::from_secs(20);
    let ctx = Ctx::alone(Caller::local(), until);
    let wanted = Wanted { query: Some("okapi".to_owned()), top_k: 5, ..Wanted::default() };
    let asked = Asked::new(wanted, None).unwrap();
    // It is begun again while that may help, and left out when it does not.
    for (is_last, expected) in [(false, None), (true, Some(0))] {
        fs::write(&path, "fn okapi() {}\n").unwrap();
        let indexed = collection.fresh(&ctx, "workspace", until).await.unwrap();
        let filter = Some(Filter::default());
        let collection = &collection;
        let answer = Answer { collection, embedder: None, asked: &asked, filter, indexed, is_last };
        let Ok(found) = answer.find(&ctx, &mut None).await else { panic!("it fails") };
        assert_eq!(found.map(|found| found.hits.len()), expected);
    }
}
