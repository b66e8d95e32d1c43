//! Answers of the envelope dialect: the envelope's data and its transmission.

use serde_json::{Map, Value, json};
use toolgate_contract::{
    Answer, AnyPrompt, AnyTool, CallError, Content, Effects, Ending, Envelope, Event, Held, Output,
    PromptText, Reply, Role, Shape,
};

use super::names::{PROMPT_MAJOR, canonical_tool, prompt_id, prompt_name};
use crate::Ticket;
use crate::rpc::{Failure, INTERNAL_ERROR, Id, success, written};

/// The version of every tool. No tool has had a breaking change yet.
const TOOL_VERSION: &str = "1.0.0";

/// The transport of an answer.
#[derive(Debug, Clone)]
pub(super) enum Over {
    /// The body of an HTTP response.
    Http {
        /// The allowed method, if the request used another one.
        allow: Option<&'static str>,
    },
    /// A JSON-RPC line.
    Line {
        /// The request's id, if it could be read.
        id: Option<Id>,
        /// The JSON-RPC error code, if it differs from the canonical one.
        code: Option<i32>,
    },
}

/// The data needed to answer one request.
pub(super) struct EnvelopeTicket {
    pub(super) over: Over,
    pub(super) tool: Option<String>,
    pub(super) prompt: Option<String>,
}

impl Ticket for EnvelopeTicket {
    /// Every answer of this dialect has an envelope, so this is always an error.
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        let why = match outcome {
            Ok(_) => "the answer has no envelope".to_owned(),
            Err(why) => why.to_string(),
        };
        let id = match &self.over {
            Over::Line { id, .. } => id.as_ref(),
            Over::Http { .. } => None,
        };
        Some(Reply::json(Failure::new(INTERNAL_ERROR, why).written(id)))
    }

    fn data(&self, answer: &Answer) -> Value {
        match answer {
            Answer::Everything { tools, prompts } => json!({
                "tools": tools.iter().map(|one| tool(one.as_ref())).collect::<Vec<_>>(),
                "prompts": prompts.iter().map(|one| prompt(one.as_ref())).collect::<Vec<_>>(),
            }),
            Answer::Output(output) => self.output(output),
            Answer::Prompt(made) => self.prompt(made),
            other => crate::enveloped::data(other),
        }
    }

    fn enveloped(&self, envelope: &Envelope) -> Option<Reply> {
        Some(match &self.over {
            Over::Http { allow } => over_http(envelope, *allow),
            Over::Line { id, code } => on_line(id.as_ref(), *code, envelope),
        })
    }

    fn event(&self, _event: &Event) -> Option<bytes::Bytes> {
        None
    }

    fn listens(&self) -> bool {
        false
    }
}

impl EnvelopeTicket {
    fn output(&self, output: &Output) -> Value {
        let result = match &output.value {
            value @ Value::Object(_) => value.clone(),
            Value::Null => shown(output),
            value @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                json!({ "value": value })
            }
        };
        let ending = match output.ending {
            Ending::Done => "done",
            Ending::ProgramFailed => "program_failed",
            Ending::ToolFailed => "tool_failed",
        };
        let mut metadata = json!({ "version": TOOL_VERSION, "ending": ending });
        if let Some(note) = &output.text.note {
            metadata["note"] = note.as_str().into();
        }
        json!({ "toolId": self.tool, "result": result, "metadata": metadata })
    }

    fn prompt(&self, made: &PromptText) -> Value {
        let id = self.prompt.as_deref().unwrap_or_default();
        let messages = made.messages.iter().map(|message| {
            let role = match message.role {
                Role::User => "user",
                Role::Assistant => "assistant",
            };
            json!({ "role": role, "content": message.content.as_text() })
        });
        json!({
            "id": id,
            "name": prompt_name(id).unwrap_or(id),
            "description": made.about.as_deref().unwrap_or_default(),
            "version": { "major": PROMPT_MAJOR },
            "messages": messages.collect::<Vec<_>>(),
        })
    }
}

/// Converts a tool to its entry in discovery.
fn tool(tool: &dyn AnyTool) -> Value {
    let spec = tool.spec();
    let effects = match spec.effects {
        Effects::Reads => "reads",
        Effects::Adds => "adds",
        Effects::Changes => "changes",
        Effects::Runs => "runs",
    };
    let timeout =
        spec.deadline.map(|deadline| u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
    let fields = [
        ("id", Some(canonical_tool(&spec.id).into())),
        ("version", Some(TOOL_VERSION.into())),
        ("title", Some(spec.title.as_str().into())),
        ("description", Some(spec.about.as_str().into())),
        // Results may change at any time, so no tool is deterministic.
        ("deterministic", Some(false.into())),
        ("timeoutMs", timeout.map(Value::from)),
        ("limits", Some(json!({}))),
        ("caps", Some(json!({ "effects": effects }))),
        ("inputSchema", Some(Value::clone(&spec.input_schema))),
        ("outputSchema", spec.output_schema.as_deref().cloned()),
    ];
    object(fields)
}

/// Converts a prompt to its entry in discovery.
fn prompt(prompt: &dyn AnyPrompt) -> Value {
    let spec = prompt.spec();
    let arguments = spec.arguments.iter().map(|one| {
        object([
            ("name", Some(one.name.as_str().into())),
            ("description", one.about.as_deref().map(Value::from)),
            ("required", Some(one.required.into())),
        ])
    });
    json!({
        "id": prompt_id(&spec.name),
        "name": spec.name,
        "description": spec.about.as_deref().unwrap_or_default(),
        "version": { "major": PROMPT_MAJOR },
        "tags": [],
        "arguments": arguments.collect::<Vec<_>>(),
    })
}

fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(there.collect::<Map<_, _>>())
}

/// Converts an output without structure to JSON.
fn shown(output: &Output) -> Value {
    let mut result = json!({ "text": output.text.body });
    if !output.content.is_empty() {
        result["content"] = output.content.iter().map(content).collect();
    }
    result
}

fn content(content: &Content) -> Value {
    let media = |kind: &str, media: &toolgate_contract::Media| json!({ "type": kind, "mediaType": media.media_type, "data": media.data.base64() });
    match &content.shown {
        Shape::Text(text) => json!({ "type": "text", "text": text }),
        Shape::Image(image) => media("image", image),
        Shape::Audio(audio) => media("audio", audio),
        Shape::Link(resource) => json!({ "type": "link", "uri": resource.uri }),
        Shape::Resource(contents) => match &contents.held {
            Held::Text(text) => json!({ "type": "resource", "uri": contents.uri, "text": text }),
            Held::Bytes(data) => {
                json!({ "type": "resource", "uri": contents.uri, "data": data.base64() })
            }
        },
    }
}

/// Creates the HTTP response for an envelope, with the status of its error.
fn over_http(envelope: &Envelope, allow: Option<&'static str>) -> Reply {
    let status = envelope.error.as_ref().map_or(200, |error| error.code.http_status());
    let mut reply = Reply::json(written(envelope)).with_status(status);
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

/// Creates the JSON-RPC message for an envelope.
pub(super) fn on_line(id: Option<&Id>, code: Option<i32>, envelope: &Envelope) -> Reply {
    let bytes = match (&envelope.error, id) {
        (Some(error), id) => {
            let canonical = error.code;
            let data = json!({
                "canonical": canonical.code(),
                "httpStatus": canonical.http_status(),
                "message": error.message,
                "retryable": canonical.is_retryable(),
                "envelope": envelope,
            });
            let code = code.unwrap_or_else(|| canonical.jsonrpc_code());
            Failure::new(code, canonical.message()).with_data(data).written(id)
        }
        (None, Some(id)) => success(id, envelope),
        (None, None) => {
            let why = "the answer belongs to no request";
            Failure::new(INTERNAL_ERROR, why).written(None)
        }
    };
    Reply::json(bytes)
}
