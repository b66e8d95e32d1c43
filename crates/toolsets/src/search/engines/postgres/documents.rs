//! Inserts documents into the tables of a namespace, and deletes them.

use std::collections::{BTreeMap, HashMap, HashSet};

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use toolgate_chunks::TextChunk;
use toolgate_search::rank::FIELDS;

use super::super::StoredDocument;
use super::error::PostgresError;
use super::rows::{
    ChunkRow, PostgresDocumentRows, document_key, symbol_key, vector_bytes, without_nul,
    without_nuls,
};
use super::table_copy::{
    CHUNK_COLUMNS, DOCUMENT_COLUMNS, NAME_COLUMNS, PostgresTableCopy, VECTOR_COLUMNS,
};
use super::tables::{NamespaceTables, VectorTable};

/// The changes of a transaction to the statistics of the index: numbers of chunks and words.
#[derive(Default)]
pub(super) struct IndexStatisticsChanges {
    pub(super) words: HashMap<String, i64>,
    pub(super) chunks: i64,
    pub(super) lengths: [i64; FIELDS],
    pub(super) removed_chunks: u64,
}

impl IndexStatisticsChanges {
    /// Returns the changes of the statistics for inserting `documents`, if no document exists at
    /// their paths.
    pub(super) fn for_put(documents: &[PostgresDocumentRows]) -> Self {
        let mut changes = Self::default();
        for row in documents.iter().flat_map(|it| &it.rows) {
            changes.chunks += 1;
            for (sum, length) in changes.lengths.iter_mut().zip(&row.lengths) {
                *sum += i64::from(*length);
            }
            for word in &row.distinct {
                match changes.words.get_mut(word) {
                    Some(holding) => *holding += 1,
                    None => drop(changes.words.insert(word.clone(), 1)),
                }
            }
        }
        changes
    }

    pub(super) fn add(&mut self, other: Self) {
        for (word, by) in other.words {
            *self.words.entry(word).or_default() += by;
        }
        self.chunks += other.chunks;
        self.removed_chunks += other.removed_chunks;
        for (sum, by) in self.lengths.iter_mut().zip(other.lengths) {
            *sum += by;
        }
    }
}

/// Deletes the documents at `paths` from the index. Returns the changes of the index statistics.
/// Fails if the database fails.
pub(super) async fn remove_documents(
    client: &Client,
    tables: &NamespaceTables,
    paths: impl Iterator<Item = &str>,
) -> Result<IndexStatisticsChanges, PostgresError> {
    let [documents, chunks, names] =
        ["documents", "chunks", "names"].map(|name| tables.table(name));
    let mut changes = IndexStatisticsChanges::default();
    let keys: Vec<Vec<u8>> = paths.map(document_key).collect();
    let sql = format!("select id from {documents} where key = any($1)");
    let found = client.query_typed(&sql, &[(&keys, Type::BYTEA_ARRAY)]).await?;
    let ids: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
    if ids.is_empty() {
        return Ok(changes);
    }
    let params: [(&(dyn ToSql + Sync), Type); 1] = [(&ids, Type::INT8_ARRAY)];
    let sums: Vec<String> =
        (1..=FIELDS).map(|at| format!("coalesce(sum(lengths[{at}]), 0)::bigint")).collect();
    let sql =
        format!("select count(*), {} from {chunks} where document = any($1)", sums.join(", "));
    let row = client.query_typed_one(&sql, &params).await?;
    let removed: i64 = row.get(0);
    changes.chunks = -removed;
    changes.removed_chunks = removed.cast_unsigned();
    for (at, length) in changes.lengths.iter_mut().enumerate() {
        *length = -row.get::<_, i64>(at + 1);
    }
    let sql = format!(
        "select word, count(*) from {chunks}, unnest(tsvector_to_array(words)) word
        where document = any($1) group by word"
    );
    for row in client.query_typed(&sql, &params).await? {
        changes.words.insert(row.get(0), -row.get::<_, i64>(1));
    }
    for sql in [
        format!("delete from {names} using {chunks} c where chunk = c.id and document = any($1)"),
        format!("delete from {chunks} where document = any($1)"),
        format!("delete from {documents} where id = any($1)"),
    ] {
        client.execute_typed(&sql, &params).await?;
    }
    Ok(changes)
}

/// Inserts `documents` into the index. No document may exist at their paths. Fails if the database
/// fails or rejects a document.
pub(super) async fn put_documents(
    client: &Client,
    tables: &NamespaceTables,
    documents: &[PostgresDocumentRows],
) -> Result<(), PostgresError> {
    let count: usize = documents.iter().map(|it| 1 + it.rows.len()).sum();
    let mut ids = reserve_ids(client, tables, count).await?.into_iter();
    let mut id = || ids.next().unwrap_or_default();
    let numbered: Vec<(i64, &PostgresDocumentRows)> =
        documents.iter().map(|it| (id(), it)).collect();
    let chunks: Vec<(i64, i64, &TextChunk, &ChunkRow)> = numbered
        .iter()
        .flat_map(|(document, it)| it.put.chunks.iter().zip(&it.rows).map(move |it| (document, it)))
        .map(|(document, (chunk, row))| (id(), *document, chunk, row))
        .collect();

    let mut copy =
        PostgresTableCopy::begin(client, &tables.table("documents"), &DOCUMENT_COLUMNS).await?;
    for (id, PostgresDocumentRows { put, .. }) in &numbered {
        let StoredDocument { path, stamp, etag, commit, lang, tags, .. } = put;
        let etag = without_nul(etag);
        let tags = without_nuls(tags);
        let commit = commit.as_deref().map(without_nul);
        let lang = lang.as_deref().map(without_nul);
        let folded: Vec<String> = tags.iter().map(|tag| tag.to_ascii_lowercase()).collect();
        copy.write_row(&[
            id,
            &document_key(path),
            path,
            stamp,
            &etag,
            &commit,
            &lang,
            &tags,
            &folded,
        ])
        .await?;
    }
    copy.finish().await?;

    let mut copy =
        PostgresTableCopy::begin(client, &tables.table("chunks"), &CHUNK_COLUMNS).await?;
    for (id, document, chunk, row) in &chunks {
        let ChunkRow { hash, texts, lengths, words, .. } = row;
        let line = |line: u32| i32::try_from(line).unwrap_or(i32::MAX);
        let first = line(chunk.first);
        let last = line(chunk.last);
        let kind = chunk.kind as i16;
        let names = without_nuls(&chunk.names);
        let within = without_nuls(&chunk.within);
        let head = without_nul(&chunk.head);
        copy.write_row(&[
            id, document, hash, &first, &last, &kind, &names, &within, &head, lengths, texts, words,
        ])
        .await?;
    }
    copy.finish().await?;

    let mut copy = PostgresTableCopy::begin(client, &tables.table("names"), &NAME_COLUMNS).await?;
    for (id, _, chunk, _) in &chunks {
        let symbols: HashSet<String> = chunk.names.iter().map(|name| symbol_key(name)).collect();
        for symbol in symbols.into_iter().filter(|symbol| !symbol.is_empty()) {
            copy.write_row(&[id, &symbol]).await?;
        }
    }
    copy.finish().await?;

    let mut near: BTreeMap<i64, &[f32]> = BTreeMap::new();
    for (_, _, _, row) in &chunks {
        if let Some(vector) = &row.near {
            near.insert(row.hash, vector);
        }
    }
    let hashes: Vec<i64> = near.keys().copied().collect();
    let sql =
        format!("select hash from {} where hash = any($1)", tables.vector_table(&tables.near));
    for row in client.query_typed(&sql, &[(&hashes, Type::INT8_ARRAY)]).await? {
        near.remove(&row.get::<_, i64>(0));
    }
    copy_vectors(client, tables, &tables.near, near).await
}

async fn reserve_ids(
    client: &Client,
    tables: &NamespaceTables,
    count: usize,
) -> Result<Vec<i64>, PostgresError> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let sql = format!("select nextval('{}') from generate_series(1, $1)", tables.table("ids"));
    let rows = client.query_typed(&sql, &[(&count, Type::INT8)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub(super) async fn copy_vectors(
    client: &Client,
    tables: &NamespaceTables,
    space: &VectorTable,
    vectors: BTreeMap<i64, &[f32]>,
) -> Result<(), PostgresError> {
    let mut copy =
        PostgresTableCopy::begin(client, &tables.vector_table(space), &VECTOR_COLUMNS).await?;
    for (hash, vector) in vectors {
        copy.write_row(&[&hash, &vector_bytes(vector)]).await?;
    }
    copy.finish().await
}

/// Deletes the vectors that no chunk uses, if they outnumber the used vectors. A few unused vectors
/// are useful, because switching between branches needs them again. Fails if the database fails.
pub(super) async fn drop_unused_vectors(
    client: &Client,
    tables: &NamespaceTables,
    space: &VectorTable,
) -> Result<(), PostgresError> {
    let vectors = tables.vector_table(space);
    let chunks = tables.table("chunks");
    let sql = format!(
        "delete from {vectors} as it
        where (select count(*) from {vectors}) > 1000 + 2 * (select count(*) from {chunks})
        and not exists (select from {chunks} c where c.hash = it.hash)"
    );
    client.execute_typed(&sql, &[]).await?;
    Ok(())
}
