//! Builds a server from settings and serves it. This is the only crate that depends on all others.
//!
//! A program with tools, prompts or resources of its own lists them in an [`Offer`]. It then calls
//! [`serve_http`] or [`serve_stdio`].

pub mod config;
pub mod wiring;
mod upstreams;
pub mod asked;
pub mod pins;
pub mod entry;
pub mod telemetry;
pub mod shutdown;
pub mod ground;
pub mod ready;
mod memory;
pub mod recording;
mod reloading;

mod offer;
mod shelf;
mod session;
mod going;
mod enveloping;
mod guarded;
mod once;
mod trusted;
mod identity;
mod tls;
mod watching;
mod client;
mod lines;
mod listeners;
mod sockets;
mod exchange;
mod routes;
mod duplex;
mod streams;
mod questions;
mod listening;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolgate_transports::http::{self, Admission, Entrance, Occupancy, serve};
use toolgate_transports::stdio;

pub use exchange::{Endpoints, SessionBounds};
pub use lines::{LineBounds, serve_lines};
pub use listeners::{Front, Listeners};
pub use offer::{Offer, Served};
pub use once::answer_once;
pub use session::Desk;
pub use shelf::{Shelf, Variables};
pub use toolgate_transports::http::Workers;

use config::Config;
use telemetry::{Connected, Page};

/// Serves `served` over HTTP on `listeners` (a `TcpListener` is enough) until `shutdown` is
/// cancelled.
///
/// # Errors
/// When a key file or certificate is unusable, a dialect is unknown, or a listener fails.
pub async fn serve_http(
    served: &Served,
    listeners: impl Into<Listeners>,
    config: &Config,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let Listeners { all, own, front, workers } = listeners.into();
    let front = front.map_or_else(|| Front::of(config), Ok);
    let Front { identity, secure } = front.map_err(io::Error::other)?;
    shutdown::tell(shutdown.clone());
    let host = &served.host;
    let desk = Desk::new(host.clone());
    let tending = tend(&desk);
    let dialects = served.dialects_over_http(config).map_err(io::Error::other)?;
    let bounds = wiring::session_bounds(config);
    let connected = Connected {
        connections_max: config.server.connections_max * (1 + own.len()),
        streams_max: wiring::http_bounds(config).streams_max * (1 + own.len()),
        sessions_max: config.server.sessions_max,
        ..Connected::default()
    };
    let occupancy = Occupancy::default();
    let metrics = served.told.metrics.is_some().then(|| Page {
        told: served.told.clone(),
        host: host.clone(),
        occupancy: occupancy.clone(),
        bounds: connected,
    });
    let sealed = Arc::new(wiring::sealed(config).map_err(io::Error::other)?);
    let endpoints =
        Endpoints::new(desk.clone(), dialects, identity.clone(), sealed.clone(), bounds)
            .with_metrics(metrics);
    let drain = Duration::from_millis(config.server.drain_ms);
    let stopping = tokio::spawn(desk.clone().stop_after(shutdown.clone(), drain));
    let own = own.into_iter().map(|(listener, dialect)| {
        let bounds = wiring::session_bounds(config);
        let desk = desk.clone();
        let identity = identity.clone();
        (listener, Endpoints::of_one(desk, dialect, identity, sealed.clone(), bounds))
    });
    let serving = own.chain([(all, endpoints)]).map(|(listener, endpoints)| {
        let shutdown = shutdown.clone();
        let secure = secure.clone();
        let workers = workers.clone();
        let occupancy = occupancy.clone();
        let asks = identity.asks();
        async move {
            let server = &config.server;
            let addr = listener.local_addr()?;
            config::check_reach(addr, server, asks).map_err(io::Error::other)?;
            let admission = Admission::new(addr, &server.allowed_hosts, &server.allowed_origins);
            let (entrance, admission) = match secure {
                None => (Entrance::from(listener), admission),
                Some(tls) => (Entrance::secured(listener, tls), admission.secured(addr)),
            };
            let bounds = http::Bounds { occupancy, ..wiring::http_bounds(config) };
            let entrance = entrance.served_by(workers);
            serve(entrance, Arc::new(endpoints), admission, bounds, shutdown).await
        }
    });
    let over = try_join_all(serving).await.map(drop);
    // Calls of disconnected clients run until they finish or the drain time ends.
    desk.idle().await;
    stopping.abort();
    host.stop_jobs().await;
    tending.abort();
    host.flush();
    served.told.close().await;
    over
}

/// Serves `served` on standard input and output in the dialect named `dialect` (such as `mcp`).
///
/// Returns when the streams close or `shutdown` is cancelled.
///
/// # Errors
/// When the dialect is unknown or a stream fails.
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
    let tending = tend(&desk);
    let streams = (stdio::stdin(), stdio::stdout());
    let over = serve_lines(desk, dialect, streams, wiring::line_bounds(config), shutdown).await;
    host.stop_jobs().await;
    tending.abort();
    host.flush();
    served.told.close().await;
    Ok(over?)
}

/// Spawns the task that maintains jobs and releases unused memory while the server is idle.
fn tend(desk: &Arc<Desk>) -> JoinHandle<()> {
    let desk = desk.clone();
    tokio::spawn(async move {
        // Startup uses much memory that is not needed again.
        desk.bustle.is_now();
        tokio::join!(desk.host.tend_jobs(), desk.bustle.let_go_after());
    })
}
