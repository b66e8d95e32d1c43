//! Describes the database of a fleet, for `toolgate doctor fleet`.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use toolgate_postgres::{PostgresConnectionPool, PostgresError};

use super::{CONNECTIONS_MAX, JobStoreError, PostgresStoreSettings, STATEMENT_TIMEOUT, schema};
use crate::jobs::shared_folder::check_store;

/// The database of a fleet, and the servers that use it.
#[derive(Debug, Clone)]
pub struct FleetReport {
    /// Name of the database, as messages show it.
    pub database: String,
    /// Version of the PostgreSQL server, such as `16.2`.
    pub server_version: String,
    /// Durability that the configuration of the database promises.
    pub durability: FleetDurability,
    /// Servers of the workspace, in order of id.
    pub servers: Vec<FleetServer>,
    /// Result of a test write to the folder or bucket for large files, with the reason if it
    /// failed. `None` if the settings name no folder or bucket.
    pub files: Option<Result<(), String>>,
}

/// Durability of accepted jobs if the database fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetDurability {
    /// The database does not wait until its disk has stored a job.
    Volatile,
    /// The database waits for its disk and has no standby server.
    Disk,
    /// The database does not wait until its standby server has a job.
    LaggingStandby,
    /// The database waits until a standby server has stored a job.
    SynchronousStandby,
}

/// A server of a fleet, as the job store's database knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetServer {
    /// Id of the server, which changes with each start.
    pub id: i64,
    /// Version of toolgate that the server runs.
    pub version: String,
    /// Number of unfinished jobs of the server.
    pub jobs: i64,
    /// Time in seconds since the server's lease ended; negative while the server counts as alive.
    pub silent_s: f64,
}

impl FleetReport {
    /// Connects to the database, creates or migrates the tables, and reads the configuration of the
    /// database.
    ///
    /// # Errors
    /// The database is unavailable, refuses this user, or was set up by a newer toolgate.
    pub async fn read(settings: PostgresStoreSettings) -> Result<Self, JobStoreError> {
        let PostgresStoreSettings { address, workspace, files, .. } = settings;
        let pool = PostgresConnectionPool::new(address, CONNECTIONS_MAX, STATEMENT_TIMEOUT);
        let mut lent = pool.acquire().await?;
        let client = &mut lent.connection.client;
        let work = async {
            schema::migrate(client).await?;
            let (server_version, durability) = configuration(client).await?;
            let servers = servers(client, &workspace).await?;
            Ok((server_version, durability, servers))
        };
        let result = pool.with_timeout(STATEMENT_TIMEOUT, work).await;
        let (server_version, durability, servers) = lent.give_back(result)?;
        let database = pool.display_name().to_owned();
        let files = match files {
            Some(place) => Some(check_store(&*place.store_of(&workspace)).await),
            None => None,
        };
        Ok(Self { database, server_version, durability, servers, files })
    }
}

async fn configuration(client: &Client) -> Result<(String, FleetDurability), PostgresError> {
    let sql = "SELECT current_setting('server_version'), \
               current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off', \
               current_setting('synchronous_standby_names') <> '' \
               AND current_setting('synchronous_commit') NOT IN ('off', 'local'), \
               EXISTS (SELECT 1 FROM pg_stat_replication)";
    let row = client.query_typed_one(sql, &[]).await?;
    let waits_for_disk: bool = row.try_get(1)?;
    let waits_for_standby: bool = row.try_get(2)?;
    let has_standby: bool = row.try_get(3)?;
    let durability = if !waits_for_disk {
        FleetDurability::Volatile
    } else if waits_for_standby {
        FleetDurability::SynchronousStandby
    } else if has_standby {
        FleetDurability::LaggingStandby
    } else {
        FleetDurability::Disk
    };
    Ok((row.try_get(0)?, durability))
}

async fn servers(client: &Client, workspace: &str) -> Result<Vec<FleetServer>, PostgresError> {
    let sql = "SELECT id, version, (SELECT count(*) FROM toolgate_fleet.jobs \
               WHERE owner = servers.id AND ended IS NULL), \
               extract(epoch FROM now() - lease_until)::float8 \
               FROM toolgate_fleet.servers WHERE workspace = $1 AND NOT has_left ORDER BY id";
    let rows = client.query_typed(sql, &[(&workspace as _, Type::TEXT)]).await?;
    let mut servers = Vec::with_capacity(rows.len());
    for row in &rows {
        servers.push(FleetServer {
            id: row.try_get(0)?,
            version: row.try_get(1)?,
            jobs: row.try_get(2)?,
            silent_s: row.try_get(3)?,
        });
    }
    Ok(servers)
}
