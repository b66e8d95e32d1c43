//! MCP: 2026-07-28, where each request says all, and 2025-11-25 in a session.

use serde_json::{Value, json};

use super::{Asked, Ids, Said, Spelled, Spoken, refused, rpc};

const NEW: &str = "2026-07-28";
const OLD: &str = "2025-11-25";

/// A client of MCP.
pub(super) struct Mcp {
    ids: Ids,
    stateless: bool,
    session: Option<String>,
}

impl Mcp {
    pub(super) fn stateless() -> Self {
        Self { ids: Ids::default(), stateless: true, session: None }
    }

    pub(super) fn with_sessions() -> Self {
        Self { ids: Ids::default(), stateless: false, session: None }
    }

    fn ask(&mut self, method: &str, mut params: Value) -> Asked {
        if !self.stateless {
            let mut asked = rpc(&mut self.ids, "/mcp", method, &params);
            if method != "initialize" {
                asked.request = asked.request.with("MCP-Protocol-Version", OLD);
            }
            if let Some(session) = &self.session {
                asked.request = asked.request.with("Mcp-Session-Id", session);
            }
            return asked;
        }
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": NEW,
            "io.modelcontextprotocol/clientInfo": { "name": "attack", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut asked = rpc(&mut self.ids, "/mcp", method, &params);
        asked.request = asked.request.with("MCP-Protocol-Version", NEW).with("Mcp-Method", method);
        let named = match method {
            "tools/call" => "name",
            "resources/read" => "uri",
            _ => return asked,
        };
        let name = params[named].as_str().unwrap_or_default();
        asked.request = asked.request.with("Mcp-Name", name);
        asked
    }
}

impl Spoken for Mcp {
    fn spell(&self, tool: &str, input: &Value) -> Option<Spelled> {
        Some((tool.replace('.', "_"), input.clone()))
    }

    fn call(&mut self, name: &str, input: &Value) -> Asked {
        self.ask("tools/call", json!({ "name": name, "arguments": input }))
    }

    fn list(&mut self, cursor: Option<&str>) -> Option<Asked> {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        Some(self.ask("tools/list", params))
    }

    fn ping(&mut self) -> Asked {
        if self.stateless { self.ask("tools/list", json!({})) } else { self.ask("ping", json!({})) }
    }

    fn opening(&mut self) -> Vec<(Asked, bool)> {
        if self.stateless {
            return Vec::new();
        }
        let client = json!({ "name": "attack", "version": "1" });
        let params = json!({
            "protocolVersion": OLD, "capabilities": { "roots": {} }, "clientInfo": client,
        });
        let first = self.ask("initialize", params);
        let mut second = self.ask("notifications/initialized", json!({}));
        let note = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        second.request.body = note.to_string().into_bytes();
        vec![(first, true), (second, false)]
    }

    fn in_session(&mut self, id: &str) {
        self.session = Some(id.to_owned());
    }

    fn rpc(&mut self, method: &str, params: &Value) -> Asked {
        self.ask(method, params.clone())
    }

    fn decode(&self, message: &Value) -> Said {
        if let Some(said) = refused(message) {
            return said;
        }
        let result = &message["result"];
        let blocks = result["content"].as_array().or_else(|| result["contents"].as_array());
        let texts = blocks.into_iter().flatten().filter_map(|block| block["text"].as_str());
        Said {
            error: result["isError"] == true,
            text: texts.collect::<Vec<_>>().join("\n"),
            data: match &result["structuredContent"] {
                Value::Null => result.clone(),
                structured => structured.clone(),
            },
            ..Said::default()
        }
    }
}
