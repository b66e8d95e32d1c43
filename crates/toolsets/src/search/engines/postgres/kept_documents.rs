//! Stores the complete documents of callers in PostgreSQL.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::super::StoredDocument;
use super::super::kept_document::PersistedDocument;
use super::error::PostgresError;
use super::rows::{PostgresDocumentRows, blocking};
use super::tables::NamespaceTables;

pub(super) async fn store_documents(
    client: &Client,
    tables: &NamespaceTables,
    documents: &[PostgresDocumentRows],
) -> Result<(), PostgresError> {
    let sql = "insert into toolgate_search.kept
        select $1, * from unnest($2::text[], $3::bytea[])
        on conflict (namespace, path) do update set document = excluded.document";
    let encoded = |it: &PostgresDocumentRows| {
        let kept = PersistedDocument::from_stored(&it.put);
        serde_json::to_vec(&kept).map_err(|err| PostgresError::Rejected(err.to_string()))
    };
    let paths: Vec<&String> = documents.iter().map(|it| &it.put.path).collect();
    let encoded: Vec<Vec<u8>> = documents.iter().map(encoded).collect::<Result<_, _>>()?;
    let params: [(&(dyn ToSql + Sync), Type); 3] = [
        (&tables.namespace, Type::INT4),
        (&paths, Type::TEXT_ARRAY),
        (&encoded, Type::BYTEA_ARRAY),
    ];
    client.execute_typed(sql, &params).await?;
    Ok(())
}

/// Returns the stored document at `path`, if there is one. If `path` is `None`, returns all stored
/// documents. Fails if the database fails.
pub(super) async fn load_documents(
    client: &Client,
    tables: &NamespaceTables,
    path: Option<&str>,
) -> Result<Vec<StoredDocument>, PostgresError> {
    let sql = "select document from toolgate_search.kept
        where namespace = $1 and path = coalesce($2, path)";
    let params: [(&(dyn ToSql + Sync), Type); 2] =
        [(&tables.namespace, Type::INT4), (&path, Type::TEXT)];
    let rows = client.query_typed(sql, &params).await?;
    let rows: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
    let read = |row: &Vec<u8>| {
        let kept: PersistedDocument = serde_json::from_slice(row).ok()?;
        Some(kept.into_stored())
    };
    blocking(move || rows.iter().filter_map(read).collect()).await
}
