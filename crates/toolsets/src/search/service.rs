//! Keeps search indexes up to date with the files, and answers searches from them.
//!
//! No file is read, watched or held open before the first search of a namespace.

mod namespaces;
mod collection;
mod keeper;
mod files;
mod reading;
mod documents;
mod embedding;
mod query;
mod answer;
mod checkout;
mod progress;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;
use toolgate_contract::{ToolContext, ToolError, ToolErrorKind, lock_mutex};
use toolgate_search::embedder::EmbeddingRole;
use toolgate_search::{DocumentFilter, Embedder, VectorSpace};

use super::engines::embedded::EmbeddedSearchEngine;
use super::engines::settings::SearchEngineSettings;
use super::engines::{
    NamedDefinition, NamespaceDocumentSource, SearchEngine, SearchEngineError,
    SearchNamespaceIdentity, postgres,
};
use super::{SearchSettings, WORKSPACE, embedders};
use crate::files as files_toolset;
use toolgate_world::{HttpFetcher, Root};

pub(crate) use answer::{SearchHit, SearchHitLocation, SearchResult};
pub(crate) use collection::{NewDocument, UpsertSummary};
pub use progress::{IndexState, IndexStateReport};
pub(crate) use query::{
    SearchRequest, distinct_tags, explain_narrowing, resolve_prefix, resolve_tag,
};

use answer::SearchAnswerInputs;
use collection::SearchableIndex;
use namespaces::{NamespaceLocation, SearchableIndexKey};
use query::SearchQuery;

/// The maximum number of attempts at a search. A search starts again if a file with a match has
/// changed since it was indexed.
const ATTEMPTS_MAX: usize = 4;
/// The pause between two attempts at a search while another server maintains the index.
const FOLLOWER_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of namespaces of documents in a workspace.
const NAMESPACES_MAX: usize = 64;

/// Folders on this machine for indexes and for documents that callers store.
#[derive(Debug, Clone, Default)]
pub struct IndexFolders {
    /// The folder with one subfolder for each index. The indexes can be rebuilt. `None` keeps the
    /// indexes in memory.
    pub cache: Option<PathBuf>,
    /// The folder of the documents that callers store, with one subfolder for each namespace.
    /// `None` keeps the documents in memory.
    pub documents: Option<PathBuf>,
}

/// Service that searches the workspace, further folders that the settings name, and documents that
/// callers store.
pub struct SearchService {
    root: Root,
    settings: SearchSettings,
    files_settings: files_toolset::FileSettings,
    folders: IndexFolders,
    /// The PostgreSQL server that stores the indexes, or `None` if this process stores them.
    server: Option<postgres::PostgresSearchServer>,
    embedder: Option<Arc<dyn Embedder>>,
    /// The vector space of the configured embedding model, determined on first use.
    space: OnceCell<Option<VectorSpace>>,
    collections: Mutex<BTreeMap<SearchableIndexKey, Arc<SearchableIndex>>>,
}

impl SearchService {
    /// Creates the service for the workspace `root`. `files` configures the etags of results. Reads
    /// nothing yet.
    ///
    /// # Errors
    /// Fails if the settings name a model or an engine that cannot be used.
    pub fn new(
        root: &Root,
        settings: &SearchSettings,
        files: &files_toolset::FileSettings,
        folders: IndexFolders,
        fetch: &HttpFetcher,
    ) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            root: root.clone().with_rules(&files.rules()),
            settings: settings.clone(),
            files_settings: files.clone(),
            folders,
            server: open_server(&settings.engine)?,
            embedder: embedders::open(&settings.embedder, root.path(), fetch)?,
            space: OnceCell::new(),
            collections: Mutex::default(),
        }))
    }

    /// Returns true if an embedding model is configured.
    pub fn has_embedder(&self) -> bool {
        self.embedder.is_some()
    }

    /// Returns the vector of `query` by the configured model. The vector has length 1.
    ///
    /// # Errors
    /// Fails if no model is configured, or if the model currently returns no vector. The error is
    /// the reason.
    pub async fn embed_query(&self, query: String) -> Result<Vec<f32>, String> {
        let vectors = self.embed(&[query], EmbeddingRole::Query).await?;
        vectors.into_iter().next().ok_or_else(|| "the model returned no vector".to_owned())
    }

    /// Returns the vectors of searchable `texts` by the configured model, in order. Each vector has
    /// length 1.
    ///
    /// # Errors
    /// Fails if no model is configured, or if the model currently returns no vectors. The error is
    /// the reason.
    pub async fn embed_texts(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, String> {
        self.embed(texts, EmbeddingRole::Chunk).await
    }

    async fn embed(&self, texts: &[String], role: EmbeddingRole) -> Result<Vec<Vec<f32>>, String> {
        let embedder = self.embedder.as_ref().ok_or("no embedding model is configured")?;
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in texts.chunks(embedder.batch_max().max(1)) {
            let (batch, _) = embedder.embed(batch, role).await.map_err(|why| why.to_string())?;
            vectors.extend(batch);
        }
        Ok(vectors)
    }

    /// Returns the passages that match `request`, best first.
    ///
    /// # Errors
    ///
    /// Fails if the input is invalid, the index is unavailable, files keep changing, or the call is
    /// canceled.
    pub(crate) async fn search(
        &self,
        ctx: &ToolContext,
        request: SearchRequest,
    ) -> Result<SearchResult, ToolError> {
        let query = SearchQuery::new(request, self.space().await)?;
        let name = query.request.namespace.clone().unwrap_or_else(|| WORKSPACE.to_owned());
        let place = self.resolve(&name).await?;
        let collection = self.open_collection(&place.key, &name).await?;
        let filter = Self::build_filter(&collection, &place, &query.request)?;
        let until = self.wait_until(ctx);
        let mut query_vector = None;
        for left in (0..ATTEMPTS_MAX).rev() {
            let index = collection.catch_up(ctx, &name, until).await?;
            let attempt = SearchAnswerInputs {
                collection: &collection,
                embedder: self.embedder.as_ref(),
                query: &query,
                filter: filter.clone(),
                index,
                is_last: left == 0,
            };
            let found = ctx.run_unless_canceled(attempt.run(ctx, &mut query_vector)).await?;
            match found {
                Ok(Some(found)) => return Ok(found),
                // A file that was to be shown has changed.
                Ok(None) => {
                    if collection.state() == IndexState::Following {
                        tokio::time::sleep(FOLLOWER_PAUSE).await;
                    }
                }
                Err(answer::SearchFailure::Tool(err)) => return Err(err),
                Err(answer::SearchFailure::Engine(err)) if left > 0 => {
                    collection
                        .rebuild_if_damaged(err)
                        .await
                        .map_err(|err| unavailable_error(&name, &err))?;
                }
                Err(answer::SearchFailure::Engine(err)) => {
                    return Err(unavailable_error(&name, &err));
                }
            }
        }
        let not_current = not_current_message(&name);
        let message = format!("{not_current}: files change while they are read; try again");
        Err(ToolError::new(ToolErrorKind::Unavailable, message))
    }

    /// Returns at most `limit` definitions with a name like `query`, best match first, and the
    /// state of the index. Fails if the namespace is unknown or the index is unavailable.
    pub(crate) async fn find_definitions(
        &self,
        ctx: &ToolContext,
        namespace: Option<&str>,
        query: &str,
        filter: DocumentFilter,
        limit: usize,
    ) -> Result<(Vec<NamedDefinition>, IndexStateReport), ToolError> {
        let name = namespace.unwrap_or(WORKSPACE);
        let place = self.resolve(name).await?;
        let collection = self.open_collection(&place.key, name).await?;
        let until = self.wait_until(ctx);
        let filter = place.restrict(filter);
        let mut left = ATTEMPTS_MAX;
        loop {
            left -= 1;
            let report = collection.catch_up(ctx, name, until).await?;
            let filter = filter.clone().filter(|_| report.state != IndexState::Absent);
            let Some(filter) = filter else { return Ok((Vec::new(), report)) };
            let finding = collection.engine.find_definitions(query.to_owned(), filter, limit);
            let found = ctx.run_unless_canceled(finding).await?;
            let retry = match found {
                Ok(found) => return Ok((found, report)),
                Err(err) if left > 0 => collection.rebuild_if_damaged(err).await,
                Err(err) => Err(err),
            };
            retry.map_err(|err| unavailable_error(name, &err))?;
        }
    }

    /// Returns the time until which a search waits for its index to become up to date. After that
    /// time, the search uses the current index.
    fn wait_until(&self, ctx: &ToolContext) -> Instant {
        let now = Instant::now();
        let half = ctx.deadline.saturating_duration_since(now) / 2;
        now + Duration::from_millis(self.settings.wait_ms).min(half)
    }

    /// Returns the root that contains the namespace of files `namespace`, and the namespace's
    /// folder relative to this root. Fails if there is no such namespace, or if it contains
    /// documents.
    pub(crate) async fn resolve_files(
        &self,
        namespace: Option<&str>,
    ) -> Result<(Root, String), ToolError> {
        let name = namespace.unwrap_or(WORKSPACE);
        let NamespaceLocation { key, folder } = self.resolve(name).await?;
        let root = match key {
            SearchableIndexKey::Workspace => self.root.clone(),
            SearchableIndexKey::Root(_) => self.open_root(name).await?,
            SearchableIndexKey::Documents(_) => {
                let message =
                    format!("`{name}` has documents, not files; use search_semantic for them");
                return Err(ToolError::invalid("/namespace", message));
            }
        };
        Ok((root, if folder.is_empty() { ".".to_owned() } else { folder }))
    }

    /// Returns the approximate size limit of an answer, in bytes.
    pub(crate) fn answer_bytes(&self) -> usize {
        usize::try_from(self.files_settings.limits.answer_bytes).unwrap_or(usize::MAX)
    }

    /// Returns all namespaces with the state of their indexes. Starts no indexing.
    pub(crate) async fn index_reports(&self) -> BTreeMap<String, IndexStateReport> {
        let mut all = BTreeMap::new();
        for name in self.namespace_names().await {
            let Ok(place) = self.resolve(&name).await else { continue };
            let collection = self.existing_collection(&place.key);
            let absent = || progress::IndexProgress::default().report();
            all.insert(name, collection.map_or_else(absent, |it| it.report()));
        }
        all
    }

    /// Brings the index of `namespace` up to date, and returns the state of the index. Waits at
    /// most until the time `until`. Fails if the namespace is unknown or the index is unavailable.
    pub(crate) async fn refresh(
        &self,
        ctx: &ToolContext,
        namespace: &str,
        until: Instant,
    ) -> Result<IndexStateReport, ToolError> {
        let place = self.resolve(namespace).await?;
        let collection = self.open_collection(&place.key, namespace).await?;
        let report = collection.catch_up(ctx, namespace, until).await?;
        match collection.write_error() {
            Some(why) => Err(unavailable_error(namespace, &SearchEngineError::Unavailable(why))),
            None => Ok(report),
        }
    }

    /// Puts `documents` into `namespace`, which is created if needed, and removes the documents
    /// with the ids in `remove`. Fails if the name is invalid or the index cannot be written.
    pub(crate) async fn upsert(
        &self,
        namespace: &str,
        documents: Vec<NewDocument>,
        remove: Vec<String>,
    ) -> Result<UpsertSummary, ToolError> {
        self.check_name(namespace)?;
        let names = self.document_names().await;
        let is_new = !names.iter().any(|name| name == namespace);
        if is_new && documents.is_empty() {
            return Err(self.unknown_namespace(namespace).await);
        }
        if is_new && names.len() >= NAMESPACES_MAX {
            let message = format!("there are {NAMESPACES_MAX} namespaces of documents already");
            return Err(ToolError::invalid("/namespace", message));
        }
        let key = SearchableIndexKey::Documents(namespace.to_owned());
        let collection = self.open_collection(&key, namespace).await?;
        let documents_max = self.settings.limits.documents_max;
        let changed = collection.change_documents(documents, remove, documents_max).await?;
        changed.map_err(|err| unavailable_error(namespace, &err))
    }

    /// Returns the name of the configured embedding model, or `None` if none is configured.
    pub(crate) async fn model_name(&self) -> Option<String> {
        self.space().await.map(|space| space.model.clone())
    }

    async fn space(&self) -> Option<&VectorSpace> {
        let embedder = self.embedder.clone()?;
        // A model in a folder reads its files to compute its name.
        let read_space =
            || async { toolgate_net::spawn_blocking(move || embedder.space().clone()).await.ok() };
        self.space.get_or_init(read_space).await.as_ref()
    }

    fn existing_collection(&self, key: &SearchableIndexKey) -> Option<Arc<SearchableIndex>> {
        lock_mutex(&self.collections).get(key).cloned()
    }

    /// Returns the index for `key`. On first use, opens the index and starts the task that updates
    /// the index. `name` is the name of the namespace for error messages.
    async fn open_collection(
        &self,
        key: &SearchableIndexKey,
        name: &str,
    ) -> Result<Arc<SearchableIndex>, ToolError> {
        if let Some(collection) = self.existing_collection(key) {
            return Ok(collection);
        }
        let root = match key {
            SearchableIndexKey::Workspace | SearchableIndexKey::Documents(_) => self.root.clone(),
            SearchableIndexKey::Root(_) => self.open_root(name).await?,
        };
        let space = self.space().await.cloned();
        let mut collections = lock_mutex(&self.collections);
        let new = || {
            let source = match key {
                SearchableIndexKey::Workspace | SearchableIndexKey::Root(_) => {
                    NamespaceDocumentSource::Files
                }
                SearchableIndexKey::Documents(_) => NamespaceDocumentSource::Documents,
            };
            let namespace = match key {
                SearchableIndexKey::Workspace => WORKSPACE.to_owned(),
                SearchableIndexKey::Root(name) | SearchableIndexKey::Documents(name) => {
                    name.clone()
                }
            };
            let identity =
                SearchNamespaceIdentity { root: root.path().to_owned(), namespace, source };
            let engine = self.create_engine(identity, space);
            match source {
                NamespaceDocumentSource::Files => {
                    SearchableIndex::for_files(root, engine, &self.storage_folders(), self)
                }
                NamespaceDocumentSource::Documents => {
                    SearchableIndex::for_documents(engine, self.embedder.clone())
                }
            }
        };
        Ok(collections.entry(key.clone()).or_insert_with(|| Arc::new(new())).clone())
    }

    fn storage_folders(&self) -> Vec<&Path> {
        let IndexFolders { cache, documents } = &self.folders;
        cache.iter().chain(documents).map(PathBuf::as_path).collect()
    }

    fn create_engine(
        &self,
        identity: SearchNamespaceIdentity,
        space: Option<VectorSpace>,
    ) -> Arc<dyn SearchEngine> {
        if let Some(server) = &self.server {
            return server.engine(identity, space);
        }
        let hash = blake3::hash(identity.root.as_os_str().as_encoded_bytes()).to_hex();
        let SearchNamespaceIdentity { root, namespace, source } = identity;
        let label = root.file_name().unwrap_or_default().to_string_lossy();
        let label = label.replace(|c: char| !c.is_alphanumeric(), "_");
        let kind = match source {
            NamespaceDocumentSource::Files => "files",
            NamespaceDocumentSource::Documents => "documents",
        };
        // A namespace may have any characters in the settings, so its folder is named by a hash.
        let namespace_hash = blake3::hash(format!("{kind} {namespace}").as_bytes()).to_hex();
        let name = match (source, namespace.as_str()) {
            (NamespaceDocumentSource::Files, WORKSPACE) => format!("{label}-{}", &hash[..16]),
            (NamespaceDocumentSource::Files | NamespaceDocumentSource::Documents, _) => {
                format!("{label}-{}-{}", &hash[..16], &namespace_hash[..8])
            }
        };
        let folder = self.folders.cache.as_ref().map(|cache| cache.join(name));
        let documents = self.folders.documents.as_ref().map(|folder| folder.join(&namespace));
        Arc::new(EmbeddedSearchEngine::new(folder, space, source, documents))
    }

    /// Opens the folder outside the workspace that the settings list under `name`. Fails if there
    /// is no such folder.
    async fn open_root(&self, name: &str) -> Result<Root, ToolError> {
        let Some(path) = self.settings.namespaces.get(name).cloned() else {
            return Err(self.unknown_namespace(name).await);
        };
        let rules = self.files_settings.rules();
        let opened = toolgate_net::spawn_blocking(move || Root::open(Path::new(&path))).await;
        let opened = opened.map_err(|err| ToolError::with_cause("opening a folder failed", err))?;
        let open_error = |err: std::io::Error| {
            let message =
                format!("{}: its folder cannot be opened: {err}", not_current_message(name));
            ToolError::new(ToolErrorKind::Unavailable, message)
        };
        Ok(opened.map_err(open_error)?.with_rules(&rules))
    }

    /// Returns the filter on documents for `request`. Returns `None` if no document can match it.
    /// Fails if the path in `request` leads out of the searched folder.
    fn build_filter(
        collection: &SearchableIndex,
        place: &NamespaceLocation,
        request: &SearchRequest,
    ) -> Result<Option<DocumentFilter>, ToolError> {
        let prefix = match (&request.path_prefix, collection.root()) {
            (Some(prefix), Some(root)) => Some(resolve_prefix(root, prefix)?),
            // Ids of documents may be any text.
            (Some(prefix), None) => Some(prefix.clone()),
            (None, _) => None,
        };
        let prefixes = prefix.into_iter().filter(|it| !it.is_empty()).collect();
        Ok(place.restrict(DocumentFilter { prefixes, tags: request.tags.clone() }))
    }
}

/// Returns the PostgreSQL server that `settings` name, or `None` if this process stores the index.
/// Does not connect yet. Fails if the settings are unusable.
fn open_server(
    settings: &SearchEngineSettings,
) -> Result<Option<postgres::PostgresSearchServer>, String> {
    match settings {
        SearchEngineSettings::Embedded => Ok(None),
        SearchEngineSettings::Postgres(settings) => postgres::PostgresSearchServer::new(settings)
            .map(Some)
            .map_err(|why| format!("`search.engine.postgres.url` {why}")),
    }
}

fn not_current_message(name: &str) -> String {
    format!("the index of `{name}` cannot be brought up to date")
}

fn unavailable_error(name: &str, err: &SearchEngineError) -> ToolError {
    match err {
        SearchEngineError::Unavailable(why) | SearchEngineError::Damaged(why) => ToolError::new(
            ToolErrorKind::Unavailable,
            format!("{}: {why}", not_current_message(name)),
        ),
        SearchEngineError::Failed(why) => ToolError::failed(why),
    }
}
