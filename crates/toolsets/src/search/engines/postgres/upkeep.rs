//! Builds the approximate index over vectors in the background, once there are enough vectors.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::types::Type;
use toolgate_contract::lock_mutex;
use toolgate_postgres::SharedPostgresPool;

use super::error::PostgresError;
use super::tables::{NamespaceTables, VectorTable};

/// The time limit for building an approximate index over vectors.
const BUILD_TIMEOUT: Duration = Duration::from_secs(6 * 3600);

/// A background task that builds approximate indexes over vectors.
pub(super) struct ApproximateVectorIndexBuilder {
    vectors_min: u64,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for ApproximateVectorIndexBuilder {
    fn drop(&mut self) {
        if let Some(task) = lock_mutex(&self.task).take() {
            task.abort();
        }
    }
}

impl ApproximateVectorIndexBuilder {
    /// Creates the builder. It builds indexes over at least `vectors_min` vectors.
    pub(super) fn new(vectors_min: u64) -> Self {
        Self { vectors_min, task: Mutex::default() }
    }

    /// Starts a background task that builds approximate indexes, if there are at least the minimum
    /// number of `chunks` and no such task is running.
    pub(super) fn start_if_needed(
        &self,
        connections: &SharedPostgresPool,
        tables: &Arc<NamespaceTables>,
        chunks: u64,
    ) {
        let mut task = lock_mutex(&self.task);
        let is_running = task.as_ref().is_some_and(|task| !task.is_finished());
        if chunks < self.vectors_min || is_running {
            return;
        }
        let connections = connections.clone();
        let tables = tables.clone();
        let vectors_min = self.vectors_min;
        *task = Some(toolgate_net::spawn_task(async move {
            if let Err(err) = build_indexes(&connections, &tables, vectors_min).await {
                tracing::warn!(
                    "the approximate index in {} could not be built, so searches compare all \
                     vectors: {}",
                    connections.display_name(),
                    connections.to_failure(&err)
                );
            }
        }));
    }

    #[cfg(test)]
    pub(super) fn was_started(&self) -> bool {
        lock_mutex(&self.task).is_some()
    }
}

/// Returns an SQL condition that is true if the approximate index over `space` is complete.
pub(super) fn built_condition(tables: &NamespaceTables, space: Option<&VectorTable>) -> String {
    space.map_or_else(
        || "false".to_owned(),
        |space| {
            format!(
                "coalesce((select indisvalid and indisready from pg_index
                where indexrelid = to_regclass('toolgate_search.{}')), false)",
                tables.approximate_index(space)
            )
        },
    )
}

async fn build_indexes(
    connections: &SharedPostgresPool,
    tables: &NamespaceTables,
    vectors_min: u64,
) -> Result<(), PostgresError> {
    let connected = connections.connect(BUILD_TIMEOUT).await;
    let connected = connected.map_err(|err| PostgresError::Unreachable(err.to_string()))?;
    let client = &connected.client;
    for space in [Some(&tables.near), tables.model.as_ref()].into_iter().flatten() {
        // pgvector cannot index vectors with more numbers.
        if space.dimensions > 2_000 {
            continue;
        }
        let table = tables.vector_table(space);
        let name = tables.approximate_index(space);
        let sql = format!(
            "select {}, (select count(*) from {table}), to_regclass('toolgate_search.{name}') is not null",
            built_condition(tables, Some(space))
        );
        let row = client.query_typed_one(&sql, &[]).await?;
        let (is_built, count, exists): (bool, i64, bool) = (row.get(0), row.get(1), row.get(2));
        if is_built || count.cast_unsigned() < vectors_min {
            continue;
        }
        if exists {
            // Another connection builds it now, or was interrupted.
            let sql = "select 1 from pg_stat_progress_create_index
                where index_relid = to_regclass($1)";
            let name = format!("toolgate_search.{name}");
            if client.query_typed_opt(sql, &[(&name, Type::TEXT)]).await?.is_some() {
                continue;
            }
            client.batch_execute(&format!("drop index if exists {name}")).await?;
        }
        client.batch_execute("set maintenance_work_mem = '256MB'").await?;
        let sql = format!(
            "create index concurrently if not exists {name} on {table}
            using hnsw (vector {}_ip_ops)",
            tables.vector_type()
        );
        client.batch_execute(&sql).await?;
    }
    Ok(())
}
