//! Shows and drains the servers of a fleet, and migrates its tables, for `toolgate fleet`.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use toolgate_postgres::{PostgresConnectionPool, PostgresError};

use super::changes::offer_jobs;
use super::{
    CONNECTIONS_MAX, JobStoreError, MIGRATION_TIMEOUT, PostgresStoreSettings, STATEMENT_TIMEOUT,
    schema,
};
use crate::jobs::stored_form::parse_json;

/// The servers and unfinished jobs of one workspace of a fleet.
#[derive(Debug, Clone)]
pub struct FleetStatus {
    /// Name of the database, as messages show it.
    pub database: String,
    /// Version of the job store's tables.
    pub schema: usize,
    /// Number of jobs that wait to run.
    pub waiting: i64,
    /// Number of running jobs.
    pub running: i64,
    /// Time in seconds for which the oldest waiting job has waited.
    pub oldest_waiting_s: Option<f64>,
    /// Tools whose waiting jobs no live server can run, with the numbers of these jobs.
    pub unserved: Vec<(String, i64)>,
    /// Servers that have not left the fleet, in order of name.
    pub servers: Vec<FleetServerStatus>,
}

/// A server of a fleet and its load.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetServerStatus {
    /// Id of the server, which changes with each start.
    pub id: i64,
    /// Name of the machine on which the server runs.
    pub name: String,
    /// Role of the server: `server`, `front` or `worker`.
    pub kind: String,
    /// Version of toolgate that the server runs.
    pub version: String,
    /// Digests of the server's settings, by the name of the section.
    pub settings: BTreeMap<String, String>,
    /// True if the server begins no further jobs.
    pub draining: bool,
    /// True if the server's lease has not ended.
    pub alive: bool,
    /// Time in seconds since the server last renewed its lease.
    pub heartbeat_s: f64,
    /// Number of jobs that run at the server.
    pub running: i64,
    /// Number of jobs that wait at the server.
    pub waiting: i64,
}

impl FleetStatus {
    /// Connects to the database and reads the status of the fleet. Creates and migrates nothing.
    ///
    /// # Errors
    /// The database is unavailable, or has no tables that this toolgate can use.
    pub async fn read(settings: PostgresStoreSettings) -> Result<Self, JobStoreError> {
        let PostgresStoreSettings { address, workspace, .. } = settings;
        let pool = PostgresConnectionPool::new(address, CONNECTIONS_MAX, STATEMENT_TIMEOUT);
        let lent = pool.acquire().await?;
        let work = read_status(&lent.connection.client, &workspace);
        let result = pool.with_timeout(pool.query_timeout, work).await;
        let mut status = lent.give_back(result)?;
        pool.display_name().clone_into(&mut status.database);
        Ok(status)
    }

    /// Asks servers to begin no further jobs, and returns the ids of these servers. Selects the
    /// servers whose machine has the name `selected`. If there are none, selects those whose id
    /// begins with `selected`. `None` selects all servers.
    ///
    /// # Errors
    /// The database is unavailable, or has no tables that this toolgate can use.
    pub async fn drain(
        settings: PostgresStoreSettings,
        selected: Option<&str>,
    ) -> Result<Vec<i64>, JobStoreError> {
        let PostgresStoreSettings { address, workspace, .. } = settings;
        let pool = PostgresConnectionPool::new(address, CONNECTIONS_MAX, STATEMENT_TIMEOUT);
        let lent = pool.acquire().await?;
        let work = mark_draining(&lent.connection.client, &workspace, selected);
        let result = pool.with_timeout(pool.query_timeout, work).await;
        let marked = lent.give_back(result)?;
        // Servers with free places look at once, and others at their next heartbeat.
        offer_jobs(&pool, &workspace).await;
        Ok(marked)
    }

    /// Creates the job store's tables or migrates them to the newest version that this toolgate
    /// has. Returns the versions before and after.
    ///
    /// # Errors
    /// The database is unavailable, refuses this user, or was set up by a newer toolgate.
    pub async fn migrate(settings: PostgresStoreSettings) -> Result<(usize, usize), JobStoreError> {
        let pool =
            PostgresConnectionPool::new(settings.address, CONNECTIONS_MAX, MIGRATION_TIMEOUT);
        let mut lent = pool.acquire().await?;
        let work = schema::migrate(&mut lent.connection.client);
        let result = pool.with_timeout(MIGRATION_TIMEOUT, work).await;
        Ok(lent.give_back(result)?)
    }
}

async fn read_status(client: &Client, workspace: &str) -> Result<FleetStatus, PostgresError> {
    let schema = usable_schema(client).await?;
    let sql = "SELECT count(*) FILTER (WHERE state = 'queued'), \
               count(*) FILTER (WHERE state = 'running'), \
               extract(epoch FROM now())::float8 \
               - (min(created) FILTER (WHERE state = 'queued'))::float8 / 1e9 \
               FROM toolgate_fleet.jobs WHERE workspace = $1 AND ended IS NULL";
    let jobs = client.query_typed_one(sql, &[(&workspace as _, Type::TEXT)]).await?;
    let sql = "SELECT tool, count(*) FROM toolgate_fleet.jobs WHERE workspace = $1 \
               AND state = 'queued' AND NOT EXISTS (SELECT 1 FROM toolgate_fleet.servers \
               WHERE workspace = $1 AND NOT has_left AND lease_until > now() AND NOT draining \
               AND (jobs.lane = ANY(lanes) OR jobs.lane IS NULL AND id = jobs.owner)) \
               GROUP BY tool ORDER BY tool";
    let unserved = client.query_typed(sql, &[(&workspace as _, Type::TEXT)]).await?;
    let unserved = unserved.iter().map(tool_count_from_row);
    let sql = "SELECT id, name, kind, version, settings, draining, lease_until > now(), \
               extract(epoch FROM now() - renewed)::float8, \
               (SELECT count(*) FROM toolgate_fleet.jobs WHERE owner = servers.id \
               AND ended IS NULL AND state = 'running'), \
               (SELECT count(*) FROM toolgate_fleet.jobs WHERE owner = servers.id \
               AND ended IS NULL AND state = 'queued') \
               FROM toolgate_fleet.servers WHERE workspace = $1 AND NOT has_left \
               ORDER BY name, kind, id";
    let rows = client.query_typed(sql, &[(&workspace as _, Type::TEXT)]).await?;
    Ok(FleetStatus {
        database: String::new(),
        schema,
        waiting: jobs.try_get(0)?,
        running: jobs.try_get(1)?,
        oldest_waiting_s: jobs.try_get(2)?,
        unserved: unserved.collect::<Result<_, PostgresError>>()?,
        servers: rows.iter().map(server_from_row).collect::<Result<_, PostgresError>>()?,
    })
}

fn tool_count_from_row(row: &Row) -> Result<(String, i64), PostgresError> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}

fn server_from_row(row: &Row) -> Result<FleetServerStatus, PostgresError> {
    Ok(FleetServerStatus {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        kind: row.try_get(2)?,
        version: row.try_get(3)?,
        // A newer toolgate may store more.
        settings: parse_json(row.try_get(4)?).unwrap_or_default(),
        draining: row.try_get(5)?,
        alive: row.try_get(6)?,
        heartbeat_s: row.try_get(7)?,
        running: row.try_get(8)?,
        waiting: row.try_get(9)?,
    })
}

async fn mark_draining(
    client: &Client,
    workspace: &str,
    selected: Option<&str>,
) -> Result<Vec<i64>, PostgresError> {
    usable_schema(client).await?;
    let sql = "UPDATE toolgate_fleet.servers SET draining = true \
               WHERE workspace = $1 AND NOT has_left AND lease_until > now() \
               AND ($2::text IS NULL OR name = $2 OR $2 <> '' \
               AND NOT EXISTS (SELECT 1 FROM toolgate_fleet.servers AS named \
               WHERE named.workspace = $1 AND named.name = $2 AND NOT named.has_left) \
               AND starts_with(lpad(to_hex(id), 16, '0'), $2)) RETURNING id";
    let params = [(&workspace as _, Type::TEXT), (&selected as _, Type::TEXT)];
    let rows = client.query_typed(sql, &params).await?;
    rows.iter().map(|row| row.try_get(0).map_err(PostgresError::from)).collect()
}

/// Returns the version of the job store's tables.
///
/// # Errors
/// There are no tables, or they are older or newer than this toolgate can use.
async fn usable_schema(client: &Client) -> Result<usize, PostgresError> {
    match schema::version(client).await? {
        0 => Err(PostgresError::Unusable(
            "has no tables of toolgate yet; start a server, or run `toolgate fleet migrate`"
                .to_owned(),
        )),
        version if version < schema::latest() => Err(PostgresError::Unusable(format!(
            "has the older job schema {version}; run `toolgate fleet migrate`"
        ))),
        version => Ok(version),
    }
}
