//! Puts documents into the tables of a namespace and removes them.

use std::collections::{BTreeMap, HashMap, HashSet};

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use toolgate_chunks::Chunk;
use toolgate_search::rank::FIELDS;

use super::super::Put;
use super::copying::{CHUNK, Copying, DOCUMENT, NAME, VECTOR};
use super::rows::{Row, Written, clean, cleaned, key, sent, symbol};
use super::tables::{Tables, Vectors};
use super::trouble::Trouble;

/// The changes of a transaction to the statistics of the index.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) words: HashMap<String, i64>,
    pub(super) chunks: i64,
    pub(super) lengths: [i64; FIELDS],
    pub(super) taken_out: u64,
}

impl Changes {
    /// Returns the changes by putting `documents` at empty paths.
    pub(super) fn by(documents: &[Written]) -> Self {
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
        self.taken_out += other.taken_out;
        for (sum, by) in self.lengths.iter_mut().zip(other.lengths) {
            *sum += by;
        }
    }
}

/// Removes the documents at `paths`.
pub(super) async fn taken_out(
    client: &Client,
    tables: &Tables,
    paths: impl Iterator<Item = &str>,
) -> Result<Changes, Trouble> {
    let [documents, chunks, names] = ["documents", "chunks", "names"].map(|name| tables.of(name));
    let mut changes = Changes::default();
    let keys: Vec<Vec<u8>> = paths.map(key).collect();
    let sql = format!("select id from {documents} where key = any($1)");
    let found = client.query_typed(&sql, &[(&keys, Type::BYTEA_ARRAY)]).await?;
    let ids: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
    if ids.is_empty() {
        return Ok(changes);
    }
    let given: [(&(dyn ToSql + Sync), Type); 1] = [(&ids, Type::INT8_ARRAY)];
    let sums: Vec<String> =
        (1..=FIELDS).map(|at| format!("coalesce(sum(lengths[{at}]), 0)::bigint")).collect();
    let sql =
        format!("select count(*), {} from {chunks} where document = any($1)", sums.join(", "));
    let row = client.query_typed_one(&sql, &given).await?;
    let gone: i64 = row.get(0);
    changes.chunks = -gone;
    changes.taken_out = gone.cast_unsigned();
    for (at, length) in changes.lengths.iter_mut().enumerate() {
        *length = -row.get::<_, i64>(at + 1);
    }
    let sql = format!(
        "select word, count(*) from {chunks}, unnest(tsvector_to_array(words)) word
        where document = any($1) group by word"
    );
    for row in client.query_typed(&sql, &given).await? {
        changes.words.insert(row.get(0), -row.get::<_, i64>(1));
    }
    for sql in [
        format!("delete from {names} using {chunks} c where chunk = c.id and document = any($1)"),
        format!("delete from {chunks} where document = any($1)"),
        format!("delete from {documents} where id = any($1)"),
    ] {
        client.execute_typed(&sql, &given).await?;
    }
    Ok(changes)
}

/// Puts `documents` at empty paths.
pub(super) async fn put(
    client: &Client,
    tables: &Tables,
    documents: &[Written],
) -> Result<(), Trouble> {
    let wanted: usize = documents.iter().map(|it| 1 + it.rows.len()).sum();
    let mut ids = ids(client, tables, wanted).await?.into_iter();
    let mut id = || ids.next().unwrap_or_default();
    let numbered: Vec<(i64, &Written)> = documents.iter().map(|it| (id(), it)).collect();
    let chunks: Vec<(i64, i64, &Chunk, &Row)> = numbered
        .iter()
        .flat_map(|(document, it)| it.put.chunks.iter().zip(&it.rows).map(move |it| (document, it)))
        .map(|(document, (chunk, row))| (id(), *document, chunk, row))
        .collect();

    let mut copy = Copying::begin(client, &tables.of("documents"), &DOCUMENT).await?;
    for (id, Written { put, .. }) in &numbered {
        let Put { path, stamp, etag, commit, lang, tags, .. } = put;
        let etag = clean(etag);
        let tags = cleaned(tags);
        let commit = commit.as_deref().map(clean);
        let lang = lang.as_deref().map(clean);
        let folded: Vec<String> = tags.iter().map(|tag| tag.to_ascii_lowercase()).collect();
        copy.row(&[id, &key(path), path, stamp, &etag, &commit, &lang, &tags, &folded]).await?;
    }
    copy.end().await?;

    let mut copy = Copying::begin(client, &tables.of("chunks"), &CHUNK).await?;
    for (id, document, chunk, row) in &chunks {
        let Row { hash, texts, lengths, words, .. } = row;
        let line = |line: u32| i32::try_from(line).unwrap_or(i32::MAX);
        let first = line(chunk.first);
        let last = line(chunk.last);
        let kind = chunk.kind as i16;
        let names = cleaned(&chunk.names);
        let within = cleaned(&chunk.within);
        let head = clean(&chunk.head);
        copy.row(&[
            id, document, hash, &first, &last, &kind, &names, &within, &head, lengths, texts, words,
        ])
        .await?;
    }
    copy.end().await?;

    let mut copy = Copying::begin(client, &tables.of("names"), &NAME).await?;
    for (id, _, chunk, _) in &chunks {
        let symbols: HashSet<String> = chunk.names.iter().map(|name| symbol(name)).collect();
        for symbol in symbols.into_iter().filter(|symbol| !symbol.is_empty()) {
            copy.row(&[id, &symbol]).await?;
        }
    }
    copy.end().await?;

    let mut near: BTreeMap<i64, &[f32]> = BTreeMap::new();
    for (_, _, _, row) in &chunks {
        if let Some(vector) = &row.near {
            near.insert(row.hash, vector);
        }
    }
    let hashes: Vec<i64> = near.keys().copied().collect();
    let sql = format!("select hash from {} where hash = any($1)", tables.vectors(&tables.near));
    for row in client.query_typed(&sql, &[(&hashes, Type::INT8_ARRAY)]).await? {
        near.remove(&row.get::<_, i64>(0));
    }
    copy_vectors(client, tables, &tables.near, near).await
}

async fn ids(client: &Client, tables: &Tables, wanted: usize) -> Result<Vec<i64>, Trouble> {
    let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
    let sql = format!("select nextval('{}') from generate_series(1, $1)", tables.of("ids"));
    let rows = client.query_typed(&sql, &[(&wanted, Type::INT8)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub(super) async fn copy_vectors(
    client: &Client,
    tables: &Tables,
    space: &Vectors,
    vectors: BTreeMap<i64, &[f32]>,
) -> Result<(), Trouble> {
    let mut copy = Copying::begin(client, &tables.vectors(space), &VECTOR).await?;
    for (hash, vector) in vectors {
        copy.row(&[&hash, &sent(vector)]).await?;
    }
    copy.end().await
}

/// Deletes the vectors that no chunk uses, if they outnumber the used ones. Some are kept because
/// switching branches back needs them again.
pub(super) async fn drop_left_over(
    client: &Client,
    tables: &Tables,
    space: &Vectors,
) -> Result<(), Trouble> {
    let vectors = tables.vectors(space);
    let chunks = tables.of("chunks");
    let sql = format!(
        "delete from {vectors} as it
        where (select count(*) from {vectors}) > 1000 + 2 * (select count(*) from {chunks})
        and not exists (select from {chunks} c where c.hash = it.hash)"
    );
    client.execute_typed(&sql, &[]).await?;
    Ok(())
}
