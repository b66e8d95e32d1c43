//! A bounded pool of connections to a PostgreSQL server.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{Client, Config, NoTls};

use super::super::EngineError;
use super::address::Address;
use super::trouble::{Trouble, told};
use crate::world::dial::{Dialled, Place, Secure, dial};

/// The time limit for connecting and for checking a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// The longest wait for a free connection.
const FREE_WITHIN: Duration = Duration::from_secs(5);
/// The idle time after which a connection is checked before use.
const FRESH: Duration = Duration::from_millis(300);

/// A pool of connections to one server.
pub(super) struct Connections {
    address: Address,
    /// The time limit of a query.
    pub(super) within: Duration,
    most: usize,
    room: Semaphore,
    idle: Mutex<Vec<(Connected, Instant)>>,
    secure: OnceLock<Secure>,
}

/// A connection and the task that drives it.
pub(super) struct Connected {
    pub(super) client: Client,
    _task: Task,
}

/// A task that is aborted on drop.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection from the pool. It returns there if it is [settled](Self::settle), and is closed
/// otherwise.
pub(super) struct Lent<'c> {
    pub(super) client: Connected,
    connections: &'c Connections,
    _permit: SemaphorePermit<'c>,
}

impl Connections {
    pub(super) fn new(address: Address, most: usize, within: Duration) -> Self {
        Self {
            address,
            within,
            most,
            room: Semaphore::new(most),
            idle: Mutex::default(),
            secure: OnceLock::new(),
        }
    }

    /// Takes a connection from the pool, or opens one.
    pub(super) async fn lend(&self) -> Result<Lent<'_>, EngineError> {
        let permit = timeout(FREE_WITHIN, self.room.acquire()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(EngineError::Away(format!(
                "{} is busy: all {} connections were in use for {} s; try again",
                self.address.named,
                self.most,
                FREE_WITHIN.as_secs()
            )));
        };
        let lent = |client| Lent { client, connections: self, _permit: permit };
        loop {
            let Some((connected, since)) = self.idle_or_none().pop() else { break };
            if connected.client.is_closed() {
                continue;
            }
            if since.elapsed() < FRESH {
                return Ok(lent(connected));
            }
            let lives = timeout(CONNECT_WITHIN, connected.client.check_connection()).await;
            if matches!(lives, Ok(Ok(()))) {
                return Ok(lent(connected));
            }
        }
        Ok(lent(self.connect(self.within).await?))
    }

    fn idle_or_none(&self) -> std::sync::MutexGuard<'_, Vec<(Connected, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection on which no statement may take longer than `within`.
    pub(super) async fn connect(&self, within: Duration) -> Result<Connected, EngineError> {
        let mut why = Trouble::Unreachable("it is nowhere".to_owned());
        for place in &self.address.places {
            let connected = timeout(CONNECT_WITHIN, self.connect_to(place, within)).await;
            match connected.unwrap_or(Err(Trouble::Slow(CONNECT_WITHIN))) {
                Ok(connected) => return Ok(connected),
                Err(other) => why = other,
            }
        }
        Err(self.told(&why))
    }

    async fn connect_to(&self, place: &Place, within: Duration) -> Result<Connected, Trouble> {
        let config = &self.address.config;
        let stream = dial(place, CONNECT_WITHIN).await.map_err(Trouble::Unreachable)?;
        let connected = match (&self.address.trust, place) {
            (None, _) | (_, Place::Socket(_)) => {
                let mut config = config.clone();
                config.ssl_mode(tokio_postgres::config::SslMode::Disable);
                begun(&config, stream, NoTls).await?
            }
            (Some(trust), Place::Port(host, _)) => {
                let secure = match self.secure.get() {
                    Some(secure) => secure.clone(),
                    None => {
                        let trust = trust.clone();
                        // Reading certificates blocks.
                        let made = tokio::task::spawn_blocking(move || Secure::new(&trust)).await;
                        let made = made.unwrap_or_else(|err| Err(err.to_string()));
                        let made = made.map_err(Trouble::Unreachable)?;
                        self.secure.get_or_init(|| made).clone()
                    }
                };
                begun(config, stream, Tls { secure, host: host.clone() }).await?
            }
        };
        // The server cancels a statement after the time limit, or soon after the client is gone.
        let settings = format!(
            "set statement_timeout = {}; set lock_timeout = 5000; set jit = off; \
             select set_config('client_connection_check_interval', '2s', false) \
             where current_setting('server_version_num')::int >= 140000",
            within.as_millis()
        );
        connected.client.batch_execute(&settings).await?;
        Ok(connected)
    }

    /// Runs `work` with the time limit `within`.
    pub(super) async fn within<T>(
        &self,
        within: Duration,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        timeout(within, work).await.unwrap_or(Err(Trouble::Slow(within)))
    }

    /// Converts `trouble` to an error for callers.
    pub(super) fn told(&self, trouble: &Trouble) -> EngineError {
        let user = self.address.config.get_user().unwrap_or("this user");
        told(trouble, &self.address.named, user, &self.address.password_env)
    }

    /// Returns the name of the server in messages.
    pub(super) fn named(&self) -> &str {
        &self.address.named
    }
}

impl Lent<'_> {
    /// Returns the connection to the pool, unless the error makes it unusable.
    pub(super) fn settle<T>(self, came: Result<T, Trouble>) -> Result<T, EngineError> {
        let Self { client, connections, _permit } = self;
        let good = match &came {
            Ok(_) => true,
            Err(trouble) => trouble.leaves_it_good(),
        };
        if good && !client.client.is_closed() {
            connections.idle_or_none().push((client, Instant::now()));
        }
        came.map_err(|trouble| connections.told(&trouble))
    }
}

async fn begun<T>(config: &Config, stream: Dialled, tls: T) -> Result<Connected, Trouble>
where
    T: TlsConnect<Dialled>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.connect_raw(stream, tls).await?;
    let task = tokio::spawn(async move {
        // The client's next request returns the reason.
        let _ = connection.await;
    });
    Ok(Connected { client, _task: Task(task) })
}

/// The TLS connector for the PostgreSQL client.
struct Tls {
    secure: Secure,
    host: String,
}

struct Encrypted(tokio_rustls::client::TlsStream<Dialled>);

impl TlsConnect<Dialled> for Tls {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Dialled) -> Self::Future {
        Box::pin(async move { Ok(Encrypted(self.secure.over(stream, &self.host).await?)) })
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
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

/// A shared connection pool.
pub(super) type Shared = Arc<Connections>;
