//! The report of a build or test run: success, counts and failures.

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::printable::escape_line;
use toolgate_contract::{ResultText, ToolRunStatus};

use super::build_tool::BuildTool;
use crate::exec::{MORE_OUTPUT, SandboxStatus, refusal_note};
use toolgate_world::forwarder::RefusedHost;

/// The maximum number of failures that the text of a report shows.
const SHOWN_MAX: usize = 20;
/// The maximum number of lines of a test's message, after its first line, that the text of a report
/// shows.
const MORE_LINES_MAX: usize = 4;
/// The maximum length of the name of a test or file in a failure, in bytes.
const NAME_BYTES_MAX: usize = 1 << 10;
/// The maximum length of a failure's message, in bytes. The complete message is in the program's
/// output.
const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// The maximum size of the output in the text of a report, in bytes, if the report lists all failed
/// tests with their messages.
const EXPLAINED_OUTPUT_BYTES_MAX: usize = 2 << 10;
/// The maximum total size of all failures of a report, in bytes.
const FAILURES_BYTES_MAX: usize = 256 << 10;

/// The report of a build or test run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CiReport {
    /// True if the exit code is 0 and, with `filter`, at least one test matched.
    pub(super) ok: bool,
    /// Exit code; 128 plus the signal's number if a signal ended the program, -1 if it timed out.
    pub(super) exit_code: i32,
    /// True if the program was stopped at its timeout.
    pub(super) timed_out: bool,
    /// Build tool of the project.
    pub(super) kind: BuildTool,
    /// Folder in which the program ran.
    pub(super) folder: String,
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// Run time.
    pub(super) duration_ms: u64,
    /// Counts of tests, errors and warnings.
    pub(super) summary: CiTestCounts,
    /// Failures, in the order of the output.
    pub(super) failures: Vec<CiFailure>,
    /// Number of further failures, which `failures` leaves out.
    pub(super) failures_left_out: usize,
    /// End of the output; empty if all tests passed, unless `max_output_bytes` is set.
    pub(super) output: String,
    /// Id for exec_output to read all output; null if `output` is complete, or if you cannot call
    /// exec_output.
    pub(super) output_id: Option<String>,
    /// True if the program printed more than `output`.
    #[serde(skip)]
    pub(super) is_cut: bool,
    /// True if the call sets the size of `output`, so that the text of the report shows all of it.
    #[serde(skip)]
    pub(super) is_output_wanted: bool,
    /// Name of the sandbox profile that the program ran in, and the layers that were missing, if
    /// any.
    pub(super) sandbox: SandboxStatus,
    /// Refused hosts that the program tried to reach, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) refused_hosts: Vec<RefusedHost>,
    /// Note about a network error in the output.
    #[serde(skip)]
    pub(super) network_note: Option<String>,
}

/// Counts of tests, errors and warnings; null if the program reports none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct CiTestCounts {
    /// Tests that passed.
    pub(super) passed: Option<u64>,
    /// Tests that failed.
    pub(super) failed: Option<u64>,
    /// Tests that did not run.
    pub(super) skipped: Option<u64>,
    /// Errors of a compiler or linter.
    pub(super) errors: Option<u64>,
    /// Warnings of a compiler or linter.
    pub(super) warnings: Option<u64>,
}

/// One failed test, or one error or warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct CiFailure {
    /// File, relative to the workspace if it is inside.
    pub(super) file: Option<String>,
    /// Line of the failure in `file`, from 1.
    pub(super) line: Option<u32>,
    /// Column, from 1.
    pub(super) column: Option<u32>,
    /// Severity of the failure.
    pub(super) severity: FailureSeverity,
    /// Code of the compiler or linter, e.g. `E0308`.
    pub(super) code: Option<String>,
    /// The test that failed.
    pub(super) test: Option<String>,
    /// Value of `filter` that runs this test again.
    pub(super) id: Option<String>,
    /// Message of the failure.
    pub(super) message: String,
}

/// Severity of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FailureSeverity {
    /// Error of a compiler or linter.
    Error,
    /// Warning of a compiler or linter.
    Warning,
    /// Failed test.
    Failure,
}

/// Shortens long texts in `failures`, and removes the last failures until all texts together have
/// at most 256 KiB. Always keeps the first failure. Returns the number of removed failures.
pub(super) fn fit_failures(failures: &mut Vec<CiFailure>) -> usize {
    let count = failures.len();
    let mut bytes = 0;
    let mut fitting = 0;
    for failure in failures.iter_mut() {
        bytes += failure.shorten();
        if fitting > 0 && bytes > FAILURES_BYTES_MAX {
            break;
        }
        fitting += 1;
    }
    failures.truncate(fitting);
    count - fitting
}

impl CiTestCounts {
    /// Adds `more` to `count`. A count of `None` becomes `more`.
    pub(super) fn increase(count: &mut Option<u64>, more: u64) {
        *count = Some(count.unwrap_or(0).saturating_add(more));
    }

    /// Adds the counts of `more` to these counts.
    pub(super) fn add(&mut self, more: &Self) {
        for (count, more) in [
            (&mut self.passed, more.passed),
            (&mut self.failed, more.failed),
            (&mut self.skipped, more.skipped),
            (&mut self.errors, more.errors),
            (&mut self.warnings, more.warnings),
        ] {
            if let Some(more) = more {
                Self::increase(count, more);
            }
        }
    }

    fn text(&self) -> String {
        let counts = [
            (self.passed, "passed"),
            (self.failed, "failed"),
            (self.skipped, "skipped"),
            (self.errors, if self.errors == Some(1) { "error" } else { "errors" }),
            (self.warnings, if self.warnings == Some(1) { "warning" } else { "warnings" }),
        ];
        let texts = counts.iter().filter_map(|(count, what)| Some(format!("{} {what}", (*count)?)));
        texts.collect::<Vec<_>>().join(", ")
    }
}

impl CiFailure {
    /// Shortens the texts of the failure that are too long. Returns the total length of all its
    /// texts in bytes.
    fn shorten(&mut self) -> usize {
        let names = [&mut self.file, &mut self.code, &mut self.test, &mut self.id];
        let names = names.into_iter().flatten().map(|text| (text, NAME_BYTES_MAX));
        let texts = names.chain([(&mut self.message, MESSAGE_BYTES_MAX)]);
        texts.map(|(text, bytes_max)| cut_text(text, bytes_max)).sum()
    }

    /// Creates a failure without a location or test.
    pub(super) fn new(severity: FailureSeverity, message: impl Into<String>) -> Self {
        Self {
            file: None,
            line: None,
            column: None,
            severity,
            code: None,
            test: None,
            id: None,
            message: message.into(),
        }
    }

    /// Returns the failure with the location `file`, `line` and `column`.
    pub(super) fn with_place(self, file: &str, line: Option<u32>, column: Option<u32>) -> Self {
        Self { file: Some(file.to_owned()), line, column, ..self }
    }

    /// Returns the failure with `test` as the name of the failed test.
    pub(super) fn with_test(self, test: &str) -> Self {
        Self { test: Some(test.to_owned()), ..self }
    }

    /// Returns the failure with `id`, the test filter that runs only the failed test.
    pub(super) fn with_id(self, id: &str) -> Self {
        Self { id: Some(id.to_owned()), ..self }
    }

    fn text(&self) -> String {
        let Self { file, line, column, severity, code, test, id, message } = self;
        // A message of this toolset itself has neither a file nor a test. It is shown in full.
        let is_own = *severity == FailureSeverity::Failure && file.is_none() && test.is_none();
        let is_test = *severity == FailureSeverity::Failure && !is_own;
        let severity = match severity {
            FailureSeverity::Error => "error",
            FailureSeverity::Warning => "warning",
            FailureSeverity::Failure => "failed",
        };
        let mut text = String::new();
        if let Some(file) = file {
            text.push_str(&escape_line(file));
            for number in [line, column].into_iter().flatten() {
                text.push_str(&format!(":{number}"));
            }
            text.push_str(": ");
        }
        text.push_str(severity);
        if let Some(code) = code {
            text.push_str(&format!("[{}]", escape_line(code)));
        }
        if let Some(test) = id.as_ref().or(test.as_ref()) {
            text.push_str(&format!(" {}", escape_line(test)));
        }
        let mut lines = message.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default();
        let message = if is_own { message.as_str() } else { first };
        let mut text = format!("{text}: {message}\n");
        // Many assertions put the expected and the actual value into the next lines.
        for line in lines.take(if is_test { MORE_LINES_MAX } else { 0 }) {
            text.push_str(&format!("    {line}\n"));
        }
        text
    }
}

impl CiReport {
    /// Formats the report as text.
    pub(super) fn text(&self) -> ResultText {
        let Self { ok, exit_code, timed_out, folder, command, duration_ms, .. } = self;
        let outcome = match (ok, timed_out) {
            (true, _) => "ok".to_owned(),
            (false, true) => "timed out and was stopped".to_owned(),
            (false, false) if *exit_code == 0 => "no test was run".to_owned(),
            (false, false) => format!("failed with exit code {exit_code}"),
        };
        let counts = self.summary.text();
        let counts = if counts.is_empty() { counts } else { format!(": {counts}") };
        let separator = if *ok { "; " } else { "\n" };
        let mut body = format!(
            "{outcome}{counts}{separator}`{}` in `{}`, {duration_ms} ms\n",
            command.join(" ").escape_debug(),
            escape_line(folder)
        );
        for failure in self.failures.iter().take(SHOWN_MAX) {
            body.push_str(&failure.text());
        }
        let more = self.failures.len().saturating_sub(SHOWN_MAX) + self.failures_left_out;
        if more > 0 {
            body.push_str(&format!("and {more} more\n"));
        }
        let network = self.network_note.clone();
        let notes = [self.sandbox.note(), refusal_note(&self.refused_hosts), network];
        for note in notes.into_iter().flatten() {
            body.push_str(&format!("{}\n", note.trim_start_matches("; ")));
        }
        let output = self.shown_output();
        if !output.is_empty() {
            body.push_str(&format!("\n{output}"));
        }
        let is_cut = self.is_cut || output.len() < self.output.len();
        let text = ResultText::from_body(body);
        match &self.output_id {
            Some(id) if output.is_empty() => {
                text.with_note(format!("read the output with exec_output, output_id `{id}`"))
            }
            Some(id) => text.with_note(format!(
                "this is the end of the output; read all of it with exec_output, output_id `{id}`"
            )),
            None if is_cut && !self.output.is_empty() => {
                text.with_note(format!("this is the end of the output; {MORE_OUTPUT}"))
            }
            None => text,
        }
    }

    /// Returns the end of the program's output for the report's text. The output is short if the
    /// report lists all failed tests with their messages.
    fn shown_output(&self) -> &str {
        let is_listed = self.failures_left_out == 0 && self.failures.len() <= SHOWN_MAX;
        match is_listed && !self.is_output_wanted && are_failed_tests(&self.failures) {
            true => end_of_output(&self.output, EXPLAINED_OUTPUT_BYTES_MAX),
            false => &self.output,
        }
    }

    pub(super) fn ending(&self) -> ToolRunStatus {
        if self.ok { ToolRunStatus::Done } else { ToolRunStatus::ProgramFailed }
    }
}

/// Returns true if `failures` is not empty and contains only failed tests.
fn are_failed_tests(failures: &[CiFailure]) -> bool {
    let is_test = |it: &CiFailure| it.severity == FailureSeverity::Failure && it.test.is_some();
    !failures.is_empty() && failures.iter().all(is_test)
}

/// Returns the last complete lines of `output`, at most `bytes_max` bytes in total.
fn end_of_output(output: &str, bytes_max: usize) -> &str {
    let Some(excess) = output.len().checked_sub(bytes_max).filter(|excess| *excess > 0) else {
        return output;
    };
    // The line that contains the boundary is left out.
    let end = &output[output.floor_char_boundary(excess - 1)..];
    end.split_once('\n').map_or("", |(_, lines)| lines)
}

/// Cuts `text` to `bytes_max` bytes, ending with `…`. Returns its length in bytes.
fn cut_text(text: &mut String, bytes_max: usize) -> usize {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - '…'.len_utf8()));
        text.push('…');
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_output_has_whole_lines() {
        assert_eq!(end_of_output("one\ntwo\n", 8), "one\ntwo\n");
        assert_eq!(end_of_output("one\ntwo\n", 7), "two\n");
        assert_eq!(end_of_output("one\ntwo\n", 4), "two\n");
        assert_eq!(end_of_output("one\ntwo\n", 3), "");
        assert_eq!(end_of_output("üüü\ntwo\n", 6), "two\n");
    }

    #[test]
    fn a_name_with_a_newline_stays_on_the_line_of_its_failure() {
        let failure = CiFailure {
            file: Some("a.rs\nb.rs:1: failed".to_owned()),
            ..CiFailure::new(FailureSeverity::Failure, "left: 3").with_test("adds\n9 passed")
        };
        assert_eq!(failure.text(), "a.rs\\nb.rs:1: failed: failed adds\\n9 passed: left: 3\n");
    }

    #[test]
    fn only_failed_tests_explain_a_failure() {
        let failure = CiFailure::new(FailureSeverity::Failure, "left: 3");
        let test = failure.clone().with_test("adds");
        assert!(are_failed_tests(std::slice::from_ref(&test)));
        assert!(!are_failed_tests(&[test.clone(), failure]));
        let error = CiFailure::new(FailureSeverity::Error, "mismatched types");
        assert!(!are_failed_tests(&[test, error]));
        assert!(!are_failed_tests(&[]));
    }

    #[test]
    fn failures_with_huge_texts_are_shortened_and_the_last_are_left_out() {
        let huge = CiFailure {
            test: Some("ü".repeat(1 << 20)),
            ..CiFailure::new(FailureSeverity::Failure, "x".repeat(1 << 20))
        };
        let small = CiFailure::new(FailureSeverity::Failure, "small");
        let mut failures = vec![small.clone()];
        failures.extend(vec![huge; 40]);
        assert_eq!(fit_failures(&mut failures), 25);
        assert_eq!((failures.len(), &failures[0]), (16, &small));
        assert!(failures.iter().all(|it| it.message.len() <= MESSAGE_BYTES_MAX));
        assert!(failures[1].test.as_ref().is_some_and(|test| test.ends_with('…')));
    }
}
