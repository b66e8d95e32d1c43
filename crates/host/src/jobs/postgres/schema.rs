//! Creates the tables, and migrates those of older versions.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use toolgate_postgres::PostgresError;

/// Migration scripts. Each one migrates the version equal to its index to the next version.
const MIGRATIONS: [&str; 1] = [include_str!("schema/1.sql")];
/// Keys of the advisory lock under which one server at a time migrates: `tgJ1`.
const MIGRATION_LOCK: (i32, i32) = (0x7467_4a31, 0);

/// Creates or migrates the tables of the schema `toolgate_fleet`, if needed.
pub(super) async fn migrate(client: &mut Client) -> Result<(), PostgresError> {
    if version(&*client).await? == MIGRATIONS.len() {
        return Ok(());
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
        let sql = "INSERT INTO toolgate_fleet.schema_version (number) VALUES ($1)";
        work.execute_typed(sql, &[(&latest as _, Type::INT4)]).await?;
    }
    Ok(work.commit().await?)
}

/// Returns the version of the tables; 0 if there are none.
async fn version(client: &impl GenericClient) -> Result<usize, PostgresError> {
    // Read from the tables of the catalog: `to_regclass` looks in a cache, which does not notice
    // within a transaction that another server has created the tables meanwhile.
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS it \
               JOIN pg_catalog.pg_namespace AS schema ON schema.oid = it.relnamespace \
               WHERE schema.nspname = 'toolgate_fleet' AND it.relname = 'schema_version')";
    if !client.query_typed_one(sql, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let sql = "SELECT number FROM toolgate_fleet.schema_version";
    let Some(row) = client.query_typed_opt(sql, &[]).await? else { return Ok(0) };
    let number: i32 = row.try_get(0)?;
    match usize::try_from(number) {
        Ok(version) if version <= MIGRATIONS.len() => Ok(version),
        Ok(_) | Err(_) => Err(PostgresError::Unusable(format!(
            "was set up by a newer toolgate (job schema {number}; this one supports {}); use the \
             newer toolgate, or another database",
            MIGRATIONS.len()
        ))),
    }
}
