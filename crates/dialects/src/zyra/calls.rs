//! JSON-RPC of the Zyra dialect over HTTP and WebSockets: methods, results and errors.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    AnyTool, CallError, ContentBlock, HostAnswer, HostRequest, JobOptions, JobSnapshot, Reply,
    ToolOutput, ToolPage, ToolRunStatus, exact_json,
};

use super::encoding::{
    ZyraCommandResult, download_path, in_own_names, input_schema, note_in_own_names,
    split_tool_name, tool_name,
};
use super::rest::{retry_seconds, status_report};
use super::watch::ZyraCallSocketJobEncoder;
use super::{FAILED, NAME, TOO_LARGE};
use crate::json::parse;
use crate::rpc::{
    INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RequestId, RpcError, invalid_id_reason,
    notification, parse_object, read_id, success, take_method_and_params,
};
use crate::tool_mentions::own_tool_id;
use crate::{
    AcceptedResponseMode, AnswerEncoder, DisconnectEffect, JobEventEncoder, MISMATCHED_ANSWER,
    ParsedFrame, PendingHostRequest, ServerInfo,
};

/// The MCP revision in the answer to a Zyra client's `initialize`, independent of the request.
const PROTOCOL: &str = "2025-06-18";

/// The transport of a Zyra client's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZyraTransport {
    /// An HTTP request, which gets one answer.
    Http,
    /// A WebSocket, on which the server can send at any time.
    WebSocket,
}

/// Reads one message of a Zyra client.
pub(crate) fn read_message(
    facts: &ServerInfo,
    transport: ZyraTransport,
    body: &[u8],
) -> ParsedFrame {
    let limit = match transport {
        ZyraTransport::Http => facts.zyra_body_bytes_max,
        ZyraTransport::WebSocket => None,
    };
    if let Some(limit) = limit.filter(|limit| body.len() > *limit) {
        let why = format!("Request too large: {} bytes (limit {limit})", body.len());
        return failure_reading(parse_id(body).as_ref(), &RpcError::new(TOO_LARGE, why));
    }
    let id = |fields: &Map<String, Value>| read_id(fields.get("id").filter(|id| !id.is_null()));
    let parsed = parse_object(body).and_then(|fields| Ok((id(&fields)?, fields)));
    match parsed {
        Ok((id, fields)) => read_fields(facts, transport, id.as_ref(), fields)
            .unwrap_or_else(|failure| failure_reading(id.as_ref(), &failure)),
        Err(failure) => failure_reading(None, &failure),
    }
}

/// Parses only the request id of the message in `body`.
fn parse_id(body: &[u8]) -> Option<RequestId> {
    RequestId::parse(parse(body).ok()?.get("id")?)
}

fn failure_reading(id: Option<&RequestId>, failure: &RpcError) -> ParsedFrame {
    ParsedFrame::Reply(Reply::json(failure.to_json(id)))
}

fn read_fields(
    facts: &ServerInfo,
    transport: ZyraTransport,
    id: Option<&RequestId>,
    mut fields: Map<String, Value>,
) -> Result<ParsedFrame, RpcError> {
    // This comes before all checks, because answering an answer would never end.
    let is_answer = fields.contains_key("result") || fields.contains_key("error");
    if is_answer && !fields.contains_key("method") {
        return Ok(ParsedFrame::Reply(Reply::empty(204)));
    }
    // Zyra's own clients may omit it.
    if fields.get("jsonrpc").is_some_and(|version| version != "2.0") {
        return Err(RpcError::invalid_request("`jsonrpc` must be \"2.0\""));
    }
    let (method, params) = take_method_and_params(&mut fields, id.is_some())?;
    match id {
        Some(id) => read_request(facts, transport, id, &method, params),
        None => Ok(read_notification(transport, &method, &params)),
    }
}

/// Reads a JSON-RPC notification. A request without an id is not run, because nobody would see the
/// result.
fn read_notification(
    transport: ZyraTransport,
    method: &str,
    params: &Map<String, Value>,
) -> ParsedFrame {
    let reply = Reply::empty(204);
    let id = params.get("requestId").and_then(RequestId::parse);
    let key = id.map(|id| id.key());
    match (transport, method, key) {
        (ZyraTransport::WebSocket, "notifications/cancelled", Some(key)) => {
            ParsedFrame::Cancel { key, reply }
        }
        _ => ParsedFrame::Reply(reply),
    }
}

fn read_request(
    facts: &ServerInfo,
    transport: ZyraTransport,
    id: &RequestId,
    method: &str,
    mut params: Map<String, Value>,
) -> Result<ParsedFrame, RpcError> {
    let reply = |result: Value| Ok(ParsedFrame::Reply(Reply::json(success(id, &result))));
    match method {
        "initialize" => Ok(initialize(facts, transport, id)),
        "ping" => reply(json!({})),
        "statusReport" | "status/report" => reply(status_report(facts)),
        "prompts/list" => reply(json!({ "prompts": [] })),
        "resources/list" => reply(json!({ "resources": [] })),
        "tools/list" | "listTools" => {
            let encoder =
                ZyraEncoder { id: id.clone(), transport, tool: None, progress_token: None };
            Ok(request_reading(
                HostRequest::ListTools { after: None },
                encoder,
                DisconnectEffect::Cancels,
            ))
        }
        "tools/call" | "callTool" => read_call(transport, id, &mut params),
        _ => {
            let why = format!("no method is named `{method}`");
            Err(RpcError::new(METHOD_NOT_FOUND, why))
        }
    }
}

fn initialize(facts: &ServerInfo, transport: ZyraTransport, id: &RequestId) -> ParsedFrame {
    // Only a WebSocket could carry such notifications. None is sent, because the list never changes
    // here.
    let list_changed = match transport {
        ZyraTransport::WebSocket => true,
        ZyraTransport::Http => false,
    };
    let result = json!({
        "protocolVersion": PROTOCOL,
        "serverInfo": { "name": NAME, "version": facts.version },
        "capabilities": { "tools": { "listChanged": list_changed } },
    });
    let reply = Reply::json(success(id, &result));
    match transport {
        ZyraTransport::Http => ParsedFrame::Reply(reply),
        ZyraTransport::WebSocket => {
            let initialized = notification("notifications/initialized", &json!({}));
            ParsedFrame::Replies(vec![reply, Reply::json(initialized)])
        }
    }
}

/// Removes `null` arguments from a tool's `input`. Zyra treats them as missing.
fn without_nulls(mut input: Value) -> Value {
    if let Value::Object(fields) = &mut input {
        fields.retain(|_, value| !value.is_null());
    }
    input
}

/// Parses a tool call of a Zyra client. `params` names the tool by `name` with `arguments`, or by
/// `stage` and `command` with `args`. Both method names for calls accept both sets of parameters.
fn read_call(
    transport: ZyraTransport,
    id: &RequestId,
    params: &mut Map<String, Value>,
) -> Result<ParsedFrame, RpcError> {
    let (name, stage, command) = match take_string(params, "name")? {
        Some(name) => {
            let (stage, command) = split_tool_name(&name);
            (name, stage, command)
        }
        None => {
            let (Some(stage), Some(command)) =
                (take_string(params, "stage")?, take_string(params, "command")?)
            else {
                let why = "`params.name` is missing; send `params.name`, or `params.stage` and \
                     `params.command`";
                return Err(RpcError::invalid_params(why));
            };
            (format!("{stage}-{command}"), stage, command)
        }
    };
    let input = match take_object(params, "arguments")? {
        Some(input) => input,
        None => take_object(params, "args")?.unwrap_or_else(|| json!({})),
    };
    let input = without_nulls(input);
    let (request, on_disconnect) = match take_string(params, "mode")?.as_deref() {
        None | Some("sync") => {
            (HostRequest::CallTool { tool: name, input }, DisconnectEffect::Cancels)
        }
        Some("async") => {
            let options = JobOptions::default();
            (
                HostRequest::StartJob { tool: name, input, terms: options },
                DisconnectEffect::Continues,
            )
        }
        Some(mode) => {
            let why = format!("`params.mode` must be `sync` or `async`, not `{mode}`");
            return Err(RpcError::invalid_params(why));
        }
    };
    let progress_token = match params.get("_meta").and_then(|meta| meta.get("progressToken")) {
        None | Some(Value::Null) => None,
        Some(token) if RequestId::parse(token).is_some() => Some(token.clone()),
        Some(token) => {
            let why =
                invalid_id_reason("params._meta.progressToken", token, "a string or a number");
            return Err(RpcError::invalid_params(why));
        }
    };
    let tool = Some(ZyraStageCommand { stage, command });
    Ok(request_reading(
        request,
        ZyraEncoder { id: id.clone(), transport, tool, progress_token },
        on_disconnect,
    ))
}

/// Removes and returns the string `name` of `params`. Null and empty strings count as missing.
/// Fails if the value is not a string.
fn take_string(params: &mut Map<String, Value>, name: &str) -> Result<Option<String>, RpcError> {
    match params.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(RpcError::invalid_params(format!("`params.{name}` must be a string"))),
    }
}

fn take_object(params: &mut Map<String, Value>, name: &str) -> Result<Option<Value>, RpcError> {
    match params.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(object @ Value::Object(_)) => Ok(Some(object)),
        Some(_) => Err(RpcError::invalid_params(format!("`params.{name}` must be an object"))),
    }
}

fn request_reading(
    request: HostRequest,
    encoder: ZyraEncoder,
    on_disconnect: DisconnectEffect,
) -> ParsedFrame {
    let answer_form = match encoder.transport {
        ZyraTransport::Http => AcceptedResponseMode::Message,
        ZyraTransport::WebSocket => AcceptedResponseMode::Stream,
    };
    ParsedFrame::Request(PendingHostRequest {
        on_disconnect,
        answer_form,
        ..PendingHostRequest::new(encoder.id.key(), request, encoder)
    })
}

/// The encoder for the answer to one request of a Zyra client.
struct ZyraEncoder {
    id: RequestId,
    transport: ZyraTransport,
    /// The name of the called tool, if the request is a call.
    tool: Option<ZyraStageCommand>,
    /// The client's token for progress notifications, if it sent one.
    progress_token: Option<Value>,
}

/// A tool's name as the Zyra client sent it: a stage and a command.
struct ZyraStageCommand {
    stage: String,
    command: String,
}

impl AnswerEncoder for ZyraEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        Some(match outcome {
            Ok(HostAnswer::Tools(page)) => self.tools(&page),
            Ok(HostAnswer::Output(output)) => self.output(&output),
            Ok(HostAnswer::Job(job)) => self.accepted(&job),
            Err(error) => self.refusal(&in_own_names(&error, self.called().as_deref())),
            Ok(_) => self.failure(&RpcError::new(INTERNAL_ERROR, MISMATCHED_ANSWER)),
        })
    }

    fn job_encoder(&self, job: &JobSnapshot) -> Option<Arc<dyn JobEventEncoder>> {
        match self.transport {
            ZyraTransport::Http => None,
            ZyraTransport::WebSocket => {
                Some(Arc::new(ZyraCallSocketJobEncoder::new(job.id, self.progress_token.clone())))
            }
        }
    }
}

impl ZyraEncoder {
    /// Returns the id of the called tool. For a tool of an upstream, joins the stage and the
    /// command, which gives the right id only if each is one word.
    fn called(&self) -> Option<String> {
        let ZyraStageCommand { stage, command } = self.tool.as_ref()?;
        let name = format!("{stage}-{command}");
        Some(own_tool_id(&name).map_or_else(|| format!("{stage}.{command}"), str::to_owned))
    }

    fn tools(&self, page: &ToolPage) -> Reply {
        let listed = |tool: &Arc<dyn AnyTool>| {
            let spec = tool.spec();
            exact_json::object([
                ("name", tool_name(spec.id.as_str()).into()),
                ("description", spec.description.as_str().into()),
                ("inputSchema", input_schema(spec).into_owned()),
            ])
        };
        self.success(&exact_json::object([("tools", page.tools.iter().map(listed).collect())]))
    }

    fn output(&self, output: &ToolOutput) -> Reply {
        let printed = ZyraCommandResult::from_output(output);
        match output.ending {
            ToolRunStatus::Done => {
                let mut result = json!({
                    "status": "ok",
                    "stdout": printed.stdout,
                    "stderr": printed.stderr,
                });
                if let Some(exit_code) = printed.exit_code {
                    result["exit_code"] = json!(exit_code);
                }
                let body = Some(output.text.body.clone()).filter(|body| !body.is_empty());
                let others = output.content.iter().map(ContentBlock::as_text);
                let note = output.text.note.as_deref();
                let note = note.map(|note| note_in_own_names(note, self.called().as_deref()));
                let content = body.into_iter().chain(others).chain(note);
                result["content"] = content.map(|text| text_block(&text)).collect();
                self.success(&result)
            }
            ToolRunStatus::ProgramFailed => {
                // A program that was stopped has no exit code of its own.
                let is_stopped = output.value["timed_out"] == true;
                let note = output.text.note.as_deref().filter(|_| is_stopped);
                let mut why = match (note, printed.exit_code) {
                    (Some(note), _) => {
                        let note = note_in_own_names(note, self.called().as_deref());
                        format!("the program {note}")
                    }
                    (None, Some(code)) => format!("the program failed with exit code {code}"),
                    (None, None) => "the program failed".to_owned(),
                };
                if !is_stopped {
                    why.extend(output.text.note.as_deref().and_then(offline_hint));
                }
                self.failure(&RpcError::new(FAILED, why).with_data(self.data(&printed)))
            }
            ToolRunStatus::ToolFailed => {
                let failure = RpcError::new(FAILED, output.full_text());
                self.failure(&failure.with_data(self.data(&printed)))
            }
        }
    }

    fn accepted(&self, job: &JobSnapshot) -> Reply {
        let id = job.id;
        let poll = format!("/jobs/{id}");
        self.success(&json!({
            "status": "accepted",
            "job_id": id.to_string(),
            "poll": poll,
            "ws": format!("/ws/jobs/{id}"),
            "download": download_path(id),
            "manifest": format!("/jobs/{id}/manifest"),
            "content": [text_block(&format!("accepted as job {id}; get its state from {poll}"))],
        }))
    }

    fn refusal(&self, error: &CallError) -> Reply {
        let message = error.to_string();
        match error {
            CallError::UnknownTool { .. } => self.failure(&RpcError::new(INVALID_PARAMS, message)),
            CallError::InvalidInput { problems } => {
                let data = json!({ "problems": problems });
                self.failure(&RpcError::new(INVALID_PARAMS, message).with_data(data))
            }
            CallError::Limited { retry_after, .. } => self
                .refusal_with_data(
                    error,
                    message,
                    &json!({ "retry_after_ms": retry_after.as_millis() }),
                )
                .with_status(429)
                .with_header("retry-after", retry_seconds(*retry_after)),
            CallError::Conflict { details, .. } => {
                self.refusal_with_data(error, message, &json!({ "details": details }))
            }
            CallError::NotAllowed { .. }
            | CallError::Scope { .. }
            | CallError::NotFound { .. }
            | CallError::TooLarge { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Asks { .. }
            | CallError::CannotAsk { .. }
            | CallError::NeedsJob { .. }
            | CallError::NoJob { .. }
            | CallError::Mismatch { .. }
            | CallError::Refused { .. }
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => self.refusal_with_data(error, message, &json!({})),
        }
    }

    /// Encodes a refusal of a call as the result of a failed program, with the reason of `error`
    /// and the members of the object `details`.
    fn refusal_with_data(&self, error: &CallError, message: String, details: &Value) -> Reply {
        let printed =
            ZyraCommandResult { stderr: message.as_str().into(), ..ZyraCommandResult::default() };
        let mut data = self.data(&printed);
        data["reason"] = json!(error.reason());
        for (name, value) in details.as_object().into_iter().flatten() {
            data[name] = value.clone();
        }
        self.failure(&RpcError::new(FAILED, message).with_data(data))
    }

    fn data(&self, printed: &ZyraCommandResult<'_>) -> Value {
        let mut data = json!({
            "exit_code": printed.exit_code,
            "stderr": printed.stderr,
            "stdout": printed.stdout,
        });
        if let Some(ZyraStageCommand { stage, command }) = &self.tool {
            data["stage"] = json!(stage);
            data["command"] = json!(command);
        }
        data
    }

    fn success(&self, result: &impl Serialize) -> Reply {
        Reply::json(success(&self.id, result))
    }

    fn failure(&self, failure: &RpcError) -> Reply {
        Reply::json(failure.to_json(Some(&self.id)))
    }
}

/// Returns the part of a result's note that explains how to allow a program the network, if the
/// note has one.
fn offline_hint(note: &str) -> Option<&str> {
    note.find("; programs have no network here: ").map(|start| &note[start..])
}

/// Creates a content block of text, as MCP clients expect it.
fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}
