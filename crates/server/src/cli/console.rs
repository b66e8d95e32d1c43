//! Prints a link that opens the console of a running server (`toolgate console`).

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use toolgate::config::ConsoleMode;
use toolgate::console::{LinkKey, SIGN_IN_PATH};

use super::serve::url_scheme;
use super::{FolderArgs, complain, login, print};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate console                                   open the console of the server here
  toolgate console --url http://127.0.0.1:4000       of a server at another address
  toolgate console --no-browser                      only print the link

The link works once, within ten minutes, for a server of your user that needs no keys. If the server
needs keys, sign in with a key that has the role `admin`, or `console` to look only.")]
pub(super) struct ConsoleArgs {
    /// Workspace of the server
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Address of the server, instead of `server.listen`
    #[arg(long)]
    url: Option<String>,
    /// Do not open the browser
    #[arg(long)]
    no_browser: bool,
    #[command(flatten)]
    folder: FolderArgs,
}

pub(super) fn run(args: &ConsoleArgs) -> anyhow::Result<ExitCode> {
    let config = args.folder.load(&args.path)?.config;
    if config.server.console == ConsoleMode::Off {
        bail!("the console is off (server.console)");
    }
    let own = || format!("{}://{}", url_scheme(&config), config.server.listen);
    let origin = args.url.clone().unwrap_or_else(own);
    let origin = origin.trim_end_matches('/');
    let address = match config.requires_credential()? {
        true => {
            complain(
                "the server needs keys: sign in with a key that has the role `admin`, or `console` \
                 to look only (`toolgate key new NAME --role admin`)",
            );
            format!("{origin}/")
        }
        false => link(origin)?,
    };
    print(&format!("{address}\n"))?;
    if !args.no_browser && std::io::stdout().is_terminal() {
        login::open_browser(&address);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a link that works once at the server `origin`.
pub(super) fn link(origin: &str) -> anyhow::Result<String> {
    let token = LinkKey::open_or_create()?.new_token()?;
    Ok(format!("{origin}{SIGN_IN_PATH}?token={token}"))
}
