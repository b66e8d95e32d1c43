//! Parsing of MCP requests into host requests and call metadata.

use serde_json::{Value, json};
use toolgate_contract::{Beside, Head, Level, Request, ToolId, Trace};

use super::library::{self, Want};
use super::message::{Failure, Id, not_a};
use super::revision::{Era, Revision};
use super::tasks::{self, About};
use super::ticket::Asked;
use super::{cursor, headers};
use crate::json::Params;
use crate::{Accepts, Facts};

/// Returns the request kind of `method`, if the revision and the server support it.
pub(crate) fn asked(method: &str, revision: &Revision, facts: &Facts) -> Option<Asked> {
    match method {
        "tools/list" => Some(Asked::Tools),
        "tools/call" => Some(Asked::Call),
        _ => {
            let about = About::named(method, revision).map(Asked::About);
            let library = || Want::named(method, revision, facts);
            about.or_else(|| library().map(|want| Asked::Library { want, uri: None }))
        }
    }
}

/// Parses the parameters into a host request. Also returns the request kind, completed from them.
pub(crate) fn read(
    id: &Id,
    asked: Asked,
    revision: &Revision,
    params: &mut Params,
) -> Result<(Asked, Request), Failure> {
    Ok(match asked {
        Asked::Tools => {
            let after = cursor::after(id, params, "tool", ToolId::foreign)?;
            (asked, Request::ListTools { after })
        }
        Asked::Call | Asked::Task => read_call(id, revision, params)?,
        Asked::About(about) => (asked, about.read(revision, id, params)?),
        Asked::Library { want, .. } => {
            let request = want.read(id, params)?;
            let uri = library::named(&request).map(str::to_owned);
            (Asked::Library { want, uri }, request)
        }
    })
}

/// Parses a tool call, which may be one that becomes a task.
fn read_call(
    id: &Id,
    revision: &Revision,
    params: &mut Params,
) -> Result<(Asked, Request), Failure> {
    let tool = match params.remove("name") {
        Some(Value::String(tool)) => tool,
        other => return Err(not_a("a string", id, "params.name", other.as_ref())),
    };
    let input = match params.remove("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(input @ Value::Object(_)) => input,
        Some(_) => {
            let why = "`params.arguments` must be an object";
            return Err(Failure::invalid_params(Some(id.clone()), why));
        }
    };
    Ok(match tasks::terms(revision, id, params)? {
        None => (Asked::Call, Request::CallTool { tool, input }),
        Some(terms) => (Asked::Task, Request::StartJob { tool, input, terms }),
    })
}

/// Returns true if the request may lead to questions to the client.
pub(crate) fn asks(asked: &Asked, era: Era) -> bool {
    match (asked, era) {
        (Asked::Call | Asked::Task, _)
        | (Asked::Library { want: Want::Contents | Want::Prompt, .. }, _)
        | (Asked::About(About::Result), Era::Session) => true,
        (Asked::Tools | Asked::About(_) | Asked::Library { .. }, _) => false,
    }
}

/// Collects the metadata of a request: repeated arguments and trace context.
pub(crate) fn beside(head: &Head, asked: &Asked, revision: &Revision, params: &Params) -> Beside {
    let mirrored = match (asked, revision.era) {
        (Asked::Call | Asked::Task, Era::Stateless) => headers::mirrored(head),
        (Asked::Call | Asked::Task, Era::Session)
        | (Asked::Tools | Asked::About(_) | Asked::Library { .. }, _) => None,
    };
    let meta = |name| params.get("_meta").and_then(|meta| meta.get(name)).and_then(Value::as_str);
    let trace = meta("traceparent")
        .and_then(|parent| Trace::of(parent, meta("tracestate"), meta("baggage")));
    Beside { mirrored, trace, ..Beside::default() }
}

pub(crate) fn read_level(id: &Id, level: &Value) -> Result<Level, Failure> {
    serde_json::from_value(level.clone()).map_err(|_| {
        Failure::invalid_params(
            Some(id.clone()),
            format!(
                "{level} is no log level; one of debug, info, notice, warning, error, critical, \
                 alert, emergency"
            ),
        )
    })
}

/// Returns true if `range`, an entry of `Accept`, names event streams with a nonzero weight.
fn is_stream(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let none = |weight: &str| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0);
    kind == "text/event-stream" && !parts.any(|part| part.strip_prefix("q=").is_some_and(none))
}

/// Returns the forms of answer that the client accepts. A client on lines reads streams. An HTTP
/// client does if its `Accept` names them, and can resume them if the revision supports it.
pub(crate) fn accepts(head: &Head, revision: &Revision) -> Accepts {
    let takes = |value: &[u8]| {
        let text = String::from_utf8_lossy(value).to_ascii_lowercase();
        text.split(',').any(is_stream)
    };
    match (head, revision.era) {
        (Head::Line, _) => Accepts::Stream,
        (Head::Http { .. }, era) if head.header("accept").any(takes) => match era {
            Era::Session if revision.resumes => Accepts::Resumable,
            Era::Session | Era::Stateless => Accepts::Stream,
        },
        (Head::Http { .. }, _) => Accepts::Message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_wanted_where_it_is_named_and_not_weighed_with_nothing() {
        for (range, wanted) in [
            ("text/event-stream", true),
            (" text/event-stream ;q=0.5", true),
            ("text/event-stream;charset=utf-8; q=1", true),
            ("text/event-stream;q=0", false),
            ("text/event-stream; q=0.000", false),
            ("text/event-stream-ish", false),
            ("*/*", false),
        ] {
            assert_eq!(is_stream(range.trim()), wanted, "{range}");
        }
    }
}
