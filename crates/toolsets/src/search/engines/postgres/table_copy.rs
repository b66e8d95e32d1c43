//! Copies rows into tables of PostgreSQL.

use tokio_postgres::Client;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use super::error::PostgresError;

/// A running `COPY` of rows into a table.
pub(super) struct PostgresTableCopy(std::pin::Pin<Box<BinaryCopyInWriter>>);

impl PostgresTableCopy {
    pub(super) async fn begin(
        client: &Client,
        table: &str,
        columns: &PostgresTableColumns,
    ) -> Result<Self, PostgresError> {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let sql = format!("copy {table} ({}) from stdin (format binary)", names.join(", "));
        let types: Vec<Type> = columns.iter().map(|(_, of)| of.clone()).collect();
        let sink = client.copy_in(&sql).await?;
        Ok(Self(Box::pin(BinaryCopyInWriter::new(sink, &types))))
    }

    pub(super) async fn write_row(
        &mut self,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), PostgresError> {
        Ok(self.0.as_mut().write(values).await?)
    }

    pub(super) async fn finish(mut self) -> Result<(), PostgresError> {
        self.0.as_mut().finish().await?;
        Ok(())
    }
}

/// The columns of a table in order, with their types for sending. Values of `tsvector` and `vector`
/// are sent as bytes.
type PostgresTableColumns = [(&'static str, Type)];

pub(super) const DOCUMENT_COLUMNS: [(&str, Type); 9] = [
    ("id", Type::INT8),
    ("key", Type::BYTEA),
    ("path", Type::TEXT),
    ("stamp", Type::BYTEA),
    ("etag", Type::TEXT),
    ("committed", Type::TEXT),
    ("lang", Type::TEXT),
    ("tags", Type::TEXT_ARRAY),
    ("folded", Type::TEXT_ARRAY),
];
pub(super) const CHUNK_COLUMNS: [(&str, Type); 12] = [
    ("id", Type::INT8),
    ("document", Type::INT8),
    ("hash", Type::INT8),
    ("first", Type::INT4),
    ("last", Type::INT4),
    ("kind", Type::INT2),
    ("names", Type::TEXT_ARRAY),
    ("within", Type::TEXT_ARRAY),
    ("head", Type::TEXT),
    ("lengths", Type::INT4_ARRAY),
    ("texts", Type::TEXT_ARRAY),
    ("words", Type::BYTEA),
];
pub(super) const NAME_COLUMNS: [(&str, Type); 2] = [("chunk", Type::INT8), ("symbol", Type::TEXT)];
pub(super) const VECTOR_COLUMNS: [(&str, Type); 2] =
    [("hash", Type::INT8), ("vector", Type::BYTEA)];
