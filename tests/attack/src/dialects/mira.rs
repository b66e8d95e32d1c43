//! Client side of the Mira dialect, in which each tool is a method. Four methods have arguments
//! other than those of the tool.

use serde_json::{Value, json};

use super::{
    AttackDialectCodec, AttackResponse, AttackWireRequest, RequestIdCounter, WireToolCall,
    decode_rpc_error, members_if_known, rpc_request,
};

/// Client side of the Mira dialect.
#[derive(Default)]
pub(super) struct MiraCodec(RequestIdCounter);

const READ: [&str; 5] = ["path", "encoding", "offset", "length", "max_bytes"];
const WRITE: [&str; 6] = ["path", "content", "content_base64", "overwrite", "if_match", "mkdirs"];
const RUN: [&str; 7] = ["command", "args", "cwd", "env", "timeout_ms", "stdin", "shell"];
const SEARCH: [&str; 2] = ["query", "top_k"];

impl AttackDialectCodec for MiraCodec {
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall> {
        let (name, known): (&str, &[&str]) = match tool {
            "files.read" => ("files/read", &READ),
            "files.write" => ("files/write", &WRITE),
            "exec.run" => ("exec/run", &RUN),
            "search.semantic" => ("vector/search", &SEARCH),
            _ => return Some((tool.replace('.', "/"), input.clone())),
        };
        let mut params = members_if_known(input, known)?;
        if let Some(etag) = params.remove("if_match") {
            params.insert("etag".to_owned(), etag);
        }
        Some((name.to_owned(), Value::Object(params)))
    }

    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest {
        rpc_request(&mut self.0, "/rpc", name, input)
    }

    fn list_request(&mut self, cursor: Option<&str>) -> Option<AttackWireRequest> {
        let mut params = json!({ "limit": 200 });
        if let Some(cursor) = cursor {
            params["cursor"] = cursor.into();
        }
        Some(rpc_request(&mut self.0, "/rpc", "tools/list", &params))
    }

    fn ping_request(&mut self) -> AttackWireRequest {
        rpc_request(&mut self.0, "/rpc", "tools/list", &json!({ "limit": 1 }))
    }

    fn method_request(&mut self, method: &str, params: &Value) -> AttackWireRequest {
        rpc_request(&mut self.0, "/rpc", method, params)
    }

    fn decode(&self, message: &Value) -> AttackResponse {
        if let Some(response) = decode_rpc_error(message) {
            return response;
        }
        let result = &message["result"];
        let part = |name: &str| result[name].as_str().unwrap_or_default();
        let parts = ["content", "text", "stdout", "stderr"].map(part);
        let text = parts.join("");
        AttackResponse { text, data: result.clone(), ..AttackResponse::default() }
    }
}
