//! Zyra: `tools/call`, whose result is that of a command line.

use serde_json::{Value, json};

use super::{
    DialectCodec, RequestIds, Response, WireCall, WireRequest, decode_rpc_error, rpc_request,
};

/// Client side of Zyra's dialect.
#[derive(Default)]
pub(super) struct ZyraCodec(RequestIds);

const PATH: &str = "/v1/mcp";

impl DialectCodec for ZyraCodec {
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireCall> {
        Some((tool.replace(['.', '_'], "-"), input.clone()))
    }

    fn call_request(&mut self, name: &str, input: &Value) -> WireRequest {
        let params = json!({ "name": name, "arguments": input, "mode": "sync" });
        rpc_request(&mut self.0, PATH, "tools/call", &params)
    }

    fn list_request(&mut self, cursor: Option<&str>) -> Option<WireRequest> {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        Some(rpc_request(&mut self.0, PATH, "tools/list", &params))
    }

    fn ping_request(&mut self) -> WireRequest {
        rpc_request(&mut self.0, PATH, "ping", &json!({}))
    }

    fn method_request(&mut self, method: &str, params: &Value) -> WireRequest {
        rpc_request(&mut self.0, PATH, method, params)
    }

    fn decode(&self, message: &Value) -> Response {
        if let Some(response) = decode_rpc_error(message) {
            return response;
        }
        let result = &message["result"];
        let blocks = result["content"].as_array().into_iter().flatten();
        let texts = blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>();
        Response { text: texts.join("\n"), data: result.clone(), ..Response::default() }
    }
}
