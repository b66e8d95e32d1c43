//! Zyra: `tools/call` with what a command line leaves for a result.

use serde_json::{Value, json};

use super::{Asked, Ids, Said, Spelled, Spoken, refused, rpc};

/// A client of Zyra's.
#[derive(Default)]
pub(super) struct Zyra(Ids);

const PATH: &str = "/v1/mcp";

impl Spoken for Zyra {
    fn spell(&self, tool: &str, input: &Value) -> Option<Spelled> {
        Some((tool.replace(['.', '_'], "-"), input.clone()))
    }

    fn call(&mut self, name: &str, input: &Value) -> Asked {
        let params = json!({ "name": name, "arguments": input, "mode": "sync" });
        rpc(&mut self.0, PATH, "tools/call", &params)
    }

    fn list(&mut self, cursor: Option<&str>) -> Option<Asked> {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        Some(rpc(&mut self.0, PATH, "tools/list", &params))
    }

    fn ping(&mut self) -> Asked {
        rpc(&mut self.0, PATH, "ping", &json!({}))
    }

    fn rpc(&mut self, method: &str, params: &Value) -> Asked {
        rpc(&mut self.0, PATH, method, params)
    }

    fn decode(&self, message: &Value) -> Said {
        if let Some(said) = refused(message) {
            return said;
        }
        let result = &message["result"];
        let blocks = result["content"].as_array().into_iter().flatten();
        let notes = blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>();
        Said { text: notes.join("\n"), data: result.clone(), ..Said::default() }
    }
}
