//! Parses the output of `pytest --tb=short -rfE`.

use std::borrow::Cow;

use toolgate_contract::OutputStream;

use super::super::report::{CiCounts, CiFailure, FailureSeverity};
use super::findings::Findings;
use super::located::parse_located;

/// The parser of pytest's output, and of Python linters.
#[derive(Default)]
pub(super) struct PytestParser {
    section: ReportSection,
    /// The failure whose output is being read.
    current: Option<CiFailure>,
}

/// The section of the report that is being read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ReportSection {
    #[default]
    Before,
    /// Failures, and errors in setup, teardown or collection.
    Failures,
    After,
}

impl super::LineParser for PytestParser {
    fn read_line<'l>(
        &mut self,
        _: OutputStream,
        line: &'l str,
        found: &mut Findings,
    ) -> Option<Cow<'l, str>> {
        self.parse_line(line, found);
        Some(line.into())
    }

    fn finish(&mut self, found: &mut Findings) {
        self.flush(found);
    }
}

impl PytestParser {
    fn parse_line(&mut self, line: &str, found: &mut Findings) {
        if let Some(title) = ruled_title(line, '=') {
            self.flush(found);
            self.section = match title {
                "FAILURES" | "ERRORS" => ReportSection::Failures,
                _ => ReportSection::After,
            };
            add_counts(title, found);
            return;
        }
        match self.section {
            ReportSection::Before => {
                if let Some(failure) = parse_located(line).or_else(|| parse_lint_line(line)) {
                    found.push(failure);
                }
            }
            ReportSection::After => {}
            ReportSection::Failures => match ruled_title(line, '_') {
                Some(title) => {
                    self.flush(found);
                    let test = title.strip_prefix("ERROR at setup of ");
                    let test = test.or_else(|| title.strip_prefix("ERROR at teardown of "));
                    let test = test.or_else(|| title.strip_prefix("ERROR collecting "));
                    let failure = CiFailure::new(FailureSeverity::Failure, "");
                    self.current = Some(failure.with_test(test.unwrap_or(title)));
                }
                None => self.add_detail(line),
            },
        }
    }

    /// Reads a line about the current failure.
    fn add_detail(&mut self, line: &str) {
        let Some(failure) = &mut self.current else { return };
        if let Some(detail) = line.strip_prefix("E  ") {
            let detail = detail.trim();
            // A syntax error in the test file.
            let place = detail.strip_prefix("File \"").and_then(|it| it.split_once("\", line "));
            if let Some((file, row)) = place {
                *failure = failure.clone().with_place(file, row.trim().parse().ok(), None);
            } else {
                failure.message.push_str(detail);
                failure.message.push('\n');
            }
        } else if let Some((place, _)) = line.split_once(": in ")
            && let Some((file, row)) = place.rsplit_once(':')
            && let Ok(row) = row.parse::<u32>()
        {
            // The first location is in the test itself. Later ones are in its callees.
            if failure.file.is_none() && !line.starts_with(' ') {
                *failure = failure.clone().with_place(file, Some(row), None);
            }
        }
    }

    fn flush(&mut self, found: &mut Findings) {
        let Some(mut failure) = self.current.take() else { return };
        if failure.message.is_empty() {
            "the test failed".clone_into(&mut failure.message);
        }
        found.push(failure);
    }
}

/// Returns the title between two rules made of the character `rule`.
fn ruled_title(line: &str, rule: char) -> Option<&str> {
    let title = line.trim_matches(rule);
    let is_ruled = line.len() >= title.len() + 2 && title.len() > 2;
    let title = title.strip_prefix(' ')?.strip_suffix(' ')?;
    is_ruled.then_some(title)
}

/// Counts `2 failed, 1 passed, 1 skipped, 1 error in 0.11s`.
fn add_counts(title: &str, found: &mut Findings) {
    let Some((counts, _)) = title.rsplit_once(" in ") else { return };
    for part in counts.split(", ") {
        let Some((number, what)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse() else { continue };
        match what {
            "passed" | "xpassed" => CiCounts::increase(&mut found.summary.passed, number),
            "failed" => CiCounts::increase(&mut found.summary.failed, number),
            "skipped" | "xfailed" | "deselected" => {
                CiCounts::increase(&mut found.summary.skipped, number);
            }
            "error" | "errors" => CiCounts::increase(&mut found.summary.errors, number),
            "warning" | "warnings" => CiCounts::increase(&mut found.summary.warnings, number),
            _ => {}
        }
    }
}

/// Parses `a.py:3:5: F401 message`, the format of ruff and flake8.
fn parse_lint_line(line: &str) -> Option<CiFailure> {
    let mut parts = line.splitn(4, ':');
    let file = parts.next()?;
    let row = parts.next()?;
    let column = parts.next()?;
    let (code, message) = parts.next()?.trim().split_once(' ')?;
    let row = row.parse().ok()?;
    let column = column.parse().ok()?;
    let is_code = code.starts_with(|c: char| c.is_ascii_uppercase())
        && code.bytes().any(|b| b.is_ascii_digit());
    let failure =
        CiFailure::new(FailureSeverity::Error, message).with_place(file, Some(row), Some(column));
    is_code.then(|| CiFailure { code: Some(code.to_owned()), ..failure })
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use super::super::tests::read;

    const PRINTED: &str =
        "============================= test session starts ==============================
platform linux -- Python 3.11.7, pytest-9.2.0, pluggy-1.7.0
rootdir: /w/p
collected 5 items

test_sum.py .FsEF                                                        [100%]

==================================== ERRORS ====================================
_________________________ ERROR at setup of test_needs _________________________
test_sum.py:23: in broken
    raise RuntimeError(\"no fixture\")
E   RuntimeError: no fixture
=================================== FAILURES ===================================
______________________________ test_adds_wrongly _______________________________
test_sum.py:13: in test_adds_wrongly
    assert add(1, 2) == 4, \"one and two\"
E   AssertionError: one and two
E   assert 3 == 4
E    +  where 3 = add(1, 2)
_____________________________ TestMore.test_raises _____________________________
test_sum.py:32: in test_raises
    add(1, None)
test_sum.py:5: in add
    return a + b
           ^^^^^
E   TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'
=========================== short test summary info ============================
FAILED test_sum.py::test_adds_wrongly - AssertionError: one and two
FAILED test_sum.py::TestMore::test_raises - TypeError: unsupported operand ty...
ERROR test_sum.py::test_needs - RuntimeError: no fixture
=============== 2 failed, 1 passed, 1 skipped, 1 error in 0.11s ================
";

    #[test]
    fn failed_tests_are_reported_with_the_line_in_the_test() {
        let (summary, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, PRINTED);
        let counts = [summary.passed, summary.failed, summary.skipped, summary.errors];
        assert_eq!(counts, [Some(1), Some(2), Some(1), Some(1)]);
        let summaries = failures.iter().map(|failure| {
            let message = failure.message.lines().next().unwrap();
            (failure.test.as_deref().unwrap(), failure.line.unwrap(), message)
        });
        let expected = [
            ("test_needs", 23, "RuntimeError: no fixture"),
            ("test_adds_wrongly", 13, "AssertionError: one and two"),
            (
                "TestMore.test_raises",
                32,
                "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'",
            ),
        ];
        assert_eq!(summaries.collect::<Vec<_>>(), expected);
        assert!(failures.iter().all(|failure| failure.file.as_deref() == Some("test_sum.py")));
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_line() {
        let printed =
            "==================================== ERRORS ====================================
_________________________ ERROR collecting test_bad.py _________________________
v/lib/python3.11/site-packages/_pytest/python.py:528: in importtestmodule
    mod = import_path(
E     File \"/w/p/test_bad.py\", line 1
E       def x(:
E             ^
E   SyntaxError: invalid syntax
=========================== short test summary info ============================
ERROR test_bad.py
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
=============================== 1 error in 0.49s ===============================
";
        let (_, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, printed);
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!(failure.test.as_deref(), Some("test_bad.py"));
        let place = (failure.file.as_deref(), failure.line);
        assert_eq!(place, (Some("/w/p/test_bad.py"), Some(1)));
        assert!(failure.message.ends_with("SyntaxError: invalid syntax"), "{}", failure.message);
    }

    #[test]
    fn linter_findings_are_parsed() {
        let printed = "a.py:1:8: F401 [*] `os` imported but unused\nFound 1 error.\n";
        let (summary, failures, _) = read(BuildTool::Pytest, ProjectAction::Lint, printed);
        assert_eq!((summary.errors, failures[0].code.as_deref()), (Some(1), Some("F401")));
    }
}
