//! The envelope: the result and metadata of one call, in one shape for every transport.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Value, json};

use crate::json_size::ByteCountingWriter;
use crate::{CallError, exact_json};

/// The origin of a call: the data about its request from which its envelope is made.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvelopeRequestInfo {
    /// The transport of the request: `http`, `stdio` or `websocket`.
    pub transport: &'static str,
    /// The kind of the request, e.g. `tool`, `prompt`, `discover`.
    pub route: String,
    /// The JSON-RPC method of the request, e.g. `mcp.tool.invoke`.
    pub method: String,
    /// The payload of the request, from which the envelope's ids and sizes are computed.
    pub payload: Value,
    /// The called tool as the dialect spells it, if a tool was called.
    pub tool: Option<String>,
    /// The requested prompt as the dialect spells it, if a prompt was requested.
    pub prompt: Option<String>,
    /// The call as [tool IO](../../../schemas/tool_io.schema.json), not yet validated. `None` if no
    /// tool was called.
    pub io: Option<Value>,
}

/// The envelope of one call: its result or error, with ids, times and other metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallEnvelope {
    /// True if the call succeeded and has a result.
    pub ok: bool,
    /// The result of the call. Null if the call failed.
    #[serde(default, deserialize_with = "exact_json::deserialize_option")]
    pub data: Option<Value>,
    /// The error of the call. Null if the call succeeded.
    pub error: Option<EnvelopeError>,
    /// The metadata of the call.
    pub meta: EnvelopeMetadata,
}

/// The reason for a failed call, in an envelope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvelopeError {
    /// Canonical error code, one of five.
    pub code: EnvelopeErrorCode,
    /// A sentence about the error for the caller.
    pub message: String,
    /// Further details of the error: an object.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "exact_json::deserialize_option"
    )]
    pub details: Option<Value>,
}

/// The metadata of a call in its envelope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvelopeMetadata {
    /// The UUID of the request.
    pub request_id: String,
    /// The UUID of the trace to which the call belongs.
    pub trace_id: String,
    /// The UUID of the call's span in its trace.
    pub span_id: String,
    /// The version of the schema of envelopes.
    pub schema_version: String,
    /// True if equal requests get equal ids in their envelopes.
    pub deterministic: bool,
    /// The transport of the call; see [`EnvelopeRequestInfo::transport`].
    pub transport: String,
    /// The kind of the request; see [`EnvelopeRequestInfo::route`].
    pub route: String,
    /// The JSON-RPC method of the request; see [`EnvelopeRequestInfo::method`].
    pub method: String,
    /// The duration of the call in milliseconds.
    pub duration_ms: f64,
    /// The status of the call: `ok` or `error`.
    pub status: String,
    /// The number of earlier attempts to make the call.
    pub attempt: u32,
    /// The size of the request's payload as compact JSON with sorted keys, in bytes.
    pub input_bytes: u64,
    /// The size of the result as compact JSON with sorted keys, in bytes. 0 without a result.
    pub output_bytes: u64,
    /// The id of the called tool, if a tool was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The id of the requested prompt, if a prompt was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<String>,
}

/// The error codes of envelopes, each with an HTTP status and a JSON-RPC error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EnvelopeErrorCode {
    /// The request is invalid.
    InvalidInput,
    /// The tool's output violates the tool's schema.
    InvalidOutput,
    /// A requested item does not exist.
    NotFound,
    /// The caller is not allowed to make the request.
    Unauthorized,
    /// The call failed for any other reason. A retry may succeed.
    InternalError,
}

impl CallEnvelope {
    /// The version of the schema of envelopes.
    pub const VERSION: &str = "0.1.0";
}

impl EnvelopeErrorCode {
    /// All canonical error codes.
    pub const ALL: [Self; 5] = [
        Self::InvalidInput,
        Self::InvalidOutput,
        Self::NotFound,
        Self::Unauthorized,
        Self::InternalError,
    ];

    /// Returns the canonical code for `error`.
    pub fn from_error(error: &CallError) -> Self {
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

    /// Returns the canonical code as text, e.g. `INVALID_INPUT`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "INVALID_INPUT",
            Self::InvalidOutput => "INVALID_OUTPUT",
            Self::NotFound => "NOT_FOUND",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::InternalError => "INTERNAL_ERROR",
        }
    }

    /// Returns the HTTP status of the canonical code.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidInput => 400,
            Self::InvalidOutput => 502,
            Self::NotFound => 404,
            Self::Unauthorized => 401,
            Self::InternalError => 500,
        }
    }

    /// Returns the JSON-RPC error code of the canonical code.
    pub fn jsonrpc_code(self) -> i32 {
        match self {
            Self::InvalidInput => -32602,
            Self::InvalidOutput => -32002,
            Self::NotFound => -32004,
            Self::Unauthorized => -32001,
            Self::InternalError => -32603,
        }
    }

    /// Returns a short description of the canonical code.
    pub fn message(self) -> &'static str {
        match self {
            Self::InvalidInput => "Invalid input payload",
            Self::InvalidOutput => "Invalid output payload",
            Self::NotFound => "Not found",
            Self::Unauthorized => "Unauthorized",
            Self::InternalError => "Internal error",
        }
    }

    /// Returns true if a retry of the unchanged request may succeed.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::InternalError => true,
            Self::InvalidInput | Self::InvalidOutput | Self::NotFound | Self::Unauthorized => false,
        }
    }
}

impl EnvelopeError {
    /// Converts `error` to an envelope's error.
    pub fn from_error(error: &CallError) -> Self {
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
        Self { code: EnvelopeErrorCode::from_error(error), message: error.to_string(), details }
    }
}

/// A JSON formatter that escapes non-ASCII characters, as Python's `json.dumps` does by default.
struct AsciiJsonFormatter;

impl Formatter for AsciiJsonFormatter {
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
    // Writing a JSON value to a buffer or a counter cannot fail.
    let mut out = Serializer::with_formatter(writer, AsciiJsonFormatter);
    value.serialize(&mut out).expect("a value is JSON");
}

/// Returns `value` as compact ASCII JSON with sorted keys. Ids and fingerprints are computed from
/// this JSON.
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

/// Returns the length of the [`canonical_json`] of `value` in bytes. The order of keys does not
/// affect the length.
pub fn canonical_json_len(value: &Value) -> u64 {
    let mut count = ByteCountingWriter::default();
    write_ascii(value, &mut count);
    count.0 as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_status_and_code() {
        let rows = EnvelopeErrorCode::ALL.map(|one| {
            format!(
                "{} {} {} {}",
                one.as_str(),
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
        assert_eq!(rows, table);
        for one in EnvelopeErrorCode::ALL {
            assert_eq!(serde_json::to_value(one).expect("JSON"), one.as_str());
        }
    }

    #[test]
    fn a_value_has_one_canonical_json() {
        let payload =
            json!({ "toolId": "t", "arguments": { "b": [{ "z": 1, "a": 2 }], "a": "é\n𝄞" } });
        assert_eq!(
            canonical_json(&payload),
            r#"{"arguments":{"a":"\u00e9\n\ud834\udd1e","b":[{"a":2,"z":1}]},"toolId":"t"}"#
        );
        assert_eq!(canonical_json_len(&payload), canonical_json(&payload).len() as u64);
    }
}
