//! Signs a person in to an upstream, or out of it (`toolgate login` and `toolgate logout`).

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::anyhow;
use tokio::sync::mpsc;
use toolgate_service::assembly::sign_in::UpstreamSignIn;

use super::{WorkspaceFolderArgs, complain, print, run_to_end};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate login linear               sign in at [upstream.linear], in a browser
  toolgate login linear --no-browser  only print the URL of the page

The tokens are stored in your state folder, where only you can read them. toolgate renews them, and
sends them to this upstream only. A running server uses them at once. On a machine without a browser,
open the page on another machine, then paste the address of the last page.")]
pub(super) struct LoginArgs {
    #[command(flatten)]
    at: UpstreamNameArg,
    /// Print the URL of the sign-in page instead of opening a browser
    #[arg(long)]
    no_browser: bool,
    /// Maximum time to wait for the sign-in, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait: u64,
}

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  toolgate logout linear   delete the tokens and the client registration of [upstream.linear]")]
pub(super) struct LogoutArgs {
    #[command(flatten)]
    at: UpstreamNameArg,
}

#[derive(clap::Args)]
pub(super) struct UpstreamNameArg {
    /// Name of the upstream
    upstream: String,
    /// Workspace whose settings name the upstream
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

impl UpstreamNameArg {
    pub(super) fn open_sign_in(&self) -> anyhow::Result<UpstreamSignIn> {
        let config = self.folder.load(&self.root)?.config;
        UpstreamSignIn::open(&self.root, &config, &self.upstream)
    }
}

pub(super) fn log_in(args: &LoginArgs) -> anyhow::Result<ExitCode> {
    let name = &args.at.upstream;
    let runtime = super::small_runtime()?;
    let work = async {
        let session = args.at.open_sign_in()?;
        let mut failed_step = None;
        let mut report = |step: &str, outcome: &Result<String, String>| {
            failed_step = outcome.as_ref().err().map(|why| (step.to_owned(), why.clone()));
        };
        let (lines, mut pasted) = mpsc::channel(1);
        let show = |page: &str| {
            complain(&format!("sign in to `{name}` on this page:"));
            let _ = print(&format!("{page}\n"));
            if !args.no_browser {
                open_browser(page);
            }
            if std::io::stdin().is_terminal() {
                complain(
                    "if you open the page on another machine, paste the address of the last page \
                     here",
                );
                std::thread::spawn(move || read_pasted_lines(&lines));
            }
        };
        let within = Duration::from_secs(args.wait);
        let signed_in = session.sign_in(&mut report, show, &mut pasted, within).await;
        session.close().await;
        // The error of a failed step is printed once, with the name of the step.
        signed_in.map_err(|err| match failed_step {
            Some((step, why)) if why == err.to_string() => anyhow!("{step}: {why}"),
            Some(_) | None => err,
        })
    };
    let signed_in = run_to_end(runtime, work)?;
    complain(&format!("signed in to `{name}`: {signed_in}"));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn log_out(args: &LogoutArgs) -> anyhow::Result<ExitCode> {
    let runtime = super::small_runtime()?;
    let was_signed_in = run_to_end(runtime, async {
        let session = args.at.open_sign_in()?;
        let was_signed_in = session.sign_out().await;
        session.close().await;
        was_signed_in
    })?;
    let name = &args.at.upstream;
    complain(&match was_signed_in {
        true => format!("signed out of `{name}`"),
        false => format!("you were not signed in to `{name}`"),
    });
    Ok(ExitCode::SUCCESS)
}

/// Opens the URL `page` in the browser, if this machine has one. Ignores failures.
#[allow(clippy::disallowed_methods, reason = "the user's own browser")]
pub(super) fn open_browser(page: &str) {
    let configured = std::env::var_os("BROWSER").filter(|name| !name.is_empty());
    let default = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut browser = Command::new(configured.unwrap_or_else(|| default.into()));
    browser.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The user can open the printed page instead.
    let _ = browser.spawn();
}

fn read_pasted_lines(lines: &mpsc::Sender<String>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}
