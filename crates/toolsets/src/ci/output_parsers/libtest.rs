//! Parses the output of Rust's test harness.

use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};
use super::findings::OutputParserFindings;

/// Parser of the test results that Rust's test harness prints, and of the output of failed tests.
#[derive(Default)]
pub(super) struct LibtestParser {
    /// The failed test whose output is being read.
    current: Option<FailedLibtestTest>,
    /// The names of failed tests whose output has not been read yet.
    failed: Vec<String>,
    /// The names of tests that started but have not reported a result yet.
    started: Vec<String>,
    /// Messages about test programs that ended without reporting a result.
    crashes: Vec<String>,
}

/// A failed Rust test whose output is being read.
struct FailedLibtestTest {
    test: String,
    place: Option<(String, u32, Option<u32>)>,
    message: String,
    is_complete: bool,
}

impl LibtestParser {
    pub(super) fn read_line(&mut self, line: &str, found: &mut OutputParserFindings) {
        if let Some(test) =
            line.strip_prefix("---- ").and_then(|it| it.strip_suffix(" stdout ----"))
        {
            self.flush(found);
            let test = test.to_owned();
            self.failed.retain(|failed| *failed != test);
            self.current = Some(FailedLibtestTest {
                test,
                place: None,
                message: String::new(),
                is_complete: false,
            });
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.end_program(found);
            add_counts(result, found);
        } else if line == "failures:" {
            self.flush(found);
        } else if let Some(rest) = line.strip_prefix("test ")
            && let Some(test) = rest.strip_suffix(" ... FAILED")
        {
            // The heading of the test's output lacks this suffix.
            let expected = [" - should panic", " - compile fail"];
            let test = expected.iter().find_map(|it| test.strip_suffix(it)).unwrap_or(test);
            self.failed.push(test.to_owned());
        } else if let Some(rest) = line.strip_prefix("test ")
            && let Some(test) = rest.strip_suffix(" ... ")
        {
            self.started.push(test.to_owned());
        } else if let Some(current) = &mut self.current {
            current.add_line(line);
        }
    }

    /// Reads a line that Cargo or a test printed to standard error.
    pub(super) fn read_stderr_line(&mut self, line: &str) {
        if let Some(rest) = line.trim_start().strip_prefix("process didn't exit successfully: `")
            && let Some((program, reason)) = rest.rsplit_once("` (")
        {
            let program = program.split(' ').next().unwrap_or(program);
            let program = program.rsplit('/').next().unwrap_or(program);
            let reason = reason.trim_end_matches(')');
            self.crashes.push(format!("the tests of `{program}` ended without a result: {reason}"));
        } else if let Some(rest) = line.strip_prefix("thread '")
            && let Some((test, message)) = rest.split_once('\'')
            && message.ends_with("has overflowed its stack")
        {
            self.started.push(test.to_owned());
        }
    }

    /// Processes the end of the output. Adds a failure for each test program that ended without a
    /// result.
    pub(super) fn finish(&mut self, found: &mut OutputParserFindings) {
        self.end_program(found);
        self.started.dedup();
        // If several tests or programs are candidates, the crashed test is unknown.
        let test = match &self.started[..] {
            [test] if self.crashes.len() == 1 => Some(test.clone()),
            _ => None,
        };
        for crash in self.crashes.drain(..) {
            let failure = CiFailure::new(FailureSeverity::Failure, crash);
            found.push(match &test {
                Some(test) => failure.with_test(test).with_id(test),
                None => failure,
            });
            CiTestCounts::increase(&mut found.summary.failed, 1);
        }
    }

    /// Processes the end of one test program. Adds a failure for each failed test that printed no
    /// output.
    pub(super) fn end_program(&mut self, found: &mut OutputParserFindings) {
        self.flush(found);
        for test in self.failed.drain(..) {
            let message = "the test failed without a message";
            let failure = CiFailure::new(FailureSeverity::Failure, message);
            found.push_test(failure.with_test(&test).with_id(&test));
        }
    }

    fn flush(&mut self, found: &mut OutputParserFindings) {
        let Some(FailedLibtestTest { test, place, message, .. }) = self.current.take() else {
            return;
        };
        let message = match message.trim() {
            "" => "the test failed".to_owned(),
            _ => message,
        };
        let failure = CiFailure::new(FailureSeverity::Failure, message);
        let mut failure = failure.with_test(&test).with_id(&test);
        // The name of a documentation example contains its file and line.
        let example = test.split_once(" - ").zip(test.split_once("(line "));
        let example = example.and_then(|((file, _), (_, rest))| {
            Some((file.to_owned(), rest.trim_end_matches(')').parse().ok()?, None))
        });
        if let Some((file, line, column)) = place.or(example) {
            failure = failure.with_place(&file, Some(line), column);
        }
        found.push_test(failure);
    }
}

impl FailedLibtestTest {
    fn add_line(&mut self, line: &str) {
        let panicked =
            line.starts_with("thread '").then(|| line.split_once("panicked at ")).flatten();
        if let Some(place) = line.strip_prefix("note: test did not panic as expected at ")
            && let Some((file, row, column)) = super::located::find_place(place)
        {
            self.place = Some((file.to_owned(), row, column));
            self.message.push_str("test did not panic as expected\n");
            return;
        }
        if let Some((_, place)) = panicked
            && let Some((file, row, column)) =
                super::located::find_place(place.trim_end_matches(':'))
        {
            if self.place.is_none() {
                self.place = Some((file.to_owned(), row, column));
                // Output before the panic is not the reason of the failure.
                self.message.clear();
                self.is_complete = false;
            }
        } else if line.starts_with("note: run with `RUST_BACKTRACE")
            || line == "stack backtrace:"
            || line.is_empty() && self.place.is_some() && !self.message.is_empty()
        {
            self.is_complete = true;
        } else if !self.is_complete {
            self.message.push_str(line);
            self.message.push('\n');
        }
    }
}

/// Parses a result such as `ok. 1 passed; 2 failed; 3 ignored; …`, and adds its counts to `found`.
fn add_counts(result: &str, found: &mut OutputParserFindings) {
    for part in result.split(['.', ';']) {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse() else { continue };
        match what {
            "passed" => CiTestCounts::increase(&mut found.summary.passed, number),
            "failed" => CiTestCounts::increase(&mut found.summary.failed, number),
            "ignored" => CiTestCounts::increase(&mut found.summary.skipped, number),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use toolgate_contract::OutputStreamKind;

    use super::super::OutputParserState;
    use super::super::tests::read;

    const PRINTED: &str = "\nrunning 4 tests
test tests::adds ... ok
test tests::later ... ignored
test tests::says_no ... FAILED
test tests::adds_wrongly ... FAILED

failures:

---- tests::says_no stdout ----
Error: \"no\"

---- tests::adds_wrongly stdout ----

thread 'tests::adds_wrongly' (31969) panicked at src/lib.rs:17:9:
assertion `left == right` failed: one and two
  left: 3
 right: 4
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/panicking.rs:689:5
   4: tiny::tests::adds_wrongly
             at ./src/lib.rs:17:9
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.


failures:
    tests::adds_wrongly
    tests::says_no

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.24s


running 0 tests

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn tests_of_the_same_name_in_two_programs_are_both_reported() {
        let one = "running 1 test\ntest tests::says_no ... FAILED\n\nfailures:\n\n---- tests::says_no stdout ----\nError: \"no\"\n\n\nfailures:\n    tests::says_no\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";
        let silent = "running 1 test\ntest quiet ... FAILED\n\nfailures:\n\nfailures:\n    quiet\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";
        for printed in [one, silent] {
            let (summary, failures, _) =
                read(BuildTool::Cargo, ProjectAction::Test, &printed.repeat(2));
            assert_eq!((summary.failed, failures.len()), (Some(2), 2), "{printed}");
        }
    }

    #[test]
    fn failed_tests_are_reported_with_their_messages() {
        let (summary, failures, _) = read(BuildTool::Cargo, ProjectAction::Test, PRINTED);
        let counts = (summary.passed, summary.failed, summary.skipped);
        assert_eq!(counts, (Some(1), Some(2), Some(1)));
        let [no, wrong] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!(
            (no.test.as_deref(), no.message.as_str()),
            (Some("tests::says_no"), "Error: \"no\"")
        );
        assert_eq!(
            (wrong.file.as_deref(), wrong.line, wrong.column),
            (Some("src/lib.rs"), Some(17), Some(9))
        );
        let expected = "assertion `left == right` failed: one and two\n  left: 3\n right: 4";
        assert_eq!(wrong.message, expected);
    }

    #[test]
    fn a_test_that_should_panic_is_reported_once() {
        let printed = "\nrunning 1 test\ntest sp - should panic ... FAILED\n\nfailures:\n\n---- sp stdout ----\nnote: test did not panic as expected at src/lib.rs:3:28\n\nfailures:\n    sp\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s\n";
        let (_, failures, _) = read(BuildTool::Cargo, ProjectAction::Test, printed);
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!((failure.test.as_deref(), failure.line), (Some("sp"), Some(3)));
        assert_eq!(failure.message, "test did not panic as expected");
    }

    #[test]
    fn a_crashed_test_program_is_reported_as_a_failure() {
        let check = |stdout: &str, stderr: &str, test: Option<&str>| {
            let mut reader =
                OutputParserState::new(BuildTool::Cargo, ProjectAction::Test, 50, 1 << 20);
            reader.read(OutputStreamKind::Stdout, stdout.as_bytes());
            reader.read(OutputStreamKind::Stderr, stderr.as_bytes());
            let (summary, failures, ..) = reader.finish();
            let [failure] = &failures[..] else { panic!("{failures:?}") };
            assert_eq!((failure.test.as_deref(), summary.failed), (test, Some(1)));
            let expected = "the tests of `ct-c4066ebb79ee0019` ended without a result: signal: 6, SIGABRT: process abort signal";
            assert_eq!(failure.message, expected);
        };
        let cargo = "error: test failed, to rerun pass `--lib`\n\nCaused by:\n  process didn't exit successfully: `/tmp/ct/target/debug/deps/ct-c4066ebb79ee0019 crashes` (signal: 6, SIGABRT: process abort signal)\nerror: 1 target failed:\n    `--lib`\n";
        check("\nrunning 1 test\n", cargo, None);
        check("\nrunning 2 tests\ntest fine ... ok\ntest crashes ... ", cargo, Some("crashes"));
        let overflown = format!("\nthread 'so' (17273) has overflowed its stack\n{cargo}");
        check("\nrunning 1 test\n", &overflown, Some("so"));
    }

    #[test]
    fn a_failed_test_without_output_is_reported() {
        let printed = "running 1 test\ntest kills ... FAILED\n";
        let (_, failures, _) = read(BuildTool::Cargo, ProjectAction::Test, printed);
        assert_eq!(failures[0].test.as_deref(), Some("kills"));
    }
}
