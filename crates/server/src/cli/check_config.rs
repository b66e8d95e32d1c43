//! Checks a configuration before anything runs with it (`toolgate check-config`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use toolgate_contract::{Caller, ToolId};
use toolgate_host::REDACTED;
use toolgate_service::assembly::wiring::ServedWorkspace;
use toolgate_service::config::{self, Config, SettingsDifference};

use super::{WorkspaceFolderArgs, as_toml, complain, print, secret_detection};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate check-config                      toolgate.toml here, and the environment
  toolgate check-config --config other.toml  another file, and the environment
  toolgate check-config --config next.toml --against toolgate.toml
                                             what next.toml would change

The file need not be trusted, and the variables of secrets need not be set. The exit code is 0 if
the configuration is valid, and 2 if it is not.")]
pub(super) struct CheckConfigArgs {
    /// Workspace of the configuration
    #[arg(default_value = ".", env = "TOOLGATE_ROOT")]
    path: PathBuf,
    /// Print what the configuration would change for a server that runs with this file
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &CheckConfigArgs) -> anyhow::Result<ExitCode> {
    let (loaded, trust_note) = args.folder.load_with_trust_note(&args.path)?;
    let config = &loaded.config;
    config::check_listen(config.server.listen, config)?;
    for own in &config.listen {
        config::check_listen(own.addr, config)
            .with_context(|| format!("in the [[listen]] of {}", own.dialect))?;
    }
    check_workspace(&args.path, config)?;
    // A file with an error needs no trust yet.
    if let Some(note) = trust_note {
        complain(&note);
    }
    for name in unset_secrets(config) {
        complain(&format!(
            "the variable `{name}` of secrets.values_from is not set here; the server does not \
             start without it"
        ));
    }
    if let Some(running) = &args.against {
        print(&changes(args, running, config)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    complain(&match &loaded.file {
        Some(file) => format!("{} is valid; effective settings:", file.display()),
        None => "no toolgate.toml here; effective settings:".to_owned(),
    });
    print(&as_toml(&without_secrets(loaded.config))?)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a text about the changes that `next` would make for a server that runs with the settings
/// file `running`: a line for each setting, and for each of the server's own tools that appears or
/// vanishes. Fails if a setting is invalid.
fn changes(args: &CheckConfigArgs, running: &Path, next: &Config) -> anyhow::Result<String> {
    let mut before = config::load(&args.path, Some(running), &config::environment())?.config;
    args.folder.restrict(&mut before);
    let SettingsDifference { applied, waiting } = config::compare_settings(&before, next);
    let tools = |config: &Config| -> anyhow::Result<Vec<ToolId>> {
        let config = without_secret_sources(config);
        let opened = ServedWorkspace::open_for_inspection(&args.path, &config)?;
        Ok(opened.host.own_tools(&Caller::local()))
    };
    let (now, then) = (tools(&before)?, tools(next)?);
    let applied = applied.iter().map(|name| format!("{name}: applies at the next reload\n"));
    let waiting = waiting.iter().map(|name| format!("{name}: needs a restart\n"));
    let added = then.iter().filter(|id| !now.contains(id));
    let removed = now.iter().filter(|id| !then.contains(id));
    let added = added.map(|id| format!("{id}: this tool is added\n"));
    let removed = removed.map(|id| format!("{id}: this tool is removed\n"));
    let text: String = applied.chain(waiting).chain(added).chain(removed).collect();
    Ok(if text.is_empty() { "nothing changes\n".to_owned() } else { text })
}

/// Checks the patterns, rules, folders, schemas and dialects in `config`, which requires building
/// the workspace at `root`. Fails at the first problem.
pub(super) fn check_workspace(root: &Path, config: &Config) -> anyhow::Result<()> {
    let opened = ServedWorkspace::open_for_inspection(root, &without_secret_sources(config))?;
    let served = opened.server();
    served.dialects_over_http(config)?;
    for own in &config.listen {
        served.dialect(&own.dialect).context("in a [[listen]]")?;
    }
    Ok(())
}

/// Returns `config` without the settings `secrets.values_from` and `secrets.files`. A check does
/// not need the secrets, and the settings file may be untrusted.
pub(super) fn without_secret_sources(config: &Config) -> Config {
    let mut config = config.clone();
    config.secrets.values_from.clear();
    config.secrets.files.clear();
    config
}

/// Returns the environment variables of `secrets.values_from` that are not set.
fn unset_secrets(config: &Config) -> Vec<&str> {
    let environment = config::environment();
    let is_unset = |name: &&str| !environment.iter().any(|(set, _)| set.to_str() == Some(*name));
    config.secrets.values_from.iter().map(String::as_str).filter(is_unset).collect()
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

/// Redacts the secrets in `word`, a URL or a command-line argument. `before` is the previous
/// argument, such as a flag.
fn without_secret_parts(word: &str, before: &str) -> String {
    let mut clean = word.to_owned();
    for found in secret_detection::secrets_in_word(word, before).into_iter().rev() {
        clean.replace_range(found.range, REDACTED);
    }
    clean
}
