//! Verifies and prints the audit log (`toolgate audit`).

use std::fmt::Write as _;
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use toolgate::assembly::audit_setup;
use toolgate_contract::printable::is_hidden;
use toolgate_host::{AuditFile, AuditKey, IntactAuditLog, verify_audit};

use super::{FolderArgs, complain, print};

/// Maximum number of bytes that are read from the end of the log to find the last records.
const TAIL_BYTES_MAX: u64 = 4 << 20;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate audit verify                               check the log of the settings
  toolgate audit verify /backup/audit.jsonl --key /backup/audit.key
  toolgate audit tail --lines 100

The exit code of `verify` is 0 if the log is intact, 1 if a line was changed, moved or removed, and 2
if the log or its key cannot be read.")]
pub(super) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
    /// Workspace whose settings name the audit log
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT", global = true)]
    root: PathBuf,
    #[command(flatten)]
    folder: FolderArgs,
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
    /// Print the last records of all callers
    Tail {
        /// Number of records
        #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
        lines: usize,
    },
}

pub(super) fn run(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let settings = args.folder.load(&args.root)?.config.audit;
    let Some(configured) = audit_setup::audit_file(&settings)? else {
        bail!("audit.to is `{}`, so there is no log file", settings.to);
    };
    match &args.command {
        AuditCommand::Verify { file, key } => {
            let AuditFile { path, key: default_key, .. } = configured;
            verify(file.as_ref().unwrap_or(&path), key.as_ref().unwrap_or(&default_key))
        }
        AuditCommand::Tail { lines } => tail(&configured.path, *lines),
    }
}

fn verify(path: &Path, key: &Path) -> anyhow::Result<ExitCode> {
    let key =
        AuditKey::read(key).with_context(|| format!("cannot read the key {}", key.display()))?;
    let result = verify_audit(path, &key)
        .with_context(|| format!("cannot read the audit log {}", path.display()))?;
    let IntactAuditLog { first_seq: first, last_seq: last, mac, torn_bytes, unchecked } =
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

#[allow(
    clippy::disallowed_methods,
    reason = "the log is the server's own file, outside every root"
)]
fn tail(path: &Path, lines: usize) -> anyhow::Result<ExitCode> {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let start = length.saturating_sub(TAIL_BYTES_MAX);
        file.seek(SeekFrom::Start(start))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        std::io::Result::Ok((start > 0, end))
    };
    let (is_cut, end) =
        read().with_context(|| format!("cannot read the audit log {}", path.display()))?;
    let end = String::from_utf8_lossy(&end);
    let complete = end.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let complete: Vec<_> = complete.skip(usize::from(is_cut)).collect();
    let last = complete[complete.len().saturating_sub(lines)..].concat();
    match std::io::stdout().is_terminal() {
        true => print(&for_terminals(&last))?,
        false => print(&last)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Escapes control and invisible characters in `lines` of JSON.
fn for_terminals(lines: &str) -> String {
    let mut shown = String::with_capacity(lines.len());
    for c in lines.chars() {
        match c != '\n' && is_hidden(c) {
            true => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(shown, "\\u{unit:04x}");
                }
            }
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_invisible_characters_are_escaped_as_json() {
        let name = "a\u{202e}b\u{9b}31m\u{7f}\u{e0041}\u{200b}größe";
        let line = format!("{}\n", serde_json::json!({ "tool": name }));
        let shown = for_terminals(&line);
        assert_eq!(shown, "{\"tool\":\"a\\u202eb\\u009b31m\\u007f\\udb40\\udc41\\u200bgröße\"}\n");
        let read: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(read["tool"], name);
    }
}
