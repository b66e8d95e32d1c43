//! Stores credentials that the servers of a fleet share, such as the sign-in to an upstream, whose
//! refresh token works only once.

use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use toolgate_postgres::{PostgresConnection, PostgresConnectionPool, PostgresError};

use super::{JobStoreError, MIGRATION_TIMEOUT, PostgresStoreSettings, STATEMENT_TIMEOUT, schema};

/// Maximum number of database connections for credentials, in addition to one for each lock.
const CONNECTIONS_MAX: usize = 1;
/// Longest wait for a lock on a credential that another server holds.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest time for which a server keeps a lock. After this time, the server counts as frozen.
const LOCK_HOLD_MAX: Duration = Duration::from_secs(300);

/// Credentials in the database of a fleet. The store does not encrypt them, so pass encrypted
/// bytes.
pub struct FleetCredentials {
    pool: PostgresConnectionPool,
    workspace: String,
    /// Cell that is set once the database tables for credentials exist.
    has_tables: OnceCell<()>,
}

/// A lock of one credential for all servers of a fleet. Dropping the value releases the lock.
pub struct FleetCredentialLock {
    /// Database connection whose transaction holds the lock. The lock ends with the connection.
    _connection: PostgresConnection,
}

/// State of a credential in the database of a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetCredentialState {
    /// No server has stored or deleted the credential.
    Unknown,
    /// A server has deleted the credential.
    Deleted,
    /// A server has stored these bytes as the credential.
    Stored(Vec<u8>),
}

impl FleetCredentials {
    /// Creates the access to the credentials of a workspace. Connects to the database at the first
    /// use.
    pub fn new(settings: PostgresStoreSettings) -> Self {
        let PostgresStoreSettings { address, workspace, .. } = settings;
        let pool = PostgresConnectionPool::new(address, CONNECTIONS_MAX, STATEMENT_TIMEOUT);
        Self { pool, workspace, has_tables: OnceCell::new() }
    }

    /// Locks the credential `name`, and waits up to 30 s for other servers.
    ///
    /// # Errors
    /// The database is unavailable, or another server holds the lock for too long.
    pub async fn lock(&self, name: &str) -> Result<FleetCredentialLock, JobStoreError> {
        self.create_tables().await?;
        let connection = self.pool.connect(LOCK_WAIT_MAX).await?;
        let work = take_lock(&connection.client, &self.workspace, name);
        let locked = self.pool.with_timeout(LOCK_WAIT_MAX, work).await;
        locked.map_err(|err| self.pool.to_failure(&err))?;
        Ok(FleetCredentialLock { _connection: connection })
    }

    /// Returns the credential `name`.
    ///
    /// # Errors
    /// The database is unavailable.
    pub async fn read(&self, name: &str) -> Result<FleetCredentialState, JobStoreError> {
        self.create_tables().await?;
        let lent = self.pool.acquire().await?;
        let work = read_credential(&lent.connection.client, &self.workspace, name);
        let result = self.pool.with_timeout(STATEMENT_TIMEOUT, work).await;
        Ok(lent.give_back(result)?)
    }

    /// Stores `content` as the credential `name`, or deletes it if `content` is `None`. Call this
    /// while the credential is locked.
    ///
    /// # Errors
    /// The database is unavailable.
    pub async fn write(&self, name: &str, content: Option<&[u8]>) -> Result<(), JobStoreError> {
        self.create_tables().await?;
        let lent = self.pool.acquire().await?;
        let work = write_credential(&lent.connection.client, &self.workspace, name, content);
        let result = self.pool.with_timeout(STATEMENT_TIMEOUT, work).await;
        Ok(lent.give_back(result)?)
    }

    async fn create_tables(&self) -> Result<(), JobStoreError> {
        let created = self.has_tables.get_or_try_init(|| async {
            let mut lent = self.pool.acquire().await?;
            let migration = schema::migrate(&mut lent.connection.client);
            let migrated = self.pool.with_timeout(MIGRATION_TIMEOUT, migration).await;
            lent.give_back(migrated)?;
            Ok::<(), JobStoreError>(())
        });
        created.await.map(|_| ())
    }
}

async fn take_lock(client: &Client, workspace: &str, name: &str) -> Result<(), PostgresError> {
    // The connection itself waits less.
    let begin = format!(
        "SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}; BEGIN",
        LOCK_WAIT_MAX.as_millis(),
        LOCK_HOLD_MAX.as_millis()
    );
    client.batch_execute(&begin).await?;
    // A row that another server has just inserted is locked until its transaction ends.
    let sql = "INSERT INTO toolgate_fleet.credential_locks (workspace, name) VALUES ($1, $2) \
               ON CONFLICT DO NOTHING";
    let params = [(&workspace as _, Type::TEXT), (&name as _, Type::TEXT)];
    client.execute_typed(sql, &params).await?;
    let sql = "SELECT 1 FROM toolgate_fleet.credential_locks \
               WHERE workspace = $1 AND name = $2 FOR UPDATE";
    let params = [(&workspace as _, Type::TEXT), (&name as _, Type::TEXT)];
    client.query_typed(sql, &params).await?;
    Ok(())
}

async fn read_credential(
    client: &Client,
    workspace: &str,
    name: &str,
) -> Result<FleetCredentialState, PostgresError> {
    let sql = "SELECT content FROM toolgate_fleet.credentials WHERE workspace = $1 AND name = $2";
    let params = [(&workspace as _, Type::TEXT), (&name as _, Type::TEXT)];
    let Some(row) = client.query_typed_opt(sql, &params).await? else {
        return Ok(FleetCredentialState::Unknown);
    };
    let content: Option<Vec<u8>> = row.try_get(0)?;
    Ok(content.map_or(FleetCredentialState::Deleted, FleetCredentialState::Stored))
}

async fn write_credential(
    client: &Client,
    workspace: &str,
    name: &str,
    content: Option<&[u8]>,
) -> Result<(), PostgresError> {
    let sql = "INSERT INTO toolgate_fleet.credentials (workspace, name, content) \
               VALUES ($1, $2, $3) ON CONFLICT (workspace, name) \
               DO UPDATE SET content = excluded.content";
    let params =
        [(&workspace as _, Type::TEXT), (&name as _, Type::TEXT), (&content as _, Type::BYTEA)];
    client.execute_typed(sql, &params).await?;
    Ok(())
}
