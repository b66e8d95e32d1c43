//! What a build or a test run comes to: whether it went well, its counts, and its failures.

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{Ending, Text};

use super::kind::Kind;
use crate::exec::Confined;

/// How many failures a reader is shown.
const SHOWN_MAX: usize = 20;

/// What a build or a test run did.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Report {
    /// Whether the program ended with exit code 0, and with a `filter` some test matched it.
    pub(super) ok: bool,
    /// The exit code; 128 and the signal's number when a signal ended it, -1 when its time was
    /// over.
    pub(super) exit_code: i32,
    /// Whether it was stopped because its time was over.
    pub(super) timed_out: bool,
    /// What the project is built with.
    pub(super) kind: Kind,
    /// The folder it was run in.
    pub(super) folder: String,
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// How long it ran.
    pub(super) duration_ms: u64,
    /// What was counted.
    pub(super) summary: Summary,
    /// What went wrong, in the order it was told.
    pub(super) failures: Vec<Failure>,
    /// How many more there were than are listed.
    pub(super) failures_left_out: usize,
    /// The end of what it printed.
    pub(super) output: String,
    /// What to give exec_output to read all that it printed; null where `output` is all.
    pub(super) output_id: Option<String>,
    /// How it was confined: the profile's name, or what of it this system lacks.
    pub(super) sandbox: Confined,
}

/// Counts; null where the program does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Summary {
    /// Tests that passed.
    pub(super) passed: Option<u64>,
    /// Tests that failed.
    pub(super) failed: Option<u64>,
    /// Tests that did not run.
    pub(super) skipped: Option<u64>,
    /// Errors of a compiler or a linter.
    pub(super) errors: Option<u64>,
    /// Their warnings.
    pub(super) warnings: Option<u64>,
}

/// One thing that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Failure {
    /// The file, from the workspace where it lies there.
    pub(super) file: Option<String>,
    /// The line in it, from 1.
    pub(super) line: Option<u32>,
    /// The column in that, from 1.
    pub(super) column: Option<u32>,
    /// What it is.
    pub(super) severity: Severity,
    /// What the compiler or linter calls it, e.g. `E0308`.
    pub(super) code: Option<String>,
    /// The test that failed.
    pub(super) test: Option<String>,
    /// What is wrong.
    pub(super) message: String,
}

/// What a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// A compiler's or linter's error.
    Error,
    /// Its warning.
    Warning,
    /// A test that failed.
    Failure,
}

impl Summary {
    /// Counts `more` in.
    pub(super) fn add(count: &mut Option<u64>, more: u64) {
        *count = Some(count.unwrap_or(0).saturating_add(more));
    }

    fn text(&self) -> String {
        let counts = [
            (self.passed, "passed"),
            (self.failed, "failed"),
            (self.skipped, "skipped"),
            (self.errors, "errors"),
            (self.warnings, "warnings"),
        ];
        let told = counts.iter().filter_map(|(count, what)| Some(format!("{} {what}", (*count)?)));
        told.collect::<Vec<_>>().join(", ")
    }
}

impl Failure {
    /// A failure of which nothing is known but what is wrong.
    pub(super) fn new(severity: Severity, message: impl Into<String>) -> Self {
        Self {
            file: None,
            line: None,
            column: None,
            severity,
            code: None,
            test: None,
            message: message.into(),
        }
    }

    /// The same, at a place.
    pub(super) fn at(self, file: &str, line: Option<u32>, column: Option<u32>) -> Self {
        Self { file: Some(file.to_owned()), line, column, ..self }
    }

    /// The same, of a test.
    pub(super) fn of_test(self, test: &str) -> Self {
        Self { test: Some(test.to_owned()), ..self }
    }

    fn text(&self) -> String {
        let Self { file, line, column, severity, code, test, message } = self;
        let severity = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Failure => "failed",
        };
        let mut text = String::new();
        if let Some(file) = file {
            text.push_str(file);
            for number in [line, column].into_iter().flatten() {
                text.push_str(&format!(":{number}"));
            }
            text.push_str(": ");
        }
        text.push_str(severity);
        if let Some(code) = code {
            text.push_str(&format!("[{code}]"));
        }
        if let Some(test) = test {
            text.push_str(&format!(" {test}"));
        }
        let first = message.lines().next().unwrap_or_default();
        format!("{text}: {first}\n")
    }
}

impl Report {
    /// The same for a reader.
    pub(super) fn text(&self) -> Text {
        let Self { ok, exit_code, timed_out, folder, command, duration_ms, .. } = self;
        let went = match (ok, timed_out) {
            (true, _) => "ok".to_owned(),
            (false, true) => "timed out and was stopped".to_owned(),
            (false, false) if *exit_code == 0 => "no test was run".to_owned(),
            (false, false) => format!("failed with exit code {exit_code}"),
        };
        let counts = self.summary.text();
        let counts = if counts.is_empty() { counts } else { format!(": {counts}") };
        let mut body = format!(
            "{went}{counts}\n`{}` in `{folder}`, {duration_ms} ms\n",
            command.join(" ").escape_debug()
        );
        for failure in self.failures.iter().take(SHOWN_MAX) {
            body.push_str(&failure.text());
        }
        let more = self.failures.len().saturating_sub(SHOWN_MAX) + self.failures_left_out;
        if more > 0 {
            body.push_str(&format!("and {more} more\n"));
        }
        if let Some(note) = self.sandbox.note() {
            body.push_str(&format!("{}\n", note.trim_start_matches("; ")));
        }
        if !self.output.is_empty() {
            body.push_str(&format!("\n{}", self.output));
        }
        let text = Text::body(body);
        match &self.output_id {
            Some(id) => text.with_note(format!(
                "this is the end of what it printed; all of it: exec_output, output_id `{id}`"
            )),
            None => text,
        }
    }

    pub(super) fn ending(&self) -> Ending {
        if self.ok { Ending::Done } else { Ending::ProgramFailed }
    }
}
