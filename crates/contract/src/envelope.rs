//! The envelope: what is known of one call once it has ended, the same whatever wire it came by.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Value, json};

use crate::CallError;

/// How a call came, for its envelope.
#[derive(Debug, Clone, PartialEq)]
pub struct Via {
    /// `http`, `stdio` or `websocket`.
    pub transport: &'static str,
    /// What was asked for, e.g. `tool`, `prompt`, `discover`.
    pub route: String,
    /// The method as JSON-RPC names it, e.g. `mcp.tool.invoke`.
    pub method: String,
    /// What was asked, as its ids and its size are reckoned by.
    pub payload: Value,
    /// Which tool, if one was called, as its wire spells it.
    pub tool: Option<String>,
    /// Which prompt, if one was asked for, as its wire spells it.
    pub prompt: Option<String>,
    /// Where a tool is called: the call as [tool IO](../../../schemas/tool_io.schema.json), not
    /// checked yet.
    pub io: Option<Value>,
}

/// What came of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// Whether there is a result.
    pub ok: bool,
    /// The result; null where there is none.
    pub data: Option<Value>,
    /// Why there is none; null where there is one.
    pub error: Option<EnvelopeError>,
    /// What is known of the call.
    pub meta: Meta,
}

/// Why a call has no result, in an envelope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvelopeError {
    /// Which of the five reasons.
    pub code: Canonical,
    /// A sentence for whoever called.
    pub message: String,
    /// What else there is to know: an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// What is known of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// Which request: a UUID.
    pub request_id: String,
    /// Which trace it belongs to: a UUID.
    pub trace_id: String,
    /// Which span of it: a UUID.
    pub span_id: String,
    /// The version of the envelope's schema.
    pub schema_version: String,
    /// Whether the same request always has the same ids.
    pub deterministic: bool,
    /// See [`Via::transport`].
    pub transport: String,
    /// See [`Via::route`].
    pub route: String,
    /// See [`Via::method`].
    pub method: String,
    /// How long it took, in milliseconds.
    pub duration_ms: f64,
    /// `ok` or `error`.
    pub status: String,
    /// How often it was tried before this.
    pub attempt: u32,
    /// How many bytes what was asked has, as compact JSON with sorted keys.
    pub input_bytes: u64,
    /// How many bytes the result has, as compact JSON with sorted keys; 0 where there is none.
    pub output_bytes: u64,
    /// Which tool was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// Which prompt was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<String>,
}

/// The reasons there are, with what HTTP and JSON-RPC say for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Canonical {
    /// What was asked cannot be meant.
    InvalidInput,
    /// What the tool gave back breaks its schema.
    InvalidOutput,
    /// What was asked for is not there.
    NotFound,
    /// Whoever asks may not.
    Unauthorized,
    /// Anything else; it may go well another time.
    InternalError,
}

impl Envelope {
    /// The version of its schema.
    pub const VERSION: &str = "0.1.0";
}

impl Canonical {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::InvalidInput,
        Self::InvalidOutput,
        Self::NotFound,
        Self::Unauthorized,
        Self::InternalError,
    ];

    /// The reason that stands for `error`.
    pub fn of(error: &CallError) -> Self {
        match error {
            CallError::InvalidInput { .. }
            | CallError::Conflict { .. }
            | CallError::TooLarge { .. }
            | CallError::CannotAsk { .. }
            | CallError::Asks { .. }
            | CallError::NeedsJob { .. }
            | CallError::NoJob { .. }
            | CallError::Mismatch { .. }
            | CallError::Refused { .. } => Self::InvalidInput,
            CallError::InvalidOutput { .. } => Self::InvalidOutput,
            CallError::UnknownTool { .. } | CallError::NotFound { .. } => Self::NotFound,
            CallError::NotAllowed { .. } | CallError::Scope { .. } => Self::Unauthorized,
            CallError::Limited { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Failed { .. } => Self::InternalError,
        }
    }

    /// The reason as it is written.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidInput => "INVALID_INPUT",
            Self::InvalidOutput => "INVALID_OUTPUT",
            Self::NotFound => "NOT_FOUND",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::InternalError => "INTERNAL_ERROR",
        }
    }

    /// The HTTP status that says it.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidInput => 400,
            Self::InvalidOutput => 502,
            Self::NotFound => 404,
            Self::Unauthorized => 401,
            Self::InternalError => 500,
        }
    }

    /// The JSON-RPC error code that says it.
    pub fn jsonrpc_code(self) -> i32 {
        match self {
            Self::InvalidInput => -32602,
            Self::InvalidOutput => -32002,
            Self::NotFound => -32004,
            Self::Unauthorized => -32001,
            Self::InternalError => -32603,
        }
    }

    /// What it means, in a few words.
    pub fn message(self) -> &'static str {
        match self {
            Self::InvalidInput => "Invalid input payload",
            Self::InvalidOutput => "Invalid output payload",
            Self::NotFound => "Not found",
            Self::Unauthorized => "Unauthorized",
            Self::InternalError => "Internal error",
        }
    }

    /// Whether the same request may go well another time.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::InternalError => true,
            Self::InvalidInput | Self::InvalidOutput | Self::NotFound | Self::Unauthorized => false,
        }
    }
}

impl EnvelopeError {
    /// `error` as an envelope says it.
    pub fn of(error: &CallError) -> Self {
        let details = match error {
            CallError::InvalidInput { problems } | CallError::InvalidOutput { problems } => {
                Some(json!({ "reason": error.reason(), "problems": problems }))
            }
            CallError::Conflict { details, .. } => {
                Some(json!({ "reason": error.reason(), "conflict": details }))
            }
            CallError::Limited { retry_after, .. } => Some(json!({
                "reason": error.reason(),
                "retryAfterMs": u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX),
            })),
            CallError::UnknownTool { .. }
            | CallError::NotAllowed { .. }
            | CallError::Scope { .. }
            | CallError::NotFound { .. }
            | CallError::TooLarge { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Failed { .. }
            | CallError::Asks { .. }
            | CallError::CannotAsk { .. }
            | CallError::NeedsJob { .. }
            | CallError::NoJob { .. }
            | CallError::Mismatch { .. }
            | CallError::Refused { .. } => Some(json!({ "reason": error.reason() })),
        };
        Self { code: Canonical::of(error), message: error.to_string(), details }
    }
}

/// Writes JSON in ASCII alone, as Python does unless it is told otherwise.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if c.is_ascii() {
                writer.write_all(&[c as u8])?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

fn write_ascii(value: &Value, writer: impl io::Write) {
    // A JSON value is always written, and neither counting nor growing fails.
    let mut out = Serializer::with_formatter(writer, Ascii);
    value.serialize(&mut out).expect("a value is JSON");
}

/// `value` as compact JSON in ASCII with sorted keys: one writing of one value, by which ids and
/// fingerprints are reckoned.
pub fn canonical_json(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Array(items) => items.iter().map(sorted).collect(),
            Value::Object(fields) => {
                let mut keys: Vec<&String> = fields.keys().collect();
                keys.sort();
                keys.into_iter().map(|key| (key.clone(), sorted(&fields[key]))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }
    let mut written = Vec::new();
    write_ascii(&sorted(value), &mut written);
    String::from_utf8(written).expect("it is ASCII")
}

/// How long [`canonical_json`] of `value` is: the order of keys does not change that.
pub fn canonical_bytes(value: &Value) -> u64 {
    struct Count(u64);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    write_ascii(value, &mut count);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_status_and_a_code_of_its_own() {
        let said = Canonical::ALL.map(|one| {
            format!(
                "{} {} {} {}",
                one.code(),
                one.http_status(),
                one.jsonrpc_code(),
                one.is_retryable()
            )
        });
        let table = [
            "INVALID_INPUT 400 -32602 false",
            "INVALID_OUTPUT 502 -32002 false",
            "NOT_FOUND 404 -32004 false",
            "UNAUTHORIZED 401 -32001 false",
            "INTERNAL_ERROR 500 -32603 true",
        ];
        assert_eq!(said, table);
        for one in Canonical::ALL {
            assert_eq!(serde_json::to_value(one).expect("JSON"), one.code());
        }
    }

    #[test]
    fn one_value_has_one_canonical_writing() {
        let payload =
            json!({ "toolId": "t", "arguments": { "b": [{ "z": 1, "a": 2 }], "a": "é\n𝄞" } });
        assert_eq!(
            canonical_json(&payload),
            r#"{"arguments":{"a":"\u00e9\n\ud834\udd1e","b":[{"a":2,"z":1}]},"toolId":"t"}"#
        );
        assert_eq!(canonical_bytes(&payload), canonical_json(&payload).len() as u64);
    }
}
