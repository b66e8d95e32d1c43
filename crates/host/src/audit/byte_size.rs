//! Measures the size of a call's input or output without serializing it.

use serde_json::{Map, Value};
use toolgate_contract::{
    Base64Bytes, ContentBlock, ContentBody, MediaData, RenderedPrompt, ResourceContents,
    ResourceData, ToolOutput, ToolRunStatus,
};

/// An input or output of a call, with the size and the failure that the call's audit record
/// contains.
pub(crate) trait AuditedPayload {
    /// Returns the approximate size of the value in bytes. The comment of each implementation says
    /// which data count.
    fn bytes(&self) -> u64;

    /// Returns the error message, if the value is the output of a tool that reported a failure, or
    /// of a program that failed.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns true if the value is the output of a tool or program that failed.
    fn has_failed(&self) -> bool {
        false
    }

    /// Returns the value as text, if it is the output of a tool.
    fn text(&self) -> Option<String> {
        None
    }
}

/// Counts the bytes of the structured value (or the text), the content blocks and the metadata.
impl AuditedPayload for ToolOutput {
    fn bytes(&self) -> u64 {
        let body = match self.structured {
            true => self.value.bytes(),
            false => text_bytes(&self.text.body) + self.text.note.as_deref().map_or(0, text_bytes),
        };
        let meta = if self.meta.is_empty() { 0 } else { object_bytes(&self.meta) };
        body + sum_bytes(&self.content) + meta
    }

    fn failure(&self) -> Option<String> {
        match self.ending {
            ToolRunStatus::Done => None,
            ToolRunStatus::ProgramFailed => Some(program_failure(&self.value)),
            ToolRunStatus::ToolFailed => Some(self.full_text()),
        }
    }

    fn has_failed(&self) -> bool {
        self.ending != ToolRunStatus::Done
    }

    fn text(&self) -> Option<String> {
        Some(self.full_text())
    }
}

/// Words that mark a line of a program's output as the cause of the program's failure.
const CAUSE_WORDS: [&str; 3] = ["error", "fatal", "panicked"];

/// Returns one line about the failed program with the structured `result`: how it ended, and the
/// first line of its standard error that names a cause, or else the last line.
fn program_failure(result: &Value) -> String {
    let ending = match (result["exit_code"].as_i64(), result["signal"].as_str()) {
        _ if result["timed_out"] == true => "timed out".to_owned(),
        (_, Some(signal)) => format!("ended by {signal}"),
        (Some(code), None) => format!("exit code {code}"),
        (None, None) => "the program failed".to_owned(),
    };
    let errors = result["stderr"].as_str().unwrap_or_default();
    let lines = errors.split(['\n', '\r']).map(str::trim);
    let names_cause = |line: &&str| {
        let line = line.to_ascii_lowercase();
        CAUSE_WORDS.iter().any(|word| line.contains(word))
    };
    let last = || lines.clone().rfind(|line| !line.is_empty());
    match lines.clone().find(names_cause).or_else(last) {
        Some(line) => format!("{ending}: {line}"),
        None => ending,
    }
}

/// Counts the bytes of the contents without their URIs.
impl AuditedPayload for Vec<ResourceContents> {
    fn bytes(&self) -> u64 {
        sum_bytes(self)
    }
}

/// Counts the bytes of the contents of the messages.
impl AuditedPayload for RenderedPrompt {
    fn bytes(&self) -> u64 {
        self.messages.iter().map(|message| message.content.bytes()).sum()
    }
}

/// Counts the bytes of compact JSON without escapes, so that texts need not be scanned.
impl AuditedPayload for Value {
    fn bytes(&self) -> u64 {
        match self {
            Self::Null => 4,
            Self::Bool(is) => 5 - u64::from(*is),
            Self::Number(number) => text_bytes(number.as_str()),
            Self::String(text) => text_bytes(text) + 2,
            Self::Array(items) => 2 + comma_bytes(items.len()) + sum_bytes(items),
            Self::Object(all) => object_bytes(all),
        }
    }
}

fn object_bytes(all: &Map<String, Value>) -> u64 {
    let bytes = |(name, value): (&String, &Value)| text_bytes(name) + 3 + value.bytes();
    2 + comma_bytes(all.len()) + all.iter().map(bytes).sum::<u64>()
}

fn comma_bytes(items: usize) -> u64 {
    items.saturating_sub(1) as u64
}

impl AuditedPayload for ContentBlock {
    fn bytes(&self) -> u64 {
        match &self.shown {
            ContentBody::Text(text) => text_bytes(text),
            ContentBody::Image(MediaData { data: Base64Bytes(bytes), .. })
            | ContentBody::Audio(MediaData { data: Base64Bytes(bytes), .. }) => bytes.len() as u64,
            ContentBody::Link(spec) => text_bytes(&spec.uri),
            ContentBody::Resource(contents) => contents.bytes(),
        }
    }
}

impl AuditedPayload for ResourceContents {
    fn bytes(&self) -> u64 {
        match &self.held {
            ResourceData::Text(text) => text_bytes(text),
            ResourceData::Bytes(Base64Bytes(bytes)) => bytes.len() as u64,
        }
    }
}

fn sum_bytes<T: AuditedPayload>(all: &[T]) -> u64 {
    all.iter().map(AuditedPayload::bytes).sum()
}

fn text_bytes(text: &str) -> u64 {
    text.len() as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolgate_contract::{ResultText, ToolRunStatus};

    use super::*;

    #[track_caller]
    fn check_failure(result: Value, expected: &str) {
        let output = ToolOutput::new(result, ResultText::default(), ToolRunStatus::ProgramFailed);
        assert_eq!(output.failure().as_deref(), Some(expected));
    }

    #[test]
    fn a_failed_program_is_recorded_with_its_end_and_the_line_that_names_the_cause() {
        check_failure(
            json!({ "exit_code": 128, "stderr": "To x\nfatal: No destination.\n\n  git push <name>\n" }),
            "exit code 128: fatal: No destination.",
        );
        check_failure(
            json!({ "exit_code": 1, "stderr": "Traceback:\n  x()\nValueError: bad\n" }),
            "exit code 1: ValueError: bad",
        );
        check_failure(
            json!({ "exit_code": 3, "signal": null, "stderr": "reading\nbroken pipe\n\n" }),
            "exit code 3: broken pipe",
        );
        check_failure(json!({ "exit_code": 1, "stderr": "" }), "exit code 1");
        check_failure(
            json!({ "exit_code": 137, "signal": "SIGKILL", "stderr": "50 %\r60 %" }),
            "ended by SIGKILL: 60 %",
        );
        check_failure(json!({ "exit_code": -1, "timed_out": true }), "timed out");
        check_failure(Value::Null, "the program failed");
    }

    #[test]
    fn the_size_of_a_value_is_the_length_of_its_json_without_escapes() {
        for value in [
            json!(null),
            json!([true, false, 0, -17, 1.5, 1e300, u64::MAX]),
            json!({ "a": {}, "b": [], "é": "ü", "c": { "d": ["e", ["f"]] } }),
        ] {
            assert_eq!(value.bytes(), value.to_string().len() as u64, "{value}");
        }
        assert_eq!(json!("\n\"").bytes(), 4);
    }

    #[test]
    fn the_size_of_an_unstructured_result_is_that_of_its_text_and_content() {
        let text = ResultText::from_body("body").with_note("note");
        let mut output = ToolOutput::new(json!({ "a": 1 }), text, ToolRunStatus::Done);
        assert_eq!(output.bytes(), 7);
        output.structured = false;
        output.content = vec![ContentBlock::text("beside")];
        assert_eq!(output.bytes(), 4 + 4 + 6);
    }
}
