//! Opens the console of a running server in the browser, or performs an action there (`toolgate
//! console`).

mod actions;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use toolgate_net::addresses::is_loopback_host;
use toolgate_service::config::ConsoleMode;
use toolgate_service::console::{OneTimeLinkKey, SIGN_IN_PATH};

use super::remote::{RemoteKeyArgs, parse_server_url};
use super::serve::url_scheme;
use super::{WorkspaceFolderArgs, complain, login, print, run_to_end, small_runtime};
use actions::ConsoleAction;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate console                                   open the console of the server here
  toolgate console --url http://127.0.0.1:4000       of a server at another address
  toolgate console --no-browser                      only print the link
  toolgate console --waiting                         list the calls that wait for a confirmation
  toolgate console --allow 3                         confirm the call with this number
  toolgate console --reconnect github                reconnect an upstream

The link works once, within ten minutes, for a server of your user that needs no keys. If the server
needs keys, sign in with a key that has the role `admin`, or `console` to look only. To use
--allow, --refuse or --reconnect, set TOOLGATE_KEY to such a key.")]
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
    /// List the calls that wait for a confirmation, instead of opening the browser
    #[arg(long, group = "action")]
    waiting: bool,
    /// Confirm the call with this number
    #[arg(long, value_name = "NUMBER", group = "action")]
    allow: Option<u64>,
    /// Refuse the call with this number
    #[arg(long, value_name = "NUMBER", group = "action")]
    refuse: Option<u64>,
    /// Close the connections to this upstream, and connect again
    #[arg(long, value_name = "UPSTREAM", group = "action")]
    reconnect: Option<String>,
    #[command(flatten)]
    key: RemoteKeyArgs,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

impl ConsoleArgs {
    fn action(&self) -> Option<ConsoleAction<'_>> {
        let answer = |number: Option<u64>, choice| Some(ConsoleAction::Answer(number?, choice));
        let reconnect = self.reconnect.as_deref().map(ConsoleAction::Reconnect);
        let waiting = self.waiting.then_some(ConsoleAction::Waiting);
        let answered = answer(self.allow, "allow").or_else(|| answer(self.refuse, "refuse"));
        waiting.or(answered).or(reconnect)
    }
}

pub(super) fn run(args: &ConsoleArgs) -> anyhow::Result<ExitCode> {
    let config = args.folder.load(&args.path)?.config;
    if config.server.console == ConsoleMode::Off {
        bail!("the console is off (server.console)");
    }
    let own = || format!("{}://{}", url_scheme(&config), config.server.listen);
    let origin = args.url.clone().unwrap_or_else(own);
    let origin = origin.trim_end_matches('/');
    let needs_key = config.requires_credential()?;
    if !needs_key && args.url.is_some() {
        check_own_machine(origin)?;
    }
    if let Some(action) = args.action() {
        let done = actions::take(&action, origin, needs_key, &args.key);
        return Ok(match run_to_end(small_runtime()?, done) {
            Ok(()) => ExitCode::SUCCESS,
            Err(err) => {
                complain(&format!("{err:#}"));
                ExitCode::from(1)
            }
        });
    }
    let address = match needs_key {
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

/// Fails unless `origin` is a server on this machine. A server elsewhere could use the one-time
/// token to sign in at the server that this user runs here.
fn check_own_machine(origin: &str) -> anyhow::Result<()> {
    if is_loopback_host(parse_server_url(origin)?.host()) {
        return Ok(());
    }
    bail!(
        "--url names another machine, and a one-time link is only for a server on this machine; \
         run `toolgate console` there, or pass the configuration of a server that needs keys with \
         --config"
    )
}

/// Returns a one-time link that opens the console of the server `origin`. Fails if the key that
/// seals such links is unusable.
pub(super) fn link(origin: &str) -> anyhow::Result<String> {
    let token = OneTimeLinkKey::open_or_create()?.new_token()?;
    Ok(format!("{origin}{SIGN_IN_PATH}?token={token}"))
}
