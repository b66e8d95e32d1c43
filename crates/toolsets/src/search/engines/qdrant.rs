//! An index at a Qdrant server, by its own client.
//!
//! A namespace is a collection. Qdrant knows no transactions and no locks, so what is written is
//! laid out to be written again: points are known by what they are of, a document is told of once
//! its chunks are there, and several servers that write the same files write the same.

mod collections;
mod find;
mod points;
mod trouble;
mod write;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use qdrant_client::Qdrant;
use qdrant_client::qdrant::{
    Condition, CountPointsBuilder, FacetCountsBuilder, FacetHit, Filter as Where, GetPointsBuilder,
    RetrievedPoint, facet_value,
};
use tokio::time::timeout;
use toolgate_search::index::{Asked, Named};
use toolgate_search::{ChunkHash, Filter, Space, static_model};

use super::settings::QdrantSettings;
use super::{
    Begun, Doing, Engine, EngineError, Identity, Known, Matched, Put, Sought, Source, Status,
    Unembedded, Writer,
};
use collections::{Collections, check_version};
use find::{counted, only, scrolled};
use points::MODEL;
use trouble::Trouble;
use write::QdrantWriter;

/// The layout of points that this server makes and knows.
const LAYOUT: u32 = 1;
/// So many points come in one answer.
const PAGE: u32 = 1_000;
/// So many namespaces of documents are told of.
const NAMESPACES_MAX: u64 = 10_000;
/// How long a server may take to answer that it is there.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How long it may take to make collections, or to drop them.
const MAKE_WITHIN: Duration = Duration::from_secs(30);
/// How long one step of writing may take.
const WRITE_WITHIN: Duration = Duration::from_secs(120);

/// A Qdrant server, at which each namespace has an engine.
pub struct Server {
    shared: Arc<Shared>,
    workspace: Option<String>,
}

/// What all engines at a server use.
struct Shared {
    client: Qdrant,
    named: String,
    within: Duration,
    key_env: String,
}

impl Server {
    /// The server that `settings` name. Nothing is connected yet.
    ///
    /// # Errors
    /// When the settings cannot be used: why, to go on after the name of the setting.
    pub fn of(settings: &QdrantSettings) -> Result<Self, String> {
        let QdrantSettings { url, api_key_env, workspace, timeout_ms, api_key } = settings;
        // Its own check would print to the output and wait for the server.
        let client = Qdrant::from_url(url)
            .api_key(api_key.said())
            .timeout(WRITE_WITHIN)
            .connect_timeout(CONNECT_WITHIN)
            .skip_compatibility_check()
            .build()
            .map_err(|err| format!("cannot be used: {err}"))?;
        let shared = Shared {
            client,
            named: format!("Qdrant at {}", url.trim_end_matches('/')),
            within: Duration::from_millis(*timeout_ms),
            key_env: api_key_env.clone(),
        };
        Ok(Self { shared: Arc::new(shared), workspace: workspace.clone() })
    }

    /// The engine of the namespace `identity`, for vectors of the space `model`.
    pub fn engine(&self, identity: Identity, model: Option<Space>) -> Arc<dyn Engine> {
        Arc::new(AtQdrant {
            shared: self.shared.clone(),
            kept_in: kept_in(&self.workspace(&identity.root)),
            collection: self.collection(&identity, model.as_ref()),
            identity,
            model,
            is_open: AtomicBool::new(false),
        })
    }

    /// What the collection of a namespace is called.
    fn collection(&self, identity: &Identity, model: Option<&Space>) -> String {
        let workspace = self.workspace(&identity.root);
        let near = static_model::space();
        let source = match identity.source {
            Source::Files => "files",
            Source::Documents => "documents",
        };
        // Vectors of another space are another collection: two servers that use different models
        // keep out of each other's way.
        let form = format!(
            "{LAYOUT}\0{workspace}\0{}\0{source}\0{} {}\0{model:?}",
            identity.namespace, near.model, near.dimensions
        );
        format!("toolgate-{}", &blake3::hash(form.as_bytes()).to_hex()[..24])
    }

    /// The namespaces of documents that the workspace `root` has there.
    pub fn document_namespaces<'e>(&'e self, root: &Path) -> Doing<'e, Vec<String>> {
        let kept_in = kept_in(&self.workspace(root));
        let Shared { client, within, .. } = &*self.shared;
        let work = async move {
            if !client.collection_exists(&kept_in).await? {
                return Ok(Vec::new());
            }
            let facet = FacetCountsBuilder::new(&kept_in, "namespace").limit(NAMESPACES_MAX);
            let hits = client.facet(facet.exact(true)).await?.hits;
            let mut names: Vec<String> = hits.into_iter().filter_map(facet_text).collect();
            names.sort_unstable();
            Ok(names)
        };
        Box::pin(self.shared.within(*within, work))
    }

    /// What the workspace `root` is called there.
    fn workspace(&self, root: &Path) -> String {
        self.workspace.clone().unwrap_or_else(|| root.to_string_lossy().into_owned())
    }
}

/// The collection of the documents of a workspace that no file holds.
fn kept_in(workspace: &str) -> String {
    format!("toolgate-kept-{}", &blake3::hash(workspace.as_bytes()).to_hex()[..24])
}

fn facet_text(hit: FacetHit) -> Option<String> {
    match hit.value?.variant? {
        facet_value::Variant::StringValue(text) => Some(text),
        facet_value::Variant::IntegerValue(_) | facet_value::Variant::BoolValue(_) => None,
    }
}

impl Shared {
    /// What `work` comes to, in a bounded time.
    async fn within<T>(
        &self,
        within: Duration,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, EngineError> {
        let came = timeout(within, work).await.unwrap_or(Err(Trouble::Slow(within)));
        came.map_err(|trouble| trouble::told(&trouble, &self.named, &self.key_env))
    }
}

/// The engine of a namespace.
struct AtQdrant {
    shared: Arc<Shared>,
    collection: String,
    kept_in: String,
    identity: Identity,
    model: Option<Space>,
    is_open: AtomicBool,
}

impl AtQdrant {
    fn keeps_documents(&self) -> bool {
        match self.identity.source {
            Source::Documents => true,
            Source::Files => false,
        }
    }

    fn collections(&self) -> Collections<'_> {
        Collections {
            client: &self.shared.client,
            chunks: &self.collection,
            kept: self.keeps_documents().then_some(&self.kept_in),
            model: self.model.as_ref(),
        }
    }

    async fn opened(&self) -> Result<(), EngineError> {
        if !self.is_open.load(Ordering::Acquire) {
            self.ready().await?;
        }
        Ok(())
    }

    async fn ready(&self) -> Result<Begun, EngineError> {
        let (shared, collections) = (&self.shared, self.collections());
        shared.within(CONNECT_WITHIN, check_version(&shared.client)).await?;
        let begun = if shared.within(CONNECT_WITHIN, Box::pin(collections.are_whole())).await? {
            Begun::Kept
        } else {
            shared.within(MAKE_WITHIN, Box::pin(collections.make())).await?;
            self.put_again().await?;
            shared.within(CONNECT_WITHIN, collections.are_whole_now()).await?;
            Begun::New
        };
        self.is_open.store(true, Ordering::Release);
        Ok(begun)
    }

    /// Puts again what is kept.
    async fn put_again(&self) -> Result<(), EngineError> {
        if !self.keeps_documents() {
            return Ok(());
        }
        let of_this =
            Where::must([Condition::matches("namespace", self.identity.namespace.clone())]);
        let work = scrolled(&self.shared.client, &self.kept_in, of_this, &["document"], usize::MAX);
        let found = self.shared.within(WRITE_WITHIN, work).await?;
        let kept: Vec<Put> = found.iter().filter_map(points::kept_by).collect();
        let mut writer = self.new_writer();
        writer.put(kept).await?;
        writer.commit().await
    }

    fn new_writer(&self) -> QdrantWriter {
        let keeps = self.keeps_documents();
        let keeps = keeps.then(|| (self.kept_in.clone(), self.identity.namespace.clone()));
        QdrantWriter::new(self.shared.clone(), self.collection.clone(), keeps, self.model.clone())
    }

    async fn status_now(&self) -> Result<Status, Trouble> {
        let Shared { client, .. } = &*self.shared;
        let mut with_vectors = 0;
        if self.model.is_some() {
            let mut has = only(&Filter::default());
            has.must.push(Condition::has_vector(MODEL));
            let count = CountPointsBuilder::new(&self.collection).filter(has).exact(true);
            with_vectors = client.count(count).await?.result.map_or(0, |it| it.count);
        }
        Ok(Status {
            documents: counted(client, &self.collection, "document").await?,
            chunks: counted(client, &self.collection, "chunk").await?,
            with_vectors,
            bytes: None,
        })
    }
}

impl Engine for AtQdrant {
    fn name(&self) -> &'static str {
        "qdrant"
    }

    fn open(&self) -> Doing<'_, Begun> {
        Box::pin(self.ready())
    }

    fn writer(&self) -> Doing<'_, Option<Box<dyn Writer>>> {
        Box::pin(async move {
            self.opened().await?;
            Ok(Some(Box::new(self.new_writer()) as Box<dyn Writer>))
        })
    }

    fn documents(&self) -> Doing<'_, BTreeMap<String, Known>> {
        Box::pin(async move {
            self.opened().await?;
            let of_kind = Where::must([Condition::matches("kind", "document".to_owned())]);
            let fields = ["path", "stamp", "etag"];
            let work =
                scrolled(&self.shared.client, &self.collection, of_kind, &fields, usize::MAX);
            let found = self.shared.within(WRITE_WITHIN, work).await?;
            Ok(found.iter().filter_map(|it| points::known(&it.payload)).collect())
        })
    }

    fn status(&self) -> Doing<'_, Status> {
        Box::pin(async move {
            self.opened().await?;
            self.shared.within(self.shared.within, self.status_now()).await
        })
    }

    fn candidates(&self, sought: Sought) -> Doing<'_, Matched> {
        Box::pin(async move {
            self.opened().await?;
            self.shared.within(self.shared.within, self.find(&sought)).await
        })
    }

    fn named(&self, name: String, filter: Filter, limit: usize) -> Doing<'_, Vec<Named>> {
        Box::pin(async move {
            self.opened().await?;
            let Some(asked) = Asked::of(&name) else { return Ok(Vec::new()) };
            self.shared.within(self.shared.within, self.like(&asked, &filter, limit)).await
        })
    }

    fn unembedded(&self, most: usize) -> Doing<'_, Vec<Unembedded>> {
        Box::pin(async move {
            self.opened().await?;
            if self.model.is_none() {
                return Ok(Vec::new());
            }
            let mut wanting = only(&Filter::default());
            wanting.must_not.push(Condition::has_vector(MODEL));
            let fields = ["shown", "hash"];
            let work = scrolled(&self.shared.client, &self.collection, wanting, &fields, most);
            let found = self.shared.within(self.shared.within, work).await?;
            let mut known: HashSet<ChunkHash> = HashSet::new();
            let read = |it: &RetrievedPoint| {
                let shown = points::shown(&it.payload)?;
                let hash = points::hash(&it.payload)?;
                Some(Unembedded { hash, path: shown.path, first: shown.first, last: shown.last })
            };
            Ok(found.iter().filter_map(read).filter(|it| known.insert(it.hash)).collect())
        })
    }

    fn kept(&self, path: String) -> Doing<'_, Option<Put>> {
        Box::pin(async move {
            if !self.keeps_documents() {
                return Ok(None);
            }
            self.opened().await?;
            let id = points::kept_id(&self.identity.namespace, &path);
            let get = GetPointsBuilder::new(&self.kept_in, vec![id]).with_payload(true);
            let work = async { Ok(self.shared.client.get_points(get).await?) };
            let found = self.shared.within(self.shared.within, work).await?;
            Ok(found.result.first().and_then(points::kept_by))
        })
    }

    fn reset(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            self.is_open.store(false, Ordering::Release);
            let work = async {
                let Shared { client, .. } = &*self.shared;
                if client.collection_exists(&self.collection).await? {
                    client.delete_collection(&self.collection).await?;
                }
                Ok(())
            };
            self.shared.within(MAKE_WITHIN, work).await?;
            self.ready().await?;
            Ok(())
        })
    }
}
