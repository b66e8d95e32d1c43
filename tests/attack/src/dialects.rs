//! The dialects as a client speaks them: calls become requests, messages become responses.

mod mcp;
mod mira;
mod zyra;
mod workstation;
mod envelope;
mod synesthetic;

use serde_json::Value;

use super::http::AttackHttpRequest;

/// A request over HTTP. On a stream, only its body is sent.
#[derive(Debug, Clone)]
pub(super) struct AttackWireRequest {
    pub(super) http: AttackHttpRequest,
    /// Id of the expected answer, if the answer arrives on a stream.
    pub(super) id: u64,
}

/// Answer to a request of an attack.
#[derive(Debug, Clone, Default)]
pub(super) struct AttackResponse {
    pub(super) is_error: bool,
    /// The dialect's own error code: a number or a word.
    pub(super) code: String,
    /// Text of the answer, for a person.
    pub(super) text: String,
    /// Structured result of the answer, if the dialect has one.
    pub(super) data: Value,
    /// HTTP status of the answer, or 0 on a stream.
    pub(super) status: u16,
    /// Message of the answer as it arrived.
    pub(super) raw: Vec<u8>,
}

/// The name and the arguments of a tool on the wire.
pub(super) type WireToolCall = (String, Value);

/// Client side of a dialect: encodes requests and decodes answers.
pub(super) trait AttackDialectCodec: Send {
    /// Translates a call of a tool of the catalog, if the dialect can express it.
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall>;
    /// Returns the request that calls a tool by its name on the wire.
    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest;
    /// Returns the request for a page of the tools, if the dialect lists tools.
    fn list_request(&mut self, cursor: Option<&str>) -> Option<AttackWireRequest>;
    /// Returns the cheapest request of the dialect.
    fn ping_request(&mut self) -> AttackWireRequest;
    /// Returns a request of `method` with `params`.
    fn method_request(&mut self, method: &str, params: &Value) -> AttackWireRequest;
    /// Returns the requests that open a session, and whether each has an answer.
    fn handshake(&mut self) -> Vec<(AttackWireRequest, bool)> {
        Vec::new()
    }
    /// Sets the HTTP session of later requests.
    fn set_session(&mut self, _id: &str) {}
    /// Decodes an answer of the server.
    fn decode(&self, message: &Value) -> AttackResponse;
}

/// Dialect over one of its transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DialectOverTransport {
    pub(super) dialect: AttackDialect,
    pub(super) transport: AttackTransport,
}

/// A dialect, with one variant for each tested revision of MCP.
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

/// Transport between the attacker and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttackTransport {
    Stdio,
    Http,
    WebSocket,
}

/// All dialects, each over all of its transports.
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
    /// Returns the name that `--dialect` selects, for example `mira ws`.
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

    /// Returns a new client side of the dialect.
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

    /// Returns the value of `toolgate stdio --dialect`.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Mcp2026 | Self::Mcp2025 => "mcp",
            Self::Mira | Self::Zyra | Self::Workstation | Self::Envelope | Self::Synesthetic => {
                self.name()
            }
        }
    }

    /// Returns the path of the dialect's WebSocket.
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

/// Counter of request ids, from 1.
#[derive(Debug, Default)]
struct RequestIdCounter(u64);

impl RequestIdCounter {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Returns a request of JSON-RPC to `path`.
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

/// Decodes a message of JSON-RPC if it is an error.
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

/// Returns the members of `input`, if all keys are among `known`.
fn members_if_known(input: &Value, known: &[&str]) -> Option<serde_json::Map<String, Value>> {
    let object = input.as_object()?;
    object.keys().all(|key| known.contains(&key.as_str())).then(|| object.clone())
}
