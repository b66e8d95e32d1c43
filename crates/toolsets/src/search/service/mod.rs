//! Keeps search indexes as fresh as the files and answers searches from them.
//!
//! Nothing is read, watched or held before the first search of a namespace.

mod namespaces;
mod collection;
mod keeper;
mod files;
mod reading;
mod documents;
mod embedding;
mod asked;
mod answer;
mod checkout;
mod progress;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;
use toolgate_contract::{Ctx, Fault, ToolError};
use toolgate_search::{Embedder, Filter, Space};

use super::engines::embedded::Embedded;
use super::engines::settings::EngineSettings;
use super::engines::{Engine, EngineError, Identity, Named, Source, postgres};
use super::{Settings, WORKSPACE, embedders};
use crate::files as files_toolset;
use crate::world::{Fetch, Root};

pub(crate) use answer::{Found, Hit};
pub(crate) use asked::{Wanted, beneath, distinct_tags, known};
pub(crate) use collection::{Document, Upserted};
pub use progress::{Indexed, State};

use answer::Answer;
use asked::Asked;
use collection::Collection;
use namespaces::{Key, Place};

/// The longest wait of a search for its index to catch up. After that it answers from the index as
/// it is.
const FRESH_MAX: Duration = Duration::from_secs(2);
/// The number of attempts of a search. A search starts again if a file that it was to show has
/// changed meanwhile.
const AGAIN_MAX: usize = 4;
/// The pause between attempts while another server maintains the index.
const OTHER_SERVER: Duration = Duration::from_millis(100);
/// The largest number of namespaces of documents.
const NAMESPACES_MAX: usize = 64;

/// Folders on this machine for indexes and for documents that callers put.
#[derive(Debug, Clone, Default)]
pub struct Folders {
    /// The folder of the indexes, one folder each. They can be built again. Without it, they are in
    /// memory.
    pub cache: Option<PathBuf>,
    /// The folder of the documents that callers put, one folder for each namespace. Without it,
    /// they are in memory.
    pub documents: Option<PathBuf>,
}

/// Searches a workspace, other roots, and documents.
pub struct Service {
    root: Root,
    settings: Settings,
    rules: files_toolset::Settings,
    folders: Folders,
    /// The PostgreSQL server that keeps the indexes, or `None` if this process keeps them.
    server: Option<postgres::Server>,
    embedder: Option<Arc<dyn Embedder>>,
    /// The space of the embedder's vectors, resolved on first use.
    space: OnceCell<Option<Space>>,
    collections: Mutex<BTreeMap<Key, Arc<Collection>>>,
}

impl Service {
    /// Creates the service for the workspace `root`, with the etags that `files` configures.
    /// Returns `None` if `settings` disable search. Reads nothing yet.
    ///
    /// # Errors
    ///
    /// If the settings name a model or an engine that cannot be used.
    pub fn new(
        root: &Root,
        settings: &Settings,
        files: &files_toolset::Settings,
        folders: Folders,
        fetch: &Fetch,
    ) -> Result<Option<Arc<Self>>, String> {
        if !settings.enabled {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self {
            root: root.clone().with_rules(&files.rules()),
            settings: settings.clone(),
            rules: files.clone(),
            folders,
            server: server(&settings.engine)?,
            embedder: embedders::open(&settings.embedder, root.path(), fetch)?,
            space: OnceCell::new(),
            collections: Mutex::default(),
        })))
    }

    /// Returns the passages that match `wanted`, best first.
    ///
    /// # Errors
    ///
    /// If the input is invalid, the index is unavailable, files keep changing, or the call is
    /// canceled.
    pub(crate) async fn search(&self, ctx: &Ctx, wanted: Wanted) -> Result<Found, ToolError> {
        let asked = Asked::new(wanted, self.space().await)?;
        let name = asked.wanted.namespace.clone().unwrap_or_else(|| WORKSPACE.to_owned());
        let place = self.find(&name).await?;
        let collection = self.collection(&place.key, &name).await?;
        let filter = Self::filter(&collection, &place, &asked.wanted)?;
        let now = Instant::now();
        let until = now + FRESH_MAX.min(ctx.deadline.saturating_duration_since(now) / 2);
        let mut direction = None;
        for left in (0..AGAIN_MAX).rev() {
            let indexed = collection.fresh(ctx, &name, until).await?;
            let answer = Answer {
                collection: &collection,
                embedder: self.embedder.as_ref(),
                asked: &asked,
                filter: filter.clone(),
                indexed,
                is_last: left == 0,
            };
            let found = tokio::select! {
                found = answer.find(ctx, &mut direction) => found,
                () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
            };
            match found {
                Ok(Some(found)) => return Ok(found),
                // A file that was to be shown has changed.
                Ok(None) => {
                    if collection.state() == State::Following {
                        tokio::time::sleep(OTHER_SERVER).await;
                    }
                }
                Err(answer::Failure::Tool(err)) => return Err(err),
                Err(answer::Failure::Engine(err)) if left > 0 => {
                    collection.renewed(err).await.map_err(|err| unavailable(&name, &err))?;
                }
                Err(answer::Failure::Engine(err)) => return Err(unavailable(&name, &err)),
            }
        }
        let away = cannot(&name);
        let message = format!("{away}: files change while they are read; try again");
        Err(ToolError::new(Fault::Unavailable, message))
    }

    /// Returns the definitions with a name like `query`, best match first, and the state of the
    /// index.
    pub(crate) async fn named(
        &self,
        ctx: &Ctx,
        namespace: Option<&str>,
        query: &str,
        filter: Filter,
        limit: usize,
    ) -> Result<(Vec<Named>, Indexed), ToolError> {
        let name = namespace.unwrap_or(WORKSPACE);
        let place = self.find(name).await?;
        let collection = self.collection(&place.key, name).await?;
        let now = Instant::now();
        let until = now + FRESH_MAX.min(ctx.deadline.saturating_duration_since(now) / 2);
        let filter = place.within(filter);
        let mut left = AGAIN_MAX;
        loop {
            left -= 1;
            let indexed = collection.fresh(ctx, name, until).await?;
            let filter = filter.clone().filter(|_| indexed.state != State::Absent);
            let Some(filter) = filter else { return Ok((Vec::new(), indexed)) };
            let named = tokio::select! {
                named = collection.engine.named(query.to_owned(), filter, limit) => named,
                () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
            };
            let again = match named {
                Ok(named) => return Ok((named, indexed)),
                Err(err) if left > 0 => collection.renewed(err).await,
                Err(err) => Err(err),
            };
            again.map_err(|err| unavailable(name, &err))?;
        }
    }

    /// Returns the root of a namespace of files and its folder in that root.
    pub(crate) async fn place(&self, namespace: Option<&str>) -> Result<(Root, String), ToolError> {
        let name = namespace.unwrap_or(WORKSPACE);
        let Place { key, folder } = self.find(name).await?;
        let root = match key {
            Key::Workspace => self.root.clone(),
            Key::Root(_) => self.other_root(name).await?,
            Key::Documents(_) => {
                let message =
                    format!("`{name}` has documents, not files; search_semantic finds them");
                return Err(ToolError::invalid("/namespace", message));
            }
        };
        Ok((root, if folder.is_empty() { ".".to_owned() } else { folder }))
    }

    /// Returns the approximate size limit of an answer, in bytes.
    pub(crate) fn answer_bytes(&self) -> usize {
        usize::try_from(self.rules.answer_bytes).unwrap_or(usize::MAX)
    }

    /// Returns all namespaces with the state of their indexes. Starts no indexing.
    pub(crate) async fn indexed(&self) -> BTreeMap<String, Indexed> {
        let mut all = BTreeMap::new();
        for name in self.names().await {
            let Ok(place) = self.find(&name).await else { continue };
            let known = self.known(&place.key);
            let absent = || progress::Progress::default().told();
            all.insert(name, known.map_or_else(absent, |it| it.indexed()));
        }
        all
    }

    /// Brings the index of `namespace` up to date and waits for it, at most until `until`.
    pub(crate) async fn refresh(
        &self,
        ctx: &Ctx,
        namespace: &str,
        until: Instant,
    ) -> Result<Indexed, ToolError> {
        let place = self.find(namespace).await?;
        let collection = self.collection(&place.key, namespace).await?;
        let indexed = collection.fresh(ctx, namespace, until).await?;
        match collection.unwritten() {
            Some(why) => Err(unavailable(namespace, &EngineError::Away(why))),
            None => Ok(indexed),
        }
    }

    /// Puts `documents` into `namespace`, creating it if needed, and removes the documents with the
    /// ids `remove`.
    pub(crate) async fn upsert(
        &self,
        namespace: &str,
        documents: Vec<Document>,
        remove: Vec<String>,
    ) -> Result<Upserted, ToolError> {
        self.check_name(namespace)?;
        let names = self.document_names().await;
        let is_new = !names.iter().any(|name| name == namespace);
        if is_new && documents.is_empty() {
            return Err(self.unknown(namespace).await);
        }
        if is_new && names.len() >= NAMESPACES_MAX {
            let message = format!("there are {NAMESPACES_MAX} namespaces of documents already");
            return Err(ToolError::invalid("/namespace", message));
        }
        let key = Key::Documents(namespace.to_owned());
        let collection = self.collection(&key, namespace).await?;
        let most = self.settings.documents_max as u64;
        let changed = collection.change(documents, remove, most).await?;
        changed.map_err(|err| unavailable(namespace, &err))
    }

    /// Returns the name of the configured embedding model.
    pub(crate) async fn model(&self) -> Option<String> {
        self.space().await.map(|space| space.model.clone())
    }

    async fn space(&self) -> Option<&Space> {
        let embedder = self.embedder.clone()?;
        // A model in a folder reads its files to compute its name.
        let look =
            || async { tokio::task::spawn_blocking(move || embedder.space().clone()).await.ok() };
        self.space.get_or_init(look).await.as_ref()
    }

    fn known(&self, key: &Key) -> Option<Arc<Collection>> {
        self.collections.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Returns the collection of `key`, and starts it on first use.
    async fn collection(&self, key: &Key, name: &str) -> Result<Arc<Collection>, ToolError> {
        if let Some(collection) = self.known(key) {
            return Ok(collection);
        }
        let root = match key {
            Key::Workspace | Key::Documents(_) => self.root.clone(),
            Key::Root(_) => self.other_root(name).await?,
        };
        let space = self.space().await.cloned();
        let mut collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let source = match key {
                Key::Workspace | Key::Root(_) => Source::Files,
                Key::Documents(_) => Source::Documents,
            };
            let namespace = match key {
                Key::Workspace => WORKSPACE.to_owned(),
                Key::Root(name) | Key::Documents(name) => name.clone(),
            };
            let identity = Identity { root: root.path().to_owned(), namespace, source };
            let engine = self.engine(identity, space);
            match source {
                Source::Files => Collection::files(root, engine, &self.kept_in(), self),
                Source::Documents => Collection::documents(engine, self.embedder.clone()),
            }
        };
        Ok(collections.entry(key.clone()).or_insert_with(|| Arc::new(new())).clone())
    }

    fn kept_in(&self) -> Vec<&Path> {
        let Folders { cache, documents } = &self.folders;
        cache.iter().chain(documents).map(PathBuf::as_path).collect()
    }

    fn engine(&self, identity: Identity, space: Option<Space>) -> Arc<dyn Engine> {
        if let Some(server) = &self.server {
            return server.engine(identity, space);
        }
        let hash = blake3::hash(identity.root.as_os_str().as_encoded_bytes()).to_hex();
        let Identity { root, namespace, source } = identity;
        let shown = root.file_name().unwrap_or_default().to_string_lossy();
        let shown = shown.replace(|c: char| !c.is_alphanumeric(), "_");
        let sort = match source {
            Source::Files => "files",
            Source::Documents => "documents",
        };
        // A namespace may have any characters in the settings, so its folder is named by a hash.
        let named = blake3::hash(format!("{sort} {namespace}").as_bytes()).to_hex();
        let name = match (source, namespace.as_str()) {
            (Source::Files, WORKSPACE) => format!("{shown}-{}", &hash[..16]),
            (Source::Files | Source::Documents, _) => {
                format!("{shown}-{}-{}", &hash[..16], &named[..8])
            }
        };
        let folder = self.folders.cache.as_ref().map(|cache| cache.join(name));
        let documents = self.folders.documents.as_ref().map(|folder| folder.join(&namespace));
        Arc::new(Embedded::new(folder, space, source, documents))
    }

    /// Opens the root that the settings call `name`.
    async fn other_root(&self, name: &str) -> Result<Root, ToolError> {
        let Some(path) = self.settings.roots.get(name).cloned() else {
            return Err(self.unknown(name).await);
        };
        let rules = self.rules.rules();
        let opened = tokio::task::spawn_blocking(move || Root::open(Path::new(&path))).await;
        let opened = opened.map_err(|err| ToolError::because("opening a folder failed", err))?;
        let unopened = |err: std::io::Error| {
            let message = format!("{}: its folder cannot be opened: {err}", cannot(name));
            ToolError::new(Fault::Unavailable, message)
        };
        Ok(opened.map_err(unopened)?.with_rules(&rules))
    }

    /// Returns the filter for `wanted`, or `None` if nothing can match it.
    fn filter(
        collection: &Collection,
        place: &Place,
        wanted: &Wanted,
    ) -> Result<Option<Filter>, ToolError> {
        let prefix = match (&wanted.path_prefix, collection.root()) {
            (Some(prefix), Some(root)) => Some(beneath(root, prefix)?),
            // Ids of documents may be any text.
            (Some(prefix), None) => Some(prefix.clone()),
            (None, _) => None,
        };
        let prefixes = prefix.into_iter().filter(|it| !it.is_empty()).collect();
        Ok(place.within(Filter { prefixes, tags: wanted.tags.clone() }))
    }
}

/// Returns the PostgreSQL server that `settings` name, or `None` if this process keeps the index.
/// Does not connect yet.
fn server(settings: &EngineSettings) -> Result<Option<postgres::Server>, String> {
    match settings {
        EngineSettings::Embedded => Ok(None),
        EngineSettings::Postgres(settings) => postgres::Server::of(settings)
            .map(Some)
            .map_err(|why| format!("`search.engine.postgres.url` {why}")),
    }
}

fn cannot(name: &str) -> String {
    format!("the index of `{name}` cannot be brought up to date")
}

fn unavailable(name: &str, err: &EngineError) -> ToolError {
    match err {
        EngineError::Away(why) | EngineError::Damaged(why) => {
            ToolError::new(Fault::Unavailable, format!("{}: {why}", cannot(name)))
        }
        EngineError::Failed(why) => ToolError::failed(why),
    }
}
