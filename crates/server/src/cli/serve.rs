//! `toolgate serve`: a folder over HTTP.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use toolgate::wiring::Workspace;
use toolgate::{config, memory, serve_http, shutdown};
use toolgate_contract::{Caller, fold};
use toolgate_host::Host;

use super::{Folder, run_to_end};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate serve                        this folder, at 127.0.0.1:8000
  toolgate serve ~/src/app --listen 127.0.0.1:0
                                        another, at a free port, which it prints

Agents connect to http://ADDRESS/mcp. It stops at ctrl-c, after calls in flight are done.")]
pub(super) struct Args {
    /// The folder to serve
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// The address to listen at, instead of `server.listen`
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    folder: Folder,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut loaded = args.folder.load_to_serve(&args.path)?;
    if let Some(listen) = args.listen {
        loaded.config.server.listen = listen;
    }
    config::check_listen(loaded.config.server.listen)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    run_to_end(runtime, async {
        let workspace = Workspace::open(&args.path, &loaded.config)?;
        let listener = listen(loaded.config.server.listen).await?;
        let stop = shutdown::on_signal()?;
        announce(&workspace.host, args, loaded.file.as_deref(), listener.local_addr()?);
        memory::let_go_of_start();
        serve_http(&workspace.served(), listener, &loaded.config, stop).await?;
        workspace.close().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// An address as people write it: `127.0.0.1:8000`, `localhost:8000`, `:8000` or `8000`.
fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost").unwrap_or(text);
    let port = port.strip_prefix(':').unwrap_or(port).parse::<u16>();
    port.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .or_else(|_| text.parse())
        .map_err(|_| "write an address and a port such as 127.0.0.1:8000, or a port".to_owned())
}

async fn listen(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(addr).await {
        Ok(listener) => Ok(listener),
        Err(err) if err.kind() == std::io::ErrorKind::AddrInUse => bail!(
            "something listens at {addr} already; give another address, e.g. --listen {}:0 for \
             any free port",
            addr.ip()
        ),
        Err(err) => Err(err).with_context(|| format!("cannot listen at {addr}")),
    }
}

/// Says what is served and how to connect, at length to a person, in a line to a log.
#[allow(clippy::print_stderr, reason = "this is what a person started it to see")]
fn announce(host: &Host, args: &Args, config: Option<&Path>, addr: SocketAddr) {
    let folder = args.path.canonicalize().unwrap_or_else(|_| args.path.clone());
    let how = if args.folder.read_only { ", read-only" } else { "" };
    let url = format!("http://{addr}/mcp");
    if !std::io::stderr().is_terminal() {
        eprintln!("toolgate: serving {}{how} at {url}", folder.display());
        return;
    }
    let tools = host.tools(&Caller::http()).tools;
    let config = config.map(|file| format!("  config {}\n", file.display())).unwrap_or_default();
    let names: Vec<_> = tools.iter().map(|tool| fold(tool.spec().id.as_str())).collect();
    eprintln!(
        "toolgate {version} serves {folder}{how}\n  at     {url}\n{config}  tools  {count}: {names}\n\n\
         Connect an agent:\n\
         \x20 Claude Code   claude mcp add --transport http toolgate {url}\n\
         \x20 Cursor        in .cursor/mcp.json: {{\"mcpServers\":{{\"toolgate\":{{\"url\":\"{url}\"}}}}}}\n\
         \x20 VS Code       code --add-mcp '{{\"name\":\"toolgate\",\"type\":\"http\",\"url\":\"{url}\"}}'\n\n\
         ctrl-c stops it.",
        version = env!("CARGO_PKG_VERSION"),
        folder = folder.display(),
        count = names.len(),
        names = names.join(" "),
    );
}
