//! Serves a folder over HTTP (`toolgate serve`).

mod banner;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use toolgate_dialects::Dialect;
use toolgate_host::FleetServerRole;
use toolgate_net::WorkerPool;
use toolgate_service::assembly::environment;
use toolgate_service::assembly::server_prep::PreparedWorkspace;
use toolgate_service::assembly::wiring::ServedWorkspace;
use toolgate_service::config::{CallLogLineFormat, Config, ListenAddressEntry};
use toolgate_service::telemetry::call_lines::print_calls;
use toolgate_service::{
    HttpListeners, ListenerSecurity, PreparedServer, config, serve::shutdown, serve_http,
};

use super::envelope_options::EnvelopeOptions;
use super::{WorkspaceFolderArgs, run_to_end};
use banner::{StartupBanner, print_stop_hint};

#[derive(Clone, clap::Args)]
#[command(after_help = "\
Examples:
  toolgate serve                        this folder, at 127.0.0.1:8000
  toolgate serve ~/src/app --listen 127.0.0.1:0
                                        another folder, at a free port, which it prints

Agents connect to http://ADDRESS/mcp. After ctrl-c, calls in flight finish, and the server stops.")]
pub(super) struct ServeArgs {
    /// Folder to serve
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Address to listen on, instead of `server.listen`
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_address)]
    listen: Option<SocketAddr>,
    /// Print one line for each call on standard error, the audit record of each call as JSON, or
    /// nothing. Overrides `log.calls`
    #[arg(long, value_enum, value_name = "LINES")]
    log: Option<CallLogLineFormatArg>,
    /// Accept jobs but run none: other servers of the fleet run them
    #[arg(long)]
    no_jobs: bool,
    #[command(flatten)]
    enveloping: EnvelopeOptions,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let mut loaded = args.folder.load_to_serve(&args.path)?;
    args.adapt(&mut loaded.config);
    if args.no_jobs && loaded.config.fleet.url.is_none() {
        bail!(
            "--no-jobs needs a job database that servers share (fleet.url): without it, no other \
             server runs the jobs"
        );
    }
    config::check_listen(loaded.config.server.listen, &loaded.config)?;
    let prep = PreparedWorkspace::prepare(&args.path, &loaded.config)?;
    let unconfined = prep.confine_server(&loaded.config)?;
    environment::report(&loaded.config, unconfined);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let workers = WorkerPool::start()?;
    let serving = workers.clone();
    let result = run_to_end(runtime, async move {
        let workspace = ServedWorkspace::open_prepared(prep, &loaded.config)?;
        let served = workspace.server();
        let security = ListenerSecurity::from_config(&loaded.config)?;
        let dialects = served.dialects_over_http(&loaded.config)?;
        let dedicated = dedicated_listeners(&served, &loaded.config).await?;
        let is_shared_used = args.listen.is_some()
            || !dialects.is_empty()
            || loaded.config.telemetry.metrics
            || dedicated.is_empty();
        let shared = match is_shared_used {
            true => {
                let addr = loaded.config.server.listen;
                let free =
                    format!("choose another, such as --listen {}:0 for any free port", addr.ip());
                Some(listen(addr, &free).await?)
            }
            false => None,
        };
        let drain = Duration::from_millis(loaded.config.server.drain_ms);
        let stop = shutdown::on_server_signal(drain, || {})?;
        let scheme = url_scheme(&loaded.config);
        let shared_addr = shared.as_ref().map(TcpListener::local_addr).transpose()?;
        let banner = StartupBanner {
            workspace: &workspace,
            config: &loaded.config,
            root: &args.path,
            file: loaded.file.as_deref(),
            read_only: args.folder.read_only,
            origin: shared_addr.map(|addr| format!("{scheme}://{addr}")),
            dialects: dialects.iter().map(|dialect| dialect.name()).collect(),
        };
        banner.print()?;
        print_dedicated(&dedicated, scheme)?;
        print_stop_hint();
        let adapt = {
            let args = args.clone();
            move |config: &mut Config| {
                args.adapt(config);
                Ok(())
            }
        };
        let printing = print_calls(&workspace.host, loaded.config.log.calls);
        let printing = AbortOnDropHandle::new(toolgate_net::spawn_task(printing));
        let _watch = args.folder.follow_settings(&workspace, &args.path, adapt, Some(&security));
        let security = Some(security);
        let listeners = HttpListeners { shared, dedicated, security, workers: Some(serving) };
        serve_http(&served, listeners, &loaded.config, stop).await?;
        workspace.close().await;
        printing.abort();
        Ok(ExitCode::SUCCESS)
    });
    // The work of all connections has ended by now.
    workers.end();
    result
}

/// Format of the log lines about calls, as an option of the command line.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum CallLogLineFormatArg {
    Calls,
    Quiet,
    Json,
}

impl From<CallLogLineFormatArg> for CallLogLineFormat {
    fn from(lines: CallLogLineFormatArg) -> Self {
        match lines {
            CallLogLineFormatArg::Calls => Self::Calls,
            CallLogLineFormatArg::Quiet => Self::Quiet,
            CallLogLineFormatArg::Json => Self::Json,
        }
    }
}

impl ServeArgs {
    /// Applies the options of `toolgate serve` to `config`.
    fn adapt(&self, config: &mut Config) {
        self.enveloping.apply(config);
        if let Some(lines) = self.log {
            config.log.calls = lines.into();
        }
        if self.no_jobs {
            config.fleet.kind = FleetServerRole::Front;
        }
        if let Some(listen) = self.listen {
            config.server.listen = listen;
        }
        if config.listen.iter().any(|own| own.dialect == "synesthetic") {
            // A server for Synesthetic alone offers its tools even without assets.
            config.assets.owner.always_offered = true;
        }
    }
}

/// Listens on `addr`. If the address is in use, the error also contains `alternative`, a text that
/// says how to choose another address.
async fn listen(addr: SocketAddr, alternative: &str) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(addr).await {
        Ok(listener) => Ok(listener),
        Err(err) if err.kind() == std::io::ErrorKind::AddrInUse => bail!(
            "the address {addr} is in use: stop the program that listens there, which `ss -ltnp` \
             shows, or {alternative}"
        ),
        Err(err) => Err(err).with_context(|| format!("cannot listen at {addr}")),
    }
}

/// Opens a listener for each dialect that has its own address. Fails if an address is in use or not
/// allowed.
async fn dedicated_listeners(
    served: &PreparedServer,
    config: &Config,
) -> anyhow::Result<Vec<(TcpListener, Arc<dyn Dialect>)>> {
    let mut listeners = Vec::new();
    for ListenAddressEntry { addr, dialect: name } in &config.listen {
        config::check_listen(*addr, config)?;
        if name == "zyra" && config.contracts.zyra_off {
            tracing::warn!(
                "ZYRA_ENABLE_MCP turns zyra off, so the server does not listen at \
                            {addr}"
            );
            continue;
        }
        let dialect = served.dialect(name)?;
        // Clients of a contract have a fixed port, so a free port would not help.
        let alternative =
            format!("write another `addr` in the [[listen]] of {name}, and in its clients");
        listeners.push((listen(*addr, &alternative).await?, dialect));
    }
    Ok(listeners)
}

/// Returns the scheme of the server's URL: `http` or `https`.
pub(super) fn url_scheme(config: &Config) -> &'static str {
    if config.server.tls_certificate.is_some() { "https" } else { "http" }
}

/// Prints the addresses of the `listeners`, which each serve a single dialect.
#[allow(clippy::print_stderr, reason = "a person started the server to see this")]
fn print_dedicated(
    listeners: &[(TcpListener, Arc<dyn Dialect>)],
    scheme: &str,
) -> anyhow::Result<()> {
    for (listener, dialect) in listeners {
        eprintln!(
            "toolgate: serving {} alone at {scheme}://{}/",
            dialect.name(),
            listener.local_addr()?
        );
    }
    Ok(())
}
