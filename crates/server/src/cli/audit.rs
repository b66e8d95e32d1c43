//! Verifies, prints and counts the audit log (`toolgate audit`).

mod stats;
mod tail;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use jiff::Timestamp;
use toolgate_host::{
    AuditFileSettings, AuditKey, AuditRecordFilter, VerifiedAuditLog, verify_audit,
};
use toolgate_service::assembly::audit_setup;

use super::{WorkspaceFolderArgs, complain, print};
use stats::AuditStatsArgs;
use tail::AuditTailArgs;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate audit verify                               check the log of the settings
  toolgate audit verify /backup/audit.jsonl --key /backup/audit.key
  toolgate audit tail --lines 100
  toolgate audit tail -f --tool 'exec.*' --failed     failed programs, as they end
  toolgate audit stats --by caller,outcome --since 7d
  toolgate audit tail --json | jq .subject

The exit code of `verify` is 0 if the log is intact, 1 if a line was changed, moved or removed,
and 2 if the log or its key cannot be read.")]
pub(super) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
    /// Workspace whose settings name the audit log
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT", global = true)]
    root: PathBuf,
    /// Configuration file, instead of toolgate.toml in the folder
    #[arg(long, value_name = "FILE", env = "TOOLGATE_CONFIG", global = true)]
    config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum AuditCommand {
    /// Check that no record was changed or removed
    Verify {
        /// Newest file of the log, instead of the file that the settings name
        file: Option<PathBuf>,
        /// Key file of the log, instead of the file that the settings name
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Print the last calls of all callers
    Tail(AuditTailArgs),
    /// Count calls
    Stats(AuditStatsArgs),
}

/// Options that select calls of the audit log.
#[derive(clap::Args)]
struct AuditFilterArgs {
    /// Only calls of this caller
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Only calls of this tool, such as `files.read`, or of several tools, such as `files.*`
    #[arg(long, value_name = "TOOL")]
    tool: Option<String>,
    /// Only calls that did not end with `ok`
    #[arg(long)]
    failed: bool,
    /// Only calls since a time such as 2026-01-31T12:00Z, or within a period such as 30m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Timestamp>,
}

impl AuditFilterArgs {
    fn filter(&self) -> AuditRecordFilter {
        AuditRecordFilter {
            caller: self.caller.clone(),
            tool: self.tool.clone(),
            outcome: None,
            failed: self.failed,
            since: self.since,
            subject: None,
        }
    }
}

/// Parses a time such as `2026-01-31T12:00Z`, or a period before now such as `7d`. The error shows
/// the expected formats.
fn parse_since(text: &str) -> Result<Timestamp, String> {
    let advice = || "write a period such as 30m, 12h or 7d, or a time such as 2026-01-31T12:00Z";
    let Some((number, unit_s)) = text.char_indices().next_back().and_then(|(at, unit)| {
        let unit_s = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        Some((text[..at].parse::<i64>().ok()?, unit_s))
    }) else {
        return text.parse().map_err(|_| advice().to_owned());
    };
    let period = number.checked_mul(unit_s).filter(|period| *period >= 0);
    let since = period.and_then(|period| Timestamp::now().as_second().checked_sub(period));
    since.and_then(|since| Timestamp::from_second(since).ok()).ok_or_else(|| advice().to_owned())
}

pub(super) fn run(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    // The log is the same for all tools.
    let folder =
        WorkspaceFolderArgs { config: args.config.clone(), read_only: false, tools: Vec::new() };
    let settings = folder.load(&args.root)?.config.audit;
    let Some(configured) = audit_setup::audit_file(&settings)? else {
        bail!("audit.to is `{}`, so there is no log file", settings.to);
    };
    match &args.command {
        AuditCommand::Verify { file, key } => {
            let AuditFileSettings { path, key: default_key, .. } = configured;
            verify(file.as_ref().unwrap_or(&path), key.as_ref().unwrap_or(&default_key))
        }
        AuditCommand::Tail(args) => tail::run(args, &configured.path),
        AuditCommand::Stats(args) => stats::run(args, &configured.path),
    }
}

/// Returns the message that the audit log at `path` does not exist.
fn no_log_message(path: &Path) -> String {
    format!(
        "no call was recorded yet, or the audit log was removed: {} does not exist",
        path.display()
    )
}

/// Returns true if there is no file at `path`.
fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|err| err.kind() == ErrorKind::NotFound)
}

fn verify(path: &Path, key: &Path) -> anyhow::Result<ExitCode> {
    if is_missing(path) {
        bail!("{}", no_log_message(path));
    }
    let key =
        AuditKey::read(key).with_context(|| format!("cannot read the key {}", key.display()))?;
    let result = verify_audit(path, &key)
        .with_context(|| format!("cannot read the audit log {}", path.display()))?;
    let VerifiedAuditLog { first_seq: first, last_seq: last, mac, torn_bytes, unchecked } =
        match result {
            Ok(intact) => intact,
            Err(broken) => {
                print(&format!("broken: {broken}\n"))?;
                return Ok(ExitCode::from(1));
            }
        };
    for path in unchecked {
        complain(&format!("{} was not checked: it is not part of this log", path.display()));
    }
    if torn_bytes > 0 {
        let bytes = if torn_bytes == 1 { "byte is" } else { "bytes are" };
        complain(&format!("the last {torn_bytes} {bytes} an incomplete record"));
    }
    match last.checked_sub(first) {
        Some(_) => print(&format!("intact: lines {first} to {last}, last mac {mac}\n"))?,
        None => print("intact: there are no records yet\n")?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_counts_back_from_now() {
        let ago =
            |text| Timestamp::now().as_second() - parse_since(text).expect("a time").as_second();
        assert!((0..2).contains(&(ago("7d") - 7 * 86_400)));
        assert!((0..2).contains(&(ago("90s") - 90)));
        assert_eq!(parse_since("2026-01-31T12:00Z").map(|it| it.as_second()), Ok(1_769_860_800));
        for wrong in ["", "d", "-1d", "7w", "99999999999999d", "ä"] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }
}
