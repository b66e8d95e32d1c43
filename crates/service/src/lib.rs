//! Builds a server from settings and serves it. Contains the settings, authentication, sessions and
//! the web console.
//!
//! A program with its own tools, prompts or resources adds them to a [`ServerBuilder`]. It then
//! calls [`serve_http`] or [`serve_stdio`].

pub mod heap;
mod owned_files;
mod object_store;
pub mod config;
pub mod telemetry;
mod identity;
mod upstreams;
mod sessions;
pub mod console;
pub mod serve;
pub mod assembly;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolgate_contract::BoxFuture;
use toolgate_dialects::rest::RestDialect;
use toolgate_toolsets::grammars;
use toolgate_transports::http::{
    self, HttpListener, OpenConnectionCounter, RequestOriginRules, serve,
};
use toolgate_transports::stdio;

pub use assembly::offer::{PreparedServer, ServerBuilder};
pub use assembly::single_answer::answer_once;
pub use assembly::static_resources::{StaticResourceSource, UriTemplateVariables};
pub use serve::exchange::{HttpEndpoints, HttpSessionLimits};
pub use serve::lines::{LineStreamLimits, serve_lines};
pub use serve::listeners::{HttpListeners, ListenerSecurity};
pub use sessions::server_state::ServerState;
pub use toolgate_net::WorkerPool;

use self::console::WebConsole;
use assembly::{transport_limits, wiring};
use config::{Config, ConsoleMode};
use identity::Authenticator;
use serve::exchange::ServerPages;
use serve::shutdown;
use telemetry::{ConnectionCounts, MetricsPage};

/// Serves the server `served` over HTTP on `listeners` until `shutdown` is cancelled. `listeners`
/// may be a `TcpListener`.
///
/// # Errors
/// A key file or certificate is unusable, a dialect is unknown, or a listener fails.
pub async fn serve_http(
    served: &PreparedServer,
    listeners: impl Into<HttpListeners>,
    config: &Config,
    shutdown: CancellationToken,
) -> io::Result<()> {
    box_http_service(served, listeners.into(), config, shutdown).await
}

/// Returns the future of [`serve_http`] in a box. The compiler would compile the body of an `async`
/// function once more in each crate that awaits it.
fn box_http_service<'a>(
    served: &'a PreparedServer,
    listeners: HttpListeners,
    config: &'a Config,
    shutdown: CancellationToken,
) -> BoxFuture<'a, io::Result<()>> {
    Box::pin(serve_listeners(served, listeners, config, shutdown))
}

async fn serve_listeners(
    served: &PreparedServer,
    listeners: HttpListeners,
    config: &Config,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let HttpListeners { shared, dedicated, security, workers } = listeners;
    let security = security.map_or_else(|| ListenerSecurity::from_config(config), Ok);
    let ListenerSecurity { identity, tls } = security.map_err(io::Error::other)?;
    shutdown::log_when_stopping(shutdown.clone());
    let host = &served.host;
    let state = ServerState::new(host.clone());
    let maintenance = spawn_maintenance(&state);
    let mut dialects = served.dialects_over_http(config).map_err(io::Error::other)?;
    // Last, so that Zyra keeps its own requests about jobs.
    dialects.push(Arc::new(RestDialect));
    let bounds = transport_limits::session_bounds(config);
    let sockets = usize::from(shared.is_some()) + dedicated.len();
    let limits = ConnectionCounts {
        connections_max: config.server.connections_max * sockets,
        streams_max: transport_limits::http_bounds(config).streams_max * sockets,
        sessions_max: bounds.sessions_max,
        ..ConnectionCounts::default()
    };
    let occupancy = OpenConnectionCounter::default();
    let input_memory = host.input_memory();
    let metrics = served.telemetry.metrics.is_some().then(|| MetricsPage {
        telemetry: served.telemetry.clone(),
        host: host.clone(),
        occupancy: occupancy.clone(),
        bounds: limits,
    });
    let sealer = Arc::new(wiring::session_sealer(config, host).map_err(io::Error::other)?);
    let console = open_console(served, config, &identity, &state).map_err(io::Error::other)?;
    let pages = ServerPages { metrics, console };
    let endpoints =
        HttpEndpoints::new(state.clone(), dialects, identity.clone(), sealer.clone(), bounds)
            .with_pages(pages);
    // Without a key, no other server can continue a session.
    let has_key = config.server.session_key.is_some();
    let shared_sessions = host.shared_sessions().filter(|_| has_key).map(Arc::new);
    let drain = Duration::from_millis(config.server.drain_ms);
    let stopping = toolgate_net::spawn_task(state.clone().stop_after(shutdown.clone(), drain));
    let dedicated = dedicated.into_iter().map(|(listener, dialect)| {
        let bounds = transport_limits::session_bounds(config);
        let state = state.clone();
        let identity = identity.clone();
        (listener, HttpEndpoints::for_dialect(state, dialect, identity, sealer.clone(), bounds))
    });
    let shared = shared.map(|listener| (listener, endpoints));
    let serving = dedicated.chain(shared).map(|(listener, endpoints)| {
        let shutdown = shutdown.clone();
        let tls = tls.clone();
        let workers = workers.clone();
        let occupancy = occupancy.clone();
        let input_memory = input_memory.clone();
        let endpoints = Arc::new(endpoints.with_shared_sessions(shared_sessions.clone()));
        let requires_credential = identity.requires_credential();
        async move {
            let server = &config.server;
            let addr = listener.local_addr()?;
            config::check_reach(addr, server, requires_credential).map_err(io::Error::other)?;
            let admission =
                RequestOriginRules::new(addr, &server.allowed_hosts, &server.allowed_origins);
            let (listener, admission) = match tls {
                None => (HttpListener::from(listener), admission),
                Some(tls) => (HttpListener::with_tls(listener, tls), admission.with_tls(addr)),
            };
            let bounds = http::HttpServerLimits {
                occupancy,
                input_memory,
                ..transport_limits::http_bounds(config)
            };
            let listener = listener.with_workers(workers);
            let _receiving = endpoints.receive_shared_messages();
            serve(listener, endpoints, admission, bounds, shutdown).await
        }
    });
    let result = try_join_all(serving).await.map(drop);
    // Calls of disconnected clients run until they finish or the drain time ends.
    state.wait_idle().await;
    stopping.abort();
    host.stop_jobs().await;
    maintenance.abort();
    host.flush();
    served.telemetry.close().await;
    result
}

/// Serves the server `served` on standard input and output, in the dialect named `dialect` (such as
/// `mcp`).
///
/// Returns when the streams close or `shutdown` is cancelled.
///
/// # Errors
/// The dialect is unknown or a stream fails.
pub fn serve_stdio<'a>(
    served: &'a PreparedServer,
    dialect: &'a str,
    config: &'a Config,
    shutdown: CancellationToken,
) -> BoxFuture<'a, anyhow::Result<()>> {
    Box::pin(serve_standard_streams(served, dialect, config, shutdown))
}

async fn serve_standard_streams(
    served: &PreparedServer,
    dialect: &str,
    config: &Config,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let dialect = served.dialect(dialect)?;
    shutdown::log_when_stopping(shutdown.clone());
    let host = &served.host;
    let state = ServerState::new(host.clone());
    let maintenance = spawn_maintenance(&state);
    let streams = (stdio::stdin(), stdio::stdout());
    let bounds = transport_limits::line_bounds(config);
    // Jobs end at the same time as the calls, not after them.
    let stopping = toolgate_net::spawn_task({
        let (host, drain, shutdown) = (host.clone(), bounds.drain, shutdown.clone());
        async move {
            shutdown.cancelled().await;
            tokio::time::sleep(drain).await;
            host.stop_jobs().await;
        }
    });
    let result = serve_lines(state, dialect, streams, bounds, shutdown).await;
    stopping.abort();
    host.stop_jobs().await;
    maintenance.abort();
    host.flush();
    served.telemetry.close().await;
    Ok(result?)
}

/// Creates the web console of `served`. Returns `None` if the settings disable the console, or if
/// `served` cannot have one. Fails if the system has no random numbers.
fn open_console(
    served: &PreparedServer,
    config: &Config,
    identity: &Arc<Authenticator>,
    state: &ServerState,
) -> anyhow::Result<Option<Arc<WebConsole>>> {
    if config.server.console == ConsoleMode::Off {
        return Ok(None);
    }
    let Some(sources) = served.console.clone() else { return Ok(None) };
    let is_secure = config.server.tls_certificate.is_some();
    let questions = state.waiting_questions.clone();
    let console = WebConsole::new(sources, identity.clone(), questions, is_secure)?;
    Ok(Some(Arc::new(console)))
}

/// Spawns the task that maintains jobs, and that releases unused memory while the server is idle.
fn spawn_maintenance(state: &Arc<ServerState>) -> JoinHandle<()> {
    let state = state.clone();
    toolgate_net::spawn_task(async move {
        // Startup uses much memory that is not needed again.
        state.idle_tracker.note_activity();
        let memory = state.host.input_memory();
        tokio::join!(
            state.host.maintain_jobs(),
            state.idle_tracker.release_when_idle(),
            grammars::end_idle_workers(),
            heap::trim_after_large_requests(&memory),
        );
    })
}
