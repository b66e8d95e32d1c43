//! Wires the rooms: settings in, a server out. The only crate that sees all others.
//!
//! A program with tools of its own builds a host with [`wiring::host_with`] and
//! serves it with [`serve_http`] or [`serve_stdio`].

pub mod config;
pub mod wiring;
pub mod telemetry;
pub mod shutdown;
pub mod memory;

mod session;
mod watching;
mod client;
mod lines;
mod sockets;
mod exchange;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolgate_dialects::Dialect;
use toolgate_host::Host;
use toolgate_transports::http::{Admission, serve};
use toolgate_transports::stdio;

pub use exchange::{Endpoints, SessionBounds};
pub use lines::{LineBounds, serve_lines};
pub use session::Desk;

use config::Config;

/// The dialects, spoken as a server of `host` speaks them.
pub fn dialects(host: &Host) -> Vec<Arc<dyn Dialect>> {
    toolgate_dialects::all(&wiring::facts(host))
}

/// Serves `host` on `listener` until `shutdown`, each dialect at its path.
pub async fn serve_http(
    host: Arc<Host>,
    listener: TcpListener,
    config: &Config,
    shutdown: CancellationToken,
) -> io::Result<()> {
    shutdown::tell(shutdown.clone());
    let desk = Desk::new(host.clone());
    let tending = tend(&host);
    let endpoints = Endpoints::new(desk.clone(), dialects(&host), wiring::session_bounds(config));
    let server = &config.server;
    let admission =
        Admission::new(listener.local_addr()?, &server.allowed_hosts, &server.allowed_origins);
    let bounds = wiring::http_bounds(config);
    let drain = Duration::from_millis(config.server.drain_ms);
    let stopping = tokio::spawn(desk.clone().stop_after(shutdown.clone(), drain));
    let served = serve(listener, Arc::new(endpoints), admission, bounds, shutdown).await;
    // Calls whose clients have left go on until they are done, or the time is over.
    desk.idle().await;
    stopping.abort();
    host.stop_jobs().await;
    tending.abort();
    host.flush();
    served
}

/// Serves `host` to whoever started this process, over its standard streams, until they close.
pub async fn serve_stdio(
    host: Arc<Host>,
    dialect: Arc<dyn Dialect>,
    config: &Config,
    shutdown: CancellationToken,
) -> io::Result<()> {
    shutdown::tell(shutdown.clone());
    let desk = Desk::new(host.clone());
    let tending = tend(&host);
    let streams = (stdio::stdin(), stdio::stdout());
    let served = serve_lines(desk, dialect, streams, wiring::line_bounds(config), shutdown).await;
    host.stop_jobs().await;
    tending.abort();
    host.flush();
    served
}

/// Looks after the jobs of `host` for as long as it serves.
fn tend(host: &Arc<Host>) -> JoinHandle<()> {
    let host = host.clone();
    tokio::spawn(async move { host.tend_jobs().await })
}
