//! Writes into PostgreSQL, one writer at a time, in transactions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use toolgate_search::ChunkHash;

use super::super::{Doing, EngineError, Put, Source, Writer};
use super::connections::{Connected, Shared};
use super::documents::{Changes, copy_vectors, drop_left_over, put, taken_out};
use super::kept::keep;
use super::rows::{Written, blocking};
use super::tables::Tables;
use super::trouble::Trouble;
use super::upkeep::Upkeep;

/// The time limit of one write. It allows for a large batch on a slow disk.
pub(super) const WRITE_WITHIN: Duration = Duration::from_secs(120);
/// The number of removed chunks after which unused vectors are deleted.
const LEFT_OVER: u64 = 2_000;
/// The number of chunks in a commit above which a folder is being added, not edited.
const MUCH: i64 = 200;
/// The number of rejected documents, with none accepted, after which the documents are not the
/// cause.
const ALL_REFUSED: usize = 16;

/// The SQL that moves the savepoint to which a failed step rolls back.
const MARK: &str = "release savepoint good; savepoint good";

/// The right to write, held by a connection.
pub(super) struct PostgresWriter {
    pub(super) connections: Shared,
    pub(super) connected: Connected,
    pub(super) tables: Arc<Tables>,
    pub(super) source: Source,
    pub(super) upkeep: Arc<Upkeep>,
    /// True while a transaction is open.
    begun: bool,
    /// True after a step began, until it succeeds.
    half: bool,
    changes: Changes,
    /// The rejected documents of files that were not reported yet, with the reasons.
    refused: Vec<(Put, String)>,
    taken_out: u64,
    /// The number of chunks at the last commit.
    chunks: u64,
}

/// The treatment of a document that the server rejects by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Report the rejection to the caller, and put no document.
    Told,
    /// Put the other documents. The rejected one is stored without content.
    LeftOut,
}

impl PostgresWriter {
    pub(super) fn new(
        connections: Shared,
        connected: Connected,
        tables: Arc<Tables>,
        source: Source,
        upkeep: Arc<Upkeep>,
    ) -> Self {
        Self {
            connections,
            connected,
            tables,
            source,
            upkeep,
            begun: false,
            half: false,
            changes: Changes::default(),
            refused: Vec::new(),
            taken_out: 0,
            chunks: 0,
        }
    }

    /// Puts `documents`. Rejected ones are treated as `refused`.
    pub(super) async fn put_as(
        &mut self,
        documents: Vec<Put>,
        refused: Refused,
    ) -> Result<(), EngineError> {
        let connections = self.connections.clone();
        let came = connections.within(WRITE_WITHIN, self.put_all(documents, refused)).await;
        self.ended(came)
    }

    /// Begins a transaction, or rolls back an unfinished step.
    async fn begin(&mut self) -> Result<(), Trouble> {
        let client = &self.connected.client;
        if self.half {
            client.batch_execute("rollback to savepoint good").await?;
        } else if !self.begun {
            self.half = true;
            client.batch_execute("begin; savepoint good").await?;
            self.begun = true;
        }
        self.half = true;
        Ok(())
    }

    /// Finishes a step.
    fn ended(&mut self, came: Result<Changes, Trouble>) -> Result<(), EngineError> {
        match came {
            Ok(changes) => {
                self.changes.add(changes);
                self.half = false;
                Ok(())
            }
            Err(trouble) => Err(self.connections.told(&trouble)),
        }
    }

    async fn put_all(&mut self, documents: Vec<Put>, refused: Refused) -> Result<Changes, Trouble> {
        if let Some(put) = documents.iter().find(|put| put.path.contains('\0')) {
            let path = put.path.replace('\0', "\\0");
            return Err(Trouble::Refused(format!("`{path}` has a NUL in its name")));
        }
        // The last document at a path wins.
        let documents: BTreeMap<String, Put> =
            documents.into_iter().map(|it| (it.path.clone(), it)).collect();
        let (documents, by) = blocking(|| {
            let documents: Vec<Written> = documents.into_values().map(Written::of).collect();
            let by = Changes::by(&documents);
            (documents, by)
        })
        .await?;
        self.begin().await?;
        let client = &self.connected.client;
        let changes = match self.put_together(&documents).await {
            Ok(mut changes) => {
                changes.add(by);
                changes
            }
            Err(trouble) if trouble.refusal().is_some() => {
                client.batch_execute("rollback to savepoint good").await?;
                let (changes, left_out) = self.put_each(&documents, refused, trouble).await?;
                if self.source == Source::Files {
                    self.refused.extend(left_out);
                }
                changes
            }
            Err(trouble) => return Err(trouble),
        };
        client.batch_execute(MARK).await?;
        Ok(changes)
    }

    /// Puts all of `documents` or none. Returns the changes by removing earlier versions.
    async fn put_together(&self, documents: &[Written]) -> Result<Changes, Trouble> {
        let client = &self.connected.client;
        let tables = &self.tables;
        let paths = documents.iter().map(|it| it.put.path.as_str());
        let changes = taken_out(client, tables, paths).await?;
        put(client, tables, documents).await?;
        if self.source == Source::Documents {
            keep(client, tables, documents).await?;
        }
        Ok(changes)
    }

    /// Puts `documents` one by one. Returns the rejected ones with the reasons. `trouble` is the
    /// error of putting all at once.
    async fn put_each(
        &self,
        documents: &[Written],
        refused: Refused,
        trouble: Trouble,
    ) -> Result<(Changes, Vec<(Put, String)>), Trouble> {
        let mut changes = Changes::default();
        let mut taken = 0;
        let mut left_out = Vec::new();
        for written in documents {
            let path = &written.put.path;
            let why = match self.put_or_refused(written, &mut changes).await? {
                None => {
                    taken += 1;
                    continue;
                }
                Some(why) => why,
            };
            if refused == Refused::Told {
                return Err(Trouble::Refused(format!("`{path}` cannot be put: {why}")));
            }
            if left_out.len() + 1 == ALL_REFUSED && taken == 0 {
                return Err(trouble);
            }
            let named = self.connections.named();
            tracing::warn!("`{path}` is left out of the index in {named}: {why}");
            // It is stored without content, so that it is not read again and again.
            let bare = written.bare();
            if self.put_or_refused(&bare, &mut changes).await?.is_some() {
                let client = &self.connected.client;
                let tables = &self.tables;
                changes.add(taken_out(client, tables, std::iter::once(path.as_str())).await?);
            }
            left_out.push((bare.put, why));
        }
        Ok((changes, left_out))
    }

    /// Puts `written`. Returns the reason if the server rejects it.
    async fn put_or_refused(
        &self,
        written: &Written,
        changes: &mut Changes,
    ) -> Result<Option<String>, Trouble> {
        let client = &self.connected.client;
        let written = std::slice::from_ref(written);
        client.batch_execute("savepoint one").await?;
        match self.put_together(written).await {
            Ok(taken_out) => {
                changes.add(taken_out);
                changes.add(Changes::by(written));
                client.batch_execute("release savepoint one").await?;
                Ok(None)
            }
            Err(trouble) => {
                let why = trouble.refusal().ok_or(trouble)?;
                client.batch_execute("rollback to savepoint one; release savepoint one").await?;
                Ok(Some(why))
            }
        }
    }

    async fn remove_all(&mut self, paths: Vec<String>) -> Result<Changes, Trouble> {
        self.begin().await?;
        let client = &self.connected.client;
        let tables = &self.tables;
        let paths: Vec<String> = paths.into_iter().filter(|path| !path.contains('\0')).collect();
        let changes = taken_out(client, tables, paths.iter().map(String::as_str)).await?;
        if self.source == Source::Documents {
            let sql = "delete from toolgate_search.kept where namespace = $1 and path = any($2)";
            let given: [(&(dyn ToSql + Sync), Type); 2] =
                [(&tables.namespace, Type::INT4), (&paths, Type::TEXT_ARRAY)];
            client.execute_typed(sql, &given).await?;
        }
        client.batch_execute(MARK).await?;
        Ok(changes)
    }

    async fn give_all(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> Result<Changes, Trouble> {
        let Some(space) = self.tables.model.clone() else {
            let why = "vectors were given, and no model is set".to_owned();
            return Err(Trouble::Refused(why));
        };
        for (_, vector) in &vectors {
            if vector.len() != space.dimensions || !vector.iter().all(|it| it.is_finite()) {
                return Err(Trouble::Refused(format!(
                    "a vector has {} numbers, which are to be {} finite ones",
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
        let sql = format!("delete from {} where hash = any($1)", tables.vectors(&space));
        client.execute_typed(&sql, &[(&hashes, Type::INT8_ARRAY)]).await?;
        copy_vectors(client, tables, &space, by_hash).await?;
        client.batch_execute(MARK).await?;
        Ok(Changes::default())
    }

    async fn commit_all(&mut self) -> Result<(), Trouble> {
        if !self.begun {
            return Ok(());
        }
        self.begin().await?;
        let client = &self.connected.client;
        let tables = &self.tables;
        let Changes { words, chunks, lengths, taken_out } = &self.changes;
        let words: BTreeMap<&str, i64> = words
            .iter()
            .filter(|(_, by)| **by != 0)
            .map(|(word, by)| (word.as_str(), *by))
            .collect();
        let (words, by): (Vec<&str>, Vec<i64>) = words.into_iter().unzip();
        let table = tables.of("words");
        let sql = format!(
            "insert into {table} as known select * from unnest($1::text[], $2::bigint[])
            on conflict (word) do update set holding = known.holding + excluded.holding"
        );
        let given: [(&(dyn ToSql + Sync), Type); 2] =
            [(&words, Type::TEXT_ARRAY), (&by, Type::INT8_ARRAY)];
        client.execute_typed(&sql, &given).await?;
        if *taken_out > 0 {
            let sql = format!("delete from {table} where holding <= 0 and word = any($1)");
            client.execute_typed(&sql, &[(&words, Type::TEXT_ARRAY)]).await?;
        }
        let lengths = lengths.to_vec();
        let given: [(&(dyn ToSql + Sync), Type); 3] =
            [(chunks, Type::INT8), (&lengths, Type::INT8_ARRAY), (&tables.namespace, Type::INT4)];
        let sql = "update toolgate_search.namespaces set chunks = chunks + $1, lengths = (
                select array_agg(known + by order by at)
                from unnest(lengths, $2::bigint[]) with ordinality as it (known, by, at)
            ) where id = $3 returning chunks";
        let all: i64 = client.query_typed_one(sql, &given).await?.get(0);
        let taken_out = self.taken_out + taken_out;
        let look = taken_out >= LEFT_OVER;
        if look {
            for space in [Some(&tables.near), tables.model.as_ref()].into_iter().flatten() {
                drop_left_over(client, tables, space).await?;
            }
        }
        client.batch_execute("commit").await?;
        self.taken_out = if look { 0 } else { taken_out };
        self.chunks = all.max(0).cast_unsigned();
        self.changes = Changes::default();
        (self.begun, self.half) = (false, false);
        Ok(())
    }
}

impl Writer for PostgresWriter {
    fn put(&mut self, documents: Vec<Put>) -> Doing<'_, ()> {
        let refused = match self.source {
            Source::Files => Refused::LeftOut,
            Source::Documents => Refused::Told,
        };
        Box::pin(self.put_as(documents, refused))
    }

    fn refused(&mut self) -> Vec<(Put, String)> {
        std::mem::take(&mut self.refused)
    }

    fn remove(&mut self, paths: Vec<String>) -> Doing<'_, ()> {
        Box::pin(async move {
            let connections = self.connections.clone();
            let came = connections.within(WRITE_WITHIN, self.remove_all(paths)).await;
            self.ended(came)
        })
    }

    fn commit(&mut self) -> Doing<'_, ()> {
        Box::pin(async move {
            let connections = self.connections.clone();
            let is_much = self.changes.chunks > MUCH;
            let came = connections.within(WRITE_WITHIN, self.commit_all()).await;
            came.map_err(|trouble| connections.told(&trouble))?;
            // An approximate index makes each insertion slow, so it is not built while many vectors
            // arrive.
            if !is_much {
                self.upkeep.look(&self.connections, &self.tables, self.chunks);
            }
            Ok(())
        })
    }

    fn give(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> Doing<'_, ()> {
        Box::pin(async move {
            let connections = self.connections.clone();
            let came = connections.within(WRITE_WITHIN, self.give_all(vectors)).await;
            self.ended(came)
        })
    }

    fn rest(&mut self) -> Doing<'_, ()> {
        self.upkeep.look(&self.connections, &self.tables, self.chunks);
        Box::pin(async { Ok(()) })
    }
}
