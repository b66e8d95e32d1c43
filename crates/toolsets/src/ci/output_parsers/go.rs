//! Parses Go's output: `go test -json`, and lines of the compiler and of vet.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use toolgate_contract::OutputStreamKind;

use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};
use super::findings::OutputParserFindings;

/// The maximum number of bytes of output that are kept per test.
const TEST_OUTPUT_BYTES_MAX: usize = 16 << 10;

/// The parser of the output of the `go` command: JSON test events and compiler errors.
#[derive(Default)]
pub(super) struct GoParser {
    /// The output of each running Go test, by `PACKAGE.TEST`.
    outputs: HashMap<String, String>,
    failed: u64,
    /// The names of Go tests that have failed subtests.
    parent_tests: HashSet<String>,
}

/// A JSON line that `go test -json` prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GoTestEvent<'l> {
    action: &'l str,
    #[serde(default)]
    package: String,
    #[serde(default)]
    test: Option<String>,
    #[serde(default)]
    output: String,
}

impl super::OutputLineParser for GoParser {
    fn read_line<'l>(
        &mut self,
        _: OutputStreamKind,
        line: &'l str,
        found: &mut OutputParserFindings,
    ) -> Option<Cow<'l, str>> {
        let event =
            line.starts_with('{').then(|| serde_json::from_str::<GoTestEvent<'_>>(line).ok());
        let Some(GoTestEvent { action, package, test, output }) = event.flatten() else {
            if let Some(failure) = parse_compiler_line(line) {
                found.push(failure);
            }
            return Some(line.into());
        };
        match (action, test) {
            ("output" | "build-output", None) => {
                if let Some(failure) = parse_compiler_line(output.trim_end()) {
                    found.push(failure);
                }
                return Some(output.into());
            }
            ("output", Some(test)) => {
                let stored = self.outputs.entry(format!("{package}.{test}")).or_default();
                if stored.len() < TEST_OUTPUT_BYTES_MAX {
                    stored.push_str(&output);
                }
                return Some(output.into());
            }
            ("pass", Some(test)) => {
                self.outputs.remove(&format!("{package}.{test}"));
                CiTestCounts::increase(&mut found.summary.passed, 1);
            }
            ("skip", Some(test)) => {
                self.outputs.remove(&format!("{package}.{test}"));
                CiTestCounts::increase(&mut found.summary.skipped, 1);
            }
            ("fail", Some(test)) => {
                self.failed += 1;
                found.summary.failed = Some(self.failed);
                let name = format!("{package}.{test}");
                let output = self.outputs.remove(&name).unwrap_or_default();
                let is_parent = self.parent_tests.contains(&name);
                if let Some((parent, _)) = name.rsplit_once('/').filter(|_| test.contains('/')) {
                    self.parent_tests.insert(parent.to_owned());
                }
                let failure = test_failure(&package, &test, &output);
                if !(is_parent && failure.file.is_none()) {
                    found.push(failure);
                }
            }
            (_, _) => {}
        }
        None
    }

    fn finish(&mut self, _: &mut OutputParserFindings) {}
}

/// Creates the failure of the Go test `test` in `package` from the test's output.
fn test_failure(package: &str, test: &str, output: &str) -> CiFailure {
    let failure = CiFailure::new(FailureSeverity::Failure, "").with_test(test);
    let mut failure = failure.with_id(&super::escape_pattern(test));
    for line in output.lines() {
        let trimmed = line.trim_start();
        if ["=== ", "--- FAIL: ", "--- PASS: "].iter().any(|mark| trimmed.starts_with(mark)) {
            continue;
        }
        let place = trimmed.split_once(": ").and_then(|(place, message)| {
            let (file, row) = place.rsplit_once(':')?;
            Some((file, row.parse().ok()?, message))
        });
        match place {
            // Go prints only the file name. The package name ends with the file's folder.
            Some((file, row, message)) if failure.file.is_none() && file.ends_with(".go") => {
                failure = failure.with_place(&format!("{package}/{file}"), Some(row), None);
                failure.message.push_str(message);
            }
            Some(_) | None => failure.message.push_str(trimmed),
        }
        failure.message.push('\n');
    }
    if failure.message.trim().is_empty() {
        failure.message = format!("the test failed in {package}");
    }
    failure
}

/// Parses `./a.go:3:5: message`, optionally after `vet: `. Returns `None` for other lines.
fn parse_compiler_line(line: &str) -> Option<CiFailure> {
    let line = line.strip_prefix("vet: ").unwrap_or(line);
    let mut parts = line.splitn(4, ':');
    let file = parts.next()?;
    let row = parts.next()?;
    let column = parts.next()?;
    let message = parts.next()?;
    let row = row.parse().ok()?;
    let column = column.parse().ok()?;
    let failure = CiFailure::new(FailureSeverity::Error, message.trim());
    file.ends_with(".go").then(|| failure.with_place(file, Some(row), Some(column)))
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use super::super::tests::read;

    #[test]
    fn failed_subtests_are_reported_instead_of_their_parents() {
        let (summary, failures, output) =
            read(BuildTool::Go, ProjectAction::Test, include_str!("printed/go-test.txt"));
        let counts = (summary.passed, summary.failed, summary.skipped);
        assert_eq!(counts, (Some(1), Some(2), Some(1)));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!(failure.test.as_deref(), Some("TestAddsWrongly/inner"));
        assert_eq!(failure.id, failure.test);
        assert_eq!(failure.file.as_deref(), Some("example.com/tiny/sum_test.go"));
        assert_eq!((failure.line, failure.message.as_str()), (Some(13), "want 4, got 3"));
        assert!(output.starts_with("=== RUN   TestAdds\n--- PASS"), "{output}");
    }

    #[test]
    fn compiler_errors_are_reported_once() {
        let printed = "# example.com/tiny\n./sum.go:4:23: cannot use \"a\" as int value\n\
                       # example.com/tiny [example.com/tiny.test]\n\
                       ./sum.go:4:23: cannot use \"a\" as int value\nFAIL\texample.com/tiny [build failed]\n";
        let (summary, failures, _) = read(BuildTool::Go, ProjectAction::Test, printed);
        assert_eq!((summary.errors, failures.len()), (Some(1), 1));
        let place = (failures[0].file.as_deref(), failures[0].line, failures[0].column);
        assert_eq!(place, (Some("./sum.go"), Some(4), Some(23)));
    }
}
