//! The dialects as a client speaks them: calls become requests, messages become responses.

mod mcp;
mod mira;
mod zyra;
mod workstation;
mod envelope;
mod synesthetic;

use serde_json::Value;

use super::http::HttpRequest;

/// A request over HTTP. On a stream, only its body is sent.
#[derive(Debug, Clone)]
pub(super) struct WireRequest {
    pub(super) http: HttpRequest,
    /// Id of the answer, if it arrives on a stream.
    pub(super) id: u64,
}

/// Answer to a request of an attack.
#[derive(Debug, Clone, Default)]
pub(super) struct Response {
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
pub(super) type WireCall = (String, Value);

/// Client side of a dialect: encodes requests and decodes answers.
pub(super) trait DialectCodec: Send {
    /// Translates a call of a tool of the catalog, if the dialect can express it.
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireCall>;
    /// Returns the request that calls a tool by its name on the wire.
    fn call_request(&mut self, name: &str, input: &Value) -> WireRequest;
    /// Returns the request for a page of the tools, if the dialect lists tools.
    fn list_request(&mut self, cursor: Option<&str>) -> Option<WireRequest>;
    /// Returns the cheapest request of the dialect.
    fn ping_request(&mut self) -> WireRequest;
    /// Returns a request of `method` with `params`.
    fn method_request(&mut self, method: &str, params: &Value) -> WireRequest;
    /// Returns the requests that open a session, and whether each has an answer.
    fn handshake(&mut self) -> Vec<(WireRequest, bool)> {
        Vec::new()
    }
    /// Sets the HTTP session of later requests.
    fn set_session(&mut self, _id: &str) {}
    /// Decodes an answer of the server.
    fn decode(&self, message: &Value) -> Response;
}

/// Dialect over one of its transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DialectRoute {
    pub(super) dialect: Dialect,
    pub(super) transport: Transport,
}

/// A dialect, with one variant for each tested revision of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dialect {
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
pub(super) enum Transport {
    Stdio,
    Http,
    WebSocket,
}

/// All dialects, each over all of its transports.
pub(super) const ROUTES: [DialectRoute; 16] = [
    route(Dialect::Mcp2026, Transport::Stdio),
    route(Dialect::Mcp2026, Transport::Http),
    route(Dialect::Mcp2025, Transport::Stdio),
    route(Dialect::Mcp2025, Transport::Http),
    route(Dialect::Mira, Transport::Stdio),
    route(Dialect::Mira, Transport::Http),
    route(Dialect::Mira, Transport::WebSocket),
    route(Dialect::Zyra, Transport::Stdio),
    route(Dialect::Zyra, Transport::Http),
    route(Dialect::Zyra, Transport::WebSocket),
    route(Dialect::Workstation, Transport::Stdio),
    route(Dialect::Workstation, Transport::Http),
    route(Dialect::Envelope, Transport::Stdio),
    route(Dialect::Envelope, Transport::Http),
    route(Dialect::Synesthetic, Transport::Stdio),
    route(Dialect::Synesthetic, Transport::Http),
];

const fn route(dialect: Dialect, transport: Transport) -> DialectRoute {
    DialectRoute { dialect, transport }
}

impl DialectRoute {
    /// Returns the name that `--dialect` selects, for example `mira ws`.
    pub(super) fn name(self) -> String {
        let transport = match self.transport {
            Transport::Stdio => "stdio",
            Transport::Http => "http",
            Transport::WebSocket => "ws",
        };
        format!("{} {transport}", self.dialect.name())
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        ROUTES.into_iter().find(|route| route.name() == name)
    }

    /// Returns a new client side of the dialect.
    pub(super) fn codec(self) -> Box<dyn DialectCodec> {
        match self.dialect {
            Dialect::Mcp2026 => Box::new(mcp::McpCodec::without_sessions()),
            Dialect::Mcp2025 => Box::new(mcp::McpCodec::with_sessions()),
            Dialect::Mira => Box::new(mira::MiraCodec::default()),
            Dialect::Zyra => Box::new(zyra::ZyraCodec::default()),
            Dialect::Workstation => Box::new(workstation::WorkstationCodec::default()),
            Dialect::Envelope => Box::new(envelope::EnvelopeCodec::new(self.transport)),
            Dialect::Synesthetic => Box::new(synesthetic::SynestheticCodec::default()),
        }
    }
}

impl Dialect {
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
struct RequestIds(u64);

impl RequestIds {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Returns a request of JSON-RPC to `path`.
fn rpc_request(ids: &mut RequestIds, path: &str, method: &str, params: &Value) -> WireRequest {
    let id = ids.next();
    let message =
        serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    WireRequest { http: HttpRequest::post(path, message.to_string().into_bytes()), id }
}

/// Decodes a message of JSON-RPC if it is an error.
fn decode_rpc_error(message: &Value) -> Option<Response> {
    let error = message.get("error").filter(|error| error.is_object())?;
    let text = error["message"].as_str().unwrap_or_default();
    Some(Response {
        is_error: true,
        code: error["code"].to_string(),
        text: format!("{text} {}", error["data"]),
        data: error["data"].clone(),
        ..Response::default()
    })
}

/// Returns the members of `input`, if all keys are among `known`.
fn members_if_known(input: &Value, known: &[&str]) -> Option<serde_json::Map<String, Value>> {
    let object = input.as_object()?;
    object.keys().all(|key| known.contains(&key.as_str())).then(|| object.clone())
}
