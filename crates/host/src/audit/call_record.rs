//! Audit records that were read from the log, and the filter that selects some of them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::fold_name;

use super::step_times::CallStepTimes;

/// Outcome in the audit record of a successful call.
const OK: &str = "ok";
/// Outcome in a filter that also selects all calls that the policy refused.
pub(super) const REFUSED: &str = "refused";

/// A record that was read from the audit log, with the fields of
/// [`audit_record_schema`](crate::audit_record_schema).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParsedAuditRecord {
    /// Time at which the call started.
    pub ts: Timestamp,
    /// Name of the caller.
    pub caller: String,
    /// Name of the dialect in which the call was made, such as `mcp`.
    #[serde(default)]
    pub dialect: String,
    /// Id of the job, if the call ran as a job.
    pub job: Option<String>,
    /// W3C trace context of the call, in the format of the HTTP header `traceparent`.
    pub trace: Option<String>,
    /// Id of the client session that made the call, if there is one.
    pub session: Option<String>,
    /// Name of the called tool, as the client wrote it.
    pub tool: String,
    /// Policy decision, if the call reached the policy.
    pub decision: Option<String>,
    /// Name of the policy rule that made the decision.
    pub rule: Option<String>,
    /// Outcome of the call in one word, such as `ok`.
    pub outcome: String,
    /// First line of the error message that the caller got.
    pub error: Option<String>,
    /// Cause of a failure, which toolgate hides from the caller.
    pub cause: Option<String>,
    /// Path, command line, repository or URI that the call acts on.
    pub subject: Option<String>,
    /// Arguments without secrets and long texts.
    pub arguments: Option<Value>,
    /// Hash of the call's input.
    pub input: Option<String>,
    /// Length of the call's input in bytes.
    pub bytes_in: Option<u64>,
    /// Approximate size of the call's output in bytes.
    pub bytes_out: Option<u64>,
    /// Summary of the sandbox in which the programs of the call ran.
    pub sandbox: Option<String>,
    /// Refused hosts that the call's programs tried to reach, one line for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_hosts: Vec<String>,
    /// Duration of the call in microseconds.
    #[serde(default)]
    pub duration_us: u64,
    /// Time that the call spent in each step, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_us: Option<CallStepTimes>,
    /// Id of the server process that wrote the record.
    pub server: Option<String>,
    /// Number of the record's line in the log.
    pub seq: Option<u64>,
    /// Seal (MAC) of this line of the log and all lines before it.
    pub mac: Option<String>,
}

impl ParsedAuditRecord {
    /// Parses a line of the audit log. Returns `None` if it is not the record of a call.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Returns true if the outcome of the call is `ok`.
    pub fn is_ok(&self) -> bool {
        self.outcome == OK
    }

    /// Returns the tool's name with `_` for each separator, so that the spellings of all dialects
    /// are equal.
    pub fn folded_tool(&self) -> String {
        fold_name(&self.tool).into_owned()
    }
}

/// Selection of audit records. The default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditRecordFilter {
    /// Name of the caller whose calls are selected.
    pub caller: Option<String>,
    /// Name of the tool with any separators (`files.read` or `files_read`), or a prefix of the name
    /// followed by `*`.
    pub tool: Option<String>,
    /// Outcome of the selected calls in one word. `refused` also selects calls that the policy
    /// refused, whatever their outcome.
    pub outcome: Option<String>,
    /// True to select only calls that did not end with `ok`.
    pub failed: bool,
    /// Earliest start of a selected call.
    pub since: Option<Timestamp>,
    /// Text that the subject of a selected call contains, such as the name of a file.
    pub subject: Option<String>,
}

impl AuditRecordFilter {
    /// Returns true if the filter selects `record`.
    pub fn matches(&self, record: &ParsedAuditRecord) -> bool {
        let is_tool = |pattern: &String| {
            let pattern = fold_name(pattern);
            match pattern.strip_suffix('*') {
                Some(start) => record.folded_tool().starts_with(start),
                None => record.folded_tool() == pattern,
            }
        };
        let is_outcome = |outcome: &String| {
            *outcome == record.outcome
                || (outcome == REFUSED && record.decision.as_deref() == Some("deny"))
        };
        let is_subject = |part: &String| {
            record.subject.as_ref().is_some_and(|subject| subject.contains(part.as_str()))
        };
        self.caller.as_ref().is_none_or(|caller| *caller == record.caller)
            && self.outcome.as_ref().is_none_or(is_outcome)
            && self.since.is_none_or(|since| since <= record.ts)
            && !(self.failed && record.is_ok())
            && self.tool.as_ref().is_none_or(is_tool)
            && self.subject.as_ref().is_none_or(is_subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_the_log_itself_is_no_call() {
        assert_eq!(
            ParsedAuditRecord::parse(br#"{"ts":"2026-01-01T00:00:00Z","log":"began"}"#),
            None
        );
        assert_eq!(ParsedAuditRecord::parse(b"{"), None);
    }

    #[test]
    fn a_filter_compares_tools_in_any_spelling() {
        let line =
            br#"{"ts":"2026-01-01T00:00:00Z","caller":"ada","tool":"files_read","outcome":"ok",
                "subject":"src/main.rs"}"#;
        let record = ParsedAuditRecord::parse(line).expect("a record");
        let all = AuditRecordFilter::default;
        for (filter, expected) in [
            (all(), true),
            (AuditRecordFilter { tool: Some("files.read".to_owned()), ..all() }, true),
            (AuditRecordFilter { tool: Some("files.*".to_owned()), ..all() }, true),
            (AuditRecordFilter { tool: Some("files.re".to_owned()), ..all() }, false),
            (AuditRecordFilter { caller: Some("bob".to_owned()), ..all() }, false),
            (AuditRecordFilter { failed: true, ..all() }, false),
            (AuditRecordFilter { subject: Some("main".to_owned()), ..all() }, true),
            (AuditRecordFilter { subject: Some("lib".to_owned()), ..all() }, false),
            (AuditRecordFilter { outcome: Some("refused".to_owned()), ..all() }, false),
            (
                AuditRecordFilter { since: Timestamp::from_second(1_800_000_000).ok(), ..all() },
                false,
            ),
        ] {
            assert_eq!(filter.matches(&record), expected, "{filter:?}");
        }
    }

    #[test]
    fn the_outcome_refused_selects_calls_that_the_policy_denied() {
        let line = br#"{"ts":"2026-01-01T00:00:00Z","caller":"ada","tool":"exec_run",
            "outcome":"unknown_tool","decision":"deny"}"#;
        let record = ParsedAuditRecord::parse(line).expect("a record");
        for (outcome, expected) in [("refused", true), ("unknown_tool", true), ("ok", false)] {
            let outcome = Some(outcome.to_owned());
            let filter = AuditRecordFilter { outcome, ..AuditRecordFilter::default() };
            assert_eq!(filter.matches(&record), expected, "{filter:?}");
        }
    }
}
