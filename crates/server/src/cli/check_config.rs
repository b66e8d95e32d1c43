//! Checks a configuration before anything runs with it (`toolgate check-config`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use toolgate::assembly::wiring::ServedWorkspace;
use toolgate::config::{self, Config};
use toolgate_host::REDACTED;

use super::{FolderArgs, as_toml, complain, print, secret_detection};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate check-config                      toolgate.toml here, and the environment
  toolgate check-config --config other.toml

It exits with 0 when the configuration is sound and prints the settings in force,
with 2 when it is not, and says where.")]
pub(super) struct CheckConfigArgs {
    /// Workspace of the configuration
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
}

pub(super) fn run(args: &CheckConfigArgs) -> anyhow::Result<ExitCode> {
    let loaded = args.folder.load(&args.path)?;
    let config = &loaded.config;
    config::check_listen(config.server.listen, config)?;
    // Some errors only appear when the workspace is built: patterns, folders and schemas.
    let served = ServedWorkspace::open_for_inspection(&args.path, &loaded.config)?.server();
    served.dialects_over_http(&loaded.config)?;
    for own in &loaded.config.listen {
        config::check_listen(own.addr, config)
            .with_context(|| format!("in the [[listen]] of {}", own.dialect))?;
        served.dialect(&own.dialect).context("in a [[listen]]")?;
    }
    let from = match &loaded.file {
        Some(file) => format!("{} is sound; with it and the environment:", file.display()),
        None => "there is no toolgate.toml here, and none is needed; the settings are:".to_owned(),
    };
    complain(&from);
    print(&as_toml(&without_secrets(loaded.config))?)?;
    Ok(ExitCode::SUCCESS)
}

/// Redacts the literal secrets of upstreams in `config`, because the output may end up in logs.
fn without_secrets(mut config: Config) -> Config {
    for upstream in config.upstream.values_mut() {
        for (name, value) in upstream.headers.iter_mut().chain(&mut upstream.env) {
            if secret_detection::has_secret(name, value) {
                REDACTED.clone_into(value);
            }
        }
        if let Some(oauth) = &mut upstream.oauth {
            let both = [&mut oauth.client_secret, &mut oauth.client_key];
            for secret in both.into_iter().flatten() {
                if secret_detection::has_secret("secret", secret) {
                    REDACTED.clone_into(secret);
                }
            }
        }
        let mut before = String::new();
        for word in upstream.url.iter_mut().chain(&mut upstream.command) {
            let clean = without_secret_parts(word, &before);
            before = std::mem::replace(word, clean);
        }
    }
    config
}

/// Redacts the secrets in `word`, a URL or the argument after `before`.
fn without_secret_parts(word: &str, before: &str) -> String {
    let mut clean = word.to_owned();
    for found in secret_detection::secrets_in_word(word, before).into_iter().rev() {
        clean.replace_range(found.range, REDACTED);
    }
    clean
}
