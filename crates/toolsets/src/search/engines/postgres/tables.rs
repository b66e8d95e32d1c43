//! Creates, checks and recreates the tables of an index in PostgreSQL.
//!
//! Each namespace has its own tables, so that its size does not slow down other namespaces. All
//! tables can be rebuilt, except the table `kept` with the documents that callers stored.

use std::time::Instant;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use toolgate_search::{VectorSpace, static_model};

use super::super::{IndexOpenOutcome, NamespaceDocumentSource, SearchNamespaceIdentity};
use super::WRITER_GONE_MAX;
use super::error::PostgresError;
use super::rows::short_name;

/// The version of the database schema that this server creates and reads.
pub(super) const SCHEMA: i32 = 2;
/// The first key of all advisory locks of toolgate. The second key is the number of the namespace,
/// or [`SCHEMA_LOCK`].
const LOCKS: i32 = 0x7467_7331;
/// The second key of the advisory lock that a server holds while it creates or changes the tables.
const SCHEMA_LOCK: i32 = 0;

/// The SQL script that creates the tables that all namespaces share. Running it again has no
/// effect.
const SHARED: &str = "
create table if not exists toolgate_search.version (number int not null);
create table if not exists toolgate_search.namespaces (
    id int generated always as identity primary key,
    workspace text not null,
    name text not null,
    source text not null,
    form text not null default '',
    chunks bigint not null default 0,
    lengths bigint[] not null default '{0,0,0,0,0,0}',
    unique (workspace, name, source)
);
create table if not exists toolgate_search.spaces (
    id int generated always as identity primary key,
    model text not null,
    dimensions int not null,
    unique (model, dimensions)
);
create table if not exists toolgate_search.kept (
    namespace int not null references toolgate_search.namespaces (id) on delete cascade,
    path text not null,
    document bytea not null,
    primary key (namespace, path)
);
delete from toolgate_search.version;
";

/// The database tables of one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamespaceTables {
    pub(super) namespace: i32,
    /// The quoted name of the database schema that contains pgvector.
    vector_schema: String,
    pub(super) near: VectorTable,
    pub(super) model: Option<VectorTable>,
}

/// The table with the vectors of one namespace in one vector space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VectorTable {
    space: i32,
    pub(super) dimensions: usize,
}

impl NamespaceTables {
    /// Returns the qualified name of the table `name` of this namespace.
    pub(super) fn table(&self, name: &str) -> String {
        format!("toolgate_search.{name}_{}", self.namespace)
    }

    /// Returns the qualified name of the table with the vectors of a vector space.
    pub(super) fn vector_table(&self, of: &VectorTable) -> String {
        self.table(&format!("vectors_{}", of.space))
    }

    /// Returns the qualified name of pgvector's `vector` type.
    pub(super) fn vector_type(&self) -> String {
        format!("{}.vector", self.vector_schema)
    }

    /// Returns the qualified name of pgvector's operator for the negative inner product. A smaller
    /// value means more similar vectors.
    pub(super) fn distance_operator(&self) -> String {
        format!("operator({}.<#>)", self.vector_schema)
    }

    /// Returns the keys of the advisory lock that the writer of this namespace holds.
    pub(super) fn lock_keys(&self) -> (i32, i32) {
        (LOCKS, self.namespace)
    }

    /// Returns the unqualified name of the approximate index over the vectors of a vector space.
    pub(super) fn approximate_index(&self, of: &VectorTable) -> String {
        format!("near_{}_{}", of.space, self.namespace)
    }

    fn create(&self) -> String {
        let [documents, chunks, names, words, ids] =
            ["documents", "chunks", "names", "words", "ids"].map(|name| self.table(name));
        let mut sql = format!(
            "create sequence if not exists {ids};
            create table {documents} (
                id bigint primary key,
                key bytea not null unique,
                path text collate \"C\" not null,
                stamp bytea not null,
                etag text not null,
                committed text,
                lang text,
                tags text[] not null,
                folded text[] not null
            );
            create table {chunks} (
                id bigint primary key,
                document bigint not null,
                hash bigint not null,
                first int not null,
                last int not null,
                kind smallint not null,
                names text[] not null,
                within text[] not null,
                head text not null,
                lengths int[] not null,
                texts text[] not null,
                words tsvector not null
            );
            create index chunks_of_{id} on {chunks} (document);
            create index chunks_hash_{id} on {chunks} (hash);
            create index chunks_words_{id} on {chunks} using gin (words);
            create table {names} (
                chunk bigint not null,
                symbol text collate \"C\" not null,
                primary key (symbol, chunk)
            );
            create index names_of_{id} on {names} (chunk);
            create table {words} (
                word text collate \"C\" primary key,
                holding bigint not null
            );",
            id = self.namespace,
        );
        for vectors in self.spaces() {
            sql += &self.create_vectors(vectors);
        }
        sql
    }

    fn create_vectors(&self, vectors: &VectorTable) -> String {
        let table = self.vector_table(vectors);
        // Vectors in TOAST storage would be fetched one by one.
        let plain = if vectors.dimensions <= 1_900 {
            format!("alter table {table} alter vector set storage plain;")
        } else {
            String::new()
        };
        let vector = self.vector_type();
        let dimensions = vectors.dimensions;
        format!(
            "create table {table} (hash bigint primary key, vector {vector}({dimensions}) not null);
            {plain}"
        )
    }

    fn spaces(&self) -> impl Iterator<Item = &VectorTable> {
        [Some(&self.near), self.model.as_ref()].into_iter().flatten()
    }

    /// Returns false if a table of the namespace other than those for vectors is missing. Otherwise
    /// creates missing tables for vectors and returns true. Fails if the database fails.
    async fn create_missing(&self, client: &impl GenericClient) -> Result<bool, PostgresError> {
        for name in ["ids", "documents", "chunks", "names", "words"] {
            if !table_exists(client, &self.table(name)).await? {
                return Ok(false);
            }
        }
        for vectors in self.spaces() {
            if !table_exists(client, &self.vector_table(vectors)).await? {
                client.batch_execute(&self.create_vectors(vectors)).await?;
            }
        }
        Ok(true)
    }

    /// Drops and recreates the tables of the namespace, except the table with callers' documents.
    /// Fails if the database fails.
    pub(super) async fn recreate(&self, client: &impl GenericClient) -> Result<(), PostgresError> {
        let suffix = format!("%\\_{}", self.namespace);
        let found = client
            .query_typed(
                "select format('%I.%I', schemaname, tablename) from pg_tables
                where schemaname = 'toolgate_search' and tablename like $1
                and tablename ~ '^(documents|chunks|names|words|vectors_[0-9]+)_[0-9]+$'",
                &[(&suffix, Type::TEXT)],
            )
            .await?;
        let mut sql: String = found
            .iter()
            .map(|row| format!("drop table {} cascade;", row.get::<_, &str>(0)))
            .collect();
        sql += &self.create();
        sql += &format!(
            "update toolgate_search.namespaces
            set form = '{}', chunks = 0, lengths = '{{0,0,0,0,0,0}}' where id = {};",
            index_form(),
            self.namespace
        );
        client.batch_execute(&sql).await?;
        Ok(())
    }
}

/// Returns a text that identifies the schema version and the static model. An index with a
/// different text is rebuilt.
fn index_form() -> String {
    let near = static_model::space();
    format!("{SCHEMA} {} {}", near.model, near.dimensions).replace('\'', "")
}

/// Prepares the tables for the namespace `identity` of the workspace `workspace`, with vectors of
/// the space `model`. Fails if the database fails or has the schema of a newer toolgate.
pub(super) async fn prepare_tables(
    client: &mut Client,
    workspace: &str,
    identity: &SearchNamespaceIdentity,
    model: Option<&VectorSpace>,
) -> Result<(NamespaceTables, IndexOpenOutcome), PostgresError> {
    let vector = prepare_shared(client).await?;
    let work = client.transaction().await?;
    let SearchNamespaceIdentity { namespace, source, .. } = identity;
    let namespace = &short_name(namespace);
    let source = match source {
        NamespaceDocumentSource::Files => "files",
        NamespaceDocumentSource::Documents => "documents",
    };
    let params =
        [(&workspace as _, Type::TEXT), (namespace as _, Type::TEXT), (&source as _, Type::TEXT)];
    work.execute_typed(
        "insert into toolgate_search.namespaces (workspace, name, source) values ($1, $2, $3)
        on conflict do nothing",
        &params,
    )
    .await?;
    let row = work
        .query_typed_one(
            "select id, form from toolgate_search.namespaces
            where workspace = $1 and name = $2 and source = $3",
            &params,
        )
        .await?;
    let (id, form): (i32, String) = (row.get(0), row.get(1));
    let near = register_space(&work, &static_model::space()).await?;
    let model = match model {
        Some(model) => Some(register_space(&work, model).await?),
        None => None,
    };
    let tables = NamespaceTables { namespace: id, vector_schema: vector, near, model };
    let outcome = if form == index_form() && tables.create_missing(&work).await? {
        IndexOpenOutcome::Existing
    } else {
        if !is_free(&work, &tables).await? {
            return Err(PostgresError::Unusable(
                "is being written by another version of toolgate; stop that server, update this \
                 server, or set another `workspace` for this server"
                    .to_owned(),
            ));
        }
        tables.recreate(&work).await?;
        if form.is_empty() {
            IndexOpenOutcome::Created
        } else if form == index_form() {
            IndexOpenOutcome::Rebuilt("some of its tables were missing".to_owned())
        } else {
            IndexOpenOutcome::Rebuilt("another version of toolgate created it".to_owned())
        }
    };
    work.commit().await?;
    Ok((tables, outcome))
}

/// Returns true if no process holds the write lock of the namespace. If so, no process can acquire
/// this lock until the transaction `work` ends. Waits until the database server notices that a
/// writer is gone. Fails if the database fails.
async fn is_free(
    work: &impl GenericClient,
    tables: &NamespaceTables,
) -> Result<bool, PostgresError> {
    let (class, key) = tables.lock_keys();
    let sql = "select pg_try_advisory_xact_lock($1, $2)";
    let until = Instant::now() + WRITER_GONE_MAX;
    loop {
        let params = [(&class as _, Type::INT4), (&key as _, Type::INT4)];
        let is_free = work.query_typed_one(sql, &params).await?.get(0);
        if is_free || Instant::now() > until {
            return Ok(is_free);
        }
        tokio::time::sleep(WRITER_GONE_MAX / 50).await;
    }
}

/// Returns the names of the namespaces of documents of `workspace` that are not empty. Fails if the
/// database fails.
pub(super) async fn document_namespaces(
    client: &Client,
    workspace: &str,
) -> Result<Vec<String>, PostgresError> {
    if !table_exists(client, "toolgate_search.kept").await? {
        return Ok(Vec::new());
    }
    let sql = "select name from toolgate_search.namespaces n
        where workspace = $1 and source = 'documents'
        and exists (select from toolgate_search.kept k where k.namespace = n.id) order by name";
    let rows = client.query_typed(sql, &[(&workspace, Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Prepares the shared tables, and returns the quoted name of the schema that contains pgvector.
/// Fails if the database fails, lacks pgvector or has the schema of a newer toolgate.
async fn prepare_shared(client: &mut Client) -> Result<String, PostgresError> {
    const VECTOR: &str = "select quote_ident(nspname) from pg_extension
        join pg_namespace on pg_namespace.oid = extnamespace where extname = 'vector'";
    let number = schema_version(client).await?;
    if let Some(number) = number.filter(|number| *number > SCHEMA) {
        return Err(PostgresError::Unusable(format!(
            "has an index of a newer toolgate (schema {number}; this one supports {SCHEMA}); \
             update this toolgate, or set another database"
        )));
    }
    let vector = client.query_typed_opt(VECTOR, &[]).await?;
    if let Some(vector) = vector.filter(|_| number == Some(SCHEMA)) {
        return Ok(vector.get(0));
    }
    let work = client.transaction().await?;
    // If several servers start at once, one of them creates the tables.
    work.batch_execute(&format!("select pg_advisory_xact_lock({LOCKS}, {SCHEMA_LOCK})")).await?;
    let is_available = "select 1 from pg_available_extensions where name = 'vector'";
    if work.query_typed_opt(is_available, &[]).await?.is_none() {
        return Err(PostgresError::Unusable(
            "has no pgvector; install that extension on the server, or set another `search.engine`"
                .to_owned(),
        ));
    }
    // Creating something that exists would still require rights to create it.
    for (exists, create) in [
        (VECTOR, "create extension vector"),
        (
            "select nspname from pg_namespace where nspname = 'toolgate_search'",
            "create schema toolgate_search",
        ),
    ] {
        if work.query_typed_opt(exists, &[]).await?.is_none() {
            work.batch_execute(create).await?;
        }
    }
    let script = format!("{SHARED} insert into toolgate_search.version values ({SCHEMA});");
    work.batch_execute(&script).await?;
    let vector = work.query_typed_one(VECTOR, &[]).await?;
    work.commit().await?;
    Ok(vector.get(0))
}

async fn table_exists(client: &impl GenericClient, table: &str) -> Result<bool, PostgresError> {
    let sql = "select to_regclass($1) is not null";
    let row = client.query_typed_one(sql, &[(&table, Type::TEXT)]).await?;
    Ok(row.get(0))
}

/// Returns the version of toolgate's schema in the database. Returns `None` if the schema does not
/// exist. Fails if the database fails.
async fn schema_version(client: &Client) -> Result<Option<i32>, PostgresError> {
    if !table_exists(client, "toolgate_search.version").await? {
        return Ok(None);
    }
    let number = client.query_typed_opt("select number from toolgate_search.version", &[]).await?;
    Ok(number.map(|row| row.get(0)))
}

async fn register_space(
    client: &impl GenericClient,
    space: &VectorSpace,
) -> Result<VectorTable, PostgresError> {
    let dimensions = i32::try_from(space.dimensions).unwrap_or(i32::MAX);
    if dimensions > 16_000 {
        return Err(PostgresError::Unusable(format!(
            "supports vectors of at most 16000 numbers, and vectors of `{}` have {dimensions}; use \
             another model, or another `search.engine`",
            space.model
        )));
    }
    let model = short_name(&space.model);
    let params = [(&model as _, Type::TEXT), (&dimensions as _, Type::INT4)];
    client
        .execute_typed(
            "insert into toolgate_search.spaces (model, dimensions) values ($1, $2)
            on conflict do nothing",
            &params,
        )
        .await?;
    let row = client
        .query_typed_one(
            "select id from toolgate_search.spaces where model = $1 and dimensions = $2",
            &params,
        )
        .await?;
    Ok(VectorTable { space: row.get(0), dimensions: space.dimensions })
}
