//! Parses the output of pytest, which is run with `--color=no --tb=short -rfE --verbosity=0`.

use std::borrow::Cow;

use toolgate_contract::OutputStreamKind;

use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};
use super::findings::OutputParserFindings;
use super::located::parse_located;
use super::pytest_summary::{PytestSummaryLine, PytestSummaryLineKind, file_of_id};

/// The maximum number of pytest failures that are kept until their ids are known.
const PENDING_MAX: usize = 1000;
/// The maximum number of lines of a pytest failure that are kept although pytest does not mark them
/// with `E`.
const UNMARKED_LINES_MAX: usize = 10;

/// Parser of the output of pytest and of Python linters.
#[derive(Default)]
pub(super) struct PytestOutputParser {
    section: PytestReportSection,
    /// The failure whose output is being read.
    current: Option<PendingPytestFailure>,
    /// Failures whose ids are not known yet, because pytest prints the ids at the end.
    pending: Vec<PendingPytestFailure>,
    /// The number of failures that were dropped because [`PENDING_MAX`] was reached.
    left_out: usize,
    /// The lines of pytest's short test summary that are not assigned to a failure yet.
    summary: Vec<PytestSummaryLine>,
    /// The test counts that pytest printed last.
    counts: Option<CiTestCounts>,
}

/// The section of pytest's report that is being read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum PytestReportSection {
    #[default]
    Before,
    /// The section with the details of failures, and of errors in setup, teardown or collection.
    Failures,
    /// The short test summary, which lists the ids of all failures.
    Summary,
    After,
}

/// A failure in pytest's report, which extends from its heading to the next heading.
struct PendingPytestFailure {
    failure: CiFailure,
    kind: PytestFailureKind,
    /// The name in the heading: a test such as `TestMore.test_raises`, or a file whose tests could
    /// not be collected.
    name: String,
    /// The failure's lines before its first source location, except lines that pytest marks with
    /// `E`.
    unmarked: String,
    is_located: bool,
}

/// The kind of a failure in pytest's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PytestFailureKind {
    Test,
    /// A wrong example in the documentation of a function.
    Doctest,
    /// An error in the setup or teardown of a test.
    Fixture,
    /// An error in a test file that prevents pytest from finding the file's tests.
    Collection,
}

impl super::OutputLineParser for PytestOutputParser {
    fn read_line<'l>(
        &mut self,
        _: OutputStreamKind,
        line: &'l str,
        found: &mut OutputParserFindings,
    ) -> Option<Cow<'l, str>> {
        self.parse_line(line, found);
        Some(line.into())
    }

    fn finish(&mut self, found: &mut OutputParserFindings) {
        self.flush();
        let counts = self.counts.take().unwrap_or_else(|| self.count_failures());
        found.summary.add(&counts);
        for failure in std::mem::take(&mut self.pending) {
            let line = self.take_line(&failure);
            found.push_test(failure.into_failure(line));
        }
        // Without headings (`--tb=no`), pytest prints only the summary.
        for line in self.summary.drain(..) {
            found.push_test(line.into_failure());
        }
        found.dropped += self.left_out;
    }
}

impl PytestOutputParser {
    fn parse_line(&mut self, line: &str, found: &mut OutputParserFindings) {
        if let Some(title) = ruled_title(line, '=') {
            self.flush();
            self.section = match title {
                "FAILURES" | "ERRORS" => PytestReportSection::Failures,
                "short test summary info" => PytestReportSection::Summary,
                _ => PytestReportSection::After,
            };
            self.counts = parse_counts(title).or(self.counts.take());
            return;
        }
        // With `-q`, no rules surround the counts.
        if let Some(counts) = parse_counts(line) {
            self.counts = Some(counts);
            return;
        }
        if let Some((file, _)) = line
            .strip_prefix("ImportError while loading conftest '")
            .and_then(|rest| rest.split_once('\''))
        {
            self.flush();
            self.section = PytestReportSection::Failures;
            self.current = Some(PendingPytestFailure::new(PytestFailureKind::Collection, file));
            return;
        }
        match self.section {
            PytestReportSection::Before => {
                if let Some(failure) = parse_located(line).or_else(|| parse_lint_line(line)) {
                    found.push(failure);
                }
            }
            PytestReportSection::Summary => self.add_summary_line(line),
            PytestReportSection::After => {}
            PytestReportSection::Failures => match ruled_title(line, '_') {
                Some(title) => {
                    self.flush();
                    self.current = Some(PendingPytestFailure::from_title(title));
                }
                None => {
                    if let Some(failure) = &mut self.current {
                        failure.add_line(line);
                    }
                }
            },
        }
    }

    fn add_summary_line(&mut self, line: &str) {
        if self.summary.len() < PENDING_MAX {
            self.summary.extend(PytestSummaryLine::parse(line));
        }
    }

    fn flush(&mut self) {
        let Some(failure) = self.current.take() else { return };
        if self.pending.len() < PENDING_MAX {
            self.pending.push(failure);
        } else {
            self.left_out += 1;
        }
    }

    /// Removes the summary line of `failure` from the collected summary, and returns its id and
    /// short message. Failures with equal names have the same order in the summary.
    fn take_line(&mut self, failure: &PendingPytestFailure) -> Option<(String, String)> {
        let is_error = failure.kind.is_error();
        let mut lines = self.summary.iter().enumerate();
        let (at, id, message) = lines.find_map(|(at, line)| {
            let is_alike = (line.kind == PytestSummaryLineKind::Error) == is_error;
            let (id, message) = line.parts_about(&failure.name).filter(|_| is_alike)?;
            Some((at, id.to_owned(), message.to_owned()))
        })?;
        self.summary.remove(at);
        Some((id, message))
    }

    /// Returns the counts of the collected failures, for pytest output that contains no counts
    /// (`-qq`).
    fn count_failures(&self) -> CiTestCounts {
        let (listed_errors, listed): (Vec<&PytestSummaryLine>, Vec<&PytestSummaryLine>) =
            self.summary.iter().partition(|line| line.kind == PytestSummaryLineKind::Error);
        let headings = |is_error: bool| {
            let is_counted = |it: &&PendingPytestFailure| it.kind.is_error() == is_error;
            self.pending.iter().filter(is_counted).count()
        };
        let count = |listed: usize, headings: usize| match listed.max(headings) {
            0 => None,
            count => Some(count as u64),
        };
        CiTestCounts {
            failed: count(listed.len(), headings(false)),
            errors: count(listed_errors.len(), headings(true)),
            ..CiTestCounts::default()
        }
    }
}

impl PytestFailureKind {
    /// Returns true if pytest counts failures of this kind as errors.
    fn is_error(self) -> bool {
        matches!(self, Self::Fixture | Self::Collection)
    }
}

impl PendingPytestFailure {
    fn new(kind: PytestFailureKind, name: &str) -> Self {
        Self {
            failure: CiFailure::new(FailureSeverity::Failure, ""),
            kind,
            name: name.to_owned(),
            unmarked: String::new(),
            is_located: false,
        }
    }

    fn from_title(title: &str) -> Self {
        let fixture = title.strip_prefix("ERROR at setup of ");
        let fixture = fixture.or_else(|| title.strip_prefix("ERROR at teardown of "));
        let file = title.strip_prefix("ERROR collecting ");
        let doctest = title.strip_prefix("[doctest] ");
        let (kind, name) = match (fixture, file, doctest) {
            (Some(test), ..) => (PytestFailureKind::Fixture, test),
            (None, Some(file), _) => (PytestFailureKind::Collection, file),
            (None, None, Some(test)) => (PytestFailureKind::Doctest, test),
            (None, None, None) => (PytestFailureKind::Test, title),
        };
        let name = name.strip_prefix("[doctest] ").unwrap_or(name);
        let pending = Self::new(kind, name);
        Self { failure: pending.failure.with_test(name), ..pending }
    }

    fn add_line(&mut self, line: &str) {
        if self.kind == PytestFailureKind::Doctest {
            return self.add_doctest_line(line);
        }
        let Self { failure, is_located, .. } = self;
        if let Some(detail) = line.strip_prefix("E  ") {
            *is_located = true;
            let detail = detail.trim();
            // A syntax error in the test file.
            let place = detail.strip_prefix("File \"").and_then(|it| it.split_once("\", line "));
            if let Some((file, row)) = place.filter(|(file, _)| is_project_file(file)) {
                *failure = failure.clone().with_place(file, row.trim().parse().ok(), None);
            } else {
                failure.message.push_str(detail);
                failure.message.push('\n');
            }
        } else if let Some((place, _)) = line.split_once(": in ")
            && let Some((file, row)) = place.rsplit_once(':')
            && let Ok(row) = row.parse::<u32>()
        {
            *is_located = true;
            // The first location in the project is the test itself. Later locations are in
            // functions that the test calls.
            if failure.file.is_none() && !line.starts_with(' ') && is_project_file(file) {
                *failure = failure.clone().with_place(file, Some(row), None);
            }
        } else if let Some((file, row)) = line
            .trim_start()
            .strip_prefix("File \"")
            .and_then(|place| place.split_once("\", line "))
        {
            // `--tb=native`
            let row = row.split(',').next().and_then(|row| row.parse().ok());
            if failure.file.is_none() && is_project_file(file) {
                *failure = failure.clone().with_place(file, row, None);
            }
        } else if ruled_title(line, '-').is_some() {
            // The output of the test follows.
            *is_located = true;
        } else if !*is_located {
            self.add_unmarked(line);
        }
    }

    /// Adds a line about a failed doctest to the current failure. The line has the example, the
    /// expected text, the printed text, or the location.
    fn add_doctest_line(&mut self, line: &str) {
        let place = line.strip_suffix(": DocTestFailure");
        let place = place.or_else(|| line.strip_suffix(": UnexpectedException"));
        let place = place.and_then(|place| place.rsplit_once(':'));
        if let Some((file, row)) = place {
            self.failure = self.failure.clone().with_place(file, row.parse().ok(), None);
            self.is_located = true;
            return;
        }
        let begins = ["Expected", "UNEXPECTED EXCEPTION: "];
        let is_begun = !self.unmarked.is_empty();
        if !self.is_located && (is_begun || begins.iter().any(|begin| line.starts_with(begin))) {
            self.add_unmarked(line);
        }
    }

    fn add_unmarked(&mut self, line: &str) {
        if self.unmarked.lines().count() < UNMARKED_LINES_MAX {
            self.unmarked.push_str(line.trim());
            self.unmarked.push('\n');
        }
    }

    /// Converts the failure, with the id and the short message of its `line` in pytest's summary.
    fn into_failure(self, line: Option<(String, String)>) -> CiFailure {
        let Self { mut failure, kind, name, unmarked, .. } = self;
        let (id, short) = line.unzip();
        if failure.message.is_empty() {
            failure.message = short.filter(|short| !short.is_empty()).unwrap_or(unmarked);
        }
        if failure.message.trim().is_empty() {
            "the test failed".clone_into(&mut failure.message);
        }
        if failure.file.is_none() {
            failure.file = match kind {
                PytestFailureKind::Collection => Some(name),
                PytestFailureKind::Test
                | PytestFailureKind::Doctest
                | PytestFailureKind::Fixture => id.as_deref().map(file_of_id),
            };
        }
        CiFailure { id, ..failure }
    }
}

/// Returns true unless the path `file` belongs to Python or to an installed package.
fn is_project_file(file: &str) -> bool {
    let is_installed = ["/site-packages/", "/dist-packages/", "/lib/python3"];
    !file.starts_with('<') && !is_installed.iter().any(|part| file.contains(part))
}

/// Returns the title in a heading such as `=== FAILURES ===`, which is surrounded by repetitions of
/// the character `rule`.
fn ruled_title(line: &str, rule: char) -> Option<&str> {
    let title = line.trim_matches(rule);
    let is_ruled = line.len() >= title.len() + 2 && title.len() > 2;
    let title = title.strip_prefix(' ')?.strip_suffix(' ')?;
    is_ruled.then_some(title)
}

/// Parses pytest's final counts: `2 failed, 1 passed, 1 skipped, 1 error in 0.11s`.
fn parse_counts(text: &str) -> Option<CiTestCounts> {
    let (counts, time) = text.rsplit_once(" in ")?;
    let mut found = CiTestCounts::default();
    for part in counts.split(", ") {
        let (number, what) = part.split_once(' ')?;
        let number = number.parse().ok()?;
        let count = match what {
            "passed" | "xpassed" => &mut found.passed,
            "failed" => &mut found.failed,
            "skipped" | "xfailed" | "deselected" => &mut found.skipped,
            "error" | "errors" => &mut found.errors,
            "warning" | "warnings" => &mut found.warnings,
            _ => continue,
        };
        CiTestCounts::increase(count, number);
    }
    let (first, rest) = time.split_once(' ').unwrap_or((time, ""));
    let seconds = first.strip_suffix('s').or((rest == "seconds").then_some(first));
    let is_time = seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok());
    (is_time && found != CiTestCounts::default()).then_some(found)
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

    #[test]
    fn a_failed_test_has_the_id_that_runs_it() {
        let (_, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, PRINTED);
        let ids: Vec<&str> = failures.iter().map(|it| it.id.as_deref().unwrap()).collect();
        let expected = [
            "test_sum.py::test_needs",
            "test_sum.py::test_adds_wrongly",
            "test_sum.py::TestMore::test_raises",
        ];
        assert_eq!(ids, expected);
    }

    const SAME_NAMES: &str =
        "FF                                                                       [100%]
=================================== FAILURES ===================================
__________________________________ test_load ___________________________________
conftest.py:4: in load
    raise OSError(\"no disk\")
E   OSError: no disk
________________________________ test_p[a - b] _________________________________
b/test_load.py:3: in test_p
    assert v == \"x\"
E   AssertionError: assert 'a - b' == 'x'
__________________________________ test_load ___________________________________
conftest.py:4: in load
    raise OSError(\"no disk\")
E   OSError: no disk
=========================== short test summary info ============================
FAILED a/test_load.py::test_load - OSError: no disk
FAILED b/test_load.py::test_p[a - b] - AssertionError: assert 'a - b' == 'x'

  - x
  + a - b
FAILED b/test_load.py::test_load - OSError: no disk
";

    #[test]
    fn tests_of_the_same_name_in_two_files_stay_apart() {
        let (summary, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, SAME_NAMES);
        let ids: Vec<&str> = failures.iter().map(|it| it.id.as_deref().unwrap()).collect();
        let expected = [
            "a/test_load.py::test_load",
            "b/test_load.py::test_p[a - b]",
            "b/test_load.py::test_load",
        ];
        assert_eq!(ids, expected);
        assert_eq!(summary.failed, Some(3), "without counts, the failures are counted");
    }

    #[test]
    fn quiet_output_is_counted_and_failures_without_details_are_listed() {
        let printed =
            "F.E                                                                      [100%]
=========================== short test summary info ============================
FAILED a/test_load.py::TestDisk::test_p[a - b] - assert 1 == 2
ERROR a/test_load.py::test_needs
1 failed, 1 passed, 1 error in 0.04s
";
        let (summary, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, printed);
        let counts = [summary.passed, summary.failed, summary.skipped, summary.errors];
        assert_eq!(counts, [Some(1), Some(1), None, Some(1)]);
        let found: Vec<_> = failures
            .iter()
            .map(|it| (it.test.as_deref().unwrap(), it.id.as_deref().unwrap(), &*it.message))
            .collect();
        let expected = [
            ("TestDisk.test_p[a - b]", "a/test_load.py::TestDisk::test_p[a - b]", "assert 1 == 2"),
            ("test_needs", "a/test_load.py::test_needs", "the test failed"),
        ];
        assert_eq!(found, expected);
        assert!(failures.iter().all(|it| it.file.as_deref() == Some("a/test_load.py")));
        let (summary, ..) = read(
            BuildTool::Pytest,
            ProjectAction::Test,
            "..s  [100%]\n2 passed, 1 skipped in 1.20s\n",
        );
        assert_eq!((summary.passed, summary.skipped), (Some(2), Some(1)));
    }

    #[test]
    fn an_error_in_collection_points_at_a_file_of_the_project() {
        let importing =
            "==================================== ERRORS ====================================
________________________ ERROR collecting c/test_imp.py ________________________
ImportError while importing test module '/w/p/c/test_imp.py'.
Hint: make sure your test modules/packages have valid Python names.
Traceback:
/usr/lib/python3.11/importlib/__init__.py:126: in import_module
    return _bootstrap._gcd_import(name[level:], package, level)
c/test_imp.py:7: in <module>
    import nope
E   ModuleNotFoundError: No module named 'nope'
=========================== short test summary info ============================
ERROR c/test_imp.py
=============================== 1 error in 0.43s ===============================
";
        let mismatch =
            "==================================== ERRORS ====================================
_________________________ ERROR collecting b/test_m.py _________________________
import file mismatch:
imported module 'test_m' has this __file__ attribute:
  /w/p/a/test_m.py
=========================== short test summary info ============================
ERROR b/test_m.py
=============================== 1 error in 0.17s ===============================
";
        let conftest = "ImportError while loading conftest '/w/p/conftest.py'.
.venv/lib/python3.11/site-packages/_pytest/assertion/rewrite.py:185: in exec_module
    exec(co, module.__dict__)
conftest.py:2: in <module>
    import nope
E   ModuleNotFoundError: No module named 'nope'
";
        for (printed, file, line, message) in [
            (importing, "c/test_imp.py", Some(7), "ModuleNotFoundError: No module named 'nope'"),
            (mismatch, "b/test_m.py", None, "import file mismatch:"),
            (conftest, "conftest.py", Some(2), "ModuleNotFoundError: No module named 'nope'"),
        ] {
            let (summary, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, printed);
            let [failure] = &failures[..] else { panic!("{failures:?}") };
            assert_eq!((failure.file.as_deref(), failure.line), (Some(file), line));
            assert_eq!(failure.message.lines().next(), Some(message));
            assert_eq!(summary.errors, Some(1), "{file}");
        }
    }
}
