//! The summary at the end of pytest's output, which has the id of each failure.

use super::super::report::{CiFailure, FailureSeverity};

/// A line of pytest's short test summary: `FAILED test_a.py::test_b - assert 1 == 2`.
pub(super) struct PytestSummaryLine {
    pub(super) kind: PytestSummaryLineKind,
    /// The id of the failed test, and after ` - ` the message. Both can contain ` - `. The
    /// description of a subtest comes first: `[message] (number=1) test_a.py::test_b`.
    text: String,
}

/// The kind of failure that a line of pytest's short test summary reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PytestSummaryLineKind {
    Failed,
    /// A failed subtest. A subtest can only be run together with its test.
    Subtest,
    Error,
}

impl PytestSummaryLine {
    /// Parses a line of pytest's summary. Returns `None` if the line is not about a failure.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let kinds = [
            ("SUBFAILED", PytestSummaryLineKind::Subtest),
            ("FAILED ", PytestSummaryLineKind::Failed),
            ("ERROR ", PytestSummaryLineKind::Error),
        ];
        kinds.into_iter().find_map(|(word, kind)| {
            let text = line.strip_prefix(word)?.trim_start().to_owned();
            Some(Self { kind, text })
        })
    }

    /// Returns the id and the message of this summary line if they concern the test or file `name`,
    /// which is in a failure's heading.
    pub(super) fn parts_about(&self, name: &str) -> Option<(&str, &str)> {
        let (test, text) = match self.kind {
            PytestSummaryLineKind::Failed | PytestSummaryLineKind::Error => {
                (name, self.text.as_str())
            }
            PytestSummaryLineKind::Subtest => {
                // `TestMore.test_b [message] (number=1)`
                let mut blanks = name.match_indices(' ').map(|(at, _)| at);
                blanks.find_map(|at| {
                    let (test, description) = (&name[..at], &name[at + 1..]);
                    let text = self.text.strip_prefix(description)?.strip_prefix(' ')?;
                    Some((test, text))
                })?
            }
        };
        let ends = text.match_indices(" - ").map(|(at, _)| at);
        let end = ends.chain([text.len()]).find(|end| is_id_of(&text[..*end], test))?;
        Some((&text[..end], text[end..].strip_prefix(" - ").unwrap_or_default()))
    }

    /// Converts this summary line to a failure. Used if pytest printed no heading for the failure.
    pub(super) fn into_failure(self) -> CiFailure {
        let (description, line) = self.split_description();
        let (id, message) = split_id(line);
        let message = if message.is_empty() { "the test failed" } else { message };
        let test = id.split_once("::").map_or(id.to_owned(), |(_, test)| test.replace("::", "."));
        let test = if description.is_empty() { test } else { format!("{test} {description}") };
        let failure = CiFailure::new(FailureSeverity::Failure, message).with_test(&test);
        failure.with_place(&file_of_id(id), None, None).with_id(id)
    }

    /// Splits the description of a subtest off the start of this summary line.
    fn split_description(&self) -> (&str, &str) {
        let id = self.text.find("::").filter(|_| self.kind == PytestSummaryLineKind::Subtest);
        let blank = id.and_then(|at| self.text[..at].rfind(' '));
        blank.map_or(("", &self.text), |at| (&self.text[..at], &self.text[at + 1..]))
    }
}

/// Splits a line of pytest's summary into id and message at ` - `. Parameters in the id may also
/// contain ` - `.
fn split_id(line: &str) -> (&str, &str) {
    let parameters = line.find('[').filter(|open| !line[..*open].contains(" - "));
    let from = match parameters {
        Some(_) if line.ends_with(']') && !line.contains("] - ") => line.len(),
        Some(_) => line.find("] - ").map_or(0, |at| at + 1),
        None => 0,
    };
    match line[from..].find(" - ") {
        Some(at) => (&line[..from + at], &line[from + at + 3..]),
        None => (line, ""),
    }
}

/// Returns true if `id`, such as `tests/test_a.py::TestMore::test_b`, is the pytest id of the test
/// or file `name`, such as `TestMore.test_b`.
fn is_id_of(id: &str, name: &str) -> bool {
    let test = id.split_once("::").map(|(_, test)| test.replace("::", "."));
    id == name || test.is_some_and(|test| test == name.replace("::", "."))
}

/// Returns the path of the test file in the pytest id `id`.
pub(super) fn file_of_id(id: &str) -> String {
    id.split_once("::").map_or(id, |(file, _)| file).to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use super::super::tests::read;

    const SUBTESTS: &str =
        "=================================== FAILURES ===================================
______________________________ T.test_s [m] (i=0) ______________________________
test_ok.py:5: in test_s
    with self.subTest(\"m\", i=i): self.assertEqual(i, 1)
E   AssertionError: 0 != 1
______________________________ test_q [x - y] (i=1) ____________________________
test_ok.py:8: in test_q
    with subtests.test(msg=\"x - y\", i=i): assert i == 7
E   assert 1 == 7
_______________________________ test_q (<subtest>) _____________________________
test_ok.py:9: in test_q
    with subtests.test(): assert 0
E   assert 0
____________________________________ test_q ____________________________________
contains 2 failed subtests
";
    const SUBTEST_IDS: &str =
        "=========================== short test summary info ============================
SUBFAILED[m] (i=0) test_ok.py::T::test_s - AssertionError: 0 != 1
SUBFAILED[x - y] (i=1) test_ok.py::test_q - assert 1 == 7
SUBFAILED(<subtest>) test_ok.py::test_q - assert 0
FAILED test_ok.py::test_q - contains 2 failed subtests
========================= 4 failed, 1 passed in 0.23s ==========================
";

    #[test]
    fn a_failed_subtest_has_the_id_of_its_test() {
        let with_headings = format!("{SUBTESTS}{SUBTEST_IDS}");
        for (printed, line) in [(&*with_headings, Some(5)), (SUBTEST_IDS, None)] {
            let (summary, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, printed);
            assert_eq!((summary.failed, failures[0].line), (Some(4), line));
            let found: Vec<_> = failures
                .iter()
                .map(|it| {
                    let message = it.message.trim_end();
                    (it.test.as_deref().unwrap(), it.id.as_deref().unwrap(), message)
                })
                .collect();
            let expected = [
                ("T.test_s [m] (i=0)", "test_ok.py::T::test_s", "AssertionError: 0 != 1"),
                ("test_q [x - y] (i=1)", "test_ok.py::test_q", "assert 1 == 7"),
                ("test_q (<subtest>)", "test_ok.py::test_q", "assert 0"),
                ("test_q", "test_ok.py::test_q", "contains 2 failed subtests"),
            ];
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_wrong_example_in_a_documentation_text_has_its_line_and_texts() {
        let printed =
            "=================================== FAILURES ===================================
______________________________ [doctest] helper.f ______________________________
002 Does.
003 
004   >>> f(1)
Expected:
    2
Got:
    1

/w/p/helper.py:4: DocTestFailure
______________________________ [doctest] helper.g ______________________________
010   >>> g(0)
UNEXPECTED EXCEPTION: ZeroDivisionError('division by zero')
Traceback (most recent call last):
  File \"/w/p/helper.py\", line 13, in g
ZeroDivisionError: division by zero
/w/p/helper.py:10: UnexpectedException
=========================== short test summary info ============================
FAILED helper.py::helper.f
FAILED helper.py::helper.g
============================== 2 failed in 0.02s ===============================
";
        let (_, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, printed);
        let places: Vec<_> =
            failures.iter().map(|it| (it.id.as_deref().unwrap(), it.line)).collect();
        assert_eq!(places, [("helper.py::helper.f", Some(4)), ("helper.py::helper.g", Some(10))]);
        assert_eq!(failures[0].message.trim_end(), "Expected:\n2\nGot:\n1");
        let message = &failures[1].message;
        assert!(message.starts_with("UNEXPECTED EXCEPTION: ZeroDivisionError"), "{message}");
    }

    #[test]
    fn a_native_traceback_gives_the_place_and_the_summary_the_message() {
        let printed =
            "=================================== FAILURES ===================================
___________________________________ test_bad ___________________________________
Traceback (most recent call last):
  File \"/v/lib/python3.11/site-packages/_pytest/runner.py\", line 341, in from_call
  File \"/w/p/test_a.py\", line 3, in test_bad
    assert 1 == 2
AssertionError: assert 1 == 2
=========================== short test summary info ============================
FAILED test_a.py::test_bad - assert 1 == 2
============================== 1 failed in 0.02s ===============================
";
        let (_, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, printed);
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!((failure.message.as_str(), failure.line), ("assert 1 == 2", Some(3)));
        assert_eq!(failure.file.as_deref(), Some("/w/p/test_a.py"));
    }

    #[test]
    fn a_strict_unexpected_pass_has_its_reason() {
        let printed =
            "=================================== FAILURES ===================================
__________________________________ test_xpass __________________________________
[XPASS(strict)] fixed in 2
----------------------------- Captured stdout call -----------------------------
printed by the test
=========================== short test summary info ============================
FAILED test_a.py::test_xpass - [XPASS(strict)] fixed in 2
============================== 1 failed in 0.02s ===============================
";
        let (_, failures, _) = read(BuildTool::Pytest, ProjectAction::Test, printed);
        assert_eq!(failures[0].message.trim_end(), "[XPASS(strict)] fixed in 2");
        assert_eq!(failures[0].id.as_deref(), Some("test_a.py::test_xpass"));
    }
}
