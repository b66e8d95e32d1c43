//! Parses Cargo's output: one JSON message per line, with the output of tests in between.

use std::borrow::Cow;

use serde::Deserialize;
use toolgate_contract::OutputStreamKind;

use super::super::build_tool::ProjectAction;
use super::super::report::{CiFailure, CiTestCounts, FailureSeverity};
use super::findings::OutputParserFindings;
use super::libtest;

/// The parser of the output of Cargo: JSON messages and test results.
pub(super) struct CargoParser {
    verb: ProjectAction,
    tests: libtest::LibtestParser,
}

/// A JSON line that Cargo prints with `--message-format=json`.
#[derive(Deserialize)]
struct CargoJsonLine<'l> {
    reason: &'l str,
    #[serde(default)]
    message: Option<CompilerMessage>,
}

/// A diagnostic of the Rust compiler.
#[derive(Deserialize)]
struct CompilerMessage {
    level: String,
    message: String,
    #[serde(default)]
    code: Option<CargoDiagnosticCode>,
    #[serde(default)]
    spans: Vec<CargoSourceSpan>,
    #[serde(default)]
    rendered: Option<String>,
}

/// The code of a diagnostic of the Rust compiler, such as `E0308`.
#[derive(Deserialize)]
struct CargoDiagnosticCode {
    code: String,
}

/// The location in a source file to which a diagnostic of the Rust compiler refers.
#[derive(Deserialize)]
struct CargoSourceSpan {
    file_name: String,
    line_start: u32,
    column_start: u32,
    is_primary: bool,
}

impl CargoParser {
    pub(super) fn new(verb: ProjectAction) -> Self {
        Self { verb, tests: libtest::LibtestParser::default() }
    }
}

impl super::OutputLineParser for CargoParser {
    fn read_line<'l>(
        &mut self,
        stream: OutputStreamKind,
        line: &'l str,
        found: &mut OutputParserFindings,
    ) -> Option<Cow<'l, str>> {
        if line.starts_with("{\"reason\":")
            && let Ok(cargo_line) = serde_json::from_str::<CargoJsonLine<'_>>(line)
        {
            let is_diagnostic = cargo_line.reason == "compiler-message";
            let message = cargo_line.message.filter(|_| is_diagnostic)?;
            let rendered = message.rendered.clone();
            self.add_message(message, found);
            return rendered.map(Cow::Owned);
        }
        match stream {
            OutputStreamKind::Stdout => self.tests.read_line(line, found),
            OutputStreamKind::Stderr => self.tests.read_stderr_line(line),
        }
        Some(line.into())
    }

    fn finish(&mut self, found: &mut OutputParserFindings) {
        self.tests.finish(found);
    }
}

impl CargoParser {
    fn add_message(&self, message: CompilerMessage, found: &mut OutputParserFindings) {
        let CompilerMessage { level, message, code, spans, .. } = message;
        let severity = match level.as_str() {
            "error" | "error: internal compiler error" => FailureSeverity::Error,
            "warning" => FailureSeverity::Warning,
            _ => return,
        };
        let span = spans.iter().find(|span| span.is_primary).or(spans.first());
        if span.is_none()
            && (message.starts_with("aborting due to") || message.ends_with("emitted"))
        {
            return;
        }
        // Warnings are listed only for lint. For a build they are only counted.
        if severity == FailureSeverity::Warning && self.verb != ProjectAction::Lint {
            CiTestCounts::increase(&mut found.summary.warnings, 1);
            return;
        }
        let failure = CiFailure::new(severity, message);
        let failure = match span {
            Some(CargoSourceSpan { file_name, line_start, column_start, .. }) => {
                failure.with_place(file_name, Some(*line_start), Some(*column_start))
            }
            None => failure,
        };
        found.push(CiFailure { code: code.map(|code| code.code), ..failure });
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::BuildTool;
    use super::super::tests::read;
    use super::*;

    const BROKEN: &str = r##"{"reason":"compiler-message","package_id":"path+file:///w/c#tiny@0.1.0","manifest_path":"/w/c/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"tiny","src_path":"/w/c/src/lib.rs","edition":"2024","doc":true,"doctest":true,"test":true},"message":{"rendered":"error[E0308]: mismatched types\n --> src/lib.rs:3:18\n","$message_type":"diagnostic","children":[],"level":"error","message":"mismatched types","spans":[{"byte_end":60,"byte_start":57,"column_end":15,"column_start":12,"expansion":null,"file_name":"src/lib.rs","is_primary":false,"label":"expected due to this","line_end":3,"line_start":3,"suggested_replacement":null,"suggestion_applicability":null,"text":[]},{"byte_end":66,"byte_start":63,"column_end":21,"column_start":18,"expansion":null,"file_name":"src/lib.rs","is_primary":true,"label":"expected `i32`, found `&str`","line_end":3,"line_start":3,"suggested_replacement":null,"suggestion_applicability":null,"text":[]}],"code":{"code":"E0308","explanation":"Expected type did not match."}}}
{"reason":"compiler-message","package_id":"path+file:///w/c#tiny@0.1.0","manifest_path":"/w/c/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"tiny","src_path":"/w/c/src/lib.rs","edition":"2024","doc":true,"doctest":true,"test":true},"message":{"rendered":"For more information about this error, try `rustc --explain E0308`.\n","$message_type":"diagnostic","children":[],"level":"failure-note","message":"For more information about this error, try `rustc --explain E0308`.","spans":[],"code":null}}
{"reason":"build-finished","success":false}
"##;

    #[test]
    fn a_compiler_error_is_reported_once_with_its_location() {
        let twice = format!("{BROKEN}{BROKEN}");
        let (summary, failures, output) = read(BuildTool::Cargo, ProjectAction::Build, &twice);
        assert_eq!(summary.errors, Some(1));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        let CiFailure { file, line, column, code, message, .. } = failure;
        assert_eq!((file.as_deref(), *line, *column), (Some("src/lib.rs"), Some(3), Some(18)));
        assert_eq!((code.as_deref(), message.as_str()), (Some("E0308"), "mismatched types"));
        assert!(output.starts_with("error[E0308]: mismatched types\n --> src"), "{output}");
        assert!(!output.contains("reason"), "{output}");
    }
}
