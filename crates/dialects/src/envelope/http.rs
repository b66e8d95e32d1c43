//! Requests of the envelope dialect over HTTP, with one path for each kind of request.

use std::collections::BTreeMap;

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use toolgate_contract::{CallError, CallMetadata, FrameMetadata, PromptArguments, TraceContext};

use super::answers::EnvelopeTransport;
use super::requests::{self, EnvelopeRequest, clip_name, invalid_input};
use super::{health_reading, request_reading};
use crate::ParsedFrame;
use crate::json::{JsonError, parse};

/// Paths of the envelope dialect on a listener that all dialects share. A path that ends in `/`
/// includes everything below it.
pub(super) const PATHS: &[&str] =
    &["/mcp/discover", "/mcp/prompt", "/mcp/prompt/", "/mcp/tool", "/mcp/tool/"];
/// The HTTP path of the health check.
pub(super) const HEALTH: &str = "/healthz";

const TRANSPORT: &str = "http";
const KEY: &str = "http";

/// The endpoint that a path of the envelope dialect names.
enum EnvelopeRoute {
    Discover,
    Prompt(String),
    Tool(String),
    Health,
    Unknown,
}

/// Reads an HTTP request of the envelope dialect.
pub(super) fn read(
    method: &Method,
    path: &str,
    query: &str,
    head: &FrameMetadata,
    body: &[u8],
) -> ParsedFrame {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    let (request, allow) = match parse_path(path) {
        Err(why) => (requests::unknown(TRANSPORT, route(path), path).into_refusal(why), None),
        Ok(EnvelopeRoute::Health) if is_read => return health_reading(),
        Ok(EnvelopeRoute::Discover) if is_read => (requests::discover(TRANSPORT), None),
        Ok(EnvelopeRoute::Prompt(id)) if is_read => match parse_arguments(query) {
            Ok(arguments) => (requests::prompt(TRANSPORT, &id, arguments), None),
            Err(why) => {
                (requests::prompt(TRANSPORT, &id, PromptArguments::new()).into_refusal(why), None)
            }
        },
        Ok(EnvelopeRoute::Tool(id)) if *method == Method::POST => (parse_call(&id, body), None),
        Ok(EnvelopeRoute::Unknown) => {
            let message = format!(
                "unknown path `{}`; paths are /mcp/discover, /mcp/prompt/ID and /mcp/tool/ID",
                clip_name(path)
            );
            let why = CallError::NotFound { message };
            (requests::unknown(TRANSPORT, "http", path).into_refusal(why), None)
        }
        Ok(endpoint) => {
            let allowed = if matches!(endpoint, EnvelopeRoute::Tool(_)) { "POST" } else { "GET" };
            let message = format!("`{}` requires {allowed}, not {method}", clip_name(path));
            (
                request_for_path(endpoint, path).into_refusal(CallError::NotFound { message }),
                Some(allowed),
            )
        }
    };
    let trace = |name| head.header(name).next().and_then(|value| std::str::from_utf8(value).ok());
    let parent = trace("traceparent");
    let trace =
        parent.and_then(|it| TraceContext::parse(it, trace("tracestate"), trace("baggage")));
    request_reading(
        request,
        EnvelopeTransport::Http { allow },
        CallMetadata { trace, ..CallMetadata::default() },
        KEY.to_owned(),
    )
}

/// Creates the answer to an HTTP request that the server rejected without reading it.
pub(super) fn read_rejected(_method: &Method, path: &str, why: CallError) -> ParsedFrame {
    let request = match parse_path(path) {
        Ok(endpoint) => request_for_path(endpoint, path),
        Err(_) => requests::unknown(TRANSPORT, route(path), path),
    };
    request_reading(
        request.into_refusal(why),
        EnvelopeTransport::Http { allow: None },
        CallMetadata::default(),
        KEY.to_owned(),
    )
}

/// Creates the request for the envelope dialect's path `endpoint`, without the body.
fn request_for_path(endpoint: EnvelopeRoute, path: &str) -> EnvelopeRequest {
    match endpoint {
        EnvelopeRoute::Discover => requests::discover(TRANSPORT),
        EnvelopeRoute::Prompt(id) => requests::prompt(TRANSPORT, &id, PromptArguments::new()),
        EnvelopeRoute::Tool(id) => requests::tool(TRANSPORT, &id, serde_json::Map::new()),
        EnvelopeRoute::Health | EnvelopeRoute::Unknown => {
            requests::unknown(TRANSPORT, "http", path)
        }
    }
}

fn route(path: &str) -> &'static str {
    if path.starts_with("/mcp/prompt") { "prompt" } else { "tool" }
}

fn parse_path(path: &str) -> Result<EnvelopeRoute, CallError> {
    if let Some(id) = strip_path_prefix(path, "/mcp/tool") {
        return Ok(EnvelopeRoute::Tool(decode_part(id)?));
    }
    if let Some(id) = strip_path_prefix(path, "/mcp/prompt") {
        let parts: Vec<&str> = id.split('/').collect();
        return Ok(EnvelopeRoute::Prompt(match parts[..] {
            [domain, name, major] => {
                format!("{}.{}@{}", decode_part(domain)?, decode_part(name)?, decode_part(major)?)
            }
            _ => decode_part(id)?,
        }));
    }
    Ok(match path {
        "/mcp/discover" => EnvelopeRoute::Discover,
        HEALTH => EnvelopeRoute::Health,
        _ => EnvelopeRoute::Unknown,
    })
}

/// Returns the rest of `path` after the prefix `above` and a `/`. Returns an empty string if `path`
/// is `above` itself, and `None` if `path` has another prefix.
fn strip_path_prefix<'p>(path: &'p str, above: &str) -> Option<&'p str> {
    match path.strip_prefix(above)? {
        "" => Some(""),
        rest => rest.strip_prefix('/'),
    }
}

fn decode_part(part: &str) -> Result<String, CallError> {
    let text = percent_decode_str(part).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| invalid_input("", "the path is not UTF-8"))
}

/// Parses the arguments of a prompt from the URL's `query`. A repeated name is an error.
fn parse_arguments(query: &str) -> Result<PromptArguments, CallError> {
    let mut all = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let again = all.insert(name.to_string(), value.to_string());
        if again.is_some() {
            return Err(invalid_input(
                "/arguments",
                &format!("`{}` is repeated", clip_name(&name)),
            ));
        }
    }
    Ok(all)
}

/// Parses a call of the tool `id` from the body of an HTTP request.
fn parse_call(id: &str, body: &[u8]) -> EnvelopeRequest {
    let why = match parse(body) {
        Ok(Value::Object(fields)) => return requests::tool(TRANSPORT, id, fields),
        Ok(_) => "the body must be one object such as {\"arguments\":{}}".to_owned(),
        Err(JsonError::Syntax(why)) => format!("the body is not JSON: {why}"),
        Err(JsonError::Invalid(why)) => format!("the body is invalid: {why}"),
    };
    requests::unreadable_tool(TRANSPORT, id, invalid_input("", &why))
}
