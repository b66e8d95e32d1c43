//! Synesthetic: seven methods over JSON assets, and no list of them.

use serde_json::{Value, json};

use super::{Asked, Ids, Said, Spelled, Spoken, refused, rpc};

/// A client of the Synesthetic adapter's.
#[derive(Default)]
pub(super) struct Synesthetic(Ids);

const PATH: &str = "/synesthetic";

impl Spoken for Synesthetic {
    fn spell(&self, tool: &str, input: &Value) -> Option<Spelled> {
        Some((tool.strip_prefix("assets.")?.to_owned(), input.clone()))
    }

    fn call(&mut self, name: &str, input: &Value) -> Asked {
        rpc(&mut self.0, PATH, name, input)
    }

    fn list(&mut self, _cursor: Option<&str>) -> Option<Asked> {
        None
    }

    fn ping(&mut self) -> Asked {
        rpc(&mut self.0, PATH, "list_schemas", &json!({}))
    }

    fn rpc(&mut self, method: &str, params: &Value) -> Asked {
        rpc(&mut self.0, PATH, method, params)
    }

    fn decode(&self, message: &Value) -> Said {
        if let Some(said) = refused(message) {
            return said;
        }
        let result = &message["result"];
        Said {
            error: result["ok"] != true,
            code: result["reason"].as_str().unwrap_or_default().to_owned(),
            text: result.to_string(),
            data: result.clone(),
            ..Said::default()
        }
    }
}
