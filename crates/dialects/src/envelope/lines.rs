//! Requests of the envelope dialect on lines: JSON-RPC with three methods.

use serde_json::{Map, Value};
use toolgate_contract::{Arguments, Beside, CallError, Reply, Trace};

use super::ask;
use super::asked::{self, Asked, clipped, invalid};
use super::said::Over;
use crate::Reading;
use crate::json::{NotJson, parse};
use crate::rpc::{ID_BYTES_MAX, Id, PARSE_ERROR, is_too_long};

const TRANSPORT: &str = "stdio";

/// Reads line number `count`.
pub(super) fn read(line: &[u8], count: u64) -> Reading {
    let key = count.to_string();
    let refused = |id: Option<Id>, code, why| {
        let over = Over::Line { id, code };
        ask(unread().refused(why), over, Beside::default(), key.clone())
    };
    let mut fields = match parse(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => {
            let why = "a message is one JSON object; there are no batches";
            return refused(None, None, invalid("", why));
        }
        Err(NotJson::Syntax(why)) => {
            return refused(None, Some(PARSE_ERROR), invalid("", &format!("not JSON: {why}")));
        }
        Err(NotJson::Unfit(why)) => return refused(None, None, invalid("", &why)),
    };
    let id = match fields.remove("id") {
        // A notification gets no answer. It is not run, because nobody would see the result.
        None => return Reading::Reply(Reply::empty(204)),
        Some(value) => match Id::read(&value) {
            Some(id) => id,
            None => {
                let why = match is_too_long(&value) {
                    true => format!("it is longer than {ID_BYTES_MAX} bytes"),
                    false => "it must be a string or a number".to_owned(),
                };
                let why = invalid("/id", &why);
                return refused(None, None, why);
            }
        },
    };
    let answers = fields.contains_key("result") || fields.contains_key("error");
    if answers && !fields.contains_key("method") {
        // Answering an answer would never end.
        return Reading::Reply(Reply::empty(204));
    }
    let trace = trace(fields.get("meta"));
    let over = Over::Line { id: Some(id), code: None };
    ask(message(fields), over, Beside { trace, ..Beside::default() }, key)
}

/// Creates the answer to a line that was rejected before it was read.
pub(super) fn turned_away(why: CallError) -> Reading {
    let over = Over::Line { id: None, code: None };
    ask(unread().refused(why), over, Beside::default(), "0".to_owned())
}

/// Creates a request for a line that could not be parsed.
fn unread() -> Asked {
    asked::unknown(TRANSPORT, "rpc", "unknown")
}

/// Converts a JSON-RPC message to a request.
fn message(mut fields: Map<String, Value>) -> Asked {
    if fields.get("jsonrpc").is_none_or(|version| version != "2.0") {
        return unread().refused(invalid("/jsonrpc", "it must be \"2.0\""));
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => return unread().refused(invalid("/method", "it must be a string")),
        None => return unread().refused(invalid("", "`method` is missing")),
    };
    let params = match fields.remove("params") {
        None | Some(Value::Null) => Some(Map::new()),
        Some(Value::Object(params)) => Some(params),
        Some(_) => None,
    };
    let Some(params) = params else {
        let why = invalid("/params", "it must be an object");
        return asked::unknown(TRANSPORT, "rpc", &method).refused(why);
    };
    match method.as_str() {
        "mcp.discover" => asked::discover(TRANSPORT),
        "mcp.prompt.get" => prompt(params),
        "mcp.tool.invoke" => tool(params),
        _ => asked::unknown(TRANSPORT, "rpc", &method),
    }
}

/// Parses a prompt request. The prompt is named by `promptId`, whose version may be in `major`, or
/// by `domain`, `name` and `major`.
fn prompt(params: Map<String, Value>) -> Asked {
    let id = prompt_id(&params);
    let arguments = arguments(&params);
    match (id, arguments) {
        (Ok(id), Ok(arguments)) => asked::prompt(TRANSPORT, &id, arguments),
        (Ok(id), Err(why)) => asked::prompt(TRANSPORT, &id, Arguments::new()).refused(why),
        (Err(why), _) => {
            let mut asked = asked::unknown(TRANSPORT, "prompt", "mcp.prompt.get");
            asked.via.payload = Value::Object(params);
            asked.refused(why)
        }
    }
}

fn prompt_id(params: &Map<String, Value>) -> Result<String, CallError> {
    let text = |name: &str| match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(invalid(&format!("/params/{name}"), "it must be a string")),
    };
    let major = match params.get("major") {
        None | Some(Value::Null) => None,
        Some(Value::String(major)) => Some(major.clone()),
        Some(Value::Number(major)) => Some(major.to_string()),
        Some(_) => return Err(invalid("/params/major", "it must be a whole number")),
    };
    let id = match (text("promptId")?, text("domain")?, text("name")?) {
        (Some(id), None, None) => id.to_owned(),
        (None, Some(domain), Some(name)) => format!("{domain}.{name}"),
        _ => {
            let why = "give `promptId`, or `domain`, `name` and `major`";
            return Err(invalid("/params", why));
        }
    };
    match (id.rsplit_once('@'), major) {
        (None, Some(major)) => Ok(format!("{id}@{major}")),
        (Some((_, said)), Some(major)) if said != major => {
            let why = format!("it is `{}`, and the id says `{}`", clipped(&major), clipped(said));
            Err(invalid("/params/major", &why))
        }
        (Some(_) | None, _) => Ok(id),
    }
}

fn arguments(params: &Map<String, Value>) -> Result<Arguments, CallError> {
    let given = match params.get("arguments") {
        None | Some(Value::Null) => return Ok(Arguments::new()),
        Some(Value::Object(given)) => given,
        Some(_) => return Err(invalid("/params/arguments", "it must be an object")),
    };
    let text = given.iter().map(|(name, value)| match value {
        Value::String(text) => Ok((name.clone(), text.clone())),
        _ => {
            let at = format!("/params/arguments/{}", clipped(name));
            Err(invalid(&at, "it must be a string"))
        }
    });
    text.collect()
}

/// Parses a tool call. The tool is named by `toolId`, or by `tool` as in tool IO.
fn tool(mut params: Map<String, Value>) -> Asked {
    let id = match params.remove("toolId") {
        Some(id) => Some(("toolId", id)),
        None => params.get("tool").map(|id| ("tool", id.clone())),
    };
    let unknown = |params, why| {
        let mut asked = asked::unknown(TRANSPORT, "tool", "mcp.tool.invoke");
        asked.via.payload = Value::Object(params);
        asked.refused(why)
    };
    match id {
        Some((_, Value::String(id))) => asked::tool(TRANSPORT, &id, params),
        Some((name, _)) => {
            unknown(params, invalid(&format!("/params/{name}"), "it must be a string"))
        }
        None => unknown(params, invalid("/params", "`toolId` is missing")),
    }
}

/// Parses the trace context in the `meta` of a message.
fn trace(meta: Option<&Value>) -> Option<Trace> {
    let said = |name| meta.and_then(|meta| meta.get(name)).and_then(Value::as_str);
    Trace::of(said("traceparent")?, said("tracestate"), said("baggage"))
}
