//! The Synesthetic dialect: seven tools by their bare names, one request per line, and failures as
//! results.

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallError, Caller, FrameMetadata, HostAnswer, HostRequest, MessageFrame, Reply,
    ValidationProblem,
};

use crate::json::parse;
use crate::rpc::{
    INTERNAL_ERROR, RpcError, invalid_id_reason, is_id_too_long, success, take_method_and_params,
};
use crate::tool_mentions::rename_tools_in_error;
use crate::{
    AnswerEncoder, ClientConversation, Dialect, FrameRefusal, InFlightRequestKey,
    MISMATCHED_ANSWER, ParsedFrame, PendingHostRequest,
};

/// The prefix of the tool ids of Synesthetic's methods.
const TOOLSET: &str = "assets.";

/// The methods of Synesthetic's contract and their parameters. Each method is a tool of the toolset
/// `assets`.
const METHODS: [(&str, &[&str]); 7] = [
    ("list_schemas", &[]),
    ("get_schema", &["name"]),
    ("list_examples", &["component"]),
    ("get_example", &["path"]),
    ("validate_asset", &["asset", "schema"]),
    ("diff_assets", &["base", "new"]),
    ("populate_backend", &["asset", "validate_first"]),
];

/// The maximum size of a request of Synesthetic's client, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// The dialect of Synesthetic's clients: seven tools by their bare names, and one JSON-RPC request
/// per line.
pub struct SynestheticDialect;

impl Dialect for SynestheticDialect {
    fn name(&self) -> &'static str {
        "synesthetic"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/synesthetic"]
    }

    fn own_paths(&self) -> &'static [&'static str] {
        &["/"]
    }

    fn line_bytes_max(&self) -> Option<usize> {
        Some(BYTES_MAX)
    }

    fn answers_in_order(&self) -> bool {
        true
    }

    fn start_conversation(&self, _caller: &Caller) -> Box<dyn ClientConversation> {
        Box::new(SynestheticConversation)
    }

    fn unknown_session(&self) -> Reply {
        let why = "the server is shutting down and accepts no new requests";
        Reply::json(result_message(None, &backend_error(503, why))).with_status(503)
    }

    fn refuse(&self, why: &FrameRefusal) -> Reply {
        match why {
            // The contract has one error for every size limit.
            FrameRefusal::TooLarge { limit: _ } => too_large(),
            FrameRefusal::Busy { message } => {
                Reply::json(result_message(None, &backend_error(503, message)))
                    .with_status(503)
                    .with_header("retry-after", "1")
            }
            FrameRefusal::Unauthorized { .. } | FrameRefusal::SeveralCredentials => {
                let why = "a valid API key is required; send it as `Authorization: Bearer KEY`";
                Reply::json(result_message(None, &unsupported(why))).with_status(401)
            }
            FrameRefusal::Throttled { retry_after } => {
                let seconds = retry_after.as_secs().max(1).to_string();
                let why =
                    format!("too many failed authentication attempts; try again in {seconds} s");
                Reply::json(result_message(None, &unsupported(&why)))
                    .with_status(429)
                    .with_header("retry-after", seconds)
            }
            // The id is left out, because it belongs to the request in flight.
            FrameRefusal::DuplicateId { key: InFlightRequestKey(id) } => {
                let why =
                    format!("the request id {id} is already in use; this request was not run");
                Reply::json(RpcError::invalid_request(why).to_json(None))
            }
        }
    }
}

/// The conversation of one Synesthetic client, which has no state.
struct SynestheticConversation;

impl ClientConversation for SynestheticConversation {
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame {
        match &frame.head {
            FrameMetadata::Http { method, .. } if *method != Method::POST => {
                ParsedFrame::Reply(Reply::empty(405).with_header("allow", "POST"))
            }
            FrameMetadata::Line | FrameMetadata::Http { .. } => read_line(&frame.body),
        }
    }
}

fn read_line(body: &[u8]) -> ParsedFrame {
    // The transport limits lines to this size, but not HTTP bodies.
    if body.len() > BYTES_MAX {
        return ParsedFrame::Reply(too_large());
    }
    let mut fields = match parse(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => {
            let why = "a line must be one JSON object; batches are not supported";
            return failure_reading(None, &RpcError::invalid_request(why));
        }
        Err(why) => return failure_reading(None, &RpcError::not_json(why)),
    };
    let id = match fields.get("id") {
        None => None,
        Some(value @ (Value::String(_) | Value::Number(_))) if !is_id_too_long(value) => {
            RawValue::from_string(value.to_string()).ok().map(SynestheticRequestId)
        }
        Some(value) => {
            let why = invalid_id_reason("id", value, "a string or a number");
            return failure_reading(None, &RpcError::invalid_request(why));
        }
    };
    // This comes before all checks, because answering an answer would never end.
    let is_answer = fields.contains_key("result") || fields.contains_key("error");
    if is_answer && !fields.contains_key("method") {
        return ParsedFrame::Reply(Reply::empty(204));
    }
    let request = match fields.get("jsonrpc").is_some_and(|version| version == "2.0") {
        true => take_method_and_params(&mut fields, id.is_some()),
        false => Err(RpcError::invalid_request("`jsonrpc` must be \"2.0\"")),
    };
    match (request, id) {
        (Ok((method, params)), Some(id)) => request_reading(id, &method, params),
        // A notification is not run, because nobody would see the result.
        (Ok(_), None) => ParsedFrame::Reply(Reply::empty(204)),
        (Err(failure), id) => failure_reading(id.as_ref(), &failure),
    }
}

fn request_reading(
    id: SynestheticRequestId,
    method: &str,
    mut params: Map<String, Value>,
) -> ParsedFrame {
    let Some((method, known)) = METHODS.into_iter().find(|(one, _)| *one == method) else {
        return ParsedFrame::Reply(Reply::json(result_message(Some(&id), &not_implemented())));
    };
    // Unknown parameters are ignored.
    params.retain(|name, _| known.contains(&name.as_str()));
    let key = InFlightRequestKey(id.0.get().to_owned());
    let tool = format!("{TOOLSET}{method}");
    let request = HostRequest::CallTool { tool, input: Value::Object(params) };
    let encoder = SynestheticEncoder { id, method };
    ParsedFrame::Request(PendingHostRequest::new(key, request, encoder))
}

/// A request id in its original spelling: `1.0` differs from `1`, and long numbers keep their
/// digits.
#[derive(Serialize)]
#[serde(transparent)]
struct SynestheticRequestId(Box<RawValue>);

/// The encoder for the answer to one request of Synesthetic's client.
struct SynestheticEncoder {
    id: SynestheticRequestId,
    method: &'static str,
}

impl AnswerEncoder for SynestheticEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        let result = match outcome {
            Ok(HostAnswer::Output(output)) => output.value,
            Err(error) => error_value(self.method, &in_own_names(self.method, &error)),
            Ok(_) => {
                let failure = RpcError::new(INTERNAL_ERROR, MISMATCHED_ANSWER);
                return Some(Reply::json(failure.to_json_with_id(&self.id)));
            }
        };
        Some(Reply::json(result_message(Some(&self.id), &result)))
    }
}

/// Returns the error of a call of `method` with the tool names of Synesthetic's contract.
fn in_own_names(method: &str, error: &CallError) -> CallError {
    let called = format!("{TOOLSET}{method}");
    rename_tools_in_error(error, Some(&called), |id| id.strip_prefix(TOOLSET).map(str::to_owned))
}

/// Converts the error of a call of `method` to one of the reasons of Synesthetic's contract.
fn error_value(method: &str, error: &CallError) -> Value {
    let is_lookup = matches!(method, "get_schema" | "get_example");
    let message = error.to_string();
    match error {
        CallError::UnknownTool { .. } => not_implemented(),
        // The contract has only `not_found` for these methods, even for an invalid name.
        CallError::InvalidInput { .. } | CallError::NotFound { .. } if is_lookup => not_found(),
        CallError::InvalidInput { problems } => validation_failed(problems),
        CallError::NotFound { .. }
        | CallError::Conflict { .. }
        | CallError::TooLarge { .. }
        | CallError::Mismatch { .. } => {
            validation_failed(&[ValidationProblem { pointer: String::new(), message }])
        }
        CallError::NotAllowed { .. }
        | CallError::Scope { .. }
        | CallError::Asks { .. }
        | CallError::CannotAsk { .. }
        | CallError::NeedsJob { .. }
        | CallError::NoJob { .. } => unsupported(&message),
        CallError::Limited { .. }
        | CallError::Unavailable { .. }
        | CallError::TimedOut { .. }
        | CallError::Canceled
        | CallError::Interrupted => backend_error(503, &message),
        CallError::Failed { .. } | CallError::Refused { .. } | CallError::InvalidOutput { .. } => {
            backend_error(500, &message)
        }
    }
}

fn not_found() -> Value {
    json!({ "ok": false, "reason": "not_found" })
}

fn not_implemented() -> Value {
    unsupported("tool not implemented")
}

fn unsupported(detail: &str) -> Value {
    json!({ "ok": false, "reason": "unsupported", "detail": detail })
}

fn backend_error(status: u16, detail: &str) -> Value {
    json!({ "ok": false, "reason": "backend_error", "status": status, "detail": detail })
}

/// Creates the result of a failed validation of an asset, with problems ordered by path and
/// message.
fn validation_failed(problems: &[ValidationProblem]) -> Value {
    let mut sorted: Vec<_> = problems.iter().map(|it| (&it.pointer, &it.message)).collect();
    sorted.sort_unstable();
    let errors: Vec<_> =
        sorted.into_iter().map(|(path, msg)| json!({ "path": path, "msg": msg })).collect();
    json!({ "ok": false, "reason": "validation_failed", "errors": errors })
}

/// Creates the answer to an oversized message, whose request id is unknown.
fn too_large() -> Reply {
    let why = ValidationProblem { pointer: String::new(), message: "payload_too_large".to_owned() };
    Reply::json(result_message(None, &validation_failed(&[why]))).with_status(413)
}

fn failure_reading(id: Option<&SynestheticRequestId>, failure: &RpcError) -> ParsedFrame {
    ParsedFrame::Reply(Reply::json(failure.to_json_with_id(&id)))
}

/// Serializes `result` as the JSON-RPC answer to the request `id`.
fn result_message(id: Option<&SynestheticRequestId>, result: &Value) -> Bytes {
    success(&id, result)
}
