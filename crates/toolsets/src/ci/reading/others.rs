//! Parses the output of compilers and test runners without a machine-readable format.

use std::borrow::Cow;

use toolgate_contract::Stream;

use super::super::report::{Failure, Severity, Summary};
use super::found::Found;
use super::located::located;

/// The parser of error lines with a location, and of the test counts of .NET and Maven.
#[derive(Default)]
pub(super) struct Reader {
    /// The failed .NET test whose output is being read.
    test: Option<Failure>,
    /// Set while Maven prints its totals. Before them, it prints the same counts for each class.
    is_all: bool,
}

impl super::Reader for Reader {
    fn line<'l>(&mut self, _: Stream, line: &'l str, found: &mut Found) -> Option<Cow<'l, str>> {
        self.read(line, found);
        Some(line.into())
    }

    fn end(&mut self, found: &mut Found) {
        if let Some(test) = self.test.take() {
            found.push(test);
        }
    }
}

impl Reader {
    fn read(&mut self, line: &str, found: &mut Found) {
        let trimmed = line.trim_start();
        if let Some(failure) = located(line) {
            found.push(failure);
        } else if let Some(rest) =
            trimmed.strip_prefix("make: *** ").filter(|_| found.failures.is_empty())
        {
            found.push(make(rest));
        } else if trimmed.starts_with("[ERROR] ")
            || trimmed.starts_with("[INFO] ")
            || trimmed.starts_with("[WARNING] ")
        {
            self.maven(trimmed, found);
        } else if (trimmed.starts_with("Failed!") || trimmed.starts_with("Passed!"))
            && line.contains("Total:")
        {
            self.end_test(found);
            dotnet_counts(trimmed, found);
        } else if let Some(test) =
            trimmed.strip_prefix("Failed ").and_then(|rest| rest.split_once(" ["))
        {
            self.end_test(found);
            self.test = Some(Failure::new(Severity::Failure, "").of_test(test.0));
        } else if let Some(test) = &mut self.test {
            if let Some((place, row)) =
                trimmed.strip_prefix("at ").and_then(|it| it.rsplit_once(":line "))
            {
                if let (Some((_, file)), None) = (place.rsplit_once(" in "), &test.file) {
                    *test = test.clone().at(file, row.trim().parse().ok(), None);
                }
            } else if !matches!(trimmed, "Error Message:" | "Stack Trace:") && test.file.is_none() {
                test.message.push_str(trimmed);
                test.message.push('\n');
            }
        }
    }

    fn end_test(&mut self, found: &mut Found) {
        if let Some(test) = self.test.take() {
            found.push(test);
        }
    }

    /// Parses `[ERROR] Tests run: 3, Failures: 1, …` and `[ERROR]   AppTest.adds:12 expected …`.
    fn maven(&mut self, line: &str, found: &mut Found) {
        let Some((_, rest)) = line.split_once("] ") else { return };
        if rest.trim_start() == "Results:" {
            self.is_all = true;
        } else if let Some(counts) = rest.strip_prefix("Tests run: ").filter(|_| self.is_all) {
            let number = |name: &str| {
                let (_, rest) = counts.split_once(name)?;
                let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                rest[..digits].parse::<u64>().ok()
            };
            let run = counts.split(',').next().and_then(|run| run.trim().parse::<u64>().ok());
            let failed = number("Failures: ").unwrap_or(0) + number("Errors: ").unwrap_or(0);
            let skipped = number("Skipped: ").unwrap_or(0);
            found.summary.passed = run.map(|run| run.saturating_sub(failed + skipped));
            (found.summary.failed, found.summary.skipped) = (Some(failed), Some(skipped));
            self.is_all = false;
        } else if self.is_all && line.starts_with("[ERROR]   ") {
            let rest = rest.trim_start();
            let (test, message) = rest.split_once(' ').unwrap_or((rest, ""));
            let (test, row) = test.split_once(':').unwrap_or((test, ""));
            let row = row.split("->").next().and_then(|row| row.parse().ok());
            let failure = Failure::new(Severity::Failure, message).of_test(test);
            found.push(Failure { line: row, ..failure });
        }
    }
}

/// Parses `[Makefile:3: test] Error 1`.
fn make(rest: &str) -> Failure {
    let failure = Failure::new(Severity::Error, rest);
    let place = rest.strip_prefix('[').and_then(|it| it.split_once("] "));
    match place.and_then(|(place, message)| Some((place.split_once(": ")?, message))) {
        Some(((place, target), message)) => {
            let failure = Failure::new(Severity::Error, format!("target `{target}`: {message}"));
            match place.rsplit_once(':') {
                Some((file, row)) => failure.at(file, row.parse().ok(), None),
                None => failure,
            }
        }
        None => failure,
    }
}

/// Counts `Failed!  - Failed:     1, Passed:     2, Skipped:     0, Total:     3, …`.
fn dotnet_counts(line: &str, found: &mut Found) {
    for part in line.split([',', '-']) {
        let Some((name, number)) = part.split_once(':') else { continue };
        let Ok(number) = number.trim().parse() else { continue };
        match name.trim() {
            "Failed" => Summary::add(&mut found.summary.failed, number),
            "Passed" => Summary::add(&mut found.summary.passed, number),
            "Skipped" => Summary::add(&mut found.summary.skipped, number),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kind::{Kind, Verb};
    use super::super::tests::read;

    #[test]
    fn make_tells_the_compiler_s_errors_or_its_own() {
        let printed = "cc -c main.c\nmain.c: In function 'main':\nmain.c:3:5: error: expected ';' before 'return'\nmake: *** [Makefile:2: main.o] Error 1\n";
        let (summary, failures, _) = read(Kind::Make, Verb::Build, printed);
        assert_eq!((summary.errors, failures.len(), failures[0].line), (Some(1), 1, Some(3)));
        let (_, failures, _) =
            read(Kind::Make, Verb::Test, "make: *** [Makefile:3: test] Error 1\n");
        assert_eq!(failures[0].message, "target `test`: Error 1");
        assert_eq!((failures[0].file.as_deref(), failures[0].line), (Some("Makefile"), Some(3)));
    }

    #[test]
    fn dotnet_tells_tests_and_counts() {
        let printed = "  Failed T.Adds [12 ms]\n  Error Message:\n   Assert.Equal() Failure\nExpected: 4\n  Stack Trace:\n     at T.Adds() in /w/T.cs:line 9\n\nFailed!  - Failed:     1, Passed:     2, Skipped:     0, Total:     3, Duration: 9 ms - t.dll (net8.0)\n";
        let (summary, failures, _) = read(Kind::Dotnet, Verb::Test, printed);
        assert_eq!((summary.failed, summary.passed, summary.skipped), (Some(1), Some(2), Some(0)));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!((failure.file.as_deref(), failure.line), (Some("/w/T.cs"), Some(9)));
        assert_eq!(failure.message, "Assert.Equal() Failure\nExpected: 4");
    }

    #[test]
    fn maven_tells_tests_and_counts_once() {
        let printed = "[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1, Time elapsed: 0.05 s <<< FAILURE! - in AppTest\n[INFO] Results:\n[INFO] \n[ERROR] Failures: \n[ERROR]   AppTest.adds:12 expected:<4> but was:<3>\n[INFO] \n[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1\n";
        let (summary, failures, _) = read(Kind::Maven, Verb::Test, printed);
        assert_eq!((summary.passed, summary.failed, summary.skipped), (Some(1), Some(1), Some(1)));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!((failure.test.as_deref(), failure.line), (Some("AppTest.adds"), Some(12)));
    }
}
