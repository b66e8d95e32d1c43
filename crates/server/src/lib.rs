//! Wires the rooms: settings in, a server out. The only crate that sees all others.
//!
//! A program with tools of its own builds a host with [`wiring::host_with`] and
//! serves it with [`serve_http`] or [`serve_stdio`].

pub mod config;
pub mod wiring;
pub mod telemetry;
pub mod shutdown;

mod session;
mod lines;
mod exchange;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use toolgate_dialects::Dialect;
use toolgate_host::Host;
use toolgate_transports::http::{Admission, serve};
use toolgate_transports::stdio;

pub use exchange::{Endpoints, SessionBounds};
pub use lines::{LineBounds, serve_lines};
pub use session::Desk;

use config::Config;

/// The dialect called `name`, spoken as this server speaks it.
pub fn dialect(name: &str) -> Option<Arc<dyn Dialect>> {
    toolgate_dialects::all(&wiring::facts()).into_iter().find(|dialect| dialect.name() == name)
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
    let paths = toolgate_dialects::all(&wiring::facts())
        .into_iter()
        .map(|dialect| (format!("/{}", dialect.name()), dialect));
    let endpoints = Endpoints::new(desk.clone(), paths, wiring::session_bounds(config));
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
    let streams = (stdio::stdin(), stdio::stdout());
    let served = serve_lines(desk, dialect, streams, wiring::line_bounds(config), shutdown).await;
    host.flush();
    served
}
