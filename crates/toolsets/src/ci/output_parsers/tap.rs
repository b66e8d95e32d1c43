//! Parses the Test Anything Protocol, as printed by Node's test runner.

use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};
use super::compared_values::FailedAssertionValues;
use super::escape_pattern;
use super::findings::OutputParserFindings;
use super::located::find_place;

/// The maximum number of failures that are kept until the tests or suites that contain them have
/// ended.
const NESTED_MAX: usize = 1000;

/// Parser of the Test Anything Protocol: test results, and YAML notes on failed tests.
#[derive(Default)]
pub(super) struct TapParser {
    /// The failed test whose YAML notes are being read.
    current: Option<TapTestFailure>,
    /// Failures inside a test or suite that has not ended. Each has the indentation of the last
    /// ended test or suite around it, or of the failed test itself.
    nested: Vec<(usize, CiFailure)>,
}

/// A failed test whose YAML notes are being read.
struct TapTestFailure {
    failure: CiFailure,
    /// The number of blanks before the test's result line.
    indent: usize,
    /// The multi-line YAML note that is being read.
    block: Option<TapDiagnosticBlock>,
    values: FailedAssertionValues,
    /// True if the test failed only because its subtests failed.
    has_failed_subtests: bool,
    /// True for a suite. A suite runs its tests even if a test filter does not match the suite.
    is_suite: bool,
    /// True after the start of the YAML notes about the failed test.
    has_notes: bool,
}

/// A YAML note of several lines about a failed test.
#[derive(Debug, Clone, Copy)]
struct TapDiagnosticBlock {
    /// The number of blanks before the note's key.
    indent: usize,
    note: TapNoteKind,
}

/// The kind of a YAML note about a failed test: error, expected value or actual value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TapNoteKind {
    Error,
    Expected,
    Actual,
}

impl TapParser {
    /// Reads a line of a program's output, and adds failures and counts to `found`. Returns true if
    /// the line belongs to the TAP protocol.
    pub(super) fn read_line(&mut self, line: &str, found: &mut OutputParserFindings) -> bool {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        match &mut self.current {
            Some(current) if current.has_notes && trimmed == "..." => {
                self.flush(found);
                return true;
            }
            Some(current) if current.has_notes || trimmed == "---" => {
                current.has_notes = true;
                current.add_note(line);
                return true;
            }
            // The failed test has no notes.
            Some(_) => self.flush(found),
            None => {}
        }
        if let Some(rest) = trimmed.strip_prefix("not ok ") {
            let name = rest.split_once(" - ").map_or(rest, |(_, name)| name);
            if name.contains(" # TODO") || name.contains(" # SKIP") {
                self.close_level(indent, None);
                return true;
            }
            // The protocol escapes `#` and `\`.
            let test = name.replace("\\#", "#").replace("\\\\", "\\");
            let failure = CiFailure::new(FailureSeverity::Failure, "").with_test(&test);
            self.current = Some(TapTestFailure {
                failure: failure.with_id(&escape_pattern(&test)),
                indent,
                block: None,
                values: FailedAssertionValues::default(),
                has_failed_subtests: false,
                is_suite: false,
                has_notes: false,
            });
            return true;
        }
        if let Some((count, number)) = trimmed
            .strip_prefix("# ")
            .or_else(|| trimmed.strip_prefix("\u{2139} "))
            .and_then(|rest| rest.split_once(' '))
            && let Ok(number) = number.trim().parse()
        {
            match count {
                "pass" => CiTestCounts::increase(&mut found.summary.passed, number),
                "fail" => CiTestCounts::increase(&mut found.summary.failed, number),
                "skipped" | "todo" => CiTestCounts::increase(&mut found.summary.skipped, number),
                _ => return false,
            }
            return true;
        }
        false
    }

    /// Processes the end of the test output, and adds the pending failures to `found`.
    pub(super) fn finish(&mut self, found: &mut OutputParserFindings) {
        self.flush(found);
        self.push_nested(found);
    }

    fn flush(&mut self, found: &mut OutputParserFindings) {
        let Some(TapTestFailure {
            mut failure, indent, has_failed_subtests, is_suite, values, ..
        }) = self.current.take()
        else {
            return;
        };
        self.close_level(indent, failure.id.as_deref().filter(|_| !is_suite));
        if !has_failed_subtests {
            values.add_to(&mut failure.message);
            if failure.message.trim().is_empty() {
                "the test failed".clone_into(&mut failure.message);
            }
            self.nested.push((indent, failure));
        }
        if indent == 0 || self.nested.len() >= NESTED_MAX {
            self.push_nested(found);
        }
    }

    /// Processes the end of the test or suite whose lines are indented by `indent`. `id` is the
    /// test's filter, or `None` for a suite. Failures inside a test get the test's `id`, because a
    /// filter that selects only a subtest would skip the test that starts it.
    fn close_level(&mut self, indent: usize, id: Option<&str>) {
        for (level, failure) in self.nested.iter_mut().filter(|(level, _)| *level > indent) {
            *level = indent;
            if let Some(id) = id {
                failure.id = Some(id.to_owned());
            }
        }
    }

    fn push_nested(&mut self, found: &mut OutputParserFindings) {
        self.nested.drain(..).for_each(|(_, failure)| found.push_test(failure));
    }
}

impl TapTestFailure {
    fn add_note(&mut self, line: &str) {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(TapDiagnosticBlock { indent: key_indent, note }) = self.block {
            if trimmed.is_empty() || indent > key_indent {
                let text = match note {
                    TapNoteKind::Error => trimmed,
                    TapNoteKind::Expected | TapNoteKind::Actual => {
                        line.get(key_indent..).unwrap_or("")
                    }
                };
                let target = self.text_of(note);
                target.push_str(text);
                target.push('\n');
                return;
            }
            self.block = None;
        }
        let Some((name, value)) = trimmed.split_once(':') else { return };
        let value = value.trim();
        match name {
            "location" if self.failure.file.is_none() => {
                if let Some((file, row, column)) = find_place(value) {
                    self.failure = self.failure.clone().with_place(file, Some(row), column);
                }
            }
            "error" if value.starts_with(['|', '>']) => {
                self.block = Some(TapDiagnosticBlock { indent, note: TapNoteKind::Error });
            }
            "error" => value.trim_matches(['\'', '"']).clone_into(&mut self.failure.message),
            "expected" | "actual" => {
                let is_expected = name == "expected";
                let note = if is_expected { TapNoteKind::Expected } else { TapNoteKind::Actual };
                if value.is_empty() || value.starts_with(['|', '>']) {
                    self.block = Some(TapDiagnosticBlock { indent, note });
                } else {
                    value.clone_into(self.text_of(note));
                }
            }
            "failureType" => self.has_failed_subtests = value.contains("subtestsFailed"),
            "type" => self.is_suite = value.contains("suite"),
            _ => {}
        }
    }

    fn text_of(&mut self, note: TapNoteKind) -> &mut String {
        match note {
            TapNoteKind::Error => &mut self.failure.message,
            TapNoteKind::Expected => &mut self.values.expected,
            TapNoteKind::Actual => &mut self.values.actual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use super::super::tests::read;

    const PRINTED: &str = "
> test
> node --test

TAP version 13
# Subtest: adds
ok 1 - adds
  ---
  duration_ms: 1.494616
  ...
# Subtest: adds wrongly
not ok 2 - adds wrongly
  ---
  duration_ms: 1.521277
  location: '/w/n/sum.test.js:4:1'
  failureType: 'testCodeFailure'
  error: |-
    Expected values to be strictly equal:
    
    3 !== 4
    
  code: 'ERR_ASSERTION'
  name: 'AssertionError'
  expected: 4
  actual: 3
  operator: 'strictEqual'
  stack: |-
    TestContext.<anonymous> (/w/n/sum.test.js:5:10)
    Test.runInAsyncScope (node:async_hooks:206:9)
  ...
# Subtest: later
ok 3 - later # SKIP
  ---
  duration_ms: 0.243043
  ...
1..3
# tests 3
# suites 0
# pass 1
# fail 1
# cancelled 0
# skipped 1
# todo 0
# duration_ms 280.682134
";

    #[test]
    fn failed_tests_are_reported_with_their_notes() {
        let (summary, failures, output) = read(BuildTool::Npm, ProjectAction::Test, PRINTED);
        let counts = (summary.passed, summary.failed, summary.skipped);
        assert_eq!(counts, (Some(1), Some(1), Some(1)));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!(failure.test.as_deref(), Some("adds wrongly"));
        let place = (failure.file.as_deref(), failure.line, failure.column);
        assert_eq!(place, (Some("/w/n/sum.test.js"), Some(4), Some(1)));
        let message = "Expected values to be strictly equal:\n\n3 !== 4";
        assert_eq!((failure.message.as_str(), output.as_str()), (message, PRINTED));
    }

    #[test]
    fn compared_values_are_added_to_a_message_without_them() {
        let printed = "not ok 1 - sums (1+1) \\# 2
  ---
  location: '/w/n/sum.test.js:4:1'
  error: 'sums differ'
  expected: 4
  actual: 3
  ...
not ok 2 - lists
  ---
  error: 'lists differ'
  expected:
    a: 2
    b:
      0: 1
  actual:
    a: 1
  operator: 'deepStrictEqual'
  ...
";
        let (_, failures, _) = read(BuildTool::Npm, ProjectAction::Test, printed);
        let found: Vec<_> =
            failures.iter().map(|it| (it.id.as_deref().unwrap(), it.message.as_str())).collect();
        let expected = [
            (r"sums \(1\+1\) # 2", "sums differ\nexpected: 4\nactual: 3"),
            ("lists", "lists differ\nexpected:\n  a: 2\n  b:\n    0: 1\nactual:\n  a: 1"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_failed_subtest_has_the_id_of_the_test_that_starts_it() {
        let result = |indent: usize, name: &str, notes: &str| {
            let blanks = " ".repeat(indent);
            format!("{blanks}not ok 1 - {name}\n{blanks}  ---\n{notes}{blanks}  ...\n")
        };
        let failed = "      failureType: 'subtestsFailed'\n";
        let suite = format!("      type: 'suite'\n{failed}");
        let printed = [
            result(8, "deep", "error: 'no'\n"),
            result(4, "first", failed),
            result(4, "second", "error: 'no'\n"),
            result(0, "test (1)", failed),
            result(8, "adds", "error: 'no'\n"),
            result(4, "inner", &suite),
            result(0, "outer", &suite),
            result(4, "last", "error: 'no'\n"),
        ];
        let (_, failures, _) = read(BuildTool::Npm, ProjectAction::Test, &printed.concat());
        let found = failures.iter().map(|it| (it.test.as_deref(), it.id.as_deref()));
        let expected = [
            (Some("deep"), Some(r"test \(1\)")),
            (Some("second"), Some(r"test \(1\)")),
            (Some("adds"), Some("adds")),
            (Some("last"), Some("last")),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_suite_that_fails_by_its_tests_is_not_reported() {
        let printed = "    not ok 1 - inner\n      ---\n      error: 'no'\n      ...\nnot ok 1 - outer\n  ---\n  failureType: 'subtestsFailed'\n  error: '1 subtest failed'\n  ...\n";
        let (_, failures, _) = read(BuildTool::Npm, ProjectAction::Test, printed);
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!((failure.test.as_deref(), failure.message.as_str()), (Some("inner"), "no"));
    }
}
