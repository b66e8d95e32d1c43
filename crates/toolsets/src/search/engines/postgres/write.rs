//! Writes into PostgreSQL, with one writer at a time, in transactions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use toolgate_postgres::{PostgresConnection, SharedPostgresPool};
use toolgate_search::ChunkHash;

use super::super::{
    NamespaceDocumentSource, SearchEngineError, SearchEngineFuture, SearchEngineWriter,
    StoredDocument,
};
use super::documents::{
    IndexStatisticsChanges, copy_vectors, drop_unused_vectors, put_documents, remove_documents,
};
use super::error::PostgresError;
use super::kept_documents::store_documents;
use super::rows::{PostgresDocumentRows, blocking};
use super::tables::NamespaceTables;
use super::upkeep::ApproximateVectorIndexBuilder;

/// The time limit of one write to the database. It allows for a large batch on a slow disk.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(120);
/// The number of removed chunks after which unused vectors are deleted.
const CLEANUP_CHUNKS: u64 = 2_000;
/// The number of chunks in a commit above which the commit counts as the addition of a folder, not
/// as an edit.
const BULK_CHUNKS: i64 = 200;
/// The number of rejected documents, while none was accepted, from which the rejections count as a
/// failure of the server instead of the documents.
const ALL_REJECTED: usize = 16;

/// The SQL that moves the savepoint to the end of a successful step. A failed step rolls back to
/// the savepoint.
const SAVEPOINT_SQL: &str = "release savepoint good; savepoint good";

/// Writer of an index in PostgreSQL. The database connection of the writer holds the write lock.
pub(super) struct PostgresIndexWriter {
    pub(super) connections: SharedPostgresPool,
    pub(super) connected: PostgresConnection,
    pub(super) tables: Arc<NamespaceTables>,
    pub(super) source: NamespaceDocumentSource,
    pub(super) upkeep: Arc<ApproximateVectorIndexBuilder>,
    /// True while a transaction of this writer is open.
    in_transaction: bool,
    /// True from the start of a step of a transaction until the step succeeds.
    unfinished: bool,
    changes: IndexStatisticsChanges,
    /// The rejected documents of files that [`SearchEngineWriter::take_rejected`] has not returned
    /// yet, with the reasons.
    rejected: Vec<(StoredDocument, String)>,
    removed_chunks: u64,
    /// The number of chunks in the index at the last commit.
    chunks: u64,
}

/// The reaction if the database server rejects a single document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectedDocumentPolicy {
    /// Reports the rejection to the caller, and stores none of the documents.
    Report,
    /// Stores the other documents, and stores the rejected document without its chunks.
    LeaveOut,
}

impl PostgresIndexWriter {
    pub(super) fn new(
        connections: SharedPostgresPool,
        connected: PostgresConnection,
        tables: Arc<NamespaceTables>,
        source: NamespaceDocumentSource,
        upkeep: Arc<ApproximateVectorIndexBuilder>,
    ) -> Self {
        Self {
            connections,
            connected,
            tables,
            source,
            upkeep,
            in_transaction: false,
            unfinished: false,
            changes: IndexStatisticsChanges::default(),
            rejected: Vec::new(),
            removed_chunks: 0,
            chunks: 0,
        }
    }

    /// Writes `documents`, and handles rejected documents by `policy`. Fails if the database fails,
    /// or if `policy` reports a rejection.
    pub(super) async fn put_as(
        &mut self,
        documents: Vec<StoredDocument>,
        policy: RejectedDocumentPolicy,
    ) -> Result<(), SearchEngineError> {
        let connections = self.connections.clone();
        let result = connections.with_timeout(WRITE_TIMEOUT, self.put_all(documents, policy)).await;
        self.finish_step(result)
    }

    /// Begins a transaction. If a transaction is open, rolls back its unfinished step, if any.
    /// Fails if the database fails.
    async fn begin(&mut self) -> Result<(), PostgresError> {
        let client = &self.connected.client;
        if self.unfinished {
            client.batch_execute("rollback to savepoint good").await?;
        } else if !self.in_transaction {
            self.unfinished = true;
            client.batch_execute("begin; savepoint good").await?;
            self.in_transaction = true;
        }
        self.unfinished = true;
        Ok(())
    }

    /// Finishes one step of a transaction. On success, records the changes in `result`. On failure,
    /// returns the error, and the next step rolls this step back.
    fn finish_step(
        &mut self,
        result: Result<IndexStatisticsChanges, PostgresError>,
    ) -> Result<(), SearchEngineError> {
        match result {
            Ok(changes) => {
                self.changes.add(changes);
                self.unfinished = false;
                Ok(())
            }
            Err(err) => Err(self.connections.to_failure(&err).into()),
        }
    }

    async fn put_all(
        &mut self,
        documents: Vec<StoredDocument>,
        policy: RejectedDocumentPolicy,
    ) -> Result<IndexStatisticsChanges, PostgresError> {
        if let Some(put) = documents.iter().find(|put| put.path.contains('\0')) {
            let path = put.path.replace('\0', "\\0");
            return Err(PostgresError::Rejected(format!("`{path}` contains a NUL in its name")));
        }
        // The last document at a path wins.
        let documents: BTreeMap<String, StoredDocument> =
            documents.into_iter().map(|it| (it.path.clone(), it)).collect();
        let (documents, added) = blocking(|| {
            let documents: Vec<PostgresDocumentRows> =
                documents.into_values().map(PostgresDocumentRows::new).collect();
            let added = IndexStatisticsChanges::for_put(&documents);
            (documents, added)
        })
        .await?;
        self.begin().await?;
        let client = &self.connected.client;
        let changes = match self.put_atomically(&documents).await {
            Ok(mut changes) => {
                changes.add(added);
                changes
            }
            Err(err) if err.data_rejection().is_some() => {
                client.batch_execute("rollback to savepoint good").await?;
                let (changes, rejected) = self.put_each(&documents, policy, err).await?;
                if self.source == NamespaceDocumentSource::Files {
                    self.rejected.extend(rejected);
                }
                changes
            }
            Err(err) => return Err(err),
        };
        client.batch_execute(SAVEPOINT_SQL).await?;
        Ok(changes)
    }

    /// Writes all of `documents` or none. Returns the changes of the index statistics by the
    /// replaced documents. Fails if the database fails or rejects a document.
    async fn put_atomically(
        &self,
        documents: &[PostgresDocumentRows],
    ) -> Result<IndexStatisticsChanges, PostgresError> {
        let client = &self.connected.client;
        let tables = &self.tables;
        let paths = documents.iter().map(|it| it.put.path.as_str());
        let changes = remove_documents(client, tables, paths).await?;
        put_documents(client, tables, documents).await?;
        if self.source == NamespaceDocumentSource::Documents {
            store_documents(client, tables, documents).await?;
        }
        Ok(changes)
    }

    /// Puts `documents` into the index one by one. Returns the changes of the index statistics, and
    /// the rejected documents with the reasons. `err` is the error of putting all documents at
    /// once.
    async fn put_each(
        &self,
        documents: &[PostgresDocumentRows],
        policy: RejectedDocumentPolicy,
        err: PostgresError,
    ) -> Result<(IndexStatisticsChanges, Vec<(StoredDocument, String)>), PostgresError> {
        let mut changes = IndexStatisticsChanges::default();
        let mut accepted = 0;
        let mut rejected = Vec::new();
        for document in documents {
            let path = &document.put.path;
            let why = match self.try_put(document, &mut changes).await? {
                None => {
                    accepted += 1;
                    continue;
                }
                Some(why) => why,
            };
            if policy == RejectedDocumentPolicy::Report {
                return Err(PostgresError::Rejected(format!("`{path}` cannot be stored: {why}")));
            }
            if rejected.len() + 1 == ALL_REJECTED && accepted == 0 {
                return Err(err);
            }
            let server = self.connections.display_name();
            tracing::warn!("`{path}` is left out of the index in {server}: {why}");
            // It is stored without content, so that it is not read again and again.
            let emptied = document.without_content();
            if self.try_put(&emptied, &mut changes).await?.is_some() {
                let client = &self.connected.client;
                let tables = &self.tables;
                changes
                    .add(remove_documents(client, tables, std::iter::once(path.as_str())).await?);
            }
            rejected.push((emptied.put, why));
        }
        Ok((changes, rejected))
    }

    /// Puts `document` into the index, and adds the changes of the index statistics to `changes`.
    /// Returns the reason if the database server rejects the document. Fails if the database fails.
    async fn try_put(
        &self,
        document: &PostgresDocumentRows,
        changes: &mut IndexStatisticsChanges,
    ) -> Result<Option<String>, PostgresError> {
        let client = &self.connected.client;
        let document = std::slice::from_ref(document);
        client.batch_execute("savepoint one").await?;
        match self.put_atomically(document).await {
            Ok(removed) => {
                changes.add(removed);
                changes.add(IndexStatisticsChanges::for_put(document));
                client.batch_execute("release savepoint one").await?;
                Ok(None)
            }
            Err(err) => {
                let why = err.data_rejection().ok_or(err)?;
                client.batch_execute("rollback to savepoint one; release savepoint one").await?;
                Ok(Some(why))
            }
        }
    }

    async fn remove_all(
        &mut self,
        paths: Vec<String>,
    ) -> Result<IndexStatisticsChanges, PostgresError> {
        self.begin().await?;
        let client = &self.connected.client;
        let tables = &self.tables;
        let paths: Vec<String> = paths.into_iter().filter(|path| !path.contains('\0')).collect();
        let changes = remove_documents(client, tables, paths.iter().map(String::as_str)).await?;
        if self.source == NamespaceDocumentSource::Documents {
            let sql = "delete from toolgate_search.kept where namespace = $1 and path = any($2)";
            let params: [(&(dyn ToSql + Sync), Type); 2] =
                [(&tables.namespace, Type::INT4), (&paths, Type::TEXT_ARRAY)];
            client.execute_typed(sql, &params).await?;
        }
        client.batch_execute(SAVEPOINT_SQL).await?;
        Ok(changes)
    }

    async fn store_vectors(
        &mut self,
        vectors: Vec<(ChunkHash, Vec<f32>)>,
    ) -> Result<IndexStatisticsChanges, PostgresError> {
        let Some(space) = self.tables.model.clone() else {
            let why = "vectors were given, but no model is configured".to_owned();
            return Err(PostgresError::Rejected(why));
        };
        for (_, vector) in &vectors {
            if vector.len() != space.dimensions || !vector.iter().all(|it| it.is_finite()) {
                return Err(PostgresError::Rejected(format!(
                    "a vector has {} numbers; {} finite numbers are required",
                    vector.len(),
                    space.dimensions
                )));
            }
        }
        self.begin().await?;
        let client = &self.connected.client;
        let tables = &self.tables;
        let by_hash: BTreeMap<i64, &[f32]> =
            vectors.iter().map(|(hash, it)| (hash.0.cast_signed(), it.as_slice())).collect();
        let hashes: Vec<i64> = by_hash.keys().copied().collect();
        let sql = format!("delete from {} where hash = any($1)", tables.vector_table(&space));
        client.execute_typed(&sql, &[(&hashes, Type::INT8_ARRAY)]).await?;
        copy_vectors(client, tables, &space, by_hash).await?;
        client.batch_execute(SAVEPOINT_SQL).await?;
        Ok(IndexStatisticsChanges::default())
    }

    async fn commit_all(&mut self) -> Result<(), PostgresError> {
        if !self.in_transaction {
            return Ok(());
        }
        self.begin().await?;
        let client = &self.connected.client;
        let tables = &self.tables;
        let IndexStatisticsChanges { words, chunks, lengths, removed_chunks } = &self.changes;
        let words: BTreeMap<&str, i64> = words
            .iter()
            .filter(|(_, by)| **by != 0)
            .map(|(word, by)| (word.as_str(), *by))
            .collect();
        let (words, by): (Vec<&str>, Vec<i64>) = words.into_iter().unzip();
        let table = tables.table("words");
        let sql = format!(
            "insert into {table} as known select * from unnest($1::text[], $2::bigint[])
            on conflict (word) do update set holding = known.holding + excluded.holding"
        );
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&words, Type::TEXT_ARRAY), (&by, Type::INT8_ARRAY)];
        client.execute_typed(&sql, &params).await?;
        if *removed_chunks > 0 {
            let sql = format!("delete from {table} where holding <= 0 and word = any($1)");
            client.execute_typed(&sql, &[(&words, Type::TEXT_ARRAY)]).await?;
        }
        let lengths = lengths.to_vec();
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(chunks, Type::INT8), (&lengths, Type::INT8_ARRAY), (&tables.namespace, Type::INT4)];
        let sql = "update toolgate_search.namespaces set chunks = chunks + $1, lengths = (
                select array_agg(known + by order by at)
                from unnest(lengths, $2::bigint[]) with ordinality as it (known, by, at)
            ) where id = $3 returning chunks";
        let total: i64 = client.query_typed_one(sql, &params).await?.get(0);
        let removed_chunks = self.removed_chunks + removed_chunks;
        let cleans_up = removed_chunks >= CLEANUP_CHUNKS;
        if cleans_up {
            for space in [Some(&tables.near), tables.model.as_ref()].into_iter().flatten() {
                drop_unused_vectors(client, tables, space).await?;
            }
        }
        client.batch_execute("commit").await?;
        self.removed_chunks = if cleans_up { 0 } else { removed_chunks };
        self.chunks = total.max(0).cast_unsigned();
        self.changes = IndexStatisticsChanges::default();
        (self.in_transaction, self.unfinished) = (false, false);
        Ok(())
    }
}

impl SearchEngineWriter for PostgresIndexWriter {
    fn put(&mut self, documents: Vec<StoredDocument>) -> SearchEngineFuture<'_, ()> {
        let policy = match self.source {
            NamespaceDocumentSource::Files => RejectedDocumentPolicy::LeaveOut,
            NamespaceDocumentSource::Documents => RejectedDocumentPolicy::Report,
        };
        Box::pin(self.put_as(documents, policy))
    }

    fn take_rejected(&mut self) -> Vec<(StoredDocument, String)> {
        std::mem::take(&mut self.rejected)
    }

    fn remove(&mut self, paths: Vec<String>) -> SearchEngineFuture<'_, ()> {
        Box::pin(async move {
            let connections = self.connections.clone();
            let result = connections.with_timeout(WRITE_TIMEOUT, self.remove_all(paths)).await;
            self.finish_step(result)
        })
    }

    fn commit(&mut self) -> SearchEngineFuture<'_, ()> {
        Box::pin(async move {
            let connections = self.connections.clone();
            let is_bulk = self.changes.chunks > BULK_CHUNKS;
            let result = connections.with_timeout(WRITE_TIMEOUT, self.commit_all()).await;
            result.map_err(|err| connections.to_failure(&err))?;
            // An approximate index makes each insertion slow, so it is not built while many vectors
            // arrive.
            if !is_bulk {
                self.upkeep.start_if_needed(&self.connections, &self.tables, self.chunks);
            }
            Ok(())
        })
    }

    fn put_vectors(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> SearchEngineFuture<'_, ()> {
        Box::pin(async move {
            let connections = self.connections.clone();
            let result = connections.with_timeout(WRITE_TIMEOUT, self.store_vectors(vectors)).await;
            self.finish_step(result)
        })
    }

    fn release_resources(&mut self) -> SearchEngineFuture<'_, ()> {
        self.upkeep.start_if_needed(&self.connections, &self.tables, self.chunks);
        Box::pin(async { Ok(()) })
    }
}
