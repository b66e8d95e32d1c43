//! Trusts the configuration file and the schemas in a folder (`toolgate trust`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use toolgate_service::assembly::envelope_setup::schemas_to_trust;
use toolgate_service::config::{Config, SETTINGS_FILE_NAME, compare_settings, load, trust};

use super::{check_config, complain, print};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate trust                  trust toolgate.toml here, with its present content
  toolgate trust ~/src/app
  toolgate trust --remove         remove the trust

The folder, and the toolgate.toml in it, may come from somebody else. Until you trust the file, it
may only restrict tools: with tools.allow, tools.deny, tools.confirm, tools.effects,
exec.confirm, and files.protected without `!`. A file with other settings is refused. After you
edit the file, run `toolgate trust` again. An invalid file is not trusted.

Schemas of calls in the folders of envelope.schemas apply only once you trust them, too.")]
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
    let has_settings = file.symlink_metadata().is_ok();
    let settings = has_settings.then_some(file.as_path());
    let config = match settings {
        // The trust can be removed even if the file is invalid now.
        Some(_) if args.remove => load(&args.path, settings, &[]).map(|loaded| loaded.config).ok(),
        _ => Some(load(&args.path, settings, &[])?.config),
    };
    let schemas = match &config {
        Some(config) => schemas_to_trust(&args.path, config)?,
        None => Vec::new(),
    };
    if args.remove {
        return remove_trust(&file, &schemas);
    }
    if !has_settings && schemas.is_empty() {
        let place = match args.path == Path::new(".") {
            true => "here".to_owned(),
            false => format!("in {}", args.path.display()),
        };
        bail!("there is no {SETTINGS_FILE_NAME} {place}, so there is nothing to trust");
    }
    if has_settings {
        trust_settings(args, &file, config.as_ref())?;
    }
    for (schema, text) in &schemas {
        trust::trust(schema, text)?;
    }
    if !schemas.is_empty() {
        let count = count_schemas(schemas.len());
        complain(&format!("trusted {count} with their present content, in these folders:"));
        print(&list_folders(&schemas))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the folders of the schema files `schemas`, one per line, with the number of schemas in
/// each.
fn list_folders(schemas: &[(PathBuf, String)]) -> String {
    let mut counts: BTreeMap<&Path, usize> = BTreeMap::new();
    for (schema, _) in schemas {
        *counts.entry(schema.parent().unwrap_or(schema)).or_default() += 1;
    }
    let lines =
        counts.iter().map(|(folder, count)| format!("  {count:>4}  {}\n", folder.display()));
    lines.collect()
}

/// Returns the number of schemas in words, such as `1 schema`.
fn count_schemas(count: usize) -> String {
    if count == 1 { "1 schema".to_owned() } else { format!("{count} schemas") }
}

/// Stops trusting the settings `file` and the schema files `schemas`, and prints the result.
fn remove_trust(file: &Path, schemas: &[(PathBuf, String)]) -> anyhow::Result<ExitCode> {
    complain(&match trust::distrust(file)? {
        true => format!("{} is no longer trusted", file.display()),
        false => format!("{} was not trusted", file.display()),
    });
    let mut removed = 0;
    for (schema, _) in schemas {
        removed += usize::from(trust::distrust(schema)?);
    }
    if removed > 0 {
        complain(&format!("removed the trust in {}", count_schemas(removed)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Records trust in the settings `file`, which was loaded as `config`, and prints the result. If
/// the file needs no trust, only prints that. Fails if the settings are invalid.
fn trust_settings(args: &TrustArgs, file: &Path, config: Option<&Config>) -> anyhow::Result<()> {
    let text = trust::read_settings_text(file)?;
    let config = config.context("the settings are invalid")?;
    check_config::check_workspace(&args.path, config)
        .with_context(|| format!("{} is invalid, and not trusted", file.display()))?;
    ensure!(
        config.source.as_ref().is_some_and(|source| source.text == text),
        "{} changed while it was checked; run `toolgate trust` again",
        file.display()
    );
    let owned = trust::owner_settings(&text);
    if owned.is_empty() {
        complain(&format!(
            "{} only restricts tools, so you need not trust the file",
            file.display()
        ));
        return Ok(());
    }
    trust::trust(file, &text)?;
    complain(&format!("{} is trusted with its present content; it sets:", file.display()));
    let lines = owned.iter().map(|it| format!("  {:>4}  {}\n", it.line, it.name));
    print(&lines.collect::<String>())?;
    let restart = compare_settings(&Config::default(), config).waiting;
    if !restart.is_empty() {
        complain(&format!(
            "a running server applies changes to these settings only after a restart: {}",
            restart.join(", ")
        ));
    }
    Ok(())
}
