//! Wires the rooms: settings in, a server out. The only crate that sees all others.
//!
//! A program with tools, prompts or resources of its own says so in an [`Offer`] and serves it
//! with [`serve_http`] or [`serve_stdio`].

pub mod config;
pub mod wiring;
pub mod telemetry;
pub mod shutdown;
pub mod memory;

mod offer;
mod shelf;
mod session;
mod watching;
mod client;
mod lines;
mod sockets;
mod exchange;
mod duplex;
mod streams;
mod questions;
mod listening;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolgate_host::Host;
use toolgate_transports::http::{Admission, serve};
use toolgate_transports::stdio;

pub use exchange::{Endpoints, SessionBounds};
pub use lines::{LineBounds, serve_lines};
pub use offer::{Offer, Served};
pub use session::Desk;
pub use shelf::{Shelf, Variables};

use config::Config;

/// Serves `served` on `listener` until `shutdown`, each dialect at its path.
pub async fn serve_http(
    served: &Served,
    listener: TcpListener,
    config: &Config,
    shutdown: CancellationToken,
) -> io::Result<()> {
    shutdown::tell(shutdown.clone());
    let host = &served.host;
    let desk = Desk::new(host.clone());
    let tending = tend(host);
    let endpoints = Endpoints::new(desk.clone(), served.dialects(), wiring::session_bounds(config));
    let server = &config.server;
    let admission =
        Admission::new(listener.local_addr()?, &server.allowed_hosts, &server.allowed_origins);
    let bounds = wiring::http_bounds(config);
    let drain = Duration::from_millis(config.server.drain_ms);
    let stopping = tokio::spawn(desk.clone().stop_after(shutdown.clone(), drain));
    let over = serve(listener, Arc::new(endpoints), admission, bounds, shutdown).await;
    // Calls whose clients have left go on until they are done, or the time is over.
    desk.idle().await;
    stopping.abort();
    host.stop_jobs().await;
    tending.abort();
    host.flush();
    over
}

/// Serves `served` to whoever started this process, over its standard streams, in the dialect
/// named so (`mcp`), until they close.
pub async fn serve_stdio(
    served: &Served,
    dialect: &str,
    config: &Config,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let dialect = served.dialect(dialect)?;
    shutdown::tell(shutdown.clone());
    let host = &served.host;
    let desk = Desk::new(host.clone());
    let tending = tend(host);
    let streams = (stdio::stdin(), stdio::stdout());
    let over = serve_lines(desk, dialect, streams, wiring::line_bounds(config), shutdown).await;
    host.stop_jobs().await;
    tending.abort();
    host.flush();
    Ok(over?)
}

/// Looks after the jobs of `host` for as long as it serves.
fn tend(host: &Arc<Host>) -> JoinHandle<()> {
    let host = host.clone();
    tokio::spawn(async move { host.tend_jobs().await })
}
