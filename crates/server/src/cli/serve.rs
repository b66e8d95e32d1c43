//! Serves a folder over HTTP (`toolgate serve`).

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use toolgate::assembly::server_prep::ServerPrep;
use toolgate::assembly::wiring::ServedWorkspace;
use toolgate::config::{Config, ListenEntry};
use toolgate::{
    HttpListeners, ListenerSecurity, PreparedServer, config, serve::shutdown, serve_http,
};
use toolgate_contract::Caller;
use toolgate_dialects::Dialect;
use toolgate_host::Host;
use toolgate_transports::http::WorkerPool;

use super::envelope_options::EnvelopeOptions;
use super::{FolderArgs, run_to_end};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate serve                        this folder, at 127.0.0.1:8000
  toolgate serve ~/src/app --listen 127.0.0.1:0
                                        another, at a free port, which it prints

Agents connect to http://ADDRESS/mcp. It stops at ctrl-c, after calls in flight are done.")]
pub(super) struct ServeArgs {
    /// Folder to serve
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Address to listen on, instead of `server.listen`
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    enveloping: EnvelopeOptions,
    #[command(flatten)]
    folder: FolderArgs,
}

pub(super) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let mut loaded = args.folder.load_to_serve(&args.path)?;
    args.enveloping.apply(&mut loaded.config);
    if let Some(listen) = args.listen {
        loaded.config.server.listen = listen;
    }
    config::check_listen(loaded.config.server.listen, &loaded.config)?;
    if loaded.config.listen.iter().any(|own| own.dialect == "synesthetic") {
        // A server for Synesthetic alone offers its tools even without assets.
        loaded.config.assets.owner.always_offered = true;
    }
    let ground = ServerPrep::prepare(&args.path, &loaded.config)?;
    ground.confine_server(&loaded.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let workers = WorkerPool::start()?;
    let serving = workers.clone();
    let done = run_to_end(runtime, async move {
        let workspace = ServedWorkspace::open_prepared(ground, &loaded.config)?;
        let served = workspace.server();
        let front = Some(ListenerSecurity::from_config(&loaded.config)?);
        served.dialects_over_http(&loaded.config)?;
        let addr = loaded.config.server.listen;
        let listener = listen(addr, &format!("--listen {}:0", addr.ip())).await?;
        let own = own_listeners(&served, &loaded.config).await?;
        let stop = shutdown::on_signal()?;
        let scheme = url_scheme(&loaded.config);
        let at = format!("{scheme}://{}", listener.local_addr()?);
        announce(&workspace.host, args, loaded.file.as_deref(), &at);
        announce_own(&own, scheme)?;
        let _follows = args.folder.follow_upstreams(&workspace, &args.path, &loaded.config);
        let listeners = HttpListeners {
            shared: listener,
            dedicated: own,
            security: front,
            workers: Some(serving),
        };
        serve_http(&served, listeners, &loaded.config, stop).await?;
        workspace.close().await;
        Ok(ExitCode::SUCCESS)
    });
    // The work of all connections has ended by now.
    workers.end();
    done
}

/// Listens on `addr`. `said` is the option or setting that changes it, for the error.
async fn listen(addr: SocketAddr, said: &str) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(addr).await {
        Ok(listener) => Ok(listener),
        Err(err) if err.kind() == std::io::ErrorKind::AddrInUse => bail!(
            "something listens at {addr} already; give another address, e.g. {said} for any free \
             port"
        ),
        Err(err) => Err(err).with_context(|| format!("cannot listen at {addr}")),
    }
}

/// Opens a listener for each dialect that has its own.
async fn own_listeners(
    served: &PreparedServer,
    config: &Config,
) -> anyhow::Result<Vec<(TcpListener, Arc<dyn Dialect>)>> {
    let mut own = Vec::new();
    for ListenEntry { addr, dialect } in &config.listen {
        config::check_listen(*addr, config)?;
        if dialect == "zyra" && config.contracts.zyra_off {
            bail!(
                "[[listen]] serves zyra at {addr}, and ZYRA_ENABLE_MCP says that it is not served"
            );
        }
        let spoken = served.dialect(dialect)?;
        let said = format!("`addr = \"{}:0\"` in the [[listen]] of {dialect}", addr.ip());
        own.push((listen(*addr, &said).await?, spoken));
    }
    Ok(own)
}

/// Returns the URL scheme of the server.
fn url_scheme(config: &Config) -> &'static str {
    if config.server.tls_certificate.is_some() { "https" } else { "http" }
}

/// Prints the address of each dialect that is served alone.
#[allow(clippy::print_stderr, reason = "this is what a person started it to see")]
fn announce_own(own: &[(TcpListener, Arc<dyn Dialect>)], scheme: &str) -> anyhow::Result<()> {
    for (listener, dialect) in own {
        eprintln!(
            "toolgate: serving {} alone at {scheme}://{}/",
            dialect.name(),
            listener.local_addr()?
        );
    }
    Ok(())
}

/// Prints the address: instructions for a terminal, or one line for a log.
#[allow(clippy::print_stderr, reason = "this is what a person started it to see")]
fn announce(host: &Host, args: &ServeArgs, config: Option<&Path>, at: &str) {
    let folder = args.path.canonicalize().unwrap_or_else(|_| args.path.clone());
    let how = if args.folder.read_only { ", read-only" } else { "" };
    let url = format!("{at}/mcp");
    if !std::io::stderr().is_terminal() {
        eprintln!("toolgate: serving {}{how} at {url}", folder.display());
        return;
    }
    let tools = host.tools(&Caller::anonymous()).tools;
    let config = config.map(|file| format!("  config {}\n", file.display())).unwrap_or_default();
    let mut toolsets: BTreeMap<&str, usize> = BTreeMap::new();
    for tool in &tools {
        *toolsets.entry(tool.spec().id.toolset()).or_default() += 1;
    }
    let toolsets: Vec<_> =
        toolsets.into_iter().map(|(toolset, count)| format!("{toolset} {count}")).collect();
    eprintln!(
        "toolgate {version} serves {folder}{how}\n  at     {url}\n{config}  tools  {count}: {toolsets}; `toolgate tools` lists them\n\n\
         Connect an agent:\n\
         \x20 Claude Code   claude mcp add --transport http toolgate {url}\n\
         \x20 Cursor        in .cursor/mcp.json: {{\"mcpServers\":{{\"toolgate\":{{\"url\":\"{url}\"}}}}}}\n\
         \x20 VS Code       code --add-mcp '{{\"name\":\"toolgate\",\"type\":\"http\",\"url\":\"{url}\"}}'\n\n\
         ctrl-c stops it.",
        version = env!("CARGO_PKG_VERSION"),
        folder = folder.display(),
        count = tools.len(),
        toolsets = toolsets.join(", "),
    );
}
