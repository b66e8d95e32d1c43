//! Where HTTP is served: one address for all dialects, others for one dialect each.

use std::sync::Arc;

use tokio::net::TcpListener;
use toolgate_dialects::Dialect;

/// Where HTTP is served.
pub struct Listeners {
    /// Where each dialect is spoken at its paths.
    pub all: TcpListener,
    /// Where one dialect is spoken alone.
    pub own: Vec<(TcpListener, Arc<dyn Dialect>)>,
}

impl From<TcpListener> for Listeners {
    fn from(all: TcpListener) -> Self {
        Self { all, own: Vec::new() }
    }
}
