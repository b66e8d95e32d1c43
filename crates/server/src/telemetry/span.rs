//! A call as a span: named by the conventions of the field, spelled as OTLP has it in JSON.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use toolgate_contract::Trace;
use toolgate_host::{Begins, Called, Ends};

/// A span of a server, in OTLP's words.
const KIND_SERVER: u8 = 2;
/// That it failed.
const STATUS_ERROR: u8 = 2;
/// How much of a prompt's name is told.
const NAME_CHARS_MAX: usize = 100;

/// A call that is being traced.
pub(super) struct Open {
    trace: String,
    id: String,
    /// The span that it came from, if it came from one.
    parent: Option<String>,
    state: Option<String>,
    baggage: Option<String>,
    began: Timestamp,
    since: Instant,
    what: What,
    about: Vec<(&'static str, Value)>,
}

/// What is called.
enum What {
    Tool(Option<String>),
    Resource,
    Prompt(String),
}

/// A call that was traced.
pub(super) struct Span {
    open: Open,
    took: Duration,
    outcome: &'static str,
    decided: Option<(&'static str, String)>,
}

impl Open {
    /// The span of `call`, which begins; `None` where whoever called wants none.
    pub(super) fn of(call: &Begins<'_>) -> Option<Self> {
        let came = call.beside.trace.as_ref();
        let parts: Vec<_> = came.map_or_else(Vec::new, |it| it.parent.split('-').collect());
        let mut bits = [0; 24];
        getrandom::fill(&mut bits).ok()?;
        let (trace, parent) = match parts[..] {
            [_, trace, parent, flags, ..] => {
                let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
                sampled.then_some((trace.to_owned(), Some(parent.to_owned())))?
            }
            _ => (hex(&bits[..16]), None),
        };
        let what = match call.called {
            Called::Tool(id) => What::Tool(Some(id.to_string())),
            Called::NoTool => What::Tool(None),
            Called::Resource(_) | Called::NoResource => What::Resource,
            Called::Prompt(name) => What::Prompt(name.chars().take(NAME_CHARS_MAX).collect()),
        };
        let mut about = vec![("toolgate.dialect", json!(call.dialect))];
        if call.is_job {
            about.push(("toolgate.job", json!(true)));
        }
        let (transport, protocol) = match call.beside.transport {
            "stdio" => (Some("pipe"), None),
            "http" => (Some("tcp"), Some("http")),
            "websocket" => (Some("tcp"), Some("websocket")),
            _ => (None, None),
        };
        about.extend(transport.map(|it| ("network.transport", json!(it))));
        about.extend(protocol.map(|it| ("network.protocol.name", json!(it))));
        let is_mcp = call.dialect == "mcp";
        if let Some(session) = &call.beside.session {
            about.push((if is_mcp { "mcp.session.id" } else { "session.id" }, json!(session)));
        }
        if is_mcp {
            about.push(("mcp.method.name", json!(what.method())));
        }
        let id = hex(&bits[16..]);
        let (state, baggage) = match came {
            Some(came) => (came.state.clone(), came.baggage.clone()),
            None => (None, None),
        };
        Some(Self {
            trace,
            id,
            parent,
            state,
            baggage,
            began: Timestamp::now(),
            since: Instant::now(),
            what,
            about,
        })
    }

    /// What the call starts belongs to it.
    pub(super) fn context(&self) -> Trace {
        let Self { trace, id, state, baggage, .. } = self;
        let (state, baggage) = (state.clone(), baggage.clone());
        Trace { parent: format!("00-{trace}-{id}-01"), state, baggage }
    }

    /// It has ended so.
    pub(super) fn ended(self, how: &Ends<'_>) -> Span {
        let decided = how.decided.map(|(decision, rule)| (decision, rule.to_owned()));
        let took = self.since.elapsed();
        Span { open: self, took, outcome: how.outcome, decided }
    }
}

impl What {
    /// What MCP calls asking for it.
    fn method(&self) -> &'static str {
        match self {
            Self::Tool(_) => "tools/call",
            Self::Resource => "resources/read",
            Self::Prompt(_) => "prompts/get",
        }
    }
}

impl Span {
    /// It in OTLP's words.
    pub(super) fn written(&self) -> Value {
        let Self { open, took, outcome, decided } = self;
        let mut name = open.what.method().to_owned();
        let mut about = open.about.clone();
        match &open.what {
            What::Tool(Some(id)) => {
                name = format!("{name} {id}");
                about.push(("gen_ai.tool.name", json!(id)));
                about.push(("gen_ai.operation.name", json!("execute_tool")));
            }
            What::Tool(None) => about.push(("gen_ai.operation.name", json!("execute_tool"))),
            What::Resource => {}
            // What there is not may be called anything.
            What::Prompt(_) if *outcome == "not_found" => {}
            What::Prompt(prompt) => {
                name = format!("{name} {prompt}");
                about.push(("gen_ai.prompt.name", json!(prompt)));
            }
        }
        about.push(("toolgate.outcome", json!(outcome)));
        if let Some((decision, rule)) = decided {
            about.push(("toolgate.policy.decision", json!(decision)));
            about.push(("toolgate.policy.rule", json!(rule)));
        }
        let error = error_type(outcome);
        about.extend(error.map(|error| ("error.type", json!(error))));
        let began = open.began.as_nanosecond();
        let ended = began.saturating_add_unsigned(took.as_nanos());
        let mut span = Map::new();
        span.insert("traceId".into(), json!(open.trace));
        span.insert("spanId".into(), json!(open.id));
        if let Some(parent) = &open.parent {
            span.insert("parentSpanId".into(), json!(parent));
        }
        if let Some(state) = &open.state {
            span.insert("traceState".into(), json!(state));
        }
        // Sampled; and whether the parent is remote is known, and it is.
        span.insert("flags".into(), json!(if open.parent.is_some() { 0x301 } else { 0x101 }));
        span.insert("name".into(), json!(name));
        span.insert("kind".into(), json!(KIND_SERVER));
        span.insert("startTimeUnixNano".into(), json!(began.to_string()));
        span.insert("endTimeUnixNano".into(), json!(ended.to_string()));
        span.insert("attributes".into(), about.iter().map(attribute).collect());
        if let Some(error) = error {
            span.insert("status".into(), json!({ "code": STATUS_ERROR, "message": error }));
        }
        Value::Object(span)
    }
}

/// What class of error `outcome` is of, if it is one.
fn error_type(outcome: &'static str) -> Option<&'static str> {
    match outcome {
        // The client is asked something, and calls again.
        "ok" | "asks" => None,
        "failed" | "program_failed" => Some("tool_error"),
        "timed_out" => Some("timeout"),
        other => Some(other),
    }
}

/// An attribute in OTLP's words.
pub(super) fn attribute((key, value): &(&'static str, Value)) -> Value {
    let value = match value {
        Value::Bool(is) => json!({ "boolValue": is }),
        Value::String(text) => json!({ "stringValue": text }),
        other => json!({ "stringValue": other.to_string() }),
    };
    json!({ "key": key, "value": value })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
