//! Parses the output of JavaScript tools: node:test, Jest, Vitest, Mocha, TypeScript and ESLint.

use std::borrow::Cow;

use toolgate_contract::Stream;

use super::super::report::{Failure, Severity, Summary};
use super::found::Found;
use super::located::{located, place};
use super::tap;

/// The parser of a script's output, for any of these tools.
#[derive(Default)]
pub(super) struct Reader {
    tap: tap::Reader,
    /// The failed test whose output is being read.
    told: Option<Told>,
    /// The file that a linter currently reports on.
    file: Option<String>,
    /// The location of the next failed test of node:test.
    at: Option<(String, u32, Option<u32>)>,
    /// Set after Mocha's count of failures, which precedes their details.
    is_after_failing: bool,
}

struct Told {
    failure: Failure,
    style: Style,
    /// Set when the reason of the failure is complete.
    is_over: bool,
}

/// The runner that reports a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Jest,
    Vitest,
    /// Mocha while it prints a test name, which spans lines until one ends with a colon.
    MochaName,
    Mocha,
    Node,
}

impl super::Reader for Reader {
    fn line<'l>(&mut self, _: Stream, line: &'l str, found: &mut Found) -> Option<Cow<'l, str>> {
        if !self.tap.line(line, found) {
            self.read(line, found);
        }
        Some(line.into())
    }

    fn end(&mut self, found: &mut Found) {
        self.tap.flush(found);
        self.flush(found);
    }
}

impl Reader {
    fn read(&mut self, line: &str, found: &mut Found) {
        let trimmed = line.trim();
        if counted(trimmed, found) {
            self.flush(found);
            self.is_after_failing |= trimmed.ends_with(" failing");
            return;
        }
        if let Some((failure, style)) = self.begin(line, trimmed) {
            self.flush(found);
            self.told = Some(Told { failure, style, is_over: false });
            return;
        }
        if let Some(at) = trimmed.strip_prefix("test at ") {
            self.flush(found);
            self.at = place(at).map(|(file, row, column)| (file.to_owned(), row, column));
            return;
        }
        if let Some(told) = &mut self.told {
            told.line(trimmed);
            return;
        }
        if let Some(failure) = located(line) {
            found.push(failure);
        } else if let Some(failure) = self.file.as_ref().and_then(|file| linted(trimmed, file)) {
            found.push(failure);
        } else if !line.starts_with(' ') {
            let is_path = line.starts_with(['/', '.']) && !line.contains(' ');
            self.file = is_path.then(|| line.to_owned());
        }
    }

    /// Returns the failed test whose details start at `line`.
    fn begin(&mut self, line: &str, trimmed: &str) -> Option<(Failure, Style)> {
        let failure = |test: &str| Failure::new(Severity::Failure, "").of_test(test);
        if let Some(test) =
            line.strip_prefix("  \u{25cf} ").filter(|_| !trimmed.ends_with("Console"))
        {
            return Some((failure(test), Style::Jest));
        }
        if let Some(test) = trimmed.strip_prefix("FAIL ").filter(|test| test.contains(" > ")) {
            return Some((failure(test.trim()), Style::Vitest));
        }
        if self.is_after_failing
            && let Some((number, test)) = trimmed.split_once(") ")
            && number.parse::<u32>().is_ok()
        {
            return Some((
                failure(test.trim_end_matches(':')),
                match test.ends_with(':') {
                    true => Style::Mocha,
                    false => Style::MochaName,
                },
            ));
        }
        if let Some(test) = trimmed.strip_prefix("\u{2716} ").filter(|_| self.at.is_some()) {
            let test = test.rsplit_once(" (").map_or(test, |(test, _)| test);
            let (file, row, column) = self.at.take()?;
            return Some((failure(test).at(&file, Some(row), column), Style::Node));
        }
        None
    }

    fn flush(&mut self, found: &mut Found) {
        let Some(Told { mut failure, .. }) = self.told.take() else { return };
        if failure.message.trim().is_empty() {
            "it failed".clone_into(&mut failure.message);
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

impl Told {
    fn line(&mut self, line: &str) {
        let Self { failure, style, is_over } = self;
        if *style == Style::MochaName {
            if let Some(test) = &mut failure.test {
                test.push(' ');
                test.push_str(line.trim_end_matches(':'));
            }
            if line.ends_with(':') {
                *style = Style::Mocha;
            }
            return;
        }
        let stack = line.strip_prefix("at ").or_else(|| line.strip_prefix("\u{276f} "));
        if let Some(stack) = stack {
            *is_over = true;
            let own = place(stack)
                .filter(|(file, ..)| !file.contains("node_modules") && !file.starts_with("node:"));
            if let (Some((file, row, column)), None) = (own, &failure.file) {
                *failure = failure.clone().at(file, Some(row), column);
            }
        } else if *is_over {
            // Only the rest of the stack trace follows.
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

/// Counts `Tests: 1 failed, 2 passed, 3 total`, `Tests  1 failed | 2 passed (3)` or `2 passing
/// (5ms)`. Returns `true` if `line` had this format.
fn counted(line: &str, found: &mut Found) -> bool {
    let mut words = line.split_whitespace();
    if let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) {
        let count = match what {
            "passing" => &mut found.summary.passed,
            "failing" => &mut found.summary.failed,
            "pending" => &mut found.summary.skipped,
            _ => return false,
        };
        Summary::add(count, number);
        return true;
    }
    let Some(counts) = line.strip_prefix("Tests:").or_else(|| line.strip_prefix("Tests ")) else {
        return false;
    };
    for part in counts.split([',', '|', '(']) {
        let Some((number, what)) = part.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse() else { continue };
        match what.trim() {
            "passed" => Summary::add(&mut found.summary.passed, number),
            "failed" => Summary::add(&mut found.summary.failed, number),
            "skipped" | "todo" => Summary::add(&mut found.summary.skipped, number),
            _ => {}
        }
    }
    true
}

/// Parses `3:5  error  message  rule`, for a file named on an earlier line.
fn linted(line: &str, file: &str) -> Option<Failure> {
    let (at, rest) = line.split_once(' ')?;
    let (row, column) = at.split_once(':')?;
    let row = row.parse().ok()?;
    let column = column.parse().ok()?;
    let rest = rest.trim_start();
    let (severity, message) = match rest.split_once(' ')? {
        ("error", message) => (Severity::Error, message),
        ("warning", message) => (Severity::Warning, message),
        (_, _) => return None,
    };
    let (message, rule) = match message.trim().rsplit_once("  ") {
        Some((message, rule)) => (message.trim(), Some(rule.trim().to_owned())),
        None => (message.trim(), None),
    };
    let failure = Failure::new(severity, message).at(file, Some(row), Some(column));
    Some(Failure { code: rule, ..failure })
}

#[cfg(test)]
mod tests {
    use super::super::super::kind::{Kind, Verb};
    use super::super::tests::read;
    use super::*;

    #[track_caller]
    fn check(printed: &str, test: &str, place: (&str, u32, u32), message: &str) {
        let (summary, failures, _) = read(Kind::Npm, Verb::Test, printed);
        let counts = (summary.passed, summary.failed, summary.skipped);
        assert_eq!(counts, (Some(1), Some(1), Some(1)));
        let [failure] = &failures[..] else { panic!("{failures:#?}") };
        assert_eq!(failure.test.as_deref(), Some(test));
        let Failure { file, line, column, .. } = failure;
        let told = (file.as_deref().unwrap_or("none"), *line, *column);
        assert_eq!(told, (place.0, Some(place.1), Some(place.2)));
        assert_eq!(failure.message, message);
    }

    #[test]
    fn jest_is_read() {
        let message =
            "expect(received).toBe(expected) // Object.is equality\n\nExpected: 4\nReceived: 3";
        let place = ("sum.test.js", 5, 23);
        check(include_str!("printed/jest.txt"), "sum \u{203a} adds wrongly", place, message);
    }

    #[test]
    fn vitest_is_read() {
        let message = "AssertionError: expected 3 to be 4 // Object.is equality\n\n- Expected\n+ Received\n\n- 4\n+ 3";
        let test = "v/sum.spec.mjs > sum > adds wrongly";
        check(include_str!("printed/vitest.txt"), test, ("v/sum.spec.mjs", 5, 19), message);
    }

    #[test]
    fn mocha_is_read() {
        let message = "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n\n3 !== 4\n\n+ expected - actual\n\n-3\n+4";
        let place = ("m/sum.spec.js", 6, 12);
        check(include_str!("printed/mocha.txt"), "sum adds wrongly", place, message);
    }

    #[test]
    fn the_longer_form_of_node_s_own_runner_is_read() {
        let message =
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n\n3 !== 4";
        let place = ("sum.test.js", 4, 1);
        check(include_str!("printed/node-spec.txt"), "adds wrongly", place, message);
    }

    #[test]
    fn typescript_and_eslint_are_read() {
        let (_, failures, _) = read(Kind::Npm, Verb::Build, include_str!("printed/tsc.txt"));
        assert_eq!(failures[0].code.as_deref(), Some("TS2322"));
        let (summary, failures, _) =
            read(Kind::Npm, Verb::Lint, include_str!("printed/eslint.txt"));
        assert_eq!((summary.errors, summary.warnings), (Some(1), Some(1)));
        let told = failures.iter().map(|failure| (failure.line, failure.code.as_deref()));
        let told: Vec<_> = told.collect();
        assert_eq!(told, [(Some(1), Some("no-unused-vars")), (Some(2), Some("eqeqeq"))]);
        assert_eq!(failures[1].message, "Expected '===' and instead saw '=='");
    }
}
