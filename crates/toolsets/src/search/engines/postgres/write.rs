//! Writes into an index in PostgreSQL: one at a time, in transactions that hold all or nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_postgres::Client;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};
use toolgate_chunks::chunks;
use toolgate_search::ChunkHash;
use toolgate_search::rank::FIELDS;

use super::super::{Doing, EngineError, Put, Source, Writer};
use super::connections::{Connected, Shared};
use super::rows::{Row, clean, cleaned, sent, symbol};
use super::tables::{Tables, Vectors};
use super::trouble::Trouble;
use super::upkeep::Upkeep;

/// How long one step of writing may take: a large batch on a slow disk.
pub(super) const WRITE_WITHIN: Duration = Duration::from_secs(120);
/// After so many chunks were taken out, it is looked whether vectors are left over.
const LEFT_OVER: u64 = 2_000;

/// Where all that went well so far ends; what goes wrong goes back to it.
const MARK: &str = "release savepoint good; savepoint good";

/// The right to write, held by a connection.
pub(super) struct PostgresWriter {
    pub(super) connections: Shared,
    pub(super) connected: Connected,
    pub(super) tables: Arc<Tables>,
    pub(super) source: Source,
    pub(super) upkeep: Arc<Upkeep>,
    /// Whether a transaction is open.
    begun: bool,
    /// Whether a step began that has not ended well.
    half: bool,
    changes: Changes,
    taken_out: u64,
}

/// What the steps of a transaction changed in what is known of the whole index.
#[derive(Default)]
struct Changes {
    words: HashMap<String, i64>,
    chunks: i64,
    lengths: [i64; FIELDS],
    taken_out: u64,
}

impl Changes {
    fn add(&mut self, other: Self) {
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
            taken_out: 0,
        }
    }

    /// Begins a transaction where none is open, and undoes what an earlier step left half done.
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

    /// What is left to say of a step.
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

    async fn put_all(&mut self, documents: Vec<Put>) -> Result<Changes, Trouble> {
        self.begin().await?;
        let (client, tables) = (&self.connected.client, &self.tables);
        // The last of those at the same path holds.
        let documents: BTreeMap<String, Put> =
            documents.into_iter().map(|it| (it.path.clone(), it)).collect();
        let paths: Vec<String> = documents.keys().cloned().collect();
        if let Some(path) = paths.iter().find(|path| path.contains('\0')) {
            let path = path.replace('\0', "\\0");
            return Err(Trouble::Refused(format!("`{path}` has a NUL in its name")));
        }
        let mut changes = taken_out(client, tables, &paths).await?;
        put(client, tables, &documents, &mut changes).await?;
        if self.source == Source::Documents {
            keep(client, tables, &documents).await?;
        }
        client.batch_execute(MARK).await?;
        Ok(changes)
    }

    async fn remove_all(&mut self, paths: Vec<String>) -> Result<Changes, Trouble> {
        self.begin().await?;
        let (client, tables) = (&self.connected.client, &self.tables);
        let paths: Vec<String> = paths.into_iter().filter(|path| !path.contains('\0')).collect();
        let changes = taken_out(client, tables, &paths).await?;
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
        let (client, tables) = (&self.connected.client, &self.tables);
        let by_hash: BTreeMap<i64, Vec<f32>> =
            vectors.into_iter().map(|(hash, it)| (hash.0.cast_signed(), it)).collect();
        let hashes: Vec<i64> = by_hash.keys().copied().collect();
        let sql = format!("delete from {} where hash = any($1)", tables.vectors(&space));
        client.execute_typed(&sql, &[(&hashes, Type::INT8_ARRAY)]).await?;
        copy_vectors(client, tables, &space, by_hash).await?;
        client.batch_execute(MARK).await?;
        Ok(Changes::default())
    }

    /// Gives how many chunks there are.
    async fn commit_all(&mut self) -> Result<u64, Trouble> {
        if !self.begun {
            return Ok(0);
        }
        self.begin().await?;
        let (client, tables) = (&self.connected.client, &self.tables);
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
        self.changes = Changes::default();
        (self.begun, self.half) = (false, false);
        Ok(all.max(0).cast_unsigned())
    }
}

impl Writer for PostgresWriter {
    fn put(&mut self, documents: Vec<Put>) -> Doing<'_, ()> {
        Box::pin(async move {
            let connections = self.connections.clone();
            let came = connections.within(WRITE_WITHIN, self.put_all(documents)).await;
            self.ended(came)
        })
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
            let came = connections.within(WRITE_WITHIN, self.commit_all()).await;
            let chunks = came.map_err(|trouble| connections.told(&trouble))?;
            self.upkeep.look(&self.connections, &self.tables, chunks);
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
}

/// Takes the documents at `paths` out.
async fn taken_out(client: &Client, tables: &Tables, paths: &[String]) -> Result<Changes, Trouble> {
    let (documents, chunks) = (tables.of("documents"), tables.of("chunks"));
    let mut changes = Changes::default();
    let sql = format!("select id from {documents} where path = any($1)");
    let found = client.query_typed(&sql, &[(&paths, Type::TEXT_ARRAY)]).await?;
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
    let sql = format!("delete from {documents} where id = any($1)");
    client.execute_typed(&sql, &given).await?;
    Ok(changes)
}

/// Puts `documents`, at whose paths there are none.
async fn put(
    client: &Client,
    tables: &Tables,
    documents: &BTreeMap<String, Put>,
    changes: &mut Changes,
) -> Result<(), Trouble> {
    let rows: Vec<(&Put, Vec<Row<'_>>)> = documents
        .values()
        .map(|put| (put, put.chunks.iter().map(|chunk| Row::of(put, chunk)).collect()))
        .collect();
    let wanted: usize = rows.iter().map(|(_, chunks)| 1 + chunks.len()).sum();
    let mut ids = ids(client, tables, wanted).await?.into_iter();
    let mut id = || ids.next().unwrap_or_default();
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(put, rows)| {
            let document = id();
            let rows: Vec<_> = rows.into_iter().map(|row| (id(), row)).collect();
            (document, put, rows)
        })
        .collect();

    let mut copy = Copying::begin(client, &tables.of("documents"), &DOCUMENT).await?;
    for (id, put, _) in &rows {
        let Put { path, stamp, etag, commit, lang, tags, .. } = put;
        let (etag, tags) = (clean(etag), cleaned(tags));
        let (commit, lang) = (commit.as_deref().map(clean), lang.as_deref().map(clean));
        let folded: Vec<String> = tags.iter().map(|tag| tag.to_ascii_lowercase()).collect();
        copy.row(&[id, path, stamp, &etag, &commit, &lang, &tags, &folded]).await?;
    }
    copy.end().await?;

    let mut copy = Copying::begin(client, &tables.of("chunks"), &CHUNK).await?;
    for (document, _, rows) in &rows {
        for (id, row) in rows {
            let Row { chunk, hash, texts, lengths, words, distinct, .. } = row;
            let line = |line: u32| i32::try_from(line).unwrap_or(i32::MAX);
            let (first, last, kind) = (line(chunk.first), line(chunk.last), chunk.kind as i16);
            let (names, within) = (cleaned(&chunk.names), cleaned(&chunk.within));
            let head = clean(&chunk.head);
            copy.row(&[
                id, document, hash, &first, &last, &kind, &names, &within, &head, lengths, texts,
                words,
            ])
            .await?;
            changes.chunks += 1;
            for (sum, length) in changes.lengths.iter_mut().zip(lengths) {
                *sum += i64::from(*length);
            }
            for word in distinct {
                match changes.words.get_mut(word) {
                    Some(holding) => *holding += 1,
                    None => drop(changes.words.insert(word.clone(), 1)),
                }
            }
        }
    }
    copy.end().await?;

    let mut copy = Copying::begin(client, &tables.of("names"), &NAME).await?;
    for (id, row) in rows.iter().flat_map(|(_, _, rows)| rows) {
        let symbols: HashSet<String> = row.chunk.names.iter().map(|name| symbol(name)).collect();
        for symbol in symbols.into_iter().filter(|symbol| !symbol.is_empty()) {
            copy.row(&[id, &symbol]).await?;
        }
    }
    copy.end().await?;

    let mut near = BTreeMap::new();
    for (_, row) in rows.into_iter().flat_map(|(_, _, rows)| rows) {
        if let Some(vector) = row.near {
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

async fn copy_vectors(
    client: &Client,
    tables: &Tables,
    space: &Vectors,
    vectors: BTreeMap<i64, Vec<f32>>,
) -> Result<(), Trouble> {
    let mut copy = Copying::begin(client, &tables.vectors(space), &VECTOR).await?;
    for (hash, vector) in vectors {
        copy.row(&[&hash, &sent(&vector)]).await?;
    }
    copy.end().await
}

/// Takes out the vectors that no chunk has, where they are more than those that one has: what was
/// there before a branch was switched is wanted again.
async fn drop_left_over(client: &Client, tables: &Tables, space: &Vectors) -> Result<(), Trouble> {
    let (vectors, chunks) = (tables.vectors(space), tables.of("chunks"));
    let sql = format!(
        "delete from {vectors} as it
        where (select count(*) from {vectors}) > 1000 + 2 * (select count(*) from {chunks})
        and not exists (select from {chunks} c where c.hash = it.hash)"
    );
    client.execute_typed(&sql, &[]).await?;
    Ok(())
}

/// Columns, in order, and their types as they are sent. What has a type of PostgreSQL's own or of
/// pgvector's is sent as the bytes that it is.
type Columns = [(&'static str, Type)];

const DOCUMENT: [(&str, Type); 8] = [
    ("id", Type::INT8),
    ("path", Type::TEXT),
    ("stamp", Type::BYTEA),
    ("etag", Type::TEXT),
    ("committed", Type::TEXT),
    ("lang", Type::TEXT),
    ("tags", Type::TEXT_ARRAY),
    ("folded", Type::TEXT_ARRAY),
];
const CHUNK: [(&str, Type); 12] = [
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
const NAME: [(&str, Type); 2] = [("chunk", Type::INT8), ("symbol", Type::TEXT)];
const VECTOR: [(&str, Type); 2] = [("hash", Type::INT8), ("vector", Type::BYTEA)];

/// Rows on their way into a table.
struct Copying(std::pin::Pin<Box<BinaryCopyInWriter>>);

impl Copying {
    async fn begin(client: &Client, table: &str, columns: &Columns) -> Result<Self, Trouble> {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let sql = format!("copy {table} ({}) from stdin (format binary)", names.join(", "));
        let types: Vec<Type> = columns.iter().map(|(_, of)| of.clone()).collect();
        let sink = client.copy_in(&sql).await?;
        Ok(Self(Box::pin(BinaryCopyInWriter::new(sink, &types))))
    }

    async fn row(&mut self, values: &[&(dyn ToSql + Sync)]) -> Result<(), Trouble> {
        Ok(self.0.as_mut().write(values).await?)
    }

    async fn end(mut self) -> Result<(), Trouble> {
        self.0.as_mut().finish().await?;
        Ok(())
    }
}

/// A document as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    path: String,
    stamp: Vec<u8>,
    etag: String,
    commit: Option<String>,
    lang: Option<String>,
    tags: Vec<String>,
    text: String,
    metadata: Map<String, Value>,
}

async fn keep(
    client: &Client,
    tables: &Tables,
    documents: &BTreeMap<String, Put>,
) -> Result<(), Trouble> {
    let sql = "insert into toolgate_search.kept
        select $1, * from unnest($2::text[], $3::bytea[])
        on conflict (namespace, path) do update set document = excluded.document";
    let written = |put: &Put| {
        let Put { path, stamp, etag, commit, lang, tags, text, metadata, .. } = put.clone();
        let kept = Kept { path, stamp, etag, commit, lang, tags, text, metadata };
        serde_json::to_vec(&kept).map_err(|err| Trouble::Refused(err.to_string()))
    };
    let paths: Vec<&String> = documents.keys().collect();
    let written: Vec<Vec<u8>> = documents.values().map(written).collect::<Result<_, _>>()?;
    let given: [(&(dyn ToSql + Sync), Type); 3] = [
        (&tables.namespace, Type::INT4),
        (&paths, Type::TEXT_ARRAY),
        (&written, Type::BYTEA_ARRAY),
    ];
    client.execute_typed(sql, &given).await?;
    Ok(())
}

/// The documents that are kept: the one at `path`, or all.
pub(super) async fn kept(
    client: &Client,
    tables: &Tables,
    path: Option<&str>,
) -> Result<Vec<Put>, Trouble> {
    let sql = "select document from toolgate_search.kept
        where namespace = $1 and path = coalesce($2, path)";
    let given: [(&(dyn ToSql + Sync), Type); 2] =
        [(&tables.namespace, Type::INT4), (&path, Type::TEXT)];
    let rows = client.query_typed(sql, &given).await?;
    let read = |row: &tokio_postgres::Row| {
        let kept: Kept = serde_json::from_slice(row.get(0)).ok()?;
        let Kept { path, stamp, etag, commit, lang, tags, text, metadata } = kept;
        // The stamp of such a document says as what its text is cut.
        let chunks = chunks(&String::from_utf8_lossy(&stamp), &text);
        Some(Put { path, stamp, etag, commit, lang, tags, text, chunks, metadata })
    };
    Ok(rows.iter().filter_map(read).collect())
}
