//! Trace span of a call, by OpenTelemetry's semantic conventions, in the JSON encoding of OTLP.

use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use toolgate_contract::TraceContext;
use toolgate_host::{CallTarget, ObservedCallEnd, ObservedCallStart};

/// Span kind of a server in OTLP: `SPAN_KIND_SERVER`.
const KIND_SERVER: u8 = 2;
/// Status code of a failed span in OTLP: `STATUS_CODE_ERROR`.
const STATUS_ERROR: u8 = 2;
/// Longest prompt name in a trace span, in characters.
const NAME_CHARS_MAX: usize = 100;

/// Trace span of a running call.
pub(super) struct RunningCallSpan {
    trace: String,
    id: String,
    /// Id of the parent span, if the client sent a trace context.
    parent: Option<String>,
    state: Option<String>,
    baggage: Option<String>,
    started_at: Timestamp,
    started: Instant,
    target: CallSpanTarget,
    attributes: Vec<(&'static str, Value)>,
}

/// Target of a traced call: a tool or a prompt, with its name, or a resource.
enum CallSpanTarget {
    Tool(Option<String>),
    Resource,
    Prompt(String),
}

/// Trace span of a call that has ended.
pub(super) struct FinishedCallSpan {
    open: RunningCallSpan,
    duration: Duration,
    outcome: &'static str,
    decision: Option<(&'static str, String)>,
}

impl RunningCallSpan {
    /// Opens the trace span of a new `call`. Returns `None` if the client's trace context says that
    /// the trace is not sampled.
    pub(super) fn for_call(call: &ObservedCallStart<'_>) -> Option<Self> {
        let received = call.metadata.trace.as_ref();
        let parts: Vec<_> = received.map_or_else(Vec::new, |it| it.parent.split('-').collect());
        let mut bits = [0; 24];
        getrandom::fill(&mut bits).ok()?;
        let (trace, parent) = match parts[..] {
            [_, trace, parent, flags, ..] => {
                let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
                sampled.then_some((trace.to_owned(), Some(parent.to_owned())))?
            }
            _ => (HEXLOWER.encode(&bits[..16]), None),
        };
        let target = match call.target {
            CallTarget::Tool(id) => CallSpanTarget::Tool(Some(id.to_string())),
            CallTarget::UnknownTool => CallSpanTarget::Tool(None),
            CallTarget::Resource(_) | CallTarget::UnknownResource => CallSpanTarget::Resource,
            CallTarget::Prompt(name) => {
                CallSpanTarget::Prompt(name.chars().take(NAME_CHARS_MAX).collect())
            }
        };
        let mut attributes = vec![("toolgate.dialect", json!(call.dialect))];
        if call.is_job {
            attributes.push(("toolgate.job", json!(true)));
        }
        let (transport, protocol) = match call.metadata.transport {
            "stdio" => (Some("pipe"), None),
            "http" => (Some("tcp"), Some("http")),
            "websocket" => (Some("tcp"), Some("websocket")),
            _ => (None, None),
        };
        attributes.extend(transport.map(|it| ("network.transport", json!(it))));
        attributes.extend(protocol.map(|it| ("network.protocol.name", json!(it))));
        let is_mcp = call.dialect == "mcp";
        if let Some(session) = &call.metadata.session {
            attributes.push((if is_mcp { "mcp.session.id" } else { "session.id" }, json!(session)));
        }
        if is_mcp {
            attributes.push(("mcp.method.name", json!(target.mcp_method())));
        }
        let id = HEXLOWER.encode(&bits[16..]);
        let (state, baggage) = match received {
            Some(received) => (received.state.clone(), received.baggage.clone()),
            None => (None, None),
        };
        Some(Self {
            trace,
            id,
            parent,
            state,
            baggage,
            started_at: Timestamp::now(),
            started: Instant::now(),
            target,
            attributes,
        })
    }

    /// Returns the trace context that the traced call passes on in its own requests, such as
    /// requests to upstreams.
    pub(super) fn trace_context(&self) -> TraceContext {
        let Self { trace, id, state, baggage, .. } = self;
        let state = state.clone();
        let baggage = baggage.clone();
        TraceContext { parent: format!("00-{trace}-{id}-01"), state, baggage }
    }

    /// Ends the trace span with `how`, the result of the traced call.
    pub(super) fn finish(self, how: &ObservedCallEnd<'_>) -> FinishedCallSpan {
        let decision = how.decision.map(|(decision, rule)| (decision, rule.to_owned()));
        let duration = self.started.elapsed();
        FinishedCallSpan { open: self, duration, outcome: how.outcome, decision }
    }
}

impl CallSpanTarget {
    /// Returns the MCP method of a traced call with this target, such as `tools/call`.
    fn mcp_method(&self) -> &'static str {
        match self {
            Self::Tool(_) => "tools/call",
            Self::Resource => "resources/read",
            Self::Prompt(_) => "prompts/get",
        }
    }
}

impl FinishedCallSpan {
    /// Returns the trace span in OTLP's JSON encoding.
    pub(super) fn to_otlp(&self) -> Value {
        let Self { open, duration, outcome, decision } = self;
        let mut name = open.target.mcp_method().to_owned();
        let mut attributes = open.attributes.clone();
        match &open.target {
            CallSpanTarget::Tool(Some(id)) => {
                name = format!("{name} {id}");
                attributes.push(("gen_ai.tool.name", json!(id)));
                attributes.push(("gen_ai.operation.name", json!("execute_tool")));
            }
            CallSpanTarget::Tool(None) => {
                attributes.push(("gen_ai.operation.name", json!("execute_tool")));
            }
            CallSpanTarget::Resource => {}
            // The name of an unknown prompt is arbitrary input, so it is left out.
            CallSpanTarget::Prompt(_) if *outcome == "not_found" => {}
            CallSpanTarget::Prompt(prompt) => {
                name = format!("{name} {prompt}");
                attributes.push(("gen_ai.prompt.name", json!(prompt)));
            }
        }
        attributes.push(("toolgate.outcome", json!(outcome)));
        if let Some((decision, rule)) = decision {
            attributes.push(("toolgate.policy.decision", json!(decision)));
            attributes.push(("toolgate.policy.rule", json!(rule)));
        }
        let error = error_type(outcome);
        attributes.extend(error.map(|error| ("error.type", json!(error))));
        let began = open.started_at.as_nanosecond();
        let ended = began.saturating_add_unsigned(duration.as_nanos());
        let mut span = Map::new();
        span.insert("traceId".into(), json!(open.trace));
        span.insert("spanId".into(), json!(open.id));
        if let Some(parent) = &open.parent {
            span.insert("parentSpanId".into(), json!(parent));
        }
        if let Some(state) = &open.state {
            span.insert("traceState".into(), json!(state));
        }
        // Flags: sampled, "parent is remote" known, and remote if there is a parent.
        span.insert("flags".into(), json!(if open.parent.is_some() { 0x301 } else { 0x101 }));
        span.insert("name".into(), json!(name));
        span.insert("kind".into(), json!(KIND_SERVER));
        span.insert("startTimeUnixNano".into(), json!(began.to_string()));
        span.insert("endTimeUnixNano".into(), json!(ended.to_string()));
        span.insert("attributes".into(), attributes.iter().map(otlp_attribute).collect());
        if let Some(error) = error {
            span.insert("status".into(), json!({ "code": STATUS_ERROR, "message": error }));
        }
        Value::Object(span)
    }
}

/// Returns the span attribute `error.type` for the outcome of a call, or `None` if the outcome is
/// not an error.
fn error_type(outcome: &'static str) -> Option<&'static str> {
    match outcome {
        // The client answers a question and calls again, so this is no error.
        "ok" | "asks" => None,
        "failed" | "program_failed" => Some("tool_error"),
        "timed_out" => Some("timeout"),
        other => Some(other),
    }
}

/// Returns the span attribute `key` with `value` in OTLP's JSON encoding.
pub(super) fn otlp_attribute((key, value): &(&'static str, Value)) -> Value {
    let value = match value {
        Value::Bool(is) => json!({ "boolValue": is }),
        Value::String(text) => json!({ "stringValue": text }),
        other => json!({ "stringValue": other.to_string() }),
    };
    json!({ "key": key, "value": value })
}
