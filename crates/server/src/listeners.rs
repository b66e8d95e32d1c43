//! Listening sockets for HTTP: one for all dialects, and others for one dialect each.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;
use toolgate_dialects::Dialect;
use toolgate_transports::http::Workers;

use crate::config::Config;
use crate::identity::Identity;
use crate::tls;

/// Listening sockets and how they are served.
pub struct Listeners {
    /// Socket that serves every dialect at its paths.
    pub all: TcpListener,
    /// Sockets that each serve a single dialect.
    pub own: Vec<(TcpListener, Arc<dyn Dialect>)>,
    /// Authentication and TLS. If absent, they come from the configuration.
    pub front: Option<Front>,
    /// Threads that serve connections. If absent, the accepting thread serves them.
    pub workers: Option<Workers>,
}

/// Authentication and TLS of the listeners, loaded from the configured files.
pub struct Front {
    pub(crate) identity: Arc<Identity>,
    pub(crate) secure: Option<Arc<ServerConfig>>,
}

impl Front {
    /// Loads the key, certificate and authorization settings of `config`.
    ///
    /// # Errors
    /// When a key file or certificate cannot be read, or other users could have written it.
    pub fn of(config: &Config) -> anyhow::Result<Self> {
        let identity = Arc::new(Identity::of(config)?);
        Ok(Self { identity, secure: tls::configured(&config.server)? })
    }
}

impl From<TcpListener> for Listeners {
    fn from(all: TcpListener) -> Self {
        Self { all, own: Vec::new(), front: None, workers: None }
    }
}
