//! Prints the last calls in the audit log, and on request the calls that follow (`toolgate audit
//! tail`).

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use toolgate_contract::printable::is_hidden;
use toolgate_host::{AuditLogFollower, AuditRecordFilter, ParsedAuditRecord, newest_records};
use toolgate_service::telemetry::call_lines::{LogTimeStyle, call_line};

use super::{AuditFilterArgs, is_missing, no_log_message};
use crate::cli::{complain, print};

/// Time between two reads of the audit log by `toolgate audit tail --follow`.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);

#[derive(clap::Args)]
pub(super) struct AuditTailArgs {
    /// Number of calls
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
    lines: usize,
    /// Print new calls as they end, too
    #[arg(long, short)]
    follow: bool,
    /// Print the records as lines of JSON
    #[arg(long)]
    json: bool,
    /// Only calls whose subject contains this text, such as the name of a file
    #[arg(long, value_name = "TEXT")]
    subject: Option<String>,
    #[command(flatten)]
    select: AuditFilterArgs,
}

#[allow(
    clippy::disallowed_methods,
    reason = "a command that follows a file looks at it again and again, until ctrl-c"
)]
pub(super) fn run(args: &AuditTailArgs, log: &Path) -> anyhow::Result<ExitCode> {
    let filter = AuditRecordFilter { subject: args.subject.clone(), ..args.select.filter() };
    let cannot_read = || format!("cannot read the audit log {}", log.display());
    if is_missing(log) {
        complain(&no_log_message(log));
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        while is_missing(log) {
            std::thread::sleep(FOLLOW_INTERVAL);
        }
    }
    // Found first, so that no call is missed between the two.
    let follower = args.follow.then(|| AuditLogFollower::from_end(log)).transpose();
    let mut follower = follower.with_context(cannot_read)?;
    if args.lines > 0 {
        let newest = newest_records(log, &filter, args.lines).with_context(cannot_read)?;
        print(&newest.iter().map(|(line, record)| args.text(line, record)).collect::<String>())?;
    }
    while let Some(follower) = &mut follower {
        let mut text = String::new();
        let read = follower.read_new(|line| {
            if let Some(record) = ParsedAuditRecord::parse(line)
                && filter.matches(&record)
            {
                text.push_str(&args.text(&String::from_utf8_lossy(line), &record));
            }
        });
        read.with_context(cannot_read)?;
        print(&text)?;
        std::thread::sleep(FOLLOW_INTERVAL);
    }
    Ok(ExitCode::SUCCESS)
}

impl AuditTailArgs {
    /// Returns the text that `audit tail` prints for `record`: its JSON `line` if `--json` is set,
    /// and otherwise a line for people.
    fn text(&self, line: &str, record: &ParsedAuditRecord) -> String {
        match self.json {
            false => format!("{}\n", call_line(record, LogTimeStyle::Date)),
            true if std::io::stdout().is_terminal() => format!("{}\n", for_terminals(line)),
            true => format!("{line}\n"),
        }
    }
}

/// Escapes control and invisible characters in `lines` of JSON, for a terminal.
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
