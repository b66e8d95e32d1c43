//! Answers of the envelope dialect: the data of an envelope, and its form on each transport.

use std::time::Duration;

use serde_json::{Map, Value, json};
use toolgate_contract::{
    AnyPrompt, AnyTool, CallEnvelope, CallError, ContentBlock, ContentBody, HostAnswer,
    MessageRole, RenderedPrompt, Reply, ResourceData, ToolId, ToolOutput, ToolRunStatus,
    exact_json,
};

use super::names::{
    PROMPT_MAJOR, canonical_tool_id, catalog_name, parse_tool_id, prompt_id, prompt_name,
};
use crate::AnswerEncoder;
use crate::rpc::{INTERNAL_ERROR, RequestId, RpcError, success, to_json};
use crate::tool_mentions::rename_tools_in_error;

/// The version of every tool in the envelope dialect. No tool has had a breaking change yet.
const TOOL_VERSION: &str = "1.0.0";
/// Value of `deterministic` for every tool in the envelope dialect. The value is false, because
/// results may change at any time.
const IS_DETERMINISTIC: bool = false;

/// Transport over which an envelope is sent.
#[derive(Debug, Clone)]
pub(super) enum EnvelopeTransport {
    /// HTTP response whose body is the envelope.
    Http {
        /// The HTTP method that the path allows, if the request used another method.
        allow: Option<&'static str>,
    },
    /// Line of text with a JSON-RPC message that contains the envelope.
    Line {
        /// The id of the JSON-RPC request, if it could be read.
        id: Option<RequestId>,
        /// The JSON-RPC error code, if it differs from the code that the envelope's error has.
        code: Option<i32>,
    },
}

/// The encoder for the answer to one request of the envelope dialect.
pub(super) struct EnvelopeEncoder {
    pub(super) transport: EnvelopeTransport,
    pub(super) tool: Option<String>,
    pub(super) prompt: Option<String>,
}

impl AnswerEncoder for EnvelopeEncoder {
    /// Encodes an internal error. The host must not call this, because every answer of the envelope
    /// dialect has an envelope.
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        let why = match outcome {
            Ok(_) => "the answer has no envelope; this is a bug in toolgate".to_owned(),
            Err(why) => why.to_string(),
        };
        let id = match &self.transport {
            EnvelopeTransport::Line { id, .. } => id.as_ref(),
            EnvelopeTransport::Http { .. } => None,
        };
        Some(Reply::json(RpcError::new(INTERNAL_ERROR, why).to_json(id)))
    }

    fn envelope_data(&self, answer: &HostAnswer, time_limit: Duration) -> Value {
        match answer {
            HostAnswer::Everything { tools, prompts } => json!({
                "tools": tools.iter().map(|one| tool(one.as_ref(), time_limit)).collect::<Vec<_>>(),
                "prompts": prompts.iter().map(|one| prompt(one.as_ref())).collect::<Vec<_>>(),
            }),
            HostAnswer::Output(output) => self.output(output, time_limit),
            HostAnswer::Prompt(made) => self.prompt(made),
            other => crate::envelope_data::answer_data(other),
        }
    }

    fn envelope_error(&self, error: CallError) -> CallError {
        let is_invalid =
            |id: &str| matches!(parse_tool_id(id), Err(CallError::InvalidInput { .. }));
        if self.tool.as_deref().is_some_and(is_invalid) {
            // The error repeats the client's own spelling.
            return error;
        }
        let called = self.tool.as_deref().map(catalog_name);
        let error = match (error, &self.tool) {
            // The error repeats the client's own spelling, unless a secret was removed from it.
            (CallError::UnknownTool { name, nearest, unavailable }, Some(tool))
                if name == catalog_name(tool) =>
            {
                CallError::UnknownTool { name: tool.clone(), nearest, unavailable }
            }
            (error, _) => error,
        };
        let name_of = |id: &str| ToolId::foreign(id).map(|id| canonical_tool_id(&id));
        rename_tools_in_error(&error, called, name_of)
    }

    fn encode_envelope(&self, envelope: &CallEnvelope) -> Option<Reply> {
        Some(match &self.transport {
            EnvelopeTransport::Http { allow } => http_reply(envelope, *allow),
            EnvelopeTransport::Line { id, code } => line_reply(id.as_ref(), *code, envelope),
        })
    }
}

impl EnvelopeEncoder {
    fn output(&self, output: &ToolOutput, time_limit: Duration) -> Value {
        let result = match &output.value {
            value @ Value::Object(_) => value.clone(),
            Value::Null => content_value(output),
            value @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                exact_json::object([("value", value.clone())])
            }
        };
        let ending = match output.ending {
            ToolRunStatus::Done => "done",
            ToolRunStatus::ProgramFailed => "program_failed",
            ToolRunStatus::ToolFailed => "tool_failed",
        };
        let mut metadata = json!({
            "toolpack": {
                "id": self.tool,
                "version": TOOL_VERSION,
                "deterministic": IS_DETERMINISTIC,
                "timeoutMs": milliseconds(time_limit),
            },
            "version": TOOL_VERSION,
            "ending": ending,
        });
        if let Some(note) = &output.text.note {
            metadata["note"] = note.as_str().into();
        }
        let tool = json!(self.tool);
        exact_json::object([("toolId", tool), ("result", result), ("metadata", metadata)])
    }

    fn prompt(&self, made: &RenderedPrompt) -> Value {
        let id = self.prompt.as_deref().unwrap_or_default();
        let messages = made.messages.iter().map(|message| {
            let role = match message.role {
                MessageRole::User => "user",
                MessageRole::Assistant => "assistant",
            };
            json!({ "role": role, "content": message.content.as_text() })
        });
        json!({
            "id": id,
            "name": prompt_name(id).unwrap_or(id),
            "description": made.description.as_deref().unwrap_or_default(),
            "version": { "major": PROMPT_MAJOR },
            "messages": messages.collect::<Vec<_>>(),
        })
    }
}

/// Converts a tool to its entry in the answer to a discovery request.
fn tool(tool: &dyn AnyTool, time_limit: Duration) -> Value {
    let spec = tool.spec();
    let fields = [
        ("id", Some(canonical_tool_id(&spec.id).into())),
        ("version", Some(TOOL_VERSION.into())),
        ("title", Some(spec.title.as_str().into())),
        ("description", Some(spec.description.as_str().into())),
        ("deterministic", Some(IS_DETERMINISTIC.into())),
        ("timeoutMs", Some(milliseconds(spec.deadline.unwrap_or(time_limit)).into())),
        ("limits", Some(json!({}))),
        ("caps", Some(json!({ "effects": spec.effects.as_str() }))),
        ("inputSchema", Some(Value::clone(&spec.input_schema))),
        ("outputSchema", spec.output_schema.as_deref().cloned()),
    ];
    object(fields)
}

/// Converts a prompt to its entry in the answer to a discovery request.
fn prompt(prompt: &dyn AnyPrompt) -> Value {
    let spec = prompt.spec();
    let arguments = spec.arguments.iter().map(|one| {
        object([
            ("name", Some(one.name.as_str().into())),
            ("description", one.description.as_deref().map(Value::from)),
            ("required", Some(one.required.into())),
        ])
    });
    json!({
        "id": prompt_id(&spec.name),
        "name": spec.name,
        "description": spec.description.as_deref().unwrap_or_default(),
        "version": { "major": PROMPT_MAJOR },
        "tags": [],
        "arguments": arguments.collect::<Vec<_>>(),
    })
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let members = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(members.collect::<Map<_, _>>())
}

/// Converts the output of a tool without a structured result to JSON.
fn content_value(output: &ToolOutput) -> Value {
    let mut result = json!({ "text": output.text.body });
    if !output.content.is_empty() {
        result["content"] = output.content.iter().map(content).collect();
    }
    result
}

fn content(content: &ContentBlock) -> Value {
    let media = |kind: &str, media: &toolgate_contract::MediaData| json!({ "type": kind, "mediaType": media.media_type, "data": media.data.base64() });
    match &content.shown {
        ContentBody::Text(text) => json!({ "type": "text", "text": text }),
        ContentBody::Image(image) => media("image", image),
        ContentBody::Audio(audio) => media("audio", audio),
        ContentBody::Link(resource) => json!({ "type": "link", "uri": resource.uri }),
        ContentBody::Resource(contents) => match &contents.held {
            ResourceData::Text(text) => {
                json!({ "type": "resource", "uri": contents.uri, "text": text })
            }
            ResourceData::Bytes(data) => {
                json!({ "type": "resource", "uri": contents.uri, "data": data.base64() })
            }
        },
    }
}

/// Creates the HTTP response for an envelope, with the status of its error.
fn http_reply(envelope: &CallEnvelope, allow: Option<&'static str>) -> Reply {
    let status = envelope.error.as_ref().map_or(200, |error| error.code.http_status());
    let mut reply = Reply::json(to_json(envelope)).with_status(status);
    if let Some(allow) = allow {
        reply = reply.with_header("allow", allow);
    }
    let details = envelope.error.as_ref().and_then(|error| error.details.as_ref());
    let wait = details.and_then(|details| details["retryAfterMs"].as_u64());
    match wait {
        Some(wait) => reply.with_header("retry-after", wait.div_ceil(1000).max(1).to_string()),
        None => reply,
    }
}

/// Creates the JSON-RPC message that contains an envelope.
pub(super) fn line_reply(
    id: Option<&RequestId>,
    code: Option<i32>,
    envelope: &CallEnvelope,
) -> Reply {
    let bytes = match (&envelope.error, id) {
        (Some(error), id) => {
            let canonical = error.code;
            let data = json!({
                "canonical": canonical.as_str(),
                "httpStatus": canonical.http_status(),
                "message": error.message,
                "retryable": canonical.is_retryable(),
                "envelope": envelope,
            });
            let code = code.unwrap_or_else(|| canonical.jsonrpc_code());
            RpcError::new(code, canonical.message()).with_data(data).to_json(id)
        }
        (None, Some(id)) => success(id, envelope),
        (None, None) => {
            let why = "the answer belongs to no request; this is a bug in toolgate";
            RpcError::new(INTERNAL_ERROR, why).to_json(None)
        }
    };
    Reply::json(bytes)
}
