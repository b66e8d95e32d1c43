//! Client side of the Synesthetic dialect: seven methods for JSON assets, and no list of tools.

use serde_json::{Value, json};

use super::{
    AttackDialectCodec, AttackResponse, AttackWireRequest, RequestIdCounter, WireToolCall,
    decode_rpc_error, rpc_request,
};

/// Client side of the Synesthetic dialect.
#[derive(Default)]
pub(super) struct SynestheticCodec(RequestIdCounter);

const PATH: &str = "/synesthetic";

impl AttackDialectCodec for SynestheticCodec {
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall> {
        Some((tool.strip_prefix("assets.")?.to_owned(), input.clone()))
    }

    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest {
        rpc_request(&mut self.0, PATH, name, input)
    }

    fn list_request(&mut self, _cursor: Option<&str>) -> Option<AttackWireRequest> {
        None
    }

    fn ping_request(&mut self) -> AttackWireRequest {
        rpc_request(&mut self.0, PATH, "list_schemas", &json!({}))
    }

    fn method_request(&mut self, method: &str, params: &Value) -> AttackWireRequest {
        rpc_request(&mut self.0, PATH, method, params)
    }

    fn decode(&self, message: &Value) -> AttackResponse {
        if let Some(response) = decode_rpc_error(message) {
            return response;
        }
        let result = &message["result"];
        AttackResponse {
            is_error: result["ok"] != true,
            code: result["reason"].as_str().unwrap_or_default().to_owned(),
            text: result.to_string(),
            data: result.clone(),
            ..AttackResponse::default()
        }
    }
}
