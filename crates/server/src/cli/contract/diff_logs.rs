//! Compares two logs of envelopes (`toolgate contract diff-logs`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;
use toolgate_contract::{exact_json, strip_byte_order_mark};

use crate::cli::{complain, print};

/// Default path of the envelope log to check. `contract check` writes this log.
const NEW_LOG: &str = "runs/mcp_server/envelope_validation.latest.jsonl";
/// Default path of the golden log, with which the checked log is compared.
const GOLDEN_LOG: &str = "tests/fixtures/mcp/envelope_validation_golden.jsonl";
/// Fields of an envelope that differ between runs. Ids also differ, unless both logs are
/// deterministic.
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
/// Length of the text of a UUID, in characters.
const UUID_CHARS: usize = 36;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate contract diff-logs --new runs/mcp_server/envelope_validation.latest.jsonl \\
      --golden tests/fixtures/mcp/envelope_validation_golden.jsonl
  toolgate contract diff-logs --ignore inputBytes outputBytes

Times, durations and runs are not compared, nor is the order of lines. Ids are compared if both logs
have toolgate's deterministic ids. The exit code is 0 if the logs are equal, 1 if they differ, and 2 if
one cannot be read.")]
pub(super) struct DiffLogsArgs {
    /// Log to check
    #[arg(long, value_name = "FILE", default_value = NEW_LOG)]
    new: PathBuf,
    /// Log to compare with
    #[arg(long, value_name = "FILE", default_value = GOLDEN_LOG)]
    golden: PathBuf,
    /// Further fields to ignore, also in `metadata`; `error.message` names a nested field
    #[arg(long, value_name = "FIELD", num_args = 0..)]
    ignore: Vec<String>,
    /// Fields to ignore instead of times, durations, runs and ids, as in RAGX's script
    #[arg(long, value_name = "FIELD", num_args = 0..)]
    whitelist: Option<Vec<String>>,
}

/// Compares two envelope logs, except for the fields to ignore.
#[derive(Default)]
pub(super) struct EnvelopeLogComparison {
    ignored: Vec<String>,
    /// Fields to ignore. `None` stands for the default fields, which vary between runs.
    whitelist: Option<Vec<String>>,
}

/// A difference between two envelope logs.
#[derive(Debug, PartialEq)]
pub(super) struct EnvelopeLogDifference {
    /// Line number in the log, from 1.
    line: usize,
    /// Name of the field that differs. Empty if the complete lines differ.
    field: String,
    golden: Option<Value>,
    new: Option<Value>,
}

pub(super) fn run(args: &DiffLogsArgs) -> anyhow::Result<ExitCode> {
    let DiffLogsArgs { new, golden, ignore, whitelist } = args;
    let comparison =
        EnvelopeLogComparison { ignored: ignore.clone(), whitelist: whitelist.clone() };
    let differences = comparison.differences(new, golden)?;
    print_differences(&differences)?;
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Prints the differences between two envelope logs.
pub(super) fn print_differences(differences: &[EnvelopeLogDifference]) -> anyhow::Result<()> {
    if differences.is_empty() {
        return print("the logs are equal\n");
    }
    let shown = |value: &Option<Value>| match value {
        Some(value) => value.to_string(),
        None => "nothing".to_owned(),
    };
    for EnvelopeLogDifference { line, field, golden, new } in differences {
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

impl EnvelopeLogComparison {
    /// Returns the differences of the envelope log `new` from `golden`.
    ///
    /// # Errors
    ///
    /// Returns an error if a log cannot be read.
    pub(super) fn differences(
        &self,
        new: &Path,
        golden: &Path,
    ) -> anyhow::Result<Vec<EnvelopeLogDifference>> {
        let mut new: Vec<_> = records(new)?.into_iter().map(Some).collect();
        let mut golden: Vec<_> = records(golden)?.into_iter().map(Some).collect();
        self.remove_equal(&mut new, &mut golden);
        let mut all = Vec::new();
        for at in 0..new.len().max(golden.len()) {
            let new = new.get_mut(at).and_then(Option::take);
            let golden = golden.get_mut(at).and_then(Option::take);
            match (new, golden) {
                (Some(new), Some(golden)) => self.compare(at + 1, &new, &golden, &mut all),
                (None, None) => {}
                (new, golden) => {
                    all.push(EnvelopeLogDifference {
                        line: at + 1,
                        field: String::new(),
                        golden,
                        new,
                    });
                }
            }
        }
        Ok(all)
    }

    /// Replaces equal records in `new` and `golden` by `None`, regardless of their line numbers.
    /// Each record is paired with at most one record of the other log.
    fn remove_equal(&self, new: &mut [Option<Value>], golden: &mut [Option<Value>]) {
        let is_equal = |new: &Value, golden: &Option<Value>| {
            let mut differences = Vec::new();
            golden.as_ref().is_some_and(|golden| {
                self.compare(0, new, golden, &mut differences);
                differences.is_empty()
            })
        };
        for (at, slot) in new.iter_mut().enumerate() {
            let Some(record) = slot else { continue };
            // Usually the lines at the same position are equal.
            let here = golden.get(at).is_some_and(|golden| is_equal(record, golden)).then_some(at);
            let found = here.or_else(|| golden.iter().position(|golden| is_equal(record, golden)));
            if let Some(found) = found {
                *slot = None;
                golden[found] = None;
            }
        }
    }

    fn compare(
        &self,
        line: usize,
        new: &Value,
        golden: &Value,
        all: &mut Vec<EnvelopeLogDifference>,
    ) {
        let has_fixed_ids = [new, golden].into_iter().all(has_fixed_ids);
        let is_named = |field: &str, name: &String| {
            field == name || field.strip_prefix("metadata.") == Some(name.as_str())
        };
        let is_ignored = |field: &str| {
            self.ignored.iter().any(|name| is_named(field, name))
                || match &self.whitelist {
                    Some(names) => names.iter().any(|name| is_named(field, name)),
                    None => {
                        VARYING_FIELDS.contains(&field)
                            || (!has_fixed_ids && ID_FIELDS.contains(&field))
                    }
                }
        };
        let mut fields = Vec::new();
        collect_differences("", Some(new), Some(golden), &is_ignored, &mut fields);
        all.extend(fields.into_iter().map(|(field, new, golden)| EnvelopeLogDifference {
            line,
            field,
            golden,
            new,
        }));
    }
}

/// Returns true if the ids of the envelope `record` are derived from its request. The ids in RAGX's
/// golden log are placeholders, for which this returns false.
fn has_fixed_ids(record: &Value) -> bool {
    let is_uuid = |field: &str| {
        let id = record[field].as_str().unwrap_or_default();
        id.len() == UUID_CHARS && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
    };
    record["metadata"]["deterministic"] == true
        && ID_FIELDS.into_iter().all(|field| record.get(field).is_none() || is_uuid(field))
}

/// Path of a field that differs, with its values in the new log and in the golden log.
type EnvelopeFieldDifference = (String, Option<Value>, Option<Value>);

/// Adds to `found` the innermost fields in which the records `new` and `golden` differ. `at` is the
/// path of the fields that contain the two records.
fn collect_differences(
    at: &str,
    new: Option<&Value>,
    golden: Option<&Value>,
    is_ignored: &impl Fn(&str) -> bool,
    found: &mut Vec<EnvelopeFieldDifference>,
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
        let record = exact_json::parse(line)
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
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(strip_byte_order_mark(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differing(new: &Value, golden: &Value, ignored: &[&str]) -> Vec<String> {
        let ignored = ignored.iter().map(|field| (*field).to_owned()).collect();
        let mut all = Vec::new();
        EnvelopeLogComparison { ignored, whitelist: None }.compare(1, new, golden, &mut all);
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
        let [one, other] =
            ["f8f3eb42-5b88-5811-bebf-7d8e1a90ea79", "9e963b57-a299-5eee-b1ce-15dffd045370"];
        assert_eq!(differing(&record(one, true), &record(other, true), &[]), ["requestId"]);
        let none = Vec::<String>::new();
        assert_eq!(differing(&record(one, false), &record(other, false), &[]), none);
        // The placeholders of RAGX's golden log are no ids.
        assert_eq!(differing(&record(one, true), &record("req-det-0001", true), &[]), none);
    }

    #[test]
    fn a_whitelist_replaces_the_fields_that_are_ignored_by_default() {
        let new = json!({ "ts": "a", "durationMs": 1, "metadata": { "runId": "x" } });
        let golden = json!({ "ts": "b", "durationMs": 2, "metadata": { "runId": "y" } });
        let differing = |names: &[&str]| {
            let whitelist = Some(names.iter().map(|name| (*name).to_owned()).collect());
            let mut all = Vec::new();
            EnvelopeLogComparison { ignored: Vec::new(), whitelist }
                .compare(1, &new, &golden, &mut all);
            let mut fields: Vec<_> = all.into_iter().map(|difference| difference.field).collect();
            fields.sort();
            fields
        };
        assert_eq!(differing(&[]), ["durationMs", "metadata.runId", "ts"]);
        assert_eq!(differing(&["ts", "runId"]), ["durationMs"]);
        assert_eq!(differing(&["ts", "metadata.runId", "durationMs"]), [""; 0]);
    }

    #[test]
    fn the_order_of_lines_does_not_matter() {
        let comparison = EnvelopeLogComparison::default();
        let record = |step: u32| json!({ "stepId": step });
        let mut new = [1, 2, 3, 4].map(|step| Some(record(step)));
        let mut golden = [2, 1, 3, 5].map(|step| Some(record(step)));
        comparison.remove_equal(&mut new, &mut golden);
        assert_eq!(new, [None, None, None, Some(record(4))]);
        assert_eq!(golden, [None, None, None, Some(record(5))]);
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
