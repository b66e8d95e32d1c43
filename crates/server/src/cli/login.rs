//! Signs a person in to and out of an upstream (`toolgate login` and `toolgate logout`).

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use tokio::sync::mpsc;
use toolgate::assembly::sign_in::UpstreamSignIn;

use super::{FolderArgs, complain, print, run_to_end};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate login linear               sign in at [upstream.linear], in a browser
  toolgate login linear --no-browser  only print the page to open

What the upstream lets in with is kept in your state folder, for you alone to read, is renewed as
long as it can be, and is said to that upstream and nobody else. A server that runs takes it over by
itself. On a machine without a browser, open the page on another and paste the address that it ends
at.")]
pub(super) struct LoginArgs {
    #[command(flatten)]
    at: UpstreamArg,
    /// Print the page without opening a browser
    #[arg(long)]
    no_browser: bool,
    /// Longest wait for the sign-in, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait: u64,
}

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  toolgate logout linear   forget who signed in there, and what toolgate is known as there")]
pub(super) struct LogoutArgs {
    #[command(flatten)]
    at: UpstreamArg,
}

#[derive(clap::Args)]
pub(super) struct UpstreamArg {
    /// Name of the upstream
    upstream: String,
    /// Workspace whose settings name the upstream
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
}

impl UpstreamArg {
    pub(super) fn open_sign_in(&self) -> anyhow::Result<UpstreamSignIn> {
        let config = self.folder.load(&self.root)?.config;
        UpstreamSignIn::open(&self.root, &config, &self.upstream)
    }
}

pub(super) fn log_in(args: &LoginArgs) -> anyhow::Result<ExitCode> {
    let name = &args.at.upstream;
    let runtime = super::small_runtime()?;
    let work = async {
        let entry = args.at.open_sign_in()?;
        let mut told = |what: &str, outcome: &Result<String, String>| {
            if let Err(why) = outcome {
                complain(&format!("{what}: {why}"));
            }
        };
        let (lines, mut pasted) = mpsc::channel(1);
        let show = |page: &str| {
            complain(&format!("sign in at `{name}` on this page:"));
            let _ = print(&format!("{page}\n"));
            if !args.no_browser {
                open_browser(page);
            }
            if std::io::stdin().is_terminal() {
                complain("if it is opened elsewhere, paste here the address that it ends at");
                std::thread::spawn(move || read_pasted_lines(&lines));
            }
        };
        let within = Duration::from_secs(args.wait);
        let signed_in = entry.sign_in(&mut told, show, &mut pasted, within).await;
        entry.close().await;
        signed_in
    };
    let signed_in = run_to_end(runtime, work)?;
    complain(&format!("signed in at `{name}`: {signed_in}"));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn log_out(args: &LogoutArgs) -> anyhow::Result<ExitCode> {
    let runtime = super::small_runtime()?;
    let was = run_to_end(runtime, async {
        let entry = args.at.open_sign_in()?;
        let was = entry.sign_out().await;
        entry.close().await;
        was
    })?;
    let name = &args.at.upstream;
    complain(&match was {
        true => format!("nobody is signed in at `{name}` any more"),
        false => format!("nobody was signed in at `{name}`"),
    });
    Ok(ExitCode::SUCCESS)
}

/// Opens `page` in the browser, if there is one.
#[allow(clippy::disallowed_methods, reason = "the person's own browser, as they name it")]
fn open_browser(page: &str) {
    let named = std::env::var_os("BROWSER").filter(|name| !name.is_empty());
    let usual = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut browser = Command::new(named.unwrap_or_else(|| usual.into()));
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
