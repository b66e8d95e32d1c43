//! Client side of each dialect: encodes tool calls as requests, and decodes messages of the server.

mod mcp;
mod mira;
mod zyra;
mod workstation;
mod envelope;
mod synesthetic;

use serde_json::Value;

use super::http::AttackHttpRequest;

/// Request with its HTTP path and headers. On a stream, the client sends only the body.
#[derive(Debug, Clone)]
pub(super) struct AttackWireRequest {
    pub(super) http: AttackHttpRequest,
    /// Id by which the client finds the answer on a stream.
    pub(super) id: u64,
}

/// Decoded answer to a request of an attack.
#[derive(Debug, Clone, Default)]
pub(super) struct AttackResponse {
    pub(super) is_error: bool,
    /// Error code of the dialect: a number or a word. Empty if the answer is no error.
    pub(super) code: String,
    /// Text of the answer for a person.
    pub(super) text: String,
    /// Structured result of the answer, or null if the dialect has none.
    pub(super) data: Value,
    /// HTTP status of the answer, or 0 if it arrived on a stream.
    pub(super) status: u16,
    /// Bytes of the answer as they arrived.
    pub(super) raw: Vec<u8>,
}

/// Name and arguments of a tool call, as a dialect sends them.
pub(super) type WireToolCall = (String, Value);

/// Client side of a dialect: encodes requests and decodes messages of the server.
pub(super) trait AttackDialectCodec: Send {
    /// Translates a call of a tool in toolgate's catalog. Returns `None` if the dialect cannot
    /// express it.
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall>;
    /// Returns the request that calls the tool `name`, which is the name in this dialect.
    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest;
    /// Returns the request for the page of the tool list after `cursor`, or `None` if the dialect
    /// has no list.
    fn list_request(&mut self, cursor: Option<&str>) -> Option<AttackWireRequest>;
    /// Returns the request of the dialect that is cheapest to answer.
    fn ping_request(&mut self) -> AttackWireRequest;
    /// Returns a request of the JSON-RPC method `method` with `params`.
    fn method_request(&mut self, method: &str, params: &Value) -> AttackWireRequest;
    /// Returns the requests that open a session. Each has a flag that is true if the server answers
    /// it.
    fn handshake(&mut self) -> Vec<(AttackWireRequest, bool)> {
        Vec::new()
    }
    /// Sets the session id that later HTTP requests send. Does nothing in dialects without
    /// sessions.
    fn set_session(&mut self, _id: &str) {}
    /// Decodes a message of the server into an answer.
    fn decode(&self, message: &Value) -> AttackResponse;
}

/// Dialect, and the transport over which the client speaks it. Also called a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DialectOverTransport {
    pub(super) dialect: AttackDialect,
    pub(super) transport: AttackTransport,
}

/// Dialect of a client. MCP has one variant for each tested revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AttackDialect {
    Mcp2026,
    Mcp2025,
    Mira,
    Zyra,
    Workstation,
    Envelope,
    Synesthetic,
}

/// Transport between the attacking client and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttackTransport {
    Stdio,
    Http,
    WebSocket,
}

/// All dialects over each of their transports.
pub(super) const ROUTES: [DialectOverTransport; 16] = [
    route(AttackDialect::Mcp2026, AttackTransport::Stdio),
    route(AttackDialect::Mcp2026, AttackTransport::Http),
    route(AttackDialect::Mcp2025, AttackTransport::Stdio),
    route(AttackDialect::Mcp2025, AttackTransport::Http),
    route(AttackDialect::Mira, AttackTransport::Stdio),
    route(AttackDialect::Mira, AttackTransport::Http),
    route(AttackDialect::Mira, AttackTransport::WebSocket),
    route(AttackDialect::Zyra, AttackTransport::Stdio),
    route(AttackDialect::Zyra, AttackTransport::Http),
    route(AttackDialect::Zyra, AttackTransport::WebSocket),
    route(AttackDialect::Workstation, AttackTransport::Stdio),
    route(AttackDialect::Workstation, AttackTransport::Http),
    route(AttackDialect::Envelope, AttackTransport::Stdio),
    route(AttackDialect::Envelope, AttackTransport::Http),
    route(AttackDialect::Synesthetic, AttackTransport::Stdio),
    route(AttackDialect::Synesthetic, AttackTransport::Http),
];

const fn route(dialect: AttackDialect, transport: AttackTransport) -> DialectOverTransport {
    DialectOverTransport { dialect, transport }
}

impl DialectOverTransport {
    /// Returns the name of the route, for example `mira ws`, which the option `--dialect` selects.
    pub(super) fn name(self) -> String {
        let transport = match self.transport {
            AttackTransport::Stdio => "stdio",
            AttackTransport::Http => "http",
            AttackTransport::WebSocket => "ws",
        };
        format!("{} {transport}", self.dialect.name())
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        ROUTES.into_iter().find(|route| route.name() == name)
    }

    /// Returns a new client side for the dialect.
    pub(super) fn codec(self) -> Box<dyn AttackDialectCodec> {
        match self.dialect {
            AttackDialect::Mcp2026 => Box::new(mcp::McpCodec::without_sessions()),
            AttackDialect::Mcp2025 => Box::new(mcp::McpCodec::with_sessions()),
            AttackDialect::Mira => Box::new(mira::MiraCodec::default()),
            AttackDialect::Zyra => Box::new(zyra::ZyraCodec::default()),
            AttackDialect::Workstation => Box::new(workstation::WorkstationCodec::default()),
            AttackDialect::Envelope => Box::new(envelope::EnvelopeCodec::new(self.transport)),
            AttackDialect::Synesthetic => Box::new(synesthetic::SynestheticCodec::default()),
        }
    }
}

impl AttackDialect {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mcp2026 => "mcp-2026",
            Self::Mcp2025 => "mcp-2025",
            Self::Mira => "mira",
            Self::Zyra => "zyra",
            Self::Workstation => "workstation",
            Self::Envelope => "envelope",
            Self::Synesthetic => "synesthetic",
        }
    }

    /// Returns the value of `toolgate stdio --dialect` for this dialect.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Mcp2026 | Self::Mcp2025 => "mcp",
            Self::Mira | Self::Zyra | Self::Workstation | Self::Envelope | Self::Synesthetic => {
                self.name()
            }
        }
    }

    /// Returns the URL path of the dialect's WebSocket.
    pub(super) fn websocket_path(self) -> &'static str {
        match self {
            Self::Mira => "/ws/rpc",
            Self::Zyra
            | Self::Mcp2026
            | Self::Mcp2025
            | Self::Workstation
            | Self::Envelope
            | Self::Synesthetic => "/v1/ws/mcp",
        }
    }
}

/// Counter of request ids, which start at 1.
#[derive(Debug, Default)]
struct RequestIdCounter(u64);

impl RequestIdCounter {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Returns a JSON-RPC request with the next id. Over HTTP, the client sends it to `path`.
fn rpc_request(
    ids: &mut RequestIdCounter,
    path: &str,
    method: &str,
    params: &Value,
) -> AttackWireRequest {
    let id = ids.next();
    let message =
        serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    AttackWireRequest { http: AttackHttpRequest::post(path, message.to_string().into_bytes()), id }
}

/// Decodes a JSON-RPC message if it is an error. Returns `None` for a result.
fn decode_rpc_error(message: &Value) -> Option<AttackResponse> {
    let error = message.get("error").filter(|error| error.is_object())?;
    let text = error["message"].as_str().unwrap_or_default();
    Some(AttackResponse {
        is_error: true,
        code: error["code"].to_string(),
        text: format!("{text} {}", error["data"]),
        data: error["data"].clone(),
        ..AttackResponse::default()
    })
}

/// Returns the members of the object `input`. Returns `None` if one of its keys is not in `known`.
fn members_if_known(input: &Value, known: &[&str]) -> Option<serde_json::Map<String, Value>> {
    let object = input.as_object()?;
    object.keys().all(|key| known.contains(&key.as_str())).then(|| object.clone())
}
