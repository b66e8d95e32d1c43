//! Client side of the RAGX envelope dialect. Over HTTP, each tool has a path. On a stream,
//! `mcp.tool.invoke` calls all tools.

use serde_json::{Value, json};

use super::super::http::AttackHttpRequest;
use super::{
    AttackDialectCodec, AttackResponse, AttackTransport, AttackWireRequest, RequestIdCounter,
    WireToolCall, rpc_request,
};

/// Client side of the RAGX envelope dialect.
pub(super) struct EnvelopeCodec {
    ids: RequestIdCounter,
    transport: AttackTransport,
}

impl EnvelopeCodec {
    pub(super) fn new(transport: AttackTransport) -> Self {
        Self { ids: RequestIdCounter::default(), transport }
    }

    fn discover(&mut self) -> AttackWireRequest {
        let mut request = rpc_request(&mut self.ids, "/mcp/discover", "mcp.discover", &json!({}));
        if self.transport == AttackTransport::Http {
            request.http.method = "GET".to_owned();
            request.http.body = Vec::new();
        }
        request
    }
}

impl AttackDialectCodec for EnvelopeCodec {
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall> {
        let id = match tool {
            "docs.render" => "exports.render.markdown",
            "docs.search" => "vector.query.search",
            id => id,
        };
        Some((format!("mcp.tool:{id}"), input.clone()))
    }

    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest {
        if self.transport == AttackTransport::Http {
            let body = json!({ "arguments": input }).to_string().into_bytes();
            return AttackWireRequest {
                http: AttackHttpRequest::post(&format!("/mcp/tool/{name}"), body),
                id: 0,
            };
        }
        let params = json!({ "toolId": name, "arguments": input });
        rpc_request(&mut self.ids, "", "mcp.tool.invoke", &params)
    }

    fn list_request(&mut self, _cursor: Option<&str>) -> Option<AttackWireRequest> {
        Some(self.discover())
    }

    fn ping_request(&mut self) -> AttackWireRequest {
        self.discover()
    }

    fn method_request(&mut self, method: &str, params: &Value) -> AttackWireRequest {
        rpc_request(&mut self.ids, "/mcp/discover", method, params)
    }

    fn decode(&self, message: &Value) -> AttackResponse {
        // On a stream, the envelope is in the result or in the error.
        let envelope = match (&message["result"], &message["error"]["data"]["envelope"]) {
            (Value::Null, Value::Null) => message,
            (Value::Null, in_error) => in_error,
            (result, _) => result,
        };
        let error = &envelope["error"];
        if envelope["ok"] != true {
            return AttackResponse {
                is_error: true,
                code: error["code"].as_str().unwrap_or("none").to_owned(),
                text: error.to_string(),
                data: error["details"].clone(),
                ..AttackResponse::default()
            };
        }
        let data = match &envelope["data"]["result"] {
            Value::Null => envelope["data"].clone(),
            result => result.clone(),
        };
        let text = match &data["content"] {
            Value::String(text) => text.clone(),
            _ => data.to_string(),
        };
        let is_error = envelope["data"]["metadata"]["ending"] == "program_failed";
        AttackResponse { is_error, text, data, ..AttackResponse::default() }
    }
}
