//! Trusts the configuration file in a folder (`toolgate trust`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use toolgate::config::{SETTINGS_FILE_NAME, load, trust};

use super::{check_config, complain, print};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate trust                  trust toolgate.toml here, with its present content
  toolgate trust ~/src/app
  toolgate trust --remove         remove the trust

A folder may come from anyone, and its toolgate.toml with it. Until you trust the file, it may only
restrict tools: with tools.allow, tools.deny, tools.confirm, tools.effects, exec.confirm, and
files.protected without `!`. A file with other settings is refused. After you edit it, run
`toolgate trust` again. An invalid file is not trusted.")]
pub(super) struct TrustArgs {
    /// Workspace with the configuration
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Stop trusting the configuration
    #[arg(long)]
    remove: bool,
}

pub(super) fn run(args: &TrustArgs) -> anyhow::Result<ExitCode> {
    let file = args.path.join(SETTINGS_FILE_NAME);
    let text = trust::read_settings_text(&file)?;
    if args.remove {
        complain(&match trust::distrust(&file)? {
            true => format!("{} is no longer trusted", file.display()),
            false => format!("{} was not trusted", file.display()),
        });
        return Ok(ExitCode::SUCCESS);
    }
    let config = load(&args.path, Some(&file), &[])?.config;
    check_config::check_workspace(&args.path, &config)
        .with_context(|| format!("{} is invalid, and not trusted", file.display()))?;
    ensure!(
        config.source.is_some_and(|source| source.text == text),
        "{} changed while it was checked; run `toolgate trust` again",
        file.display()
    );
    let owned = trust::owner_settings(&text);
    if owned.is_empty() {
        complain(&format!("{} only restricts tools, so it needs no trust", file.display()));
        return Ok(ExitCode::SUCCESS);
    }
    trust::trust(&file, &text)?;
    complain(&format!("{} is trusted with its present content; it sets:", file.display()));
    let lines = owned.iter().map(|it| format!("  {:>4}  {}\n", it.line, it.name));
    print(&lines.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}
