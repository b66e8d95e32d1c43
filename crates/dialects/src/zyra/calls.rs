//! JSON-RPC of the Zyra dialect over HTTP and WebSockets: methods, results and errors.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    Answer, AnyTool, Beside, CallError, Ending, Event, Job, JobTerms, Output, Reply, Request,
    ToolPage,
};

use super::rest::{seconds, status};
use super::watch::Follow;
use super::words::{Printed, download, parameters, parts, spell, wording};
use super::{FAILED, NAME, TOO_LARGE};
use crate::json::parse;
use crate::rpc::{
    Failure, INTERNAL_ERROR, INVALID_PARAMS, Id, METHOD_NOT_FOUND, no_id, notification, success,
};
use crate::{Accepts, Ask, Asking, Facts, OnLeave, Reading, Ticket, WatchTicket};

/// The MCP revision in the answer to `initialize`, independent of the request.
const PROTOCOL: &str = "2025-06-18";

/// The transport of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// An HTTP request with one answer.
    Http,
    /// A connection on which the server can send at any time.
    WebSocket,
}

/// Reads one message.
pub(crate) fn read_message(facts: &Facts, over: Over, body: &[u8]) -> Reading {
    let limit = match over {
        Over::Http => facts.zyra_body_bytes_max,
        Over::WebSocket => None,
    };
    if let Some(limit) = limit.filter(|limit| body.len() > *limit) {
        let why = format!("Request too large: {} bytes (limit {limit})", body.len());
        return failed(id_in(body).as_ref(), &Failure::new(TOO_LARGE, why));
    }
    let fields = match parse(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => {
            let why = "a message is one JSON object; there are no batches";
            return failed(None, &Failure::invalid_request(why));
        }
        Err(why) => return failed(None, &Failure::not_json(why)),
    };
    let id = match fields.get("id") {
        None | Some(Value::Null) => None,
        Some(value) => match Id::read(value) {
            Some(id) => Some(id),
            None => {
                let why = no_id("id", value, "a string or a number");
                return failed(None, &Failure::invalid_request(why));
            }
        },
    };
    read_fields(facts, over, id.as_ref(), fields)
        .unwrap_or_else(|failure| failed(id.as_ref(), &failure))
}

/// Parses only the id of the message in `body`.
fn id_in(body: &[u8]) -> Option<Id> {
    Id::read(parse(body).ok()?.get("id")?)
}

fn failed(id: Option<&Id>, failure: &Failure) -> Reading {
    Reading::Reply(Reply::json(failure.written(id)))
}

fn read_fields(
    facts: &Facts,
    over: Over,
    id: Option<&Id>,
    mut fields: Map<String, Value>,
) -> Result<Reading, Failure> {
    // This comes before all checks, because answering an answer would never end.
    let answers = fields.contains_key("result") || fields.contains_key("error");
    if answers && !fields.contains_key("method") {
        return Ok(Reading::Reply(Reply::empty(204)));
    }
    // Zyra's own clients may omit it.
    if fields.get("jsonrpc").is_some_and(|version| version != "2.0") {
        return Err(Failure::invalid_request("`jsonrpc` must be \"2.0\""));
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => return Err(Failure::invalid_request("`method` must be a string")),
        None => return Err(Failure::invalid_request("`method` is missing")),
    };
    let params = match fields.remove("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params,
        // A notification is never answered, even if it is malformed.
        Some(_) if id.is_none() => Map::new(),
        Some(_) => return Err(Failure::invalid_params("`params` must be an object")),
    };
    match id {
        Some(id) => read_request(facts, over, id, &method, params),
        None => Ok(read_notification(over, &method, &params)),
    }
}

/// Reads a notification. A request without an id is not run, because nobody would see the result.
fn read_notification(over: Over, method: &str, params: &Map<String, Value>) -> Reading {
    let reply = Reply::empty(204);
    let key = params.get("requestId").and_then(Id::read).map(|id| id.key());
    match (over, method, key) {
        (Over::WebSocket, "notifications/cancelled", Some(key)) => Reading::Cancel { key, reply },
        _ => Reading::Reply(reply),
    }
}

fn read_request(
    facts: &Facts,
    over: Over,
    id: &Id,
    method: &str,
    mut params: Map<String, Value>,
) -> Result<Reading, Failure> {
    let said = |result: Value| Ok(Reading::Reply(Reply::json(success(id, &result))));
    match method {
        "initialize" => Ok(initialize(facts, over, id)),
        "ping" => said(json!({})),
        "statusReport" | "status/report" => said(status(facts)),
        "prompts/list" => said(json!({ "prompts": [] })),
        "resources/list" => said(json!({ "resources": [] })),
        "tools/list" | "listTools" => {
            let ticket = CallTicket { id: id.clone(), over, tool: None, progress_token: None };
            Ok(ask(Request::ListTools { after: None }, ticket, OnLeave::Cancels))
        }
        "tools/call" | "callTool" => read_call(over, id, &mut params),
        _ => {
            let why = format!("no method is named `{method}` here");
            Err(Failure::new(METHOD_NOT_FOUND, why))
        }
    }
}

fn initialize(facts: &Facts, over: Over, id: &Id) -> Reading {
    // Only a WebSocket could carry such notifications. None is sent, because the list never changes
    // here.
    let list_changed = match over {
        Over::WebSocket => true,
        Over::Http => false,
    };
    let result = json!({
        "protocolVersion": PROTOCOL,
        "serverInfo": { "name": NAME, "version": facts.version },
        "capabilities": { "tools": { "listChanged": list_changed } },
    });
    let reply = Reply::json(success(id, &result));
    match over {
        Over::Http => Reading::Reply(reply),
        Over::WebSocket => {
            let initialized = notification("notifications/initialized", &json!({}));
            Reading::Replies(vec![reply, Reply::json(initialized)])
        }
    }
}

/// Removes `null` arguments. Zyra treats them as missing.
fn without_nulls(mut input: Value) -> Value {
    if let Value::Object(fields) = &mut input {
        fields.retain(|_, value| !value.is_null());
    }
    input
}

/// Parses a tool call. The tool is named by `name` with `arguments`, or by `stage` and `command`
/// with `args`. Both forms work with both method names.
fn read_call(over: Over, id: &Id, params: &mut Map<String, Value>) -> Result<Reading, Failure> {
    let (name, stage, command) = match text(params, "name")? {
        Some(name) => {
            let (stage, command) = parts(&name);
            (name, stage, command)
        }
        None => {
            let (Some(stage), Some(command)) = (text(params, "stage")?, text(params, "command")?)
            else {
                let why = "`params.name` is missing, and so is `params.stage` or `params.command`";
                return Err(Failure::invalid_params(why));
            };
            (format!("{stage}-{command}"), stage, command)
        }
    };
    let input = match object(params, "arguments")? {
        Some(input) => input,
        None => object(params, "args")?.unwrap_or_else(|| json!({})),
    };
    let input = without_nulls(input);
    let (request, on_leave) = match text(params, "mode")?.as_deref() {
        None | Some("sync") => (Request::CallTool { tool: name, input }, OnLeave::Cancels),
        Some("async") => {
            let terms = JobTerms::default();
            (Request::StartJob { tool: name, input, terms }, OnLeave::Continues)
        }
        Some(mode) => {
            let why = format!("`params.mode` must be `sync` or `async`, not `{mode}`");
            return Err(Failure::invalid_params(why));
        }
    };
    let progress_token = match params.get("_meta").and_then(|meta| meta.get("progressToken")) {
        None | Some(Value::Null) => None,
        Some(token) if Id::read(token).is_some() => Some(token.clone()),
        Some(token) => {
            let why = no_id("params._meta.progressToken", token, "a string or a number");
            return Err(Failure::invalid_params(why));
        }
    };
    let tool = Some(Tool { stage, command });
    Ok(ask(request, CallTicket { id: id.clone(), over, tool, progress_token }, on_leave))
}

/// Removes and returns the string `name`. Null and empty strings count as missing.
fn text(params: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Failure> {
    match params.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(Failure::invalid_params(format!("`params.{name}` must be a string"))),
    }
}

fn object(params: &mut Map<String, Value>, name: &str) -> Result<Option<Value>, Failure> {
    match params.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(object @ Value::Object(_)) => Ok(Some(object)),
        Some(_) => Err(Failure::invalid_params(format!("`params.{name}` must be an object"))),
    }
}

fn ask(request: Request, ticket: CallTicket, on_leave: OnLeave) -> Reading {
    let events = match ticket.over {
        Over::Http => Accepts::Message,
        Over::WebSocket => Accepts::Stream,
    };
    Reading::Ask(Ask {
        key: ticket.id.key(),
        request,
        ticket: Arc::new(ticket),
        on_leave,
        events,
        asking: Asking::Nobody,
        beside: Beside::default(),
        within: None,
        via: None,
    })
}

/// The data needed to answer one request.
struct CallTicket {
    id: Id,
    over: Over,
    /// The called tool, if the request is a call.
    tool: Option<Tool>,
    /// The progress token, if the client sent one.
    progress_token: Option<Value>,
}

/// A tool's name as the client sent it.
struct Tool {
    stage: String,
    command: String,
}

impl Ticket for CallTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        Some(match outcome {
            Ok(Answer::Tools(page)) => self.tools(&page),
            Ok(Answer::Output(output)) => self.output(&output),
            Ok(Answer::Job(job)) => self.accepted(&job),
            Err(error) => self.refusal(&error),
            Ok(_) => self.failure(&Failure::new(INTERNAL_ERROR, "that was not asked for")),
        })
    }

    fn event(&self, _event: &Event) -> Option<Bytes> {
        None
    }

    fn listens(&self) -> bool {
        false
    }

    fn follow(&self, job: &Job) -> Option<Arc<dyn WatchTicket>> {
        match self.over {
            Over::Http => None,
            Over::WebSocket => {
                Some(Arc::new(Follow { job: job.id, token: self.progress_token.clone() }))
            }
        }
    }
}

impl CallTicket {
    fn tools(&self, page: &ToolPage) -> Reply {
        let listed = |tool: &Arc<dyn AnyTool>| {
            let spec = tool.spec();
            json!({
                "name": spell(spec.id.as_str()),
                "description": spec.about,
                "inputSchema": parameters(spec),
            })
        };
        self.success(&json!({ "tools": page.tools.iter().map(listed).collect::<Vec<_>>() }))
    }

    fn output(&self, output: &Output) -> Reply {
        let printed = Printed::of(output);
        match output.ending {
            Ending::Done => {
                let mut result = json!({
                    "status": "ok",
                    "stdout": printed.stdout,
                    "stderr": printed.stderr,
                });
                if let Some(exit_code) = printed.exit_code {
                    result["exit_code"] = json!(exit_code);
                }
                let body = Some(output.text.body.as_str()).filter(|body| !body.is_empty());
                let content = body.into_iter().chain(output.text.note.as_deref()).map(block);
                result["content"] = content.collect();
                self.success(&result)
            }
            Ending::ProgramFailed => {
                let why = match printed.exit_code {
                    Some(code) => format!("the program failed with exit code {code}"),
                    None => "the program failed".to_owned(),
                };
                self.failure(&Failure::new(FAILED, why).with_data(self.data(&printed)))
            }
            Ending::ToolFailed => {
                let failure = Failure::new(FAILED, output.read());
                self.failure(&failure.with_data(self.data(&printed)))
            }
        }
    }

    fn accepted(&self, job: &Job) -> Reply {
        let id = job.id;
        let poll = format!("/jobs/{id}");
        self.success(&json!({
            "status": "accepted",
            "job_id": id.to_string(),
            "poll": poll,
            "ws": format!("/ws/jobs/{id}"),
            "download": download(id),
            "manifest": format!("/jobs/{id}/manifest"),
            "content": [block(&format!("accepted as job {id}; ask {poll} how it goes"))],
        }))
    }

    fn refusal(&self, error: &CallError) -> Reply {
        let message = wording(error);
        match error {
            CallError::UnknownTool { .. } => self.failure(&Failure::new(INVALID_PARAMS, message)),
            CallError::InvalidInput { problems } => {
                let data = json!({ "problems": problems });
                self.failure(&Failure::new(INVALID_PARAMS, message).with_data(data))
            }
            CallError::Limited { retry_after, .. } => self
                .not_done(error, message, &json!({ "retry_after_ms": retry_after.as_millis() }))
                .with_status(429)
                .with_header("retry-after", seconds(*retry_after)),
            CallError::Conflict { details, .. } => {
                self.not_done(error, message, &json!({ "details": details }))
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
            | CallError::InvalidOutput { .. } => self.not_done(error, message, &json!({})),
        }
    }

    /// Encodes a refusal in the form of a failed program, with its reason and the members of
    /// `more`.
    fn not_done(&self, error: &CallError, message: String, more: &Value) -> Reply {
        let printed = Printed { stderr: message.as_str().into(), ..Printed::default() };
        let mut data = self.data(&printed);
        data["reason"] = json!(error.reason());
        for (name, value) in more.as_object().into_iter().flatten() {
            data[name] = value.clone();
        }
        self.failure(&Failure::new(FAILED, message).with_data(data))
    }

    fn data(&self, printed: &Printed<'_>) -> Value {
        let mut data = json!({
            "exit_code": printed.exit_code,
            "stderr": printed.stderr,
            "stdout": printed.stdout,
        });
        if let Some(Tool { stage, command }) = &self.tool {
            data["stage"] = json!(stage);
            data["command"] = json!(command);
        }
        data
    }

    fn success(&self, result: &impl Serialize) -> Reply {
        Reply::json(success(&self.id, result))
    }

    fn failure(&self, failure: &Failure) -> Reply {
        Reply::json(failure.written(Some(&self.id)))
    }
}

/// Creates a text block for MCP clients.
fn block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}
