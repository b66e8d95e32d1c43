//! Trusts the configuration file in a folder (`toolgate trust`).

use std::path::PathBuf;
use std::process::ExitCode;

use toolgate::config::{SETTINGS_FILE_NAME, load, trust};

use super::{complain, print};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate trust                  believe toolgate.toml here, as it is now
  toolgate trust ~/src/app
  toolgate trust --remove         believe it no more

A folder may come from anybody, and its toolgate.toml with it: until you vouch for that, only
tools.allow, tools.deny, tools.confirm, tools.effects, files.protected and exec.confirm are taken
from it, which take something away, and one that says more is refused. Once it is changed it is
another file.")]
pub(super) struct TrustArgs {
    /// Workspace with the configuration
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Remove the trust
    #[arg(long)]
    remove: bool,
}

pub(super) fn run(args: &TrustArgs) -> anyhow::Result<ExitCode> {
    let file = args.path.join(SETTINGS_FILE_NAME);
    let text = trust::read_settings_text(&file)?;
    if args.remove {
        let was = trust::distrust(&file)?;
        complain(&match was {
            true => format!("{} is believed no more", file.display()),
            false => format!("nobody had vouched for {}", file.display()),
        });
        return Ok(ExitCode::SUCCESS);
    }
    // An invalid file would be refused even if it were trusted.
    load(&args.path, Some(&file), &[])?;
    let owned = trust::owner_settings(&text);
    if owned.is_empty() {
        complain(&format!("{} only takes away; nobody need vouch for it", file.display()));
        return Ok(ExitCode::SUCCESS);
    }
    trust::trust(&file, &text)?;
    complain(&format!("{} is believed as it is now; it decides:", file.display()));
    let lines = owned.iter().map(|it| format!("  {:>4}  {}\n", it.line, it.name));
    print(&lines.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}
