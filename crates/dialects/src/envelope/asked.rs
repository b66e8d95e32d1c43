//! What can be asked, whichever way it comes: a request of the host, and how it is enveloped.

use serde_json::{Map, Value, json};
use toolgate_contract::{Arguments, CallError, Problem, Request, Via};

use super::names::{catalog_name, prompt_name};

/// How much of a name is repeated.
const NAME_CHARS_MAX: usize = 200;

/// A request, and how it came.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) via: Via,
}

impl Asked {
    /// The same, refused because of `why`.
    pub(super) fn refused(self, why: CallError) -> Self {
        let request = match self.request {
            Request::CallTool { tool, .. } => Request::RefuseCall { tool, why },
            _ => Request::Refuse(why),
        };
        // What is not run is not held against anything.
        Self { request, via: Via { io: None, ..self.via } }
    }
}

/// Everything on offer.
pub(super) fn discover(transport: &'static str) -> Asked {
    let via = via(transport, "discover", "mcp.discover", json!({}));
    Asked { request: Request::Discover, via }
}

/// The prompt `id`, told `arguments`.
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

/// The tool `id` with what stands in `fields`: `arguments`, or `input` as tool IO has it, and what
/// else tool IO has.
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

/// A tool of which nothing could be read but its name.
pub(super) fn unread_tool(transport: &'static str, id: &str, why: CallError) -> Asked {
    tool(transport, id, Map::new()).refused(why)
}

/// What nobody knows.
pub(super) fn unknown(transport: &'static str, route: &str, method: &str) -> Asked {
    let message = format!(
        "there is no `{}`; there is mcp.discover, mcp.prompt.get and mcp.tool.invoke",
        clipped(method)
    );
    let via = via(transport, route, &clipped(method), json!({}));
    Asked { request: Request::Refuse(CallError::NotFound { message }), via }
}

fn via(transport: &'static str, route: &str, method: &str, payload: Value) -> Via {
    let (route, method) = (route.to_owned(), method.to_owned());
    Via { transport, route, method, payload, tool: None, prompt: None, io: None }
}

/// What is wrong with what was sent, and where.
pub(super) fn invalid(pointer: &str, why: &str) -> CallError {
    let problem = Problem { pointer: pointer.to_owned(), message: why.to_owned() };
    CallError::InvalidInput { problems: vec![problem] }
}

/// As much of `name` as is repeated.
pub(super) fn clipped(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}
