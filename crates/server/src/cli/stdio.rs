//! Serves a folder over standard input and output (`toolgate stdio`).

mod status;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;
use toolgate::config::Config;
use toolgate::ground::Ground;
use toolgate::ready::ReadyFile;
use toolgate::wiring::Workspace;
use toolgate::{Served, serve_stdio, shutdown};

use self::status::Status;
use super::enveloping::Enveloping;
use super::{Folder, complain, run_to_end, small_runtime};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  claude mcp add toolgate -- toolgate stdio ~/src/app
  printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}' | toolgate stdio
  toolgate stdio --dialect synesthetic

Messages are lines of JSON. Nothing else is written to standard output; the log goes to
standard error. It ends when its input does.")]
pub(super) struct Args {
    /// Folder to serve
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Wire contract of the messages
    #[arg(long, default_value = "mcp", value_name = "NAME")]
    dialect: String,
    #[command(flatten)]
    enveloping: Enveloping,
    #[command(flatten)]
    folder: Folder,
}

/// A server that is ready to read its first line.
struct Opened {
    config: Config,
    workspace: Workspace,
    served: Served,
    stop: CancellationToken,
    /// Ready file, once the server is ready, if one is configured.
    ready: Arc<OnceLock<ReadyFile>>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status = Status::of(&args.dialect);
    status.begins();
    let grounded = match ground(args, status) {
        Ok(grounded) => grounded,
        Err(err) => return status.not_set_up(err),
    };
    run_to_end(small_runtime()?, async {
        let opened = match open(args, grounded) {
            Ok(opened) => opened,
            Err(err) => return status.not_set_up(err),
        };
        let Opened { config, workspace, served, stop, ready } = opened;
        status.is_ready(&args.path, &config, &ready);
        if std::io::stdin().is_terminal() {
            complain(
                "waiting for messages on standard input, a line of JSON each; an agent starts \
                 this program and writes them. `toolgate call` calls a tool by hand",
            );
        }
        let _follows = args.folder.follow(&workspace, &args.path, &config);
        let over = serve_stdio(&served, &args.dialect, &config, stop).await;
        workspace.close().await;
        if let Some(file) = ready.get() {
            file.remove();
        }
        status.ended();
        over.map(|()| ExitCode::SUCCESS)
    })
}

/// Prepares the server and confines this process.
fn ground(args: &Args, status: Status) -> anyhow::Result<(Config, Ground)> {
    let mut config = args.folder.load_to_serve(&args.path)?.config;
    args.enveloping.put(&mut config);
    status.check(&mut config)?;
    let ground = Ground::of(&args.path, &config)?;
    ground.confine_server(&config)?;
    Ok((config, ground))
}

/// Opens the workspace and the dialect, before the first line is read.
fn open(args: &Args, (config, ground): (Config, Ground)) -> anyhow::Result<Opened> {
    let workspace = Workspace::on(ground, &config)?;
    let served = workspace.served();
    // An unknown dialect must fail before the terminal message.
    served.dialect(&args.dialect)?;
    let ready = Arc::new(OnceLock::<ReadyFile>::new());
    let last = ready.clone();
    let stop = shutdown::on_signal_or(move || {
        if let Some(file) = last.get() {
            file.remove();
        }
    })?;
    Ok(Opened { config, workspace, served, stop, ready })
}
