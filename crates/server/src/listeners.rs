//! Where HTTP is served: one address for all dialects, others for one dialect each.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;
use toolgate_dialects::Dialect;
use toolgate_transports::http::Workers;

use crate::config::Config;
use crate::identity::Identity;
use crate::tls;

/// Where HTTP is served.
pub struct Listeners {
    /// Where each dialect is spoken at its paths.
    pub all: TcpListener,
    /// Where one dialect is spoken alone.
    pub own: Vec<(TcpListener, Arc<dyn Dialect>)>,
    /// Whom they let in; without, as the configuration has it.
    pub front: Option<Front>,
    /// Who serves the connections; without, whoever accepts them.
    pub workers: Option<Workers>,
}

/// Whom listeners let in, and how they speak with them: the files that the configuration names for
/// that, read.
pub struct Front {
    pub(crate) identity: Arc<Identity>,
    pub(crate) secure: Option<Arc<ServerConfig>>,
}

impl Front {
    /// As `config` has it.
    ///
    /// # Errors
    /// When a file of keys, or a certificate, cannot be read, or others could have written it.
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
