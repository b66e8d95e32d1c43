//! Creates the tables, and migrates those of older versions.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use toolgate_postgres::PostgresError;

/// SQL scripts that migrate the tables. Each one migrates the version equal to its index to the
/// next version.
const MIGRATIONS: [&str; 4] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
];
/// Minimum version of the tables that another toolgate must know in order to use the tables that
/// this toolgate creates.
const MIN_VERSION: i32 = 2;
/// Keys of the advisory lock under which only one server at a time migrates the tables: `tgJ1`.
const MIGRATION_LOCK: (i32, i32) = (0x7467_4a31, 0);

/// Creates or migrates the tables of the schema `toolgate_fleet`, if needed. Returns the versions
/// of the tables before and after.
///
/// Tables of a newer toolgate stay unchanged. This toolgate uses them if they are marked as
/// compatible, so that servers of both versions run side by side during an upgrade.
pub(super) async fn migrate(client: &mut Client) -> Result<(usize, usize), PostgresError> {
    let found = version(&*client).await?;
    if found >= MIGRATIONS.len() {
        return Ok((found, found));
    }
    let work = client.transaction().await?;
    // The lock ends with the transaction, so it works behind a pooler as well.
    let (class, key) = MIGRATION_LOCK;
    let sql = "SELECT pg_advisory_xact_lock($1, $2)";
    work.query_typed(sql, &[(&class as _, Type::INT4), (&key as _, Type::INT4)]).await?;
    let version = version(&work).await?;
    if version < MIGRATIONS.len() {
        work.batch_execute(
            "CREATE SCHEMA IF NOT EXISTS toolgate_fleet; \
             CREATE TABLE IF NOT EXISTS toolgate_fleet.schema_version (number int NOT NULL)",
        )
        .await?;
        for step in &MIGRATIONS[version..] {
            work.batch_execute(step).await?;
        }
        work.batch_execute("DELETE FROM toolgate_fleet.schema_version").await?;
        let latest = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
        let sql = "INSERT INTO toolgate_fleet.schema_version (number, min_version) VALUES ($1, $2)";
        let params = [(&latest as _, Type::INT4), (&MIN_VERSION as _, Type::INT4)];
        work.execute_typed(sql, &params).await?;
    }
    work.commit().await?;
    Ok((version, version.max(MIGRATIONS.len())))
}

/// Returns the newest version of the job store's tables that this toolgate knows.
pub(super) fn latest() -> usize {
    MIGRATIONS.len()
}

/// Returns the version of the job store's tables; 0 if there are none.
///
/// # Errors
/// The tables are so new that this toolgate cannot use them.
pub(super) async fn version(client: &impl GenericClient) -> Result<usize, PostgresError> {
    // Read from the tables of the catalog: `to_regclass` looks in a cache, which does not notice
    // within a transaction that another server has created the tables meanwhile.
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS it \
               JOIN pg_catalog.pg_namespace AS schema ON schema.oid = it.relnamespace \
               WHERE schema.nspname = 'toolgate_fleet' AND it.relname = 'schema_version')";
    if !client.query_typed_one(sql, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    // As JSON, because tables of version 1 have no `min_version`.
    let sql = "SELECT number, coalesce((to_json(stored)->>'min_version')::int, number) \
               FROM toolgate_fleet.schema_version AS stored";
    let Some(row) = client.query_typed_opt(sql, &[]).await? else { return Ok(0) };
    let (number, min_version): (i32, i32) = (row.try_get(0)?, row.try_get(1)?);
    match (usize::try_from(number), usize::try_from(min_version)) {
        (Ok(version), Ok(min_version)) if min_version <= MIGRATIONS.len() => Ok(version),
        (_, _) => Err(PostgresError::Unusable(format!(
            "was set up by a newer toolgate (job schema {number}; this one supports {}); use the \
             newer toolgate, or another database",
            MIGRATIONS.len()
        ))),
    }
}
