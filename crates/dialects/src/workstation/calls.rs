//! JSON-RPC of the workstation contract: parsing of methods, results and errors.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{Answer, Beside, CallError, Ending, Event, Output, Reply, Request};

use super::contracted::{Contracted, named};
use super::words::{
    failure, listed, meant, program_failed, refusal, reworded, summed, text, unspell,
};
use crate::json::parse;
use crate::rpc::{Failure, INTERNAL_ERROR, Id, METHOD_NOT_FOUND, no_id, success, written};
use crate::{Accepts, Ask, Asking, Facts, Key, OnLeave, Reading, Ticket};

/// The MCP revisions that a client may choose, newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The contract's time limit of a call.
const CALL_MAX: Duration = Duration::from_secs(30);

/// The most characters of an unknown tool name that an error repeats.
const NAME_CHARS_MAX: usize = 100;

/// The form of `content` in a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// A string, as in the contract.
    Literal,
    /// A list of blocks, for MCP clients.
    Blocks,
}

/// Reads one message. MCP's `initialize` opens a session, and errors use the contract's messages.
pub(crate) fn read_message(facts: &Facts, shown: Shown, body: &[u8]) -> Reading {
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
        None => None,
        Some(value) => match Id::read(value) {
            Some(id) => Some(id),
            None => {
                let why = no_id("id", value, "a string or a number");
                return failed(None, &Failure::invalid_request(why));
            }
        },
    };
    read_fields(facts, shown, id.as_ref(), fields)
        .unwrap_or_else(|failure| failed(id.as_ref(), &failure))
}

fn failed(id: Option<&Id>, failure: &Failure) -> Reading {
    Reading::Reply(Reply::json(reworded(failure).written(id)))
}

fn read_fields(
    facts: &Facts,
    shown: Shown,
    id: Option<&Id>,
    mut fields: Map<String, Value>,
) -> Result<Reading, Failure> {
    // This comes before all checks, because answering an answer would never end.
    let answers = fields.contains_key("result") || fields.contains_key("error");
    if answers && !fields.contains_key("method") {
        return Ok(Reading::Reply(Reply::empty(202)));
    }
    if fields.get("jsonrpc").is_none_or(|version| version != "2.0") {
        return Err(Failure::invalid_request("`jsonrpc` must be \"2.0\""));
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => return Err(Failure::invalid_request("`method` must be a string")),
        None => return Err(Failure::invalid_request("`method` is missing")),
    };
    let params = match fields.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        // A notification is never answered, even if it is malformed.
        Some(_) if id.is_none() => Map::new(),
        Some(_) => return Err(Failure::invalid_params("`params` must be an object")),
    };
    match id {
        Some(id) => read_request(facts, shown, id, &method, params),
        None => Ok(read_notification(&method, &params)),
    }
}

/// Reads a notification. A request without an id is not run, because nobody would see the result.
fn read_notification(method: &str, params: &Map<String, Value>) -> Reading {
    let reply = Reply::empty(202);
    let key = params.get("requestId").and_then(Id::read).map(|id| id.key());
    match (method, key) {
        ("notifications/cancelled", Some(key)) => Reading::Cancel { key, reply },
        _ => Reading::Reply(reply),
    }
}

fn read_request(
    facts: &Facts,
    shown: Shown,
    id: &Id,
    method: &str,
    params: Map<String, Value>,
) -> Result<Reading, Failure> {
    match method {
        "initialize" => initialize(facts, id, &params),
        "ping" => Ok(Reading::Reply(Reply::json(success(id, &json!({}))))),
        "tools/list" => {
            // The list has one page.
            let params =
                params.into_iter().filter(|(name, value)| name != "cursor" || !value.is_null());
            only(&params.collect(), &["_meta"])?;
            let ticket = CallTicket { id: id.clone(), shown, name: String::new(), own: None };
            Ok(ask(Request::Discover, ticket, None))
        }
        "tools/call" => read_call(shown, id, params),
        _ => {
            let method: String = method.chars().take(100).collect();
            let why = format!(
                "no method is named `{method}` here; there are initialize, ping, tools/list and \
                 tools/call"
            );
            Err(Failure::new(METHOD_NOT_FOUND, why))
        }
    }
}

fn initialize(facts: &Facts, id: &Id, params: &Map<String, Value>) -> Result<Reading, Failure> {
    let wanted = match params.get("protocolVersion") {
        None => None,
        Some(Value::String(revision)) => Some(revision.as_str()),
        Some(_) => {
            return Err(Failure::invalid_params("`params.protocolVersion` must be a string"));
        }
    };
    let known = REVISIONS.into_iter().find(|revision| Some(*revision) == wanted);
    let result = json!({
        "protocolVersion": known.unwrap_or(REVISIONS[0]),
        "capabilities": { "tools": {} },
        "serverInfo": { "name": facts.name, "version": facts.version },
    });
    Ok(Reading::Opened(Reply::json(success(id, &result))))
}

fn read_call(shown: Shown, id: &Id, mut params: Map<String, Value>) -> Result<Reading, Failure> {
    only(&params, &["name", "arguments", "_meta"])?;
    let name = match params.remove("name") {
        Some(Value::String(name)) => name,
        Some(_) => return Err(Failure::invalid_params("`params.name` must be a string")),
        None => return Err(Failure::invalid_params("`params.name` is missing: the tool to call")),
    };
    let arguments = match params.remove("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(Failure::invalid_params("`params.arguments` must be an object")),
    };
    let (own, request) = match named(&name) {
        Some(own) => match own.input(&arguments) {
            Ok(input) => (Some(own), Request::CallTool { tool: own.tool.to_owned(), input }),
            Err(problems) => {
                let why = CallError::InvalidInput { problems };
                (None, Request::RefuseCall { tool: own.tool.to_owned(), why })
            }
        },
        None => match unspell(&name) {
            Some(tool) => (None, Request::CallTool { tool, input: Value::Object(arguments) }),
            None => {
                let name: String = name.chars().take(NAME_CHARS_MAX).collect();
                let why = CallError::UnknownTool { name: name.clone(), nearest: meant(&name) };
                (None, Request::RefuseCall { tool: name, why })
            }
        },
    };
    Ok(ask(request, CallTicket { id: id.clone(), shown, name, own }, Some(CALL_MAX)))
}

/// Checks that `params` has no members but `known`.
fn only(params: &Map<String, Value>, known: &[&str]) -> Result<(), Failure> {
    match params.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let name: String = name.chars().take(100).collect();
            Err(Failure::invalid_params(format!("`params.{name}` is not known here; leave it out")))
        }
    }
}

fn ask(request: Request, ticket: CallTicket, within: Option<Duration>) -> Reading {
    Reading::Ask(Ask {
        key: ticket.id.key(),
        request,
        ticket: Arc::new(ticket),
        on_leave: OnLeave::Cancels,
        events: Accepts::Message,
        asking: Asking::Nobody,
        beside: Beside::default(),
        within,
        via: None,
    })
}

/// Creates the request for the short tool list.
pub(crate) fn ask_summary() -> Reading {
    Reading::Ask(Ask {
        // The request is alone in its conversation, so any key is unique.
        key: Key("tools".to_owned()),
        request: Request::Discover,
        ticket: Arc::new(SummaryTicket),
        on_leave: OnLeave::Cancels,
        events: Accepts::Message,
        asking: Asking::Nobody,
        beside: Beside::default(),
        within: None,
        via: None,
    })
}

/// The data needed to answer one request.
struct CallTicket {
    id: Id,
    shown: Shown,
    /// The called tool's name as the client sent it.
    name: String,
    /// The contract's tool, if the call uses its name and parameters.
    own: Option<&'static Contracted>,
}

impl Ticket for CallTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        Some(match outcome {
            Ok(Answer::Everything { tools, .. }) => {
                self.success(&json!({ "tools": listed(&tools) }))
            }
            Ok(Answer::Output(output)) => self.output(&output),
            Err(error) => self.refusal(error),
            Ok(_) => self.failure(&failure(INTERNAL_ERROR, "failed", "that was not asked for")),
        })
    }

    fn event(&self, _event: &Event) -> Option<Bytes> {
        None
    }

    fn listens(&self) -> bool {
        false
    }
}

impl CallTicket {
    fn output(&self, output: &Output) -> Reply {
        let text = match self.own {
            Some(own) if own.tells(output.ending) => own.text(output),
            None if output.ending == Ending::Done => Ok(text(output)),
            Some(_) | None => return self.failure(&program_failed(&self.name, output)),
        };
        match (text, self.shown) {
            (Ok(text), Shown::Literal) => self.success(&json!({ "content": text })),
            (Ok(text), Shown::Blocks) => {
                self.success(&json!({ "content": [{ "type": "text", "text": text }] }))
            }
            (Err(error), _) => self.refusal(error),
        }
    }

    fn refusal(&self, error: CallError) -> Reply {
        let error = match self.own {
            Some(own) => own.blamed(error),
            None => error,
        };
        let reply = self.failure(&refusal(&self.name, &error));
        if let CallError::Limited { retry_after, .. } = &error {
            return reply.with_header("retry-after", seconds(*retry_after));
        }
        reply
    }

    fn success(&self, result: &impl Serialize) -> Reply {
        Reply::json(success(&self.id, result))
    }

    fn failure(&self, failure: &Failure) -> Reply {
        Reply::json(failure.written(Some(&self.id)))
    }
}

/// Returns a wait in whole seconds, rounded up, at least 1.
pub(crate) fn seconds(wait: Duration) -> String {
    wait.as_millis().div_ceil(1000).max(1).to_string()
}

/// The encoder for the short tool list.
struct SummaryTicket;

impl Ticket for SummaryTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        Some(match outcome {
            Ok(Answer::Everything { tools, .. }) => {
                Reply::json(written(&json!({ "tools": summed(&tools) })))
            }
            Ok(_) => {
                Reply::json(written(&json!({ "error": "that was not asked for" }))).with_status(500)
            }
            Err(error) => {
                Reply::json(written(&json!({ "error": error.to_string() }))).with_status(503)
            }
        })
    }

    fn event(&self, _event: &Event) -> Option<Bytes> {
        None
    }

    fn listens(&self) -> bool {
        false
    }
}
