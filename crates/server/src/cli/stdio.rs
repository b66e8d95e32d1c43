//! `toolgate stdio`: a folder to whoever started this process.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use toolgate::wiring::Workspace;
use toolgate::{memory, serve_stdio, shutdown};

use super::{Folder, complain, run_to_end, small_runtime};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  claude mcp add toolgate -- toolgate stdio ~/src/app
  printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}' | toolgate stdio

Messages are lines of JSON. Nothing else is written to standard output; the log goes to
standard error. It ends when its input does.")]
pub(super) struct Args {
    /// The folder to serve
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// The wire contract to speak
    #[arg(long, default_value = "mcp", value_name = "NAME")]
    dialect: String,
    #[command(flatten)]
    folder: Folder,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let loaded = args.folder.load_to_serve(&args.path)?;
    run_to_end(small_runtime()?, async {
        let workspace = Workspace::open(&args.path, &loaded.config)?;
        let served = workspace.served();
        // Before a person is told to wait.
        served.dialect(&args.dialect)?;
        let stop = shutdown::on_signal()?;
        if std::io::stdin().is_terminal() {
            complain(
                "waiting for messages on standard input, a line of JSON each; an agent starts \
                 this program and writes them. `toolgate call` calls a tool by hand",
            );
        }
        memory::let_go_of_start();
        serve_stdio(&served, &args.dialect, &loaded.config, stop).await?;
        workspace.close().await;
        Ok(ExitCode::SUCCESS)
    })
}
