//! Parses the output of JavaScript tools: node:test, Jest, Vitest, Mocha, TypeScript and ESLint.

use std::borrow::Cow;

use toolgate_contract::OutputStreamKind;

use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};
use super::compared_values::FailedAssertionValues;
use super::escape_pattern;
use super::findings::OutputParserFindings;
use super::load_errors::TestFileLoadErrors;
use super::located::{find_place, parse_located};
use super::tap;

/// Parser of the output of JavaScript tools: node:test, Jest, Vitest, Mocha, TypeScript and ESLint.
#[derive(Default)]
pub(super) struct JavaScriptOutputParser {
    tap: tap::TapParser,
    /// The failed test whose output is being read.
    current: Option<JavaScriptFailureBuilder>,
    /// The file whose findings a linter is currently listing.
    file: Option<String>,
    /// The file, line and column that node:test printed for the next failed test.
    next_place: Option<(String, u32, Option<u32>)>,
    /// True after Mocha has printed its count of failures. The details of the failures follow.
    is_after_count: bool,
    /// True after the heading of the failed tests in the `dot` format of node:test, which prints
    /// neither locations nor counts.
    is_after_dots: bool,
    load_errors: TestFileLoadErrors,
    /// The name of the outermost node:test test or suite that is running.
    outermost: Option<String>,
    /// The name of each failed node:test test that is inside a test or suite, with the name of the
    /// outermost test or suite that contains it.
    nested: Vec<(String, String)>,
    /// True if node:test counted no suites, so that each nested test is inside a test.
    has_no_suites: bool,
}

/// The maximum number of failed tests inside other tests whose names are kept.
const NESTED_MAX: usize = 1000;

/// A failed JavaScript test whose output is being read.
struct JavaScriptFailureBuilder {
    failure: CiFailure,
    style: JavaScriptReportFormat,
    /// True after the last line of the failure's message was read.
    is_complete: bool,
    /// The compared values that Node prints after the stack trace.
    values: FailedAssertionValues,
}

/// The JavaScript test runner that printed a failure, which determines the format of the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JavaScriptReportFormat {
    Jest,
    Vitest,
    /// Mocha, while it prints the name of a failed test. The name continues until a line that ends
    /// with a colon.
    MochaName,
    Mocha,
    Node,
}

impl JavaScriptReportFormat {
    /// Returns the test filter that selects one test by name. The runner prints this test as
    /// `test`.
    fn pattern_of(self, test: &str) -> String {
        let name = match self {
            // Suites and test, which the pattern joins with spaces.
            Self::Jest => test.replace(" \u{203a} ", " "),
            // The file is not a part of the name.
            Self::Vitest => {
                test.split_once(" > ").map_or(test, |(_, name)| name).replace(" > ", " ")
            }
            Self::MochaName | Self::Mocha | Self::Node => test.to_owned(),
        };
        escape_pattern(&name)
    }
}

impl super::OutputLineParser for JavaScriptOutputParser {
    fn read_line<'l>(
        &mut self,
        _: OutputStreamKind,
        line: &'l str,
        found: &mut OutputParserFindings,
    ) -> Option<Cow<'l, str>> {
        self.load_errors.read_line(line);
        if !self.tap.read_line(line, found) {
            self.parse_line(line, found);
        }
        Some(line.into())
    }

    fn finish(&mut self, found: &mut OutputParserFindings) {
        self.tap.finish(found);
        self.flush(found);
        self.load_errors.add_to(&mut found.failures);
        if self.is_after_dots && found.summary.failed.is_none() {
            let count = found.failures.len() + found.dropped;
            CiTestCounts::increase(&mut found.summary.failed, count as u64);
        }
    }
}

impl JavaScriptOutputParser {
    fn parse_line(&mut self, line: &str, found: &mut OutputParserFindings) {
        let trimmed = line.trim();
        if add_counts(trimmed, found) {
            self.flush(found);
            self.is_after_count |= trimmed.ends_with(" failing");
            return;
        }
        self.read_tree(line, trimmed);
        if trimmed == "Failed tests:" {
            self.is_after_dots = true;
            return;
        }
        if trimmed.starts_with('\u{2716}') && trimmed.contains(") # TODO") {
            // A test that is marked as unfinished may fail.
            self.flush(found);
            self.next_place = None;
            return;
        }
        if let Some((failure, style)) = self.start_failure(line, trimmed) {
            self.flush(found);
            self.current = Some(JavaScriptFailureBuilder {
                failure,
                style,
                is_complete: false,
                values: FailedAssertionValues::default(),
            });
            return;
        }
        if let Some(at) = trimmed.strip_prefix("test at ") {
            self.flush(found);
            self.next_place =
                find_place(at).map(|(file, row, column)| (file.to_owned(), row, column));
            return;
        }
        if let Some(current) = &mut self.current {
            current.add_line(trimmed);
            return;
        }
        if let Some(failure) = parse_located(line) {
            found.push(failure);
        } else if let Some(failure) =
            self.file.as_ref().and_then(|file| parse_lint_line(trimmed, file))
        {
            found.push(failure);
        } else if !line.starts_with(' ') {
            let is_path = line.starts_with(['/', '.']) && !line.contains(' ');
            self.file = is_path.then(|| line.to_owned());
        }
    }

    /// Records the test, suite or count in `line`, a line of the test tree that node:test prints.
    /// `trimmed` is `line` without leading blanks.
    fn read_tree(&mut self, line: &str, trimmed: &str) {
        if let Some(name) = line.strip_prefix("\u{25b6} ") {
            self.outermost = Some(name_without_duration(name).to_owned());
        } else if let Some(name) = trimmed.strip_prefix("\u{2716} ")
            && line.starts_with(' ')
            && self.nested.len() < NESTED_MAX
        {
            let name = name_without_duration(name).to_owned();
            self.nested.extend(self.outermost.clone().map(|outermost| (name, outermost)));
        } else if let Some(count) = trimmed.strip_prefix("\u{2139} suites ") {
            self.has_no_suites = count == "0";
        }
    }

    /// Returns the failed test whose details start at `line`, and the runner that printed it.
    /// `trimmed` is `line` without leading blanks.
    fn start_failure(
        &mut self,
        line: &str,
        trimmed: &str,
    ) -> Option<(CiFailure, JavaScriptReportFormat)> {
        let failure = |test: &str| CiFailure::new(FailureSeverity::Failure, "").with_test(test);
        if let Some(test) =
            line.strip_prefix("  \u{25cf} ").filter(|_| !trimmed.ends_with("Console"))
        {
            return Some((failure(test), JavaScriptReportFormat::Jest));
        }
        if let Some(test) = trimmed.strip_prefix("FAIL ").filter(|test| test.contains(" > ")) {
            return Some((failure(test.trim()), JavaScriptReportFormat::Vitest));
        }
        if self.is_after_count
            && let Some((number, test)) = trimmed.split_once(") ")
            && number.parse::<u32>().is_ok()
        {
            return Some((
                failure(test.trim_end_matches(':')),
                match test.ends_with(':') {
                    true => JavaScriptReportFormat::Mocha,
                    false => JavaScriptReportFormat::MochaName,
                },
            ));
        }
        let place = self.next_place.take_if(|_| trimmed.starts_with('\u{2716}'));
        if let Some(test) = trimmed.strip_prefix("\u{2716} ")
            && (place.is_some() || self.is_after_dots)
        {
            let test = name_without_duration(test);
            let failure = match place {
                Some((file, row, column)) => failure(test).with_place(&file, Some(row), column),
                None => failure(test),
            };
            return Some((failure, JavaScriptReportFormat::Node));
        }
        None
    }

    fn flush(&mut self, found: &mut OutputParserFindings) {
        let Some(JavaScriptFailureBuilder { mut failure, style, values, .. }) = self.current.take()
        else {
            return;
        };
        let is_suite =
            ["subtest failed'", "subtests failed'"].contains(&after_number(&failure.message));
        if style == JavaScriptReportFormat::Node && is_suite {
            return;
        }
        values.add_to(&mut failure.message);
        // A filter that selects only a subtest would leave out the test that starts it.
        let is_subtest = |(name, _): &(String, String)| failure.test.as_ref() == Some(name);
        let at = self.nested.iter().position(is_subtest);
        let at = at.filter(|_| style == JavaScriptReportFormat::Node && self.has_no_suites);
        let outermost = at.map(|at| self.nested.remove(at).1);
        let selected = outermost.as_deref().or(failure.test.as_deref());
        failure.id = selected.map(|test| style.pattern_of(test));
        if failure.message.trim().is_empty() {
            "the test failed".clone_into(&mut failure.message);
        }
        let is_known = found.failures.iter().any(|known| {
            known.test == failure.test && known.file == failure.file && known.line == failure.line
        });
        // Jest reports failures twice if there are many tests.
        if !is_known {
            found.push(failure);
        }
    }
}

impl JavaScriptFailureBuilder {
    fn add_line(&mut self, line: &str) {
        let Self { failure, style, is_complete, values } = self;
        if *style == JavaScriptReportFormat::MochaName {
            if let Some(test) = &mut failure.test {
                test.push(' ');
                test.push_str(line.trim_end_matches(':'));
            }
            if line.ends_with(':') {
                *style = JavaScriptReportFormat::Mocha;
            }
            return;
        }
        let stack = line.strip_prefix("at ").or_else(|| line.strip_prefix("\u{276f} "));
        if let Some(stack) = stack {
            *is_complete = true;
            let own = find_place(stack)
                .filter(|(file, ..)| !file.contains("node_modules") && !file.starts_with("node:"));
            if let (Some((file, row, column)), None) = (own, &failure.file) {
                *failure = failure.clone().with_place(file, Some(row), column);
            }
        } else if *is_complete {
            // After this line, only the rest of the stack trace follows and, for Node, the error's
            // properties.
            let (name, value) = line.split_once(": ").unwrap_or((line, ""));
            let value = value.trim_end_matches(',');
            // The message already contains an object of several lines.
            let is_whole = *style == JavaScriptReportFormat::Node && !value.ends_with(['{', '[']);
            match name {
                "expected" if is_whole => value.clone_into(&mut values.expected),
                "actual" if is_whole => value.clone_into(&mut values.actual),
                _ => {}
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(" | ")
            || line.starts_with("> ") && line.contains(" | ")
            || line.starts_with("| ") && line.ends_with('^')
        {
            // An excerpt of the test's source around the failure.
        } else {
            failure.message.push_str(line);
            failure.message.push('\n');
        }
    }
}

/// Returns the test name in `printed` without the duration that follows, as in `adds (0.4ms)`.
fn name_without_duration(printed: &str) -> &str {
    match printed.rsplit_once(" (") {
        Some((name, duration)) if duration.ends_with("ms)") => name,
        _ => printed,
    }
}

/// Returns `message` without its first word (a number such as `1)`) and without surrounding blanks.
fn after_number(message: &str) -> &str {
    message.trim().split_once(' ').map_or("", |(_, rest)| rest)
}

/// Parses a line such as `Tests: 1 failed, 2 passed, 3 total`, `Tests  1 failed | 2 passed (3)` or
/// `2 passing (5ms)`, and adds its counts to `found`. Returns `true` if `line` has one of these
/// formats.
fn add_counts(line: &str, found: &mut OutputParserFindings) -> bool {
    let mut words = line.split_whitespace();
    if let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) {
        let count = match what {
            "passing" => &mut found.summary.passed,
            "failing" => &mut found.summary.failed,
            "pending" => &mut found.summary.skipped,
            _ => return false,
        };
        CiTestCounts::increase(count, number);
        return true;
    }
    let Some(counts) = line.strip_prefix("Tests:").or_else(|| line.strip_prefix("Tests ")) else {
        return false;
    };
    for part in counts.split([',', '|', '(']) {
        let Some((number, what)) = part.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse() else { continue };
        match what.trim() {
            "passed" => CiTestCounts::increase(&mut found.summary.passed, number),
            "failed" => CiTestCounts::increase(&mut found.summary.failed, number),
            "skipped" | "todo" => CiTestCounts::increase(&mut found.summary.skipped, number),
            _ => {}
        }
    }
    true
}

/// Parses `3:5  error  message  rule`, a finding of ESLint in `file`, which an earlier line names.
fn parse_lint_line(line: &str, file: &str) -> Option<CiFailure> {
    let (at, rest) = line.split_once(' ')?;
    let (row, column) = at.split_once(':')?;
    let row = row.parse().ok()?;
    let column = column.parse().ok()?;
    let rest = rest.trim_start();
    let (severity, message) = match rest.split_once(' ')? {
        ("error", message) => (FailureSeverity::Error, message),
        ("warning", message) => (FailureSeverity::Warning, message),
        (_, _) => return None,
    };
    let (message, rule) = match message.trim().rsplit_once("  ") {
        Some((message, rule)) => (message.trim(), Some(rule.trim().to_owned())),
        None => (message.trim(), None),
    };
    let failure = CiFailure::new(severity, message).with_place(file, Some(row), Some(column));
    Some(CiFailure { code: rule, ..failure })
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use super::super::tests::read;
    use super::*;

    #[track_caller]
    fn check(printed: &str, test: &str, place: (&str, u32, u32), message: &str) {
        let (summary, failures, _) = read(BuildTool::Npm, ProjectAction::Test, printed);
        let counts = (summary.passed, summary.failed, summary.skipped);
        assert_eq!(counts, (Some(1), Some(1), Some(1)));
        let [failure] = &failures[..] else { panic!("{failures:#?}") };
        assert_eq!(failure.test.as_deref(), Some(test));
        let CiFailure { file, line, column, .. } = failure;
        let found = (file.as_deref().unwrap_or("none"), *line, *column);
        assert_eq!(found, (place.0, Some(place.1), Some(place.2)));
        assert_eq!(failure.message, message);
    }

    #[test]
    fn jest_output_is_parsed() {
        let message =
            "expect(received).toBe(expected) // Object.is equality\n\nExpected: 4\nReceived: 3";
        let place = ("sum.test.js", 5, 23);
        check(include_str!("printed/jest.txt"), "sum \u{203a} adds wrongly", place, message);
    }

    #[test]
    fn vitest_output_is_parsed() {
        let message = "AssertionError: expected 3 to be 4 // Object.is equality\n\n- Expected\n+ Received\n\n- 4\n+ 3";
        let test = "v/sum.spec.mjs > sum > adds wrongly";
        check(include_str!("printed/vitest.txt"), test, ("v/sum.spec.mjs", 5, 19), message);
    }

    #[test]
    fn mocha_output_is_parsed() {
        let message = "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n\n3 !== 4\n\n+ expected - actual\n\n-3\n+4";
        let place = ("m/sum.spec.js", 6, 12);
        check(include_str!("printed/mocha.txt"), "sum adds wrongly", place, message);
    }

    #[test]
    fn the_spec_output_of_node_test_is_parsed() {
        let message =
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n\n3 !== 4";
        let place = ("sum.test.js", 4, 1);
        check(include_str!("printed/node-spec.txt"), "adds wrongly", place, message);
    }

    #[test]
    fn the_id_of_a_failed_test_is_a_pattern_for_its_runner() {
        for (style, test, expected) in [
            (JavaScriptReportFormat::Jest, "sum \u{203a} adds (a)", r"sum adds \(a\)"),
            (JavaScriptReportFormat::Vitest, "v/sum.spec.mjs > sum > adds", "sum adds"),
            (JavaScriptReportFormat::Mocha, "sum adds?", r"sum adds\?"),
        ] {
            assert_eq!(style.pattern_of(test), expected);
        }
    }

    #[test]
    fn values_that_node_compared_are_added_to_a_message_without_them() {
        let printed = "\u{2716} failing tests:\n\ntest at a.test.js:2:1\n\u{2716} adds (8.4ms)\n  AssertionError [ERR_ASSERTION]: sums differ\n      at TestContext.<anonymous> (/w/a.test.js:2:31) {\n    code: 'ERR_ASSERTION',\n    actual: 3,\n    expected: 4,\n    operator: 'strictEqual'\n  }\n";
        let (_, failures, _) = read(BuildTool::Npm, ProjectAction::Test, printed);
        let [failure] = &failures[..] else { panic!("{failures:#?}") };
        let message = "AssertionError [ERR_ASSERTION]: sums differ\nexpected: 4\nactual: 3";
        assert_eq!((failure.message.as_str(), failure.id.as_deref()), (message, Some("adds")));
    }

    #[test]
    fn a_failed_test_that_is_marked_as_unfinished_is_no_failure() {
        let printed = "\u{2716} failing tests:\n\ntest at a.test.js:4:1\n\u{2716} todo (13.0ms) # TODO\n  AssertionError [ERR_ASSERTION]: not yet\n\ntest at a.test.js:6:1\n\u{2716} adds (8.4ms)\n  TypeError [Error]: boom\n      at TestContext.<anonymous> (/w/a.test.js:6:9)\n";
        let (_, failures, _) = read(BuildTool::Npm, ProjectAction::Test, printed);
        let [failure] = &failures[..] else { panic!("{failures:#?}") };
        assert_eq!((failure.test.as_deref(), failure.line), (Some("adds"), Some(6)));
    }

    #[test]
    fn a_failed_subtest_in_spec_output_has_the_id_of_the_test_that_starts_it() {
        let printed = |suites: u32| {
            format!(
                "\u{25b6} outer (1)\n  \u{25b6} inner\n    \u{2716} adds (0.4ms)\n      1 == 2\n  \
                 \u{25b6} inner (1.2ms)\n\n\u{25b6} outer (1) (2.5ms)\n\n\u{2139} tests 3\n\
                 \u{2139} suites {suites}\n\u{2716} failing tests:\n\ntest at a.test.js:9:69\n\
                 \u{2716} adds (0.4ms)\n  AssertionError [ERR_ASSERTION]: 1 == 2\n"
            )
        };
        for (suites, id) in [(0, r"outer \(1\)"), (2, "adds")] {
            let (_, failures, _) = read(BuildTool::Npm, ProjectAction::Test, &printed(suites));
            let [failure] = &failures[..] else { panic!("{failures:#?}") };
            assert_eq!((failure.test.as_deref(), failure.id.as_deref()), (Some("adds"), Some(id)));
        }
    }

    #[test]
    fn the_dot_output_of_node_test_is_parsed() {
        let printed = "XX.X\n\nFailed tests:\n\n\u{2716} adds (0.1ms)\n  TypeError [Error]: boom\n      at TestContext.<anonymous> (/w/a.test.js:3:7)\n      at Test.run (node:internal/test_runner/test:796:25)\n\u{2716} outer (7.8ms)\n  '2 subtests failed'\n\u{2716} waits (21.4ms)\n  'test timed out after 20ms'\n";
        let (summary, failures, _) = read(BuildTool::Npm, ProjectAction::Test, printed);
        let found = failures.iter().map(|it| (it.test.as_deref(), it.line, it.message.as_str()));
        let expected = [
            (Some("adds"), Some(3), "TypeError [Error]: boom"),
            (Some("waits"), None, "'test timed out after 20ms'"),
        ];
        assert_eq!((found.collect::<Vec<_>>(), summary.failed), (expected.to_vec(), Some(2)));
    }

    #[test]
    fn typescript_and_eslint_output_is_parsed() {
        let (_, failures, _) =
            read(BuildTool::Npm, ProjectAction::Build, include_str!("printed/tsc.txt"));
        assert_eq!(failures[0].code.as_deref(), Some("TS2322"));
        let (summary, failures, _) =
            read(BuildTool::Npm, ProjectAction::Lint, include_str!("printed/eslint.txt"));
        assert_eq!((summary.errors, summary.warnings), (Some(1), Some(1)));
        let found = failures.iter().map(|failure| (failure.line, failure.code.as_deref()));
        let found: Vec<_> = found.collect();
        assert_eq!(found, [(Some(1), Some("no-unused-vars")), (Some(2), Some("eqeqeq"))]);
        assert_eq!(failures[1].message, "Expected '===' and instead saw '=='");
    }
}
