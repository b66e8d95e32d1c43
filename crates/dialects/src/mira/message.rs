//! Parsing of Mira requests, and serialization of results.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolgate_contract::{Beside, CallError, Reply, Request};

use super::calls::{Called, input};
use super::listing::{Listing, Wanted};
use super::methods::{Contracted, Method};
use super::refusals::{Code, Refusal};
use super::schemas;
use super::ticket::{Asked, CallTicket};
use crate::json::{NotJson, parse};
use crate::rpc::{ID_BYTES_MAX, is_too_long, no_id, written};
use crate::{Accepts, Ask, Asking, Facts, Key, OnLeave, Reading};

/// The connection on which a message arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Over {
    /// A connection on which the server can send at any time.
    Line,
    /// An HTTP request with one answer.
    Http {
        /// The URL under which the client reached the server.
        endpoint: Option<String>,
    },
}

/// A request id in its original spelling, so that numbers keep their digits.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(super) struct Id(Arc<RawValue>);

impl Id {
    /// Parses the id `value` of the message `body`; `None` if it is invalid or too long.
    fn read(value: &Value, body: &[u8]) -> Option<Self> {
        if is_too_long(value) {
            return None;
        }
        let text = match value {
            Value::String(_) => value.to_string(),
            Value::Number(number) if !number.is_f64() => number.to_string(),
            // The parsed number may have lost digits.
            Value::Number(_) => raw_id(body)?,
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
        };
        let text = Some(text).filter(|text| text.len() <= ID_BYTES_MAX)?;
        RawValue::from_string(text).ok().map(|raw| Self(raw.into()))
    }

    /// Returns the id as JSON, which distinguishes `1` from `"1"`.
    fn key(&self) -> Key {
        Key(self.0.get().to_owned())
    }
}

fn raw_id(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Message<'b> {
        #[serde(borrow)]
        id: &'b RawValue,
    }
    serde_json::from_slice::<Message<'_>>(body).ok().map(|message| message.id.get().to_owned())
}

/// Parses only the id of a message.
pub(super) fn id_of(body: &[u8]) -> Option<Id> {
    let message = parse(body).ok()?;
    Id::read(message.get("id")?, body)
}

/// Reads one message.
pub(super) fn read_message(facts: &Arc<Facts>, over: &Over, body: &[u8]) -> Reading {
    let refused = |id: Option<&Id>, refusal: Refusal| Reading::Reply(refusal.reply(id));
    let fields = match parse(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => {
            let why = "a message is one JSON object; there are no batches";
            return refused(None, Refusal::new(Code::InvalidRequest, why));
        }
        Err(NotJson::Syntax(why)) => {
            return refused(None, Refusal::new(Code::ParseError, format!("not JSON: {why}")));
        }
        Err(NotJson::Unfit(why)) => {
            return refused(None, Refusal::new(Code::InvalidRequest, why));
        }
    };
    let id = match fields.get("id") {
        None => None,
        Some(value) => match Id::read(value, body) {
            Some(id) => Some(id),
            None => {
                let why = no_id("id", value, "a string or a number");
                return refused(None, Refusal::new(Code::InvalidRequest, why));
            }
        },
    };
    let reading = read_fields(facts, over, id.as_ref(), fields);
    reading.unwrap_or_else(|refusal| refused(id.as_ref(), refusal))
}

fn read_fields(
    facts: &Arc<Facts>,
    over: &Over,
    id: Option<&Id>,
    mut fields: Map<String, Value>,
) -> Result<Reading, Refusal> {
    // This comes before all checks, because answering an answer would never end.
    let answers = fields.contains_key("result") || fields.contains_key("error");
    if answers && !fields.contains_key("method") {
        return Ok(Reading::Reply(Reply::empty(204)));
    }
    let unfit = |why: &str| Refusal::new(Code::InvalidRequest, why);
    match fields.get("jsonrpc") {
        Some(version) if version == "2.0" => {}
        Some(_) => return Err(unfit("`jsonrpc` must be \"2.0\"")),
        None => return Err(unfit("`jsonrpc` is missing; it is \"2.0\"")),
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => return Err(unfit("`method` must be a string")),
        None => return Err(unfit("`method` is missing")),
    };
    // A notification is not run, because nobody would see the result.
    let Some(id) = id else { return Ok(Reading::Reply(Reply::empty(204))) };
    let Some(method) = Method::read(&method) else { return Err(Refusal::unknown_method(&method)) };
    let params = match fields.remove("params") {
        None => Value::Object(Map::new()),
        Some(params @ Value::Object(_)) => params,
        Some(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => {
            let why = "it must be an object";
            return Err(Refusal::new(Code::InvalidParams, why).about("params"));
        }
    };
    let (request, asked) = wanted(facts, over, method, params)?;
    Ok(ask(over, CallTicket::new(id.clone(), asked), request))
}

/// Converts `method` with `params` to a host request.
fn wanted(
    facts: &Arc<Facts>,
    over: &Over,
    method: Method,
    params: Value,
) -> Result<(Request, Asked), Refusal> {
    let unfit = |schema: &schemas::Schema| match schema.problems(&params) {
        problems if problems.is_empty() => None,
        problems => Some(CallError::InvalidInput { problems }),
    };
    Ok(match method {
        Method::List => match unfit(&schemas::LIST.params) {
            Some(why) => return Err(Refusal::of(&why, &Asked::Misshapen)),
            None => {
                let wanted = Wanted::read(&params)?;
                let after = wanted.after.clone();
                let listing = Listing { wanted, over: over.clone(), facts: facts.clone() };
                (Request::ListTools { after }, Asked::List(Box::new(listing)))
            }
        },
        Method::Contracted(method) => match unfit(&method.schemas().params) {
            // The host refuses the call, so that it leaves an audit record.
            Some(why) => {
                let tool = method.tool().to_owned();
                (Request::RefuseCall { tool, why }, Asked::Misshapen)
            }
            None => {
                let (input, called) = input(method, params);
                let tool = method.tool().to_owned();
                (Request::CallTool { tool, input }, Asked::Contracted(called))
            }
        },
        Method::Tool { name, tool } => {
            (Request::CallTool { tool, input: params }, Asked::Tool { name })
        }
    })
}

fn ask(over: &Over, ticket: CallTicket, request: Request) -> Reading {
    let within = match &ticket.asked {
        Asked::Contracted(Called::Read(_) | Called::Write(_) | Called::Search) => {
            Some(Contracted::PATIENCE)
        }
        Asked::Contracted(Called::Run { .. })
        | Asked::List(_)
        | Asked::Tool { .. }
        | Asked::Misshapen => None,
    };
    let events = match over {
        Over::Line => Accepts::Stream,
        Over::Http { .. } => Accepts::Message,
    };
    let ticket = match events {
        Accepts::Message => ticket.without_chunks(),
        Accepts::Stream | Accepts::Resumable => ticket,
    };
    Reading::Ask(Ask {
        key: ticket.id.key(),
        request,
        ticket: Arc::new(ticket),
        on_leave: OnLeave::Cancels,
        events,
        asking: Asking::Nobody,
        beside: Beside::default(),
        within,
        via: None,
    })
}

/// Serializes a result.
pub(super) fn success(id: &Id, result: &Value) -> Bytes {
    #[derive(Serialize)]
    struct Message<'a> {
        jsonrpc: &'static str,
        id: &'a Id,
        result: &'a Value,
    }
    written(&Message { jsonrpc: "2.0", id, result })
}
