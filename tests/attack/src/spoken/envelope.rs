//! The envelope: tools by path over HTTP, by `mcp.tool.invoke` on a line.

use serde_json::{Value, json};

use super::super::http::Request;
use super::{Asked, Ids, Over, Said, Spelled, Spoken, rpc};

/// A client of the envelope's.
pub(super) struct Envelope {
    ids: Ids,
    over: Over,
}

impl Envelope {
    pub(super) fn over(over: Over) -> Self {
        Self { ids: Ids::default(), over }
    }

    fn discover(&mut self) -> Asked {
        let mut asked = rpc(&mut self.ids, "/mcp/discover", "mcp.discover", &json!({}));
        if self.over == Over::Http {
            asked.request.method = "GET".to_owned();
            asked.request.body = Vec::new();
        }
        asked
    }
}

impl Spoken for Envelope {
    fn spell(&self, tool: &str, input: &Value) -> Option<Spelled> {
        let id = match tool {
            "docs.render" => "exports.render.markdown",
            "docs.search" => "vector.query.search",
            id => id,
        };
        Some((format!("mcp.tool:{id}"), input.clone()))
    }

    fn call(&mut self, name: &str, input: &Value) -> Asked {
        if self.over == Over::Http {
            let body = json!({ "arguments": input }).to_string().into_bytes();
            return Asked { request: Request::post(&format!("/mcp/tool/{name}"), body), id: 0 };
        }
        let params = json!({ "toolId": name, "arguments": input });
        rpc(&mut self.ids, "", "mcp.tool.invoke", &params)
    }

    fn list(&mut self, _cursor: Option<&str>) -> Option<Asked> {
        Some(self.discover())
    }

    fn ping(&mut self) -> Asked {
        self.discover()
    }

    fn rpc(&mut self, method: &str, params: &Value) -> Asked {
        rpc(&mut self.ids, "/mcp/discover", method, params)
    }

    fn decode(&self, message: &Value) -> Said {
        // On a line the envelope is the result, or stands in the error.
        let envelope = match (&message["result"], &message["error"]["data"]["envelope"]) {
            (Value::Null, Value::Null) => message,
            (Value::Null, within) => within,
            (result, _) => result,
        };
        let error = &envelope["error"];
        if envelope["ok"] != true {
            return Said {
                error: true,
                code: error["code"].as_str().unwrap_or("none").to_owned(),
                text: error.to_string(),
                data: error["details"].clone(),
                ..Said::default()
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
        let error = envelope["data"]["metadata"]["ending"] == "program_failed";
        Said { error, text, data, ..Said::default() }
    }
}
