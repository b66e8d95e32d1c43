//! Requests of the envelope dialect: the host request and the metadata for its envelope.

use serde_json::{Map, Value, json};
use toolgate_contract::{Arguments, CallError, Problem, Request, Via};

use super::names::{catalog_name, prompt_name};

/// The most characters of a name that an error repeats.
const NAME_CHARS_MAX: usize = 200;

/// A request and its origin.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) via: Via,
}

impl Asked {
    /// Replaces the request with a refusal for the reason `why`.
    pub(super) fn refused(self, why: CallError) -> Self {
        let request = match self.request {
            Request::CallTool { tool, .. } => Request::RefuseCall { tool, why },
            _ => Request::Refuse(why),
        };
        // A refused call is not validated as tool IO.
        Self { request, via: Via { io: None, ..self.via } }
    }
}

/// Creates the request for all tools and prompts.
pub(super) fn discover(transport: &'static str) -> Asked {
    let via = via(transport, "discover", "mcp.discover", json!({}));
    Asked { request: Request::Discover, via }
}

/// Creates the request for the prompt `id` with `arguments`.
pub(super) fn prompt(transport: &'static str, id: &str, arguments: Arguments) -> Asked {
    let mut payload = json!({ "promptId": id });
    if !arguments.is_empty() {
        payload["arguments"] = json!(arguments);
    }
    let via = via(transport, "prompt", "mcp.prompt.get", payload);
    let request = match prompt_name(id) {
        Ok(name) => Request::GetPrompt { name: name.to_owned(), arguments },
        Err(why) => Request::Refuse(why),
    };
    Asked { request, via: Via { prompt: Some(clipped(id)), ..via } }
}

/// Creates a call of the tool `id`. `fields` holds `arguments` or `input`, and other fields of tool
/// IO.
pub(super) fn tool(transport: &'static str, id: &str, mut fields: Map<String, Value>) -> Asked {
    let both = fields.contains_key("arguments") && fields.contains_key("input");
    if let Some(arguments) = fields.remove("arguments") {
        fields.insert("input".to_owned(), arguments);
    }
    let input = fields.get("input").cloned();
    let mut payload = json!({ "toolId": id });
    if let Some(input) = &input {
        payload["arguments"] = input.clone();
    }
    fields.entry("tool").or_insert_with(|| id.into());
    let via = Via {
        tool: Some(clipped(id)),
        io: Some(Value::Object(fields)),
        ..via(transport, "tool", "mcp.tool.invoke", payload)
    };
    let request = Request::CallTool {
        tool: catalog_name(id).to_owned(),
        input: input.unwrap_or_else(|| json!({})),
    };
    let asked = Asked { request, via };
    if both {
        let why = "`arguments` and `input` are two words for one thing; send one of them";
        return asked.refused(invalid("", why));
    }
    asked
}

/// Creates a refused call of a tool whose arguments could not be read.
pub(super) fn unread_tool(transport: &'static str, id: &str, why: CallError) -> Asked {
    tool(transport, id, Map::new()).refused(why)
}

/// Creates the refusal of an unknown method.
pub(super) fn unknown(transport: &'static str, route: &str, method: &str) -> Asked {
    let message = format!(
        "there is no `{}`; there is mcp.discover, mcp.prompt.get and mcp.tool.invoke",
        clipped(method)
    );
    let via = via(transport, route, &clipped(method), json!({}));
    Asked { request: Request::Refuse(CallError::NotFound { message }), via }
}

fn via(transport: &'static str, route: &str, method: &str, payload: Value) -> Via {
    let route = route.to_owned();
    let method = method.to_owned();
    Via { transport, route, method, payload, tool: None, prompt: None, io: None }
}

/// Creates an error about invalid input at `pointer`.
pub(super) fn invalid(pointer: &str, why: &str) -> CallError {
    let problem = Problem { pointer: pointer.to_owned(), message: why.to_owned() };
    CallError::InvalidInput { problems: vec![problem] }
}

/// Returns at most [`NAME_CHARS_MAX`] characters of `name`.
pub(super) fn clipped(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}
