//! Client side of ancplua's workstation dialect. Its contract names some tools and their arguments,
//! and all others are called `toolset/verb`.

use serde_json::{Map, Value, json};

use super::{
    AttackDialectCodec, AttackResponse, AttackWireRequest, RequestIdCounter, WireToolCall,
    decode_rpc_error, members_if_known, rpc_request,
};

/// Client side of ancplua's workstation dialect.
#[derive(Default)]
pub(super) struct WorkstationCodec(RequestIdCounter);

const PATH: &str = "/workstation";

/// Name of a tool in toolgate's catalog, its name in the dialect's contract, and pairs of argument
/// names: toolgate's and the contract's.
type ContractToolAlias = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const CONTRACT_TOOLS: [ContractToolAlias; 17] = [
    ("files.read", "filesystem/read", &[("path", "path")]),
    ("files.write", "filesystem/write", &[("path", "path"), ("content", "content")]),
    ("files.list", "filesystem/list", &[("path", "path")]),
    ("files.delete", "filesystem/delete", &[("path", "path")]),
    ("files.mkdir", "filesystem/mkdir", &[("path", "path")]),
    ("files.exists", "filesystem/file_exists", &[("path", "path")]),
    ("git.status", "git/status", &[("repo", "repositoryPath")]),
    ("git.log", "git/log", &[("repo", "repositoryPath"), ("count", "maxCount")]),
    ("git.diff", "git/diff", &[("repo", "repositoryPath")]),
    ("git.branches", "git/branches", &[("repo", "repositoryPath")]),
    ("git.add", "git/add", &[("paths", "files"), ("repo", "repositoryPath")]),
    ("git.commit", "git/commit", &[("message", "message"), ("repo", "repositoryPath")]),
    ("ci.build", "ci/build", &[("project", "projectPath")]),
    ("ci.test", "ci/test", &[("project", "projectPath")]),
    ("ci.restore", "ci/restore", &[("project", "projectPath")]),
    ("ci.run", "ci/run", &[("command", "command"), ("folder", "workingDirectory")]),
    ("ci.diagnostics", "ci/diagnostics", &[]),
];

impl AttackDialectCodec for WorkstationCodec {
    fn to_wire(&self, tool: &str, input: &Value) -> Option<WireToolCall> {
        let Some((_, name, arguments)) = CONTRACT_TOOLS.iter().find(|(ours, _, _)| *ours == tool)
        else {
            let name = tool.replace('.', "/");
            let name = match name.strip_prefix("files/") {
                Some(verb) => format!("filesystem/{verb}"),
                None => name,
            };
            return Some((name, input.clone()));
        };
        // The contract always replaces a file.
        if tool == "files.write" && input["overwrite"] != true {
            return None;
        }
        let mut input = input.clone();
        // The contract has no arguments for these, and always acts as if they were set.
        for (key, always) in [("overwrite", true), ("parents", true)] {
            if input[key] == always {
                input.as_object_mut()?.shift_remove(key);
            }
        }
        let given =
            members_if_known(&input, &arguments.iter().map(|(ours, _)| *ours).collect::<Vec<_>>())?;
        let mut renamed = Map::new();
        for (key, value) in given {
            let contract_key = arguments.iter().find(|(ours, _)| *ours == key)?.1;
            let value = match (contract_key, value) {
                ("files", Value::Array(mut paths)) if paths.len() == 1 => paths.remove(0),
                ("files", _) => return None,
                (_, value) => value,
            };
            renamed.insert(contract_key.to_owned(), value);
        }
        Some(((*name).to_owned(), Value::Object(renamed)))
    }

    fn call_request(&mut self, name: &str, input: &Value) -> AttackWireRequest {
        rpc_request(&mut self.0, PATH, "tools/call", &json!({ "name": name, "arguments": input }))
    }

    fn list_request(&mut self, _cursor: Option<&str>) -> Option<AttackWireRequest> {
        Some(rpc_request(&mut self.0, PATH, "tools/list", &json!({})))
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
        let text = result["content"].as_str().unwrap_or_default().to_owned();
        AttackResponse { text, data: result.clone(), ..AttackResponse::default() }
    }
}
