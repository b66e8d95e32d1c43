//! Mira: methods are tools, four of them with shapes of their own.

use serde_json::{Value, json};

use super::{Asked, Ids, Said, Spelled, Spoken, only, refused, rpc};

/// A client of Mira's.
#[derive(Default)]
pub(super) struct Mira(Ids);

const READ: [&str; 5] = ["path", "encoding", "offset", "length", "max_bytes"];
const WRITE: [&str; 6] = ["path", "content", "content_base64", "overwrite", "if_match", "mkdirs"];
const RUN: [&str; 7] = ["command", "args", "cwd", "env", "timeout_ms", "stdin", "shell"];
const SEARCH: [&str; 2] = ["query", "top_k"];

impl Spoken for Mira {
    fn spell(&self, tool: &str, input: &Value) -> Option<Spelled> {
        let (name, known): (&str, &[&str]) = match tool {
            "files.read" => ("files/read", &READ),
            "files.write" => ("files/write", &WRITE),
            "exec.run" => ("exec/run", &RUN),
            "search.semantic" => ("vector/search", &SEARCH),
            _ => return Some((tool.replace('.', "/"), input.clone())),
        };
        let mut params = only(input, known)?;
        if let Some(etag) = params.remove("if_match") {
            params.insert("etag".to_owned(), etag);
        }
        Some((name.to_owned(), Value::Object(params)))
    }

    fn call(&mut self, name: &str, input: &Value) -> Asked {
        rpc(&mut self.0, "/rpc", name, input)
    }

    fn list(&mut self, cursor: Option<&str>) -> Option<Asked> {
        let mut params = json!({ "limit": 200 });
        if let Some(cursor) = cursor {
            params["cursor"] = cursor.into();
        }
        Some(rpc(&mut self.0, "/rpc", "tools/list", &params))
    }

    fn ping(&mut self) -> Asked {
        rpc(&mut self.0, "/rpc", "tools/list", &json!({ "limit": 1 }))
    }

    fn rpc(&mut self, method: &str, params: &Value) -> Asked {
        rpc(&mut self.0, "/rpc", method, params)
    }

    fn decode(&self, message: &Value) -> Said {
        if let Some(said) = refused(message) {
            return said;
        }
        let result = &message["result"];
        let part = |name: &str| result[name].as_str().unwrap_or_default();
        let parts = ["content", "text", "stdout", "stderr"].map(part);
        let text = parts.join("");
        Said { text, data: result.clone(), ..Said::default() }
    }
}
