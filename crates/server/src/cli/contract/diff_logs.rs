//! Compares two logs of envelopes (`toolgate contract diff-logs`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;

use crate::cli::{complain, print};

/// Default log to check: the newest log that `contract check` writes.
const NEW_LOG: &str = "runs/mcp_server/envelope_validation.latest.jsonl";
/// Default log to compare with.
const GOLDEN_LOG: &str = "tests/fixtures/mcp/envelope_validation_golden.jsonl";
/// Fields that differ between runs. The ids differ, too, unless both logs are deterministic.
const VARYING_FIELDS: [&str; 8] = [
    "ts",
    "durationMs",
    "runId",
    "attemptId",
    "logPath",
    "metadata.runId",
    "metadata.attemptId",
    "metadata.logPath",
];
const ID_FIELDS: [&str; 3] = ["requestId", "traceId", "spanId"];

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate contract diff-logs --new runs/mcp_server/envelope_validation.latest.jsonl \\
      --golden tests/fixtures/mcp/envelope_validation_golden.jsonl
  toolgate contract diff-logs --ignore outputBytes metadata.validation

Times, durations and runs are not compared. Ids are compared if both logs are deterministic. The exit
code is 0 if the logs are equal, 1 if they differ, and 2 if one cannot be read.")]
pub(super) struct DiffLogsArgs {
    /// Log to check
    #[arg(long, value_name = "FILE", default_value = NEW_LOG)]
    new: PathBuf,
    /// Log to compare with
    #[arg(long, value_name = "FILE", default_value = GOLDEN_LOG)]
    golden: PathBuf,
    /// Further fields to ignore; `metadata.validation` names a nested field
    #[arg(long, visible_alias = "whitelist", value_name = "FIELD", num_args = 0..)]
    ignore: Vec<String>,
}

/// Comparison of two logs, with the fields to ignore.
#[derive(Default)]
pub(super) struct LogComparison {
    ignored: Vec<String>,
}

/// A difference between two logs.
#[derive(Debug, PartialEq)]
pub(super) struct LogDifference {
    /// Line number, from 1.
    line: usize,
    /// Field name. Empty for the whole line.
    field: String,
    golden: Option<Value>,
    new: Option<Value>,
}

pub(super) fn run(args: &DiffLogsArgs) -> anyhow::Result<ExitCode> {
    let differences =
        LogComparison { ignored: args.ignore.clone() }.differences(&args.new, &args.golden)?;
    print_differences(&differences)?;
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Prints the differences.
pub(super) fn print_differences(differences: &[LogDifference]) -> anyhow::Result<()> {
    if differences.is_empty() {
        return print("the logs are equal\n");
    }
    let shown = |value: &Option<Value>| match value {
        Some(value) => value.to_string(),
        None => "nothing".to_owned(),
    };
    for LogDifference { line, field, golden, new } in differences {
        let field = if field.is_empty() { String::new() } else { format!(" {field}") };
        let golden = shown(golden);
        let new = shown(new);
        print(&format!("line {line}{field}: golden {golden}, new {new}\n"))?;
    }
    let count = differences.len();
    complain(&format!(
        "the logs differ in {count} place{}; if this is intended, update the golden log and explain \
         the change in the changelog",
        if count == 1 { "" } else { "s" }
    ));
    Ok(())
}

impl LogComparison {
    /// Compares the log `new` with `golden`.
    ///
    /// # Errors
    ///
    /// Returns an error if a log cannot be read.
    pub(super) fn differences(
        &self,
        new: &Path,
        golden: &Path,
    ) -> anyhow::Result<Vec<LogDifference>> {
        let new = records(new)?;
        let golden = records(golden)?;
        let mut all = Vec::new();
        for at in 0..new.len().max(golden.len()) {
            match (new.get(at), golden.get(at)) {
                (Some(new), Some(golden)) => self.compare(at + 1, new, golden, &mut all),
                (new, golden) => all.push(LogDifference {
                    line: at + 1,
                    field: String::new(),
                    golden: golden.cloned(),
                    new: new.cloned(),
                }),
            }
        }
        Ok(all)
    }

    fn compare(&self, line: usize, new: &Value, golden: &Value, all: &mut Vec<LogDifference>) {
        let has_fixed_ids =
            [new, golden].iter().all(|record| record["metadata"]["deterministic"] == true);
        let is_ignored = |field: &str| {
            VARYING_FIELDS.contains(&field)
                || (!has_fixed_ids && ID_FIELDS.contains(&field))
                || self.ignored.iter().any(|ignored| ignored == field)
        };
        let mut fields = Vec::new();
        collect_differences("", Some(new), Some(golden), &is_ignored, &mut fields);
        all.extend(fields.into_iter().map(|(field, new, golden)| LogDifference {
            line,
            field,
            golden,
            new,
        }));
    }
}

type FieldDifference = (String, Option<Value>, Option<Value>);

/// Collects the innermost fields in which `new` and `golden` differ.
fn collect_differences(
    at: &str,
    new: Option<&Value>,
    golden: Option<&Value>,
    is_ignored: &impl Fn(&str) -> bool,
    found: &mut Vec<FieldDifference>,
) {
    if new == golden || is_ignored(at) {
        return;
    }
    let (Some(Value::Object(new)), Some(Value::Object(golden))) = (new, golden) else {
        found.push((at.to_owned(), new.cloned(), golden.cloned()));
        return;
    };
    let more = golden.keys().filter(|name| !new.contains_key(*name));
    for name in new.keys().chain(more) {
        let within = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        collect_differences(&within, new.get(name), golden.get(name), is_ignored, found);
    }
}

fn records(log: &Path) -> anyhow::Result<Vec<Value>> {
    let text = read_text(log)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let records = lines.map(|(at, line)| {
        let record: Value = serde_json::from_str(line)
            .with_context(|| format!("line {} of {} is not JSON", at + 1, log.display()))?;
        anyhow::ensure!(
            record.is_object(),
            "line {} of {} is not a record of an envelope",
            at + 1,
            log.display()
        );
        Ok(record)
    });
    records.collect()
}

#[allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]
pub(super) fn read_text(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differing(new: &Value, golden: &Value, ignored: &[&str]) -> Vec<String> {
        let ignored = ignored.iter().map(|field| (*field).to_owned()).collect();
        let mut all = Vec::new();
        LogComparison { ignored }.compare(1, new, golden, &mut all);
        all.into_iter().map(|difference| difference.field).collect()
    }

    #[test]
    fn times_and_durations_are_not_compared() {
        let record = |ts: &str, run: &str| json!({ "ts": ts, "durationMs": 1, "metadata": { "runId": run } });
        assert_eq!(differing(&record("a", "x"), &record("b", "y"), &[]), Vec::<String>::new());
    }

    #[test]
    fn ids_are_compared_if_they_are_deterministic() {
        let record =
            |id: &str, det: bool| json!({ "requestId": id, "metadata": { "deterministic": det } });
        assert_eq!(differing(&record("a", true), &record("b", true), &[]), ["requestId"]);
        assert_eq!(differing(&record("a", false), &record("b", false), &[]), Vec::<String>::new());
    }

    #[test]
    fn nested_fields_and_fields_of_one_log_are_reported_by_name() {
        let new = json!({ "error": { "code": "A", "details": {} }, "more": 1 });
        let golden = json!({ "error": { "code": "B", "details": {} }, "less": 1 });
        assert_eq!(differing(&new, &golden, &[]), ["error.code", "more", "less"]);
        assert_eq!(differing(&new, &golden, &["error", "more"]), ["less"]);
        assert_eq!(differing(&json!({ "error": null }), &json!({ "error": {} }), &[]), ["error"]);
    }
}
