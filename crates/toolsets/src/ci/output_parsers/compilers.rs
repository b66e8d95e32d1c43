//! Parses the output of compilers and test runners that have no machine-readable format.

use std::borrow::Cow;

use toolgate_contract::OutputStreamKind;

use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};
use super::findings::OutputParserFindings;
use super::located::parse_located;

/// Parser of compiler error lines with a location, and of the test counts of .NET and Maven.
#[derive(Default)]
pub(super) struct CompilerParser {
    /// The failed .NET test whose output is being read.
    current: Option<CiFailure>,
    /// True while Maven prints its totals. Before them, Maven prints similar counts for each test
    /// class, which are ignored.
    in_totals: bool,
}

impl super::OutputLineParser for CompilerParser {
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
        if let Some(test) = self.current.take() {
            found.push(test);
        }
    }
}

impl CompilerParser {
    fn parse_line(&mut self, line: &str, found: &mut OutputParserFindings) {
        let trimmed = line.trim_start();
        if let Some(failure) = parse_located(line) {
            found.push(failure);
        } else if let Some(rest) =
            trimmed.strip_prefix("make: *** ").filter(|_| found.failures.is_empty())
        {
            found.push(parse_make_error(rest));
        } else if trimmed.starts_with("[ERROR] ")
            || trimmed.starts_with("[INFO] ")
            || trimmed.starts_with("[WARNING] ")
        {
            self.parse_maven_line(trimmed, found);
        } else if (trimmed.starts_with("Failed!") || trimmed.starts_with("Passed!"))
            && line.contains("Total:")
        {
            self.finish_test(found);
            add_dotnet_counts(trimmed, found);
        } else if let Some(test) =
            trimmed.strip_prefix("Failed ").and_then(|rest| rest.split_once(" ["))
        {
            self.finish_test(found);
            let failure = CiFailure::new(FailureSeverity::Failure, "").with_test(test.0);
            // The arguments of a test are not a part of its name.
            let name = test.0.split_once('(').map_or(test.0, |(name, _)| name);
            self.current = Some(failure.with_id(name));
        } else if let Some(test) = &mut self.current {
            if let Some((place, row)) =
                trimmed.strip_prefix("at ").and_then(|it| it.rsplit_once(":line "))
            {
                if let (Some((_, file)), None) = (place.rsplit_once(" in "), &test.file) {
                    *test = test.clone().with_place(file, row.trim().parse().ok(), None);
                }
            } else if !matches!(trimmed, "Error Message:" | "Stack Trace:") && test.file.is_none() {
                test.message.push_str(trimmed);
                test.message.push('\n');
            }
        }
    }

    fn finish_test(&mut self, found: &mut OutputParserFindings) {
        if let Some(test) = self.current.take() {
            found.push(test);
        }
    }

    /// Parses a line such as `[ERROR] Tests run: 3, Failures: 1, …` or `[ERROR] AppTest.adds:12
    /// expected …`, and adds its counts or failure to `found`.
    fn parse_maven_line(&mut self, line: &str, found: &mut OutputParserFindings) {
        let Some((_, rest)) = line.split_once("] ") else { return };
        if rest.trim_start() == "Results:" {
            self.in_totals = true;
        } else if let Some(counts) = rest.strip_prefix("Tests run: ").filter(|_| self.in_totals) {
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
            self.in_totals = false;
        } else if self.in_totals && line.starts_with("[ERROR]   ") {
            let rest = rest.trim_start();
            let (test, message) = rest.split_once(' ').unwrap_or((rest, ""));
            let (test, row) = test.split_once(':').unwrap_or((test, ""));
            let row = row.split("->").next().and_then(|row| row.parse().ok());
            let failure = CiFailure::new(FailureSeverity::Failure, message).with_test(test);
            // The arguments of a test are not a part of its name.
            let name = test.split(['(', '{', '[']).next().unwrap_or(test);
            let failure = failure.with_id(&name.replacen('.', "#", 1));
            found.push(CiFailure { line: row, ..failure });
        }
    }
}

/// Parses `rest`, the end of an error line of make, such as `[Makefile:3: test] Error 1`.
fn parse_make_error(rest: &str) -> CiFailure {
    let failure = CiFailure::new(FailureSeverity::Error, rest);
    let place = rest.strip_prefix('[').and_then(|it| it.split_once("] "));
    match place.and_then(|(place, message)| Some((place.split_once(": ")?, message))) {
        Some(((place, target), message)) => {
            let failure =
                CiFailure::new(FailureSeverity::Error, format!("target `{target}`: {message}"));
            match place.rsplit_once(':') {
                Some((file, row)) => failure.with_place(file, row.parse().ok(), None),
                None => failure,
            }
        }
        None => failure,
    }
}

/// Parses a line such as `Failed!  - Failed:     1, Passed:     2, Skipped:     0, Total:     3,
/// …`, and adds its counts to `found`.
fn add_dotnet_counts(line: &str, found: &mut OutputParserFindings) {
    for part in line.split([',', '-']) {
        let Some((name, number)) = part.split_once(':') else { continue };
        let Ok(number) = number.trim().parse() else { continue };
        match name.trim() {
            "Failed" => CiTestCounts::increase(&mut found.summary.failed, number),
            "Passed" => CiTestCounts::increase(&mut found.summary.passed, number),
            "Skipped" => CiTestCounts::increase(&mut found.summary.skipped, number),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use super::super::tests::read;

    #[test]
    fn make_reports_the_errors_of_the_compiler_or_its_own() {
        let printed = "cc -c main.c\nmain.c: In function 'main':\nmain.c:3:5: error: expected ';' before 'return'\nmake: *** [Makefile:2: main.o] Error 1\n";
        let (summary, failures, _) = read(BuildTool::Make, ProjectAction::Build, printed);
        assert_eq!((summary.errors, failures.len(), failures[0].line), (Some(1), 1, Some(3)));
        let (_, failures, _) =
            read(BuildTool::Make, ProjectAction::Test, "make: *** [Makefile:3: test] Error 1\n");
        assert_eq!(failures[0].message, "target `test`: Error 1");
        assert_eq!((failures[0].file.as_deref(), failures[0].line), (Some("Makefile"), Some(3)));
    }

    #[test]
    fn dotnet_reports_failed_tests_and_counts() {
        let printed = "  Failed T.Adds [12 ms]\n  Error Message:\n   Assert.Equal() Failure\nExpected: 4\n  Stack Trace:\n     at T.Adds() in /w/T.cs:line 9\n\nFailed!  - Failed:     1, Passed:     2, Skipped:     0, Total:     3, Duration: 9 ms - t.dll (net8.0)\n";
        let (summary, failures, _) = read(BuildTool::Dotnet, ProjectAction::Test, printed);
        assert_eq!((summary.failed, summary.passed, summary.skipped), (Some(1), Some(2), Some(0)));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!((failure.file.as_deref(), failure.line), (Some("/w/T.cs"), Some(9)));
        assert_eq!(failure.message, "Assert.Equal() Failure\nExpected: 4");
        assert_eq!(failure.id.as_deref(), Some("T.Adds"));
    }

    #[test]
    fn maven_reports_failed_tests_and_counts_once() {
        let printed = "[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1, Time elapsed: 0.05 s <<< FAILURE! - in AppTest\n[INFO] Results:\n[INFO] \n[ERROR] Failures: \n[ERROR]   AppTest.adds:12 expected:<4> but was:<3>\n[INFO] \n[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1\n";
        let (summary, failures, _) = read(BuildTool::Maven, ProjectAction::Test, printed);
        assert_eq!((summary.passed, summary.failed, summary.skipped), (Some(1), Some(1), Some(1)));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert_eq!((failure.test.as_deref(), failure.line), (Some("AppTest.adds"), Some(12)));
        assert_eq!(failure.id.as_deref(), Some("AppTest#adds"));
    }
}
