//! Parses Cargo's output: one JSON message per line, with the output of tests in between.

use std::borrow::Cow;

use serde::Deserialize;
use toolgate_contract::Stream;

use super::super::kind::Verb;
use super::super::report::{Failure, Severity, Summary};
use super::found::Found;
use super::libtest;

/// The parser of Cargo's output.
pub(super) struct Reader {
    verb: Verb,
    tests: libtest::Reader,
}

/// A line of `--message-format=json`.
#[derive(Deserialize)]
struct Line<'l> {
    reason: &'l str,
    #[serde(default)]
    message: Option<Message>,
}

/// A compiler diagnostic.
#[derive(Deserialize)]
struct Message {
    level: String,
    message: String,
    #[serde(default)]
    code: Option<Code>,
    #[serde(default)]
    spans: Vec<Span>,
    #[serde(default)]
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

#[derive(Deserialize)]
struct Span {
    file_name: String,
    line_start: u32,
    column_start: u32,
    is_primary: bool,
}

impl Reader {
    pub(super) fn new(verb: Verb) -> Self {
        Self { verb, tests: libtest::Reader::default() }
    }
}

impl super::Reader for Reader {
    fn line<'l>(
        &mut self,
        stream: Stream,
        line: &'l str,
        found: &mut Found,
    ) -> Option<Cow<'l, str>> {
        if line.starts_with("{\"reason\":")
            && let Ok(told) = serde_json::from_str::<Line<'_>>(line)
        {
            let message = told.message.filter(|_| told.reason == "compiler-message")?;
            let rendered = message.rendered.clone();
            self.message(message, found);
            return rendered.map(Cow::Owned);
        }
        match stream {
            Stream::Stdout => self.tests.line(line, found),
            Stream::Stderr => self.tests.beside(line),
        }
        Some(line.into())
    }

    fn end(&mut self, found: &mut Found) {
        self.tests.end_all(found);
    }
}

impl Reader {
    fn message(&self, message: Message, found: &mut Found) {
        let Message { level, message, code, spans, .. } = message;
        let severity = match level.as_str() {
            "error" | "error: internal compiler error" => Severity::Error,
            "warning" => Severity::Warning,
            _ => return,
        };
        let span = spans.iter().find(|span| span.is_primary).or(spans.first());
        if span.is_none()
            && (message.starts_with("aborting due to") || message.ends_with("emitted"))
        {
            return;
        }
        // Warnings are listed only for lint. For a build they are only counted.
        if severity == Severity::Warning && self.verb != Verb::Lint {
            Summary::add(&mut found.summary.warnings, 1);
            return;
        }
        let failure = Failure::new(severity, message);
        let failure = match span {
            Some(Span { file_name, line_start, column_start, .. }) => {
                failure.at(file_name, Some(*line_start), Some(*column_start))
            }
            None => failure,
        };
        found.push(Failure { code: code.map(|code| code.code), ..failure });
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kind::Kind;
    use super::super::tests::read;
    use super::*;

    const BROKEN: &str = r##"{"reason":"compiler-message","package_id":"path+file:///w/c#tiny@0.1.0","manifest_path":"/w/c/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"tiny","src_path":"/w/c/src/lib.rs","edition":"2024","doc":true,"doctest":true,"test":true},"message":{"rendered":"error[E0308]: mismatched types\n --> src/lib.rs:3:18\n","$message_type":"diagnostic","children":[],"level":"error","message":"mismatched types","spans":[{"byte_end":60,"byte_start":57,"column_end":15,"column_start":12,"expansion":null,"file_name":"src/lib.rs","is_primary":false,"label":"expected due to this","line_end":3,"line_start":3,"suggested_replacement":null,"suggestion_applicability":null,"text":[]},{"byte_end":66,"byte_start":63,"column_end":21,"column_start":18,"expansion":null,"file_name":"src/lib.rs","is_primary":true,"label":"expected `i32`, found `&str`","line_end":3,"line_start":3,"suggested_replacement":null,"suggestion_applicability":null,"text":[]}],"code":{"code":"E0308","explanation":"Expected type did not match."}}}
{"reason":"compiler-message","package_id":"path+file:///w/c#tiny@0.1.0","manifest_path":"/w/c/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"tiny","src_path":"/w/c/src/lib.rs","edition":"2024","doc":true,"doctest":true,"test":true},"message":{"rendered":"For more information about this error, try `rustc --explain E0308`.\n","$message_type":"diagnostic","children":[],"level":"failure-note","message":"For more information about this error, try `rustc --explain E0308`.","spans":[],"code":null}}
{"reason":"build-finished","success":false}
"##;

    #[test]
    fn a_compiler_s_error_is_told_once_with_its_place() {
        let twice = format!("{BROKEN}{BROKEN}");
        let (summary, failures, output) = read(Kind::Cargo, Verb::Build, &twice);
        assert_eq!(summary.errors, Some(1));
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        let Failure { file, line, column, code, message, .. } = failure;
        assert_eq!((file.as_deref(), *line, *column), (Some("src/lib.rs"), Some(3), Some(18)));
        assert_eq!((code.as_deref(), message.as_str()), (Some("E0308"), "mismatched types"));
        assert!(output.starts_with("error[E0308]: mismatched types\n --> src"), "{output}");
        assert!(!output.contains("reason"), "{output}");
    }
}
