//! Client side of MCP in two revisions: 2026-07-28 without sessions, and 2025-11-25 with a session.

use serde_json::{Value, json};

use super::{
    AttackDialectCodec, AttackResponse, AttackWireRequest, RequestIdCounter, WireToolCall,
    decode_rpc_error, rpc_request,
};

const WITHOUT_SESSIONS: &str = "2026-07-28";
const WITH_SESSIONS: &str = "2025-11-25";

/// Client side of MCP in one revision.
pub(super) struct McpCodec {
    ids: RequestIdCounter,
    is_stateless: bool,
    session: Option<String>,
}

impl McpCodec {
    pub(super) fn without_sessions() -> Self {
        Self { ids: RequestIdCounter::default(), is_stateless: true, session: None }
    }

    pub(super) fn with_sessions() -> Self {
        Self { ids: RequestIdCounter::default(), is_stateless: false, session: None }
    }

    fn request(&mut self, method: &str, mut params: Value) -> AttackWireRequest {
        if !self.is_stateless {
            let mut request = rpc_request(&mut self.ids, "/mcp", method, &params);
            if method != "initialize" {
                request.http = request.http.with_header("MCP-Protocol-Version", WITH_SESSIONS);
            }
            if let Some(session) = &self.session {
                request.http = request.http.with_header("Mcp-Session-Id", session);
            }
            return request;
        }
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": WITHOUT_SESSIONS,
            "io.modelcontextprotocol/clientInfo": { "name": "attack", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut request = rpc_request(&mut self.ids, "/mcp", method, &params);
        request.http = request
            .http
            .with_header("MCP-Protocol-Version", WITHOUT_SESSIONS)
            .with_header("Mcp-Method", method);
        let name_key = match method {
            "tools/call" => "name",
            "resources/read" => "uri",
            _ => return request,
        };
        let name = params[name_key].as_str().unwrap_or_default();
        request.http = request.http.with_header("Mcp-Name", name);
        request
    }
}

impl AttackDialectCodec for McpCodec {
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall> {
        Some((tool.replace('.', "_"), input.clone()))
    }

    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest {
        self.request("tools/call", json!({ "name": name, "arguments": input }))
    }

    fn list_request(&mut self, cursor: Option<&str>) -> Option<AttackWireRequest> {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        Some(self.request("tools/list", params))
    }

    fn ping_request(&mut self) -> AttackWireRequest {
        if self.is_stateless {
            self.request("tools/list", json!({}))
        } else {
            self.request("ping", json!({}))
        }
    }

    fn handshake(&mut self) -> Vec<(AttackWireRequest, bool)> {
        if self.is_stateless {
            return Vec::new();
        }
        let client = json!({ "name": "attack", "version": "1" });
        let params = json!({
            "protocolVersion": WITH_SESSIONS, "capabilities": { "roots": {} }, "clientInfo": client,
        });
        let first = self.request("initialize", params);
        let mut second = self.request("notifications/initialized", json!({}));
        let note = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        second.http.body = note.to_string().into_bytes();
        vec![(first, true), (second, false)]
    }

    fn set_session(&mut self, id: &str) {
        self.session = Some(id.to_owned());
    }

    fn method_request(&mut self, method: &str, params: &Value) -> AttackWireRequest {
        self.request(method, params.clone())
    }

    fn decode(&self, message: &Value) -> AttackResponse {
        if let Some(response) = decode_rpc_error(message) {
            return response;
        }
        let result = &message["result"];
        let blocks = result["content"].as_array().or_else(|| result["contents"].as_array());
        let texts = blocks.into_iter().flatten().filter_map(|block| block["text"].as_str());
        AttackResponse {
            is_error: result["isError"] == true,
            text: texts.collect::<Vec<_>>().join("\n"),
            data: match &result["structuredContent"] {
                Value::Null => result.clone(),
                structured => structured.clone(),
            },
            ..AttackResponse::default()
        }
    }
}
