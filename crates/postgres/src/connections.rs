//! A bounded pool of connections to a PostgreSQL server.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use toolgate_world::dial::{DialAddress, DialedByteStream, TlsClient, dial};

use crate::address::PostgresAddress;
use crate::error::{PostgresError, PostgresFailure, to_failure};

/// The time limit for connecting to a database, and for testing an idle connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest wait for a free connection in the pool.
const POOL_WAIT_MAX: Duration = Duration::from_secs(5);
/// The idle time after which a pooled connection is tested before use.
const CHECK_IDLE_AFTER: Duration = Duration::from_millis(300);

/// A pool of connections to a PostgreSQL server. If the URL names several servers, the connections
/// are to the one that accepts writes.
pub struct PostgresConnectionPool {
    address: PostgresAddress,
    /// The time limit of a query over the pool's connections.
    pub query_timeout: Duration,
    connections_max: usize,
    permits: Semaphore,
    idle: Mutex<Vec<(PostgresConnection, Instant)>>,
    tls: OnceLock<TlsClient>,
}

/// A connection to a PostgreSQL server, and the task that drives the connection.
pub struct PostgresConnection {
    /// The client that sends SQL statements over the connection.
    pub client: Client,
    _task: PostgresConnectionTask,
}

/// The task that drives a connection. The task is aborted when this value is dropped.
struct PostgresConnectionTask(JoinHandle<()>);

impl Drop for PostgresConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection from the pool. [`PooledConnection::give_back`] returns the connection to the pool.
/// Dropping this value closes the connection instead.
pub struct PooledConnection<'c> {
    /// The pooled connection.
    pub connection: PostgresConnection,
    connections: &'c PostgresConnectionPool,
    _permit: SemaphorePermit<'c>,
}

/// The maximum number of received notifications that wait in memory. Further notifications are
/// dropped, because their receiver also reads the tables from time to time.
const NOTIFICATIONS_MAX: usize = 1024;

/// A connection that listens to a PostgreSQL channel, and the payloads of the channel's
/// notifications.
pub struct PostgresNotificationReceiver {
    payloads: mpsc::Receiver<String>,
    _connection: PostgresConnection,
}

impl PostgresNotificationReceiver {
    /// Waits for the next notification and returns its payload. Returns `None` after the connection
    /// has ended.
    pub async fn receive(&mut self) -> Option<String> {
        self.payloads.recv().await
    }
}

impl PostgresConnectionPool {
    /// Creates a pool of at most `connections_max` connections to `address`. Each statement on them
    /// may take at most `query_timeout`. Does not connect yet.
    pub fn new(address: PostgresAddress, connections_max: usize, query_timeout: Duration) -> Self {
        Self {
            address,
            query_timeout,
            connections_max,
            permits: Semaphore::new(connections_max),
            idle: Mutex::default(),
            tls: OnceLock::new(),
        }
    }

    /// Takes an idle connection from the pool, or opens a new one.
    ///
    /// # Errors
    /// All connections stay in use for 5 s, or no address of the server accepts a connection.
    pub async fn acquire(&self) -> Result<PooledConnection<'_>, PostgresFailure> {
        let permit = timeout(POOL_WAIT_MAX, self.permits.acquire()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(PostgresFailure::Unavailable(format!(
                "{} is busy: all {} connections were in use for {} s; try again",
                self.address.display_name,
                self.connections_max,
                POOL_WAIT_MAX.as_secs()
            )));
        };
        let lent =
            |client| PooledConnection { connection: client, connections: self, _permit: permit };
        loop {
            let Some((connected, since)) = self.lock_idle().pop() else { break };
            if connected.client.is_closed() {
                continue;
            }
            if since.elapsed() < CHECK_IDLE_AFTER {
                return Ok(lent(connected));
            }
            match timeout(CONNECT_TIMEOUT, connected.client.check_connection()).await {
                Ok(Ok(())) => return Ok(lent(connected)),
                Ok(Err(_)) => {}
                // The checks of the others would take as long, one after another.
                Err(_) => self.lock_idle().clear(),
            }
        }
        Ok(lent(self.connect(self.query_timeout).await?))
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<(PostgresConnection, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection outside of the pool, on which each statement may take at most `within`.
    ///
    /// # Errors
    /// No address of the server accepts the connection.
    pub async fn connect(&self, within: Duration) -> Result<PostgresConnection, PostgresFailure> {
        self.connect_with(within, None).await
    }

    /// Opens a connection outside of the pool that listens to `channel`, a name of lower-case
    /// letters and underscores.
    ///
    /// # Errors
    /// No address of the server accepts the connection, or the server refuses to listen.
    pub async fn listen(
        &self,
        channel: &str,
    ) -> Result<PostgresNotificationReceiver, PostgresFailure> {
        let (sender, payloads) = mpsc::channel(NOTIFICATIONS_MAX);
        let connection = self.connect_with(self.query_timeout, Some(sender)).await?;
        let sql = format!("listen {channel}");
        let listening =
            async { connection.client.batch_execute(&sql).await.map_err(PostgresError::from) };
        let result = self.with_timeout(self.query_timeout, listening).await;
        result.map_err(|err| self.to_failure(&err))?;
        Ok(PostgresNotificationReceiver { payloads, _connection: connection })
    }

    async fn connect_with(
        &self,
        within: Duration,
        notifications: Option<mpsc::Sender<String>>,
    ) -> Result<PostgresConnection, PostgresFailure> {
        let mut last = PostgresError::Unreachable("it has no address".to_owned());
        for address in &self.address.addresses {
            let connected = self.connect_to(address, within, notifications.clone());
            let connected = timeout(CONNECT_TIMEOUT, connected).await;
            match connected.unwrap_or(Err(PostgresError::TimedOut(CONNECT_TIMEOUT))) {
                Ok(connected) => return Ok(connected),
                Err(err) => last = err,
            }
        }
        Err(self.to_failure(&last))
    }

    async fn connect_to(
        &self,
        address: &DialAddress,
        within: Duration,
        notifications: Option<mpsc::Sender<String>>,
    ) -> Result<PostgresConnection, PostgresError> {
        let config = &self.address.config;
        let stream = dial(address, CONNECT_TIMEOUT).await.map_err(PostgresError::Unreachable)?;
        let stream = PostgresStream(stream);
        let connected = match (&self.address.trust, address) {
            (None, _) | (_, DialAddress::Socket(_)) => {
                let mut config = config.clone();
                config.ssl_mode(tokio_postgres::config::SslMode::Disable);
                start_connection(&config, stream, NoTls, notifications).await?
            }
            (Some(trust), DialAddress::Port(host, _)) => {
                let tls = match self.tls.get() {
                    Some(tls) => tls.clone(),
                    None => {
                        let trust = trust.clone();
                        // Reading certificates blocks.
                        let tls =
                            toolgate_net::spawn_blocking(move || TlsClient::new(&trust)).await;
                        let tls = tls.unwrap_or_else(|err| Err(err.to_string()));
                        let tls = tls.map_err(PostgresError::Unreachable)?;
                        self.tls.get_or_init(|| tls).clone()
                    }
                };
                let tls = PostgresTls { tls, host: host.clone() };
                start_connection(config, stream, tls, notifications).await?
            }
        };
        // The server cancels a statement after the time limit, or soon after the client is gone. It
        // also ends a transaction that waits too long for the next statement: a frozen client would
        // keep its locks.
        let settings = format!(
            "set statement_timeout = {0}; set idle_in_transaction_session_timeout = {0}; \
             set lock_timeout = 5000; set jit = off; \
             select set_config('client_connection_check_interval', '2s', false) \
             where current_setting('server_version_num')::int >= 140000",
            within.as_millis()
        );
        connected.client.batch_execute(&settings).await?;
        self.check_target(&connected.client).await?;
        Ok(connected)
    }

    /// Checks that the server accepts writes, or accepts only reads, if the database URL requires
    /// this with `target_session_attrs`.
    async fn check_target(&self, client: &Client) -> Result<(), PostgresError> {
        let target = self.address.config.get_target_session_attrs();
        if target == TargetSessionAttrs::Any {
            return Ok(());
        }
        let sql = "SELECT current_setting('transaction_read_only') = 'on'";
        let is_read_only: bool = client.query_typed_one(sql, &[]).await?.try_get(0)?;
        if is_read_only == (target == TargetSessionAttrs::ReadOnly) {
            return Ok(());
        }
        let why = match is_read_only {
            true => "has no server that accepts writes: a reachable one is a standby",
            false => "has no server that accepts only reads",
        };
        Err(PostgresError::Unusable(why.to_owned()))
    }

    /// Runs the database operation `work` with the time limit `within`.
    ///
    /// # Errors
    /// `work` fails, or takes too long ([`PostgresError::TimedOut`]).
    pub async fn with_timeout<T>(
        &self,
        within: Duration,
        work: impl Future<Output = Result<T, PostgresError>>,
    ) -> Result<T, PostgresError> {
        timeout(within, work).await.unwrap_or(Err(PostgresError::TimedOut(within)))
    }

    /// Converts the error `err` of a database operation to a failure with a message for the user.
    pub fn to_failure(&self, err: &PostgresError) -> PostgresFailure {
        let user = self.address.config.get_user().unwrap_or("this user");
        to_failure(err, &self.address.display_name, user, &self.address.password_env)
    }

    /// Returns the name of the server in error messages.
    pub fn display_name(&self) -> &str {
        &self.address.display_name
    }
}

impl PooledConnection<'_> {
    /// Returns the connection to the pool, unless the error in `result` makes the connection
    /// unusable. Converts an error in `result` to a failure with a message for the user.
    ///
    /// # Errors
    /// The error in `result`.
    pub fn give_back<T>(self, result: Result<T, PostgresError>) -> Result<T, PostgresFailure> {
        let Self { connection, connections, _permit } = self;
        let is_usable = match &result {
            Ok(_) => true,
            Err(err) => err.keeps_connection(),
        };
        if is_usable && !connection.client.is_closed() {
            connections.lock_idle().push((connection, Instant::now()));
        }
        result.map_err(|err| connections.to_failure(&err))
    }
}

async fn start_connection<T>(
    config: &Config,
    stream: PostgresStream,
    tls: T,
    notifications: Option<mpsc::Sender<String>>,
) -> Result<PostgresConnection, PostgresError>
where
    T: TlsConnect<PostgresStream>,
    T::Stream: Send + 'static,
{
    let (client, mut connection) = config.connect_raw(stream, tls).await?;
    let task = toolgate_net::spawn_task(async move {
        // The client's next request returns the reason of an end.
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let (AsyncMessage::Notification(it), Some(sender)) = (message, &notifications) {
                // A full queue may lose notifications.
                let _ = sender.try_send(it.payload().to_owned());
            }
        }
    });
    Ok(PostgresConnection { client, _task: PostgresConnectionTask(task) })
}

/// The TLS connector for the PostgreSQL client.
struct PostgresTls {
    tls: TlsClient,
    host: String,
}

/// A network connection to a PostgreSQL server, with or without TLS. This wrapper type is [`Send`]
/// for every lifetime.
struct PostgresStream(DialedByteStream);

impl TlsConnect<PostgresStream> for PostgresTls {
    type Stream = PostgresStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PostgresStream>> + Send>>;

    fn connect(self, stream: PostgresStream) -> Self::Future {
        Box::pin(async move {
            let stream = self.tls.connect(stream.0, &self.host).await?;
            Ok(PostgresStream(Box::new(stream)))
        })
    }
}

impl TlsStream for PostgresStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PostgresStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for PostgresStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A PostgreSQL connection pool that several components share.
pub type SharedPostgresPool = Arc<PostgresConnectionPool>;
