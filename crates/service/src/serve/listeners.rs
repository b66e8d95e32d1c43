//! Listening sockets for HTTP: a shared socket for all dialects, and one for each dialect with its
//! own address.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;
use toolgate_dialects::Dialect;
use toolgate_net::WorkerPool;

use crate::config::Config;
use crate::identity::Authenticator;
use crate::identity::tls;

/// Listening sockets of the HTTP server, with their authentication, TLS and threads.
pub struct HttpListeners {
    /// Socket on which all dialects are served, each at its own paths. `None` if there is no shared
    /// socket.
    pub shared: Option<TcpListener>,
    /// Sockets that each serve only one dialect, with this dialect.
    pub dedicated: Vec<(TcpListener, Arc<dyn Dialect>)>,
    /// Authentication and TLS of the sockets. If `None`, they are loaded from the configuration.
    pub security: Option<ListenerSecurity>,
    /// Threads that serve connections. If `None`, the thread that accepts connections serves them.
    pub workers: Option<WorkerPool>,
}

/// Authentication and TLS of the listeners, loaded from the configured files.
pub struct ListenerSecurity {
    pub(crate) identity: Arc<Authenticator>,
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

impl ListenerSecurity {
    /// Loads the API keys, the certificate and the token issuers of `config`.
    ///
    /// # Errors
    /// A key file or certificate cannot be read, or other users could have written it.
    pub fn from_config(config: &Config) -> anyhow::Result<Self> {
        let identity = Arc::new(Authenticator::from_config(config)?);
        Ok(Self { identity, tls: tls::tls_config(&config.server)? })
    }
}

impl From<TcpListener> for HttpListeners {
    fn from(shared: TcpListener) -> Self {
        Self { shared: Some(shared), dedicated: Vec::new(), security: None, workers: None }
    }
}
