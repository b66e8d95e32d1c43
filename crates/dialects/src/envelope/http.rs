//! Requests of the envelope dialect over HTTP, one path per kind.

use std::collections::BTreeMap;

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use toolgate_contract::{Arguments, Beside, CallError, Head, Trace};

use super::asked::{self, Asked, clipped, invalid};
use super::said::Over;
use super::{ask, health};
use crate::Reading;
use crate::json::{NotJson, parse};

/// Paths of the dialect on a shared listener. A path that ends in `/` includes everything below it.
pub(super) const PATHS: &[&str] =
    &["/mcp/discover", "/mcp/prompt", "/mcp/prompt/", "/mcp/tool", "/mcp/tool/"];
/// The path of the health check.
pub(super) const HEALTH: &str = "/healthz";

const TRANSPORT: &str = "http";
const KEY: &str = "http";

/// The meaning of a path.
enum Place {
    Discover,
    Prompt(String),
    Tool(String),
    Health,
    Nothing,
}

/// Reads an HTTP request.
pub(super) fn read(method: &Method, path: &str, query: &str, head: &Head, body: &[u8]) -> Reading {
    let looks = matches!(*method, Method::GET | Method::HEAD);
    let (asked, allow) = match place(path) {
        Err(why) => (asked::unknown(TRANSPORT, route(path), path).refused(why), None),
        Ok(Place::Health) if looks => return health(),
        Ok(Place::Discover) if looks => (asked::discover(TRANSPORT), None),
        Ok(Place::Prompt(id)) if looks => match arguments(query) {
            Ok(arguments) => (asked::prompt(TRANSPORT, &id, arguments), None),
            Err(why) => (asked::prompt(TRANSPORT, &id, Arguments::new()).refused(why), None),
        },
        Ok(Place::Tool(id)) if *method == Method::POST => (call(&id, body), None),
        Ok(Place::Nothing) => {
            let message = format!(
                "nothing is at `{}`; there is /mcp/discover, /mcp/prompt/ID and /mcp/tool/ID",
                clipped(path)
            );
            let why = CallError::NotFound { message };
            (asked::unknown(TRANSPORT, "http", path).refused(why), None)
        }
        Ok(place) => {
            let right = if matches!(place, Place::Tool(_)) { "POST" } else { "GET" };
            let message = format!("`{}` is asked for with {right}, not {method}", clipped(path));
            (unasked(place, path).refused(CallError::NotFound { message }), Some(right))
        }
    };
    let trace = |name| head.header(name).next().and_then(|value| std::str::from_utf8(value).ok());
    let parent = trace("traceparent");
    let trace = parent.and_then(|it| Trace::of(it, trace("tracestate"), trace("baggage")));
    ask(asked, Over::Http { allow }, Beside { trace, ..Beside::default() }, KEY.to_owned())
}

/// Creates the answer to a request that was rejected before it was read.
pub(super) fn turned_away(_method: &Method, path: &str, why: CallError) -> Reading {
    let asked = match place(path) {
        Ok(place) => unasked(place, path),
        Err(_) => asked::unknown(TRANSPORT, route(path), path),
    };
    ask(asked.refused(why), Over::Http { allow: None }, Beside::default(), KEY.to_owned())
}

/// Creates the request for a path without its body.
fn unasked(place: Place, path: &str) -> Asked {
    match place {
        Place::Discover => asked::discover(TRANSPORT),
        Place::Prompt(id) => asked::prompt(TRANSPORT, &id, Arguments::new()),
        Place::Tool(id) => asked::tool(TRANSPORT, &id, serde_json::Map::new()),
        Place::Health | Place::Nothing => asked::unknown(TRANSPORT, "http", path),
    }
}

fn route(path: &str) -> &'static str {
    if path.starts_with("/mcp/prompt") { "prompt" } else { "tool" }
}

fn place(path: &str) -> Result<Place, CallError> {
    if let Some(id) = beneath(path, "/mcp/tool") {
        return Ok(Place::Tool(decoded(id)?));
    }
    if let Some(id) = beneath(path, "/mcp/prompt") {
        let parts: Vec<&str> = id.split('/').collect();
        return Ok(Place::Prompt(match parts[..] {
            [domain, name, major] => {
                format!("{}.{}@{}", decoded(domain)?, decoded(name)?, decoded(major)?)
            }
            _ => decoded(id)?,
        }));
    }
    Ok(match path {
        "/mcp/discover" => Place::Discover,
        HEALTH => Place::Health,
        _ => Place::Nothing,
    })
}

/// Returns the rest of `path` after `above` and a `/`; an empty string for `above` itself.
fn beneath<'p>(path: &'p str, above: &str) -> Option<&'p str> {
    match path.strip_prefix(above)? {
        "" => Some(""),
        rest => rest.strip_prefix('/'),
    }
}

fn decoded(part: &str) -> Result<String, CallError> {
    let text = percent_decode_str(part).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| invalid("", "the path is not UTF-8"))
}

/// Parses the arguments of a prompt from the query. A repeated name is an error.
fn arguments(query: &str) -> Result<Arguments, CallError> {
    let mut all = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let again = all.insert(name.to_string(), value.to_string());
        if again.is_some() {
            return Err(invalid("/arguments", &format!("`{}` stands twice", clipped(&name))));
        }
    }
    Ok(all)
}

/// Parses a call of the tool `id` from the request body.
fn call(id: &str, body: &[u8]) -> Asked {
    let why = match parse(body) {
        Ok(Value::Object(fields)) => return asked::tool(TRANSPORT, id, fields),
        Ok(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => "the body is one object such as {\"arguments\":{}}".to_owned(),
        Err(NotJson::Syntax(why)) => format!("the body is not JSON: {why}"),
        Err(NotJson::Unfit(why)) => format!("the body is not as it may be: {why}"),
    };
    asked::unread_tool(TRANSPORT, id, invalid("", &why))
}
