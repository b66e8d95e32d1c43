//! Requests of the envelope dialect on lines: JSON-RPC with three methods.

use serde_json::{Map, Value};
use toolgate_contract::{CallError, CallMetadata, PromptArguments, Reply, TraceContext};

use super::answers::EnvelopeTransport;
use super::request_reading;
use super::requests::{self, EnvelopeRequest, clip_name, invalid_input};
use crate::ParsedFrame;
use crate::json::{JsonError, parse};
use crate::rpc::{ID_BYTES_MAX, PARSE_ERROR, RequestId, is_id_too_long};

const TRANSPORT: &str = "stdio";

/// Reads `line`, the client's line with the number `count`.
pub(super) fn read(line: &[u8], count: u64) -> ParsedFrame {
    let key = count.to_string();
    let refused = |id: Option<RequestId>, code, why| {
        let transport = EnvelopeTransport::Line { id, code };
        request_reading(
            unknown_line().into_refusal(why),
            transport,
            CallMetadata::default(),
            key.clone(),
        )
    };
    let mut fields = match parse(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => {
            let why = "a message must be one JSON object; batches are not supported";
            return refused(None, None, invalid_input("", why));
        }
        Err(JsonError::Syntax(why)) => {
            return refused(
                None,
                Some(PARSE_ERROR),
                invalid_input("", &format!("not JSON: {why}")),
            );
        }
        Err(JsonError::Invalid(why)) => return refused(None, None, invalid_input("", &why)),
    };
    let id = match fields.remove("id") {
        // A notification gets no answer. It is not run, because nobody would see the result.
        None => return ParsedFrame::Reply(Reply::empty(204)),
        Some(value) => match RequestId::parse(&value) {
            Some(id) => id,
            None => {
                let why = match is_id_too_long(&value) {
                    true => format!("it is longer than {ID_BYTES_MAX} bytes"),
                    false => "it must be a string or a number".to_owned(),
                };
                let why = invalid_input("/id", &why);
                return refused(None, None, why);
            }
        },
    };
    let is_answer = fields.contains_key("result") || fields.contains_key("error");
    if is_answer && !fields.contains_key("method") {
        // Answering an answer would never end.
        return ParsedFrame::Reply(Reply::empty(204));
    }
    let trace = parse_trace(fields.get("meta"));
    let transport = EnvelopeTransport::Line { id: Some(id), code: None };
    request_reading(
        parse_message(fields),
        transport,
        CallMetadata { trace, ..CallMetadata::default() },
        key,
    )
}

/// Creates the answer to a client's line that the server rejected without reading it.
pub(super) fn read_rejected(why: CallError) -> ParsedFrame {
    let transport = EnvelopeTransport::Line { id: None, code: None };
    request_reading(
        unknown_line().into_refusal(why),
        transport,
        CallMetadata::default(),
        "0".to_owned(),
    )
}

/// Creates the request for a line that could not be parsed. The host refuses this request.
fn unknown_line() -> EnvelopeRequest {
    requests::unknown(TRANSPORT, "rpc", "unknown")
}

/// Converts a JSON-RPC message to a request of the envelope dialect.
fn parse_message(mut fields: Map<String, Value>) -> EnvelopeRequest {
    if fields.get("jsonrpc").is_none_or(|version| version != "2.0") {
        return unknown_line().into_refusal(invalid_input("/jsonrpc", "it must be \"2.0\""));
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => {
            return unknown_line().into_refusal(invalid_input("/method", "it must be a string"));
        }
        None => return unknown_line().into_refusal(invalid_input("", "`method` is missing")),
    };
    let params = match fields.remove("params") {
        None | Some(Value::Null) => Some(Map::new()),
        Some(Value::Object(params)) => Some(params),
        Some(_) => None,
    };
    let Some(params) = params else {
        let why = invalid_input("/params", "it must be an object");
        return requests::unknown(TRANSPORT, "rpc", &method).into_refusal(why);
    };
    match method.as_str() {
        "mcp.discover" => requests::discover(TRANSPORT),
        "mcp.prompt.get" => parse_prompt(params),
        "mcp.tool.invoke" => parse_tool(params),
        _ => requests::unknown(TRANSPORT, "rpc", &method),
    }
}

/// Parses the parameters of a prompt request. Either `promptId` with an optional `major` version,
/// or `domain`, `name` and `major`, identify the prompt.
fn parse_prompt(params: Map<String, Value>) -> EnvelopeRequest {
    let id = parse_prompt_id(&params);
    let arguments = parse_arguments(&params);
    match (id, arguments) {
        (Ok(id), Ok(arguments)) => requests::prompt(TRANSPORT, &id, arguments),
        (Ok(id), Err(why)) => {
            requests::prompt(TRANSPORT, &id, PromptArguments::new()).into_refusal(why)
        }
        (Err(why), _) => {
            let mut request = requests::unknown(TRANSPORT, "prompt", "mcp.prompt.get");
            request.origin.payload = Value::Object(params);
            request.into_refusal(why)
        }
    }
}

fn parse_prompt_id(params: &Map<String, Value>) -> Result<String, CallError> {
    let text = |name: &str| match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(invalid_input(&format!("/params/{name}"), "it must be a string")),
    };
    let major = match params.get("major") {
        None | Some(Value::Null) => None,
        Some(Value::String(major)) => Some(major.clone()),
        Some(Value::Number(major)) => Some(major.to_string()),
        Some(_) => return Err(invalid_input("/params/major", "it must be a whole number")),
    };
    let id = match (text("promptId")?, text("domain")?, text("name")?) {
        (Some(id), None, None) => id.to_owned(),
        (None, Some(domain), Some(name)) => format!("{domain}.{name}"),
        _ => {
            let why = "give `promptId`, or `domain`, `name` and `major`";
            return Err(invalid_input("/params", why));
        }
    };
    match (id.rsplit_once('@'), major) {
        (None, Some(major)) => Ok(format!("{id}@{major}")),
        (Some((_, version)), Some(major)) if version != major => {
            let why = format!(
                "it is `{}`, but `promptId` has version `{}`",
                clip_name(&major),
                clip_name(version)
            );
            Err(invalid_input("/params/major", &why))
        }
        (Some(_) | None, _) => Ok(id),
    }
}

fn parse_arguments(params: &Map<String, Value>) -> Result<PromptArguments, CallError> {
    let arguments = match params.get("arguments") {
        None | Some(Value::Null) => return Ok(PromptArguments::new()),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(invalid_input("/params/arguments", "it must be an object")),
    };
    let text = arguments.iter().map(|(name, value)| match value {
        Value::String(text) => Ok((name.clone(), text.clone())),
        _ => {
            let at = format!("/params/arguments/{}", clip_name(name));
            Err(invalid_input(&at, "it must be a string"))
        }
    });
    text.collect()
}

/// Parses the parameters of a tool call. The member `toolId` or `tool` names the called tool.
fn parse_tool(mut params: Map<String, Value>) -> EnvelopeRequest {
    let id = match params.remove("toolId") {
        Some(id) => Some(("toolId", id)),
        None => params.get("tool").map(|id| ("tool", id.clone())),
    };
    let unknown = |params, why| {
        let mut request = requests::unknown(TRANSPORT, "tool", "mcp.tool.invoke");
        request.origin.payload = Value::Object(params);
        request.into_refusal(why)
    };
    match id {
        Some((_, Value::String(id))) => requests::tool(TRANSPORT, &id, params),
        Some((name, _)) => {
            unknown(params, invalid_input(&format!("/params/{name}"), "it must be a string"))
        }
        None => unknown(params, invalid_input("/params", "`toolId` is missing")),
    }
}

/// Parses the trace context in the `meta` of a message.
fn parse_trace(meta: Option<&Value>) -> Option<TraceContext> {
    let member = |name| meta.and_then(|meta| meta.get(name)).and_then(Value::as_str);
    TraceContext::parse(member("traceparent")?, member("tracestate"), member("baggage"))
}
