//! `toolgate stdio`: a folder to whoever started this process.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use toolgate::wiring::{Workspace, facts};
use toolgate::{dialect, serve_stdio, shutdown};

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
    let Some(dialect) = dialect(&args.dialect) else {
        let known: Vec<_> =
            toolgate_dialects::all(&facts()).iter().map(|dialect| dialect.name()).collect();
        bail!("no dialect is named `{}`; there is {}", args.dialect, known.join(", "));
    };
    run_to_end(small_runtime()?, async {
        let workspace = Workspace::open(&args.path, &loaded.config)?;
        let stop = shutdown::on_signal()?;
        if std::io::stdin().is_terminal() {
            complain(
                "waiting for messages on standard input, a line of JSON each; an agent starts \
                 this program and writes them. `toolgate call` calls a tool by hand",
            );
        }
        serve_stdio(workspace.host.clone(), dialect, &loaded.config, stop).await?;
        workspace.close().await;
        Ok(ExitCode::SUCCESS)
    })
}
