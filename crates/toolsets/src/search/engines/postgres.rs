//! An engine in PostgreSQL with pgvector, for large workspaces and for several servers that share
//! an index.

mod table_copy;
mod documents;
mod find;
mod kept_documents;
mod rows;
mod tables;
mod error;
mod upkeep;
mod write;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use toolgate_contract::lock_mutex;
use toolgate_postgres::{PostgresConnectionPool, SharedPostgresPool};
use toolgate_search::index::NamedDefinition;
use toolgate_search::{DocumentFilter, VectorSpace};

use super::settings::PostgresSearchSettings;
use super::{
    IndexOpenOutcome, NamespaceDocumentSource, SearchEngine, SearchEngineError, SearchEngineFuture,
    SearchEngineMatches, SearchEngineQuery, SearchEngineStatus, SearchEngineWriter,
    SearchNamespaceIdentity, StoredDocument, StoredDocumentVersion, UnembeddedEngineChunk,
    VectorLookup, VectorOrigin,
};
use tables::NamespaceTables;
use upkeep::ApproximateVectorIndexBuilder;
use write::{PostgresIndexWriter, RejectedDocumentPolicy, WRITE_TIMEOUT};

/// The time limit for preparing the database tables.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum time to wait until the database server notices that a writer is gone.
const WRITER_GONE_MAX: Duration = Duration::from_secs(3);

/// A PostgreSQL server that stores the indexes of several namespaces.
pub struct PostgresSearchServer {
    connections: SharedPostgresPool,
    workspace: Option<String>,
    approximate_from: u64,
}

impl PostgresSearchServer {
    /// Creates the client of the server that `settings` name. Does not connect yet.
    ///
    /// # Errors
    /// Fails if the settings cannot be used. The message continues a sentence that begins with the
    /// name of the setting.
    pub fn new(settings: &PostgresSearchSettings) -> Result<Self, String> {
        let PostgresSearchSettings { workspace, connections, timeout_ms, approximate_from, .. } =
            settings;
        let address = settings.address()?;
        let within = Duration::from_millis(*timeout_ms);
        Ok(Self {
            connections: Arc::new(PostgresConnectionPool::new(address, *connections, within)),
            workspace: workspace.clone(),
            approximate_from: *approximate_from,
        })
    }

    /// Returns the search engine of the namespace `identity`, whose vectors belong to the vector
    /// space `model`.
    pub fn engine(
        &self,
        identity: SearchNamespaceIdentity,
        model: Option<VectorSpace>,
    ) -> Arc<dyn SearchEngine> {
        Arc::new(self.postgres_engine(identity, model))
    }

    fn postgres_engine(
        &self,
        identity: SearchNamespaceIdentity,
        model: Option<VectorSpace>,
    ) -> PostgresSearchEngine {
        PostgresSearchEngine {
            connections: self.connections.clone(),
            workspace: self.workspace(&identity.root),
            identity,
            model,
            upkeep: Arc::new(ApproximateVectorIndexBuilder::new(self.approximate_from)),
            tables: Mutex::default(),
        }
    }

    /// Returns the names of the namespaces of documents that the workspace `root` has on the
    /// server.
    pub fn document_namespaces<'e>(&'e self, root: &Path) -> SearchEngineFuture<'e, Vec<String>> {
        let workspace = self.workspace(root);
        Box::pin(async move {
            let lent = self.connections.acquire().await?;
            let work = tables::document_namespaces(&lent.connection.client, &workspace);
            let result = self.connections.with_timeout(self.connections.query_timeout, work).await;
            Ok(lent.give_back(result)?)
        })
    }

    /// Returns the name under which the server stores the workspace `root`.
    fn workspace(&self, root: &Path) -> String {
        let workspace = self.workspace.clone();
        let workspace = workspace.unwrap_or_else(|| root.to_string_lossy().into_owned());
        rows::short_name(&workspace.replace('\0', ""))
    }
}

/// Search engine that stores one namespace in PostgreSQL.
struct PostgresSearchEngine {
    connections: SharedPostgresPool,
    /// The name under which the server stores the workspace.
    workspace: String,
    identity: SearchNamespaceIdentity,
    model: Option<VectorSpace>,
    upkeep: Arc<ApproximateVectorIndexBuilder>,
    /// The tables of the namespace; `None` before they are opened.
    tables: Mutex<Option<Arc<NamespaceTables>>>,
}

impl PostgresSearchEngine {
    /// Returns the tables of the namespace, and opens the index on first use. Fails if the database
    /// fails.
    async fn tables(&self) -> Result<Arc<NamespaceTables>, SearchEngineError> {
        let cached = lock_mutex(&self.tables).clone();
        match cached {
            Some(tables) => Ok(tables),
            None => Ok(self.open_tables().await?.0),
        }
    }

    async fn open_tables(
        &self,
    ) -> Result<(Arc<NamespaceTables>, IndexOpenOutcome), SearchEngineError> {
        let mut lent = self.connections.acquire().await?;
        let work = tables::prepare_tables(
            &mut lent.connection.client,
            &self.workspace,
            &self.identity,
            self.model.as_ref(),
        );
        let result = self.connections.with_timeout(READY_TIMEOUT, work).await;
        let (tables, outcome) = lent.give_back(result)?;
        let tables = Arc::new(tables);
        *lock_mutex(&self.tables) = Some(tables.clone());
        if matches!(outcome, IndexOpenOutcome::Rebuilt(_))
            && self.identity.source == NamespaceDocumentSource::Documents
        {
            self.restore_documents(&tables).await?;
        }
        Ok((tables, outcome))
    }

    /// Indexes all documents that callers have stored in the namespace again. Fails if the database
    /// fails.
    async fn restore_documents(
        &self,
        tables: &Arc<NamespaceTables>,
    ) -> Result<(), SearchEngineError> {
        let until = Instant::now() + WRITER_GONE_MAX;
        let mut writer = loop {
            match self.try_lock_writer(tables.clone()).await? {
                Some(writer) => break writer,
                // The process that writes has put them, or will.
                None if Instant::now() > until => return Ok(()),
                None => tokio::time::sleep(WRITER_GONE_MAX / 50).await,
            }
        };
        let result =
            kept_documents::load_documents(&writer.connected.client, &writer.tables, None).await;
        let documents = result.map_err(|err| self.connections.to_failure(&err))?;
        if !documents.is_empty() {
            writer.put_as(documents, RejectedDocumentPolicy::LeaveOut).await?;
            writer.commit().await?;
        }
        Ok(())
    }

    /// Acquires the write lock of the namespace. Returns `None` if another process holds the lock.
    /// Fails if the database fails.
    async fn try_lock_writer(
        &self,
        tables: Arc<NamespaceTables>,
    ) -> Result<Option<PostgresIndexWriter>, SearchEngineError> {
        let connected = self.connections.connect(WRITE_TIMEOUT).await?;
        let (class, key) = tables.lock_keys();
        let work = async {
            let sql = "select pg_try_advisory_lock($1, $2)";
            let params = [(&class as _, Type::INT4), (&key as _, Type::INT4)];
            Ok(connected.client.query_typed_one(sql, &params).await?.get::<_, bool>(0))
        };
        let result = self.connections.with_timeout(self.connections.query_timeout, work).await;
        let is_locked = result.map_err(|err| self.connections.to_failure(&err))?;
        let connections = self.connections.clone();
        let source = self.identity.source;
        let upkeep = self.upkeep.clone();
        Ok(is_locked
            .then(|| PostgresIndexWriter::new(connections, connected, tables, source, upkeep)))
    }
}

/// Runs `$work` on a connection from the pool, within the time limit of a query.
macro_rules! on_connection {
    ($self:ident, |$client:ident, $tables:ident| $work:expr) => {
        Box::pin(async move {
            let $tables = $self.tables().await?;
            let mut lent = $self.connections.acquire().await?;
            let $client = &mut lent.connection.client;
            let result =
                $self.connections.with_timeout($self.connections.query_timeout, $work).await;
            Ok(lent.give_back(result)?)
        })
    };
}

impl SearchEngine for PostgresSearchEngine {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn open_index(&self) -> SearchEngineFuture<'_, IndexOpenOutcome> {
        Box::pin(async move { Ok(self.open_tables().await?.1) })
    }

    fn acquire_writer(&self) -> SearchEngineFuture<'_, Option<Box<dyn SearchEngineWriter>>> {
        Box::pin(async move {
            let writer = self.try_lock_writer(self.tables().await?).await?;
            Ok(writer.map(|writer| Box::new(writer) as Box<dyn SearchEngineWriter>))
        })
    }

    fn documents(&self) -> SearchEngineFuture<'_, BTreeMap<String, StoredDocumentVersion>> {
        on_connection!(self, |client, tables| find::documents(client, &tables))
    }

    fn status(&self) -> SearchEngineFuture<'_, SearchEngineStatus> {
        on_connection!(self, |client, tables| find::status(client, &tables))
    }

    fn candidates(&self, query: SearchEngineQuery) -> SearchEngineFuture<'_, SearchEngineMatches> {
        Box::pin(async move {
            let tables = self.tables().await?;
            let mut lent = self.connections.acquire().await?;
            let work = find::candidates(&mut lent.connection.client, &tables, &query);
            let result = self.connections.with_timeout(self.connections.query_timeout, work).await;
            let find::PostgresSearchCandidates { question, averages, candidates } =
                lent.give_back(result)?;
            let connections = self.connections.clone();
            let vectors = Arc::new(PostgresVectorLookup { connections, tables });
            Ok(SearchEngineMatches { question, averages, candidates, total: None, vectors })
        })
    }

    fn find_definitions(
        &self,
        name: String,
        filter: DocumentFilter,
        limit: usize,
    ) -> SearchEngineFuture<'_, Vec<NamedDefinition>> {
        on_connection!(self, |client, tables| find::find_definitions(
            client, &tables, &name, &filter, limit
        ))
    }

    fn pending_chunks(&self, limit: usize) -> SearchEngineFuture<'_, Vec<UnembeddedEngineChunk>> {
        on_connection!(self, |client, tables| find::pending_chunks(client, &tables, limit))
    }

    fn kept_document(&self, path: String) -> SearchEngineFuture<'_, Option<StoredDocument>> {
        on_connection!(self, |client, tables| async {
            Ok(kept_documents::load_documents(client, &tables, Some(&path)).await?.pop())
        })
    }

    fn reset(&self) -> SearchEngineFuture<'_, ()> {
        Box::pin(async move {
            // The cached tables may have been dropped.
            *lock_mutex(&self.tables) = None;
            let (tables, outcome) = self.open_tables().await?;
            if outcome == IndexOpenOutcome::Existing {
                let mut lent = self.connections.acquire().await?;
                let client = &mut lent.connection.client;
                let work = async {
                    let work = client.transaction().await?;
                    tables.recreate(&work).await?;
                    Ok(work.commit().await?)
                };
                let result = self.connections.with_timeout(READY_TIMEOUT, work).await;
                lent.give_back(result)?;
                if self.identity.source == NamespaceDocumentSource::Documents {
                    self.restore_documents(&tables).await?;
                }
            }
            Ok(())
        })
    }
}

/// Access to the vectors of found chunks, which are loaded on demand.
struct PostgresVectorLookup {
    connections: SharedPostgresPool,
    tables: Arc<NamespaceTables>,
}

impl VectorLookup for PostgresVectorLookup {
    fn load(
        &self,
        keys: Vec<u64>,
        by: VectorOrigin,
    ) -> SearchEngineFuture<'_, Vec<Option<Vec<f32>>>> {
        Box::pin(async move {
            let lent = self.connections.acquire().await?;
            let work = find::vectors(&lent.connection.client, &self.tables, &keys, by);
            let result = self.connections.with_timeout(self.connections.query_timeout, work).await;
            Ok(lent.give_back(result)?)
        })
    }
}
