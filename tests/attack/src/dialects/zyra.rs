//! Client side of the Zyra dialect. Its method `tools/call` returns results like those of a command
//! line.

use serde_json::{Value, json};

use super::{
    AttackDialectCodec, AttackResponse, AttackWireRequest, RequestIdCounter, WireToolCall,
    decode_rpc_error, rpc_request,
};

/// Client side of the Zyra dialect.
#[derive(Default)]
pub(super) struct ZyraCodec(RequestIdCounter);

const PATH: &str = "/v1/mcp";

impl AttackDialectCodec for ZyraCodec {
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall> {
        Some((tool.replace(['.', '_'], "-"), input.clone()))
    }

    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest {
        let params = json!({ "name": name, "arguments": input, "mode": "sync" });
        rpc_request(&mut self.0, PATH, "tools/call", &params)
    }

    fn list_request(&mut self, cursor: Option<&str>) -> Option<AttackWireRequest> {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        Some(rpc_request(&mut self.0, PATH, "tools/list", &params))
    }

    fn ping_request(&mut self) -> AttackWireRequest {
        rpc_request(&mut self.0, PATH, "ping", &json!({}))
    }

    fn method_request(&mut self, method: &str, params: &Value) -> AttackWireRequest {
        rpc_request(&mut self.0, PATH, method, params)
    }

    fn decode(&self, message: &Value) -> AttackResponse {
        if let Some(response) = decode_rpc_error(message) {
            return response;
        }
        let result = &message["result"];
        let blocks = result["content"].as_array().into_iter().flatten();
        let texts = blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>();
        AttackResponse { text: texts.join("\n"), data: result.clone(), ..AttackResponse::default() }
    }
}
