//! Requests of the envelope dialect: the host request and the metadata for its envelope.

use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallError, EnvelopeRequestInfo, HostRequest, PromptArguments, ValidationProblem,
};

use super::names::{catalog_name, parse_tool_id, prompt_name};

/// The maximum number of characters of a tool's or prompt's name that an error repeats.
const NAME_CHARS_MAX: usize = 200;

/// A request of the envelope dialect to the host, with its origin for the envelope.
pub(super) struct EnvelopeRequest {
    pub(super) request: HostRequest,
    pub(super) origin: EnvelopeRequestInfo,
}

impl EnvelopeRequest {
    /// Replaces the request with a refusal for the reason `why`.
    pub(super) fn into_refusal(self, why: CallError) -> Self {
        let request = match self.request {
            HostRequest::CallTool { tool, .. } => HostRequest::RefuseCall { tool, why },
            _ => HostRequest::Refuse(why),
        };
        // A refused call is not validated as tool IO.
        Self { request, origin: EnvelopeRequestInfo { io: None, ..self.origin } }
    }
}

/// Creates the request that lists all tools and prompts.
pub(super) fn discover(transport: &'static str) -> EnvelopeRequest {
    let origin = origin(transport, "discover", "mcp.discover", json!({}));
    EnvelopeRequest { request: HostRequest::Discover, origin }
}

/// Creates the request for the rendered prompt `id` with `arguments`.
pub(super) fn prompt(
    transport: &'static str,
    id: &str,
    arguments: PromptArguments,
) -> EnvelopeRequest {
    let mut payload = json!({ "promptId": id });
    if !arguments.is_empty() {
        payload["arguments"] = json!(arguments);
    }
    let origin = origin(transport, "prompt", "mcp.prompt.get", payload);
    let request = match prompt_name(id) {
        Ok(name) => HostRequest::GetPrompt { name: name.to_owned(), arguments },
        Err(why) => HostRequest::Refuse(why),
    };
    EnvelopeRequest {
        request,
        origin: EnvelopeRequestInfo { prompt: Some(clip_name(id)), ..origin },
    }
}

/// Creates a call of the tool `id`. `fields` contains `arguments` or `input`, and other fields that
/// the schema `tool_io.schema.json` allows.
pub(super) fn tool(
    transport: &'static str,
    id: &str,
    mut fields: Map<String, Value>,
) -> EnvelopeRequest {
    let has_both = fields.contains_key("arguments") && fields.contains_key("input");
    let misplaced = misplaced_argument(&fields).map(clip_name);
    if let Some(arguments) = fields.remove("arguments") {
        fields.insert("input".to_owned(), arguments);
    }
    let input = fields.get("input").cloned();
    let mut payload = json!({ "toolId": id });
    if let Some(input) = &input {
        payload["arguments"] = input.clone();
    }
    fields.entry("tool").or_insert_with(|| id.into());
    let origin = EnvelopeRequestInfo {
        tool: Some(clip_name(id)),
        io: Some(Value::Object(fields)),
        ..origin(transport, "tool", "mcp.tool.invoke", payload)
    };
    let request = HostRequest::CallTool {
        tool: catalog_name(id).to_owned(),
        input: input.unwrap_or_else(|| json!({})),
    };
    let request = EnvelopeRequest { request, origin };
    if let Err(why) = parse_tool_id(id) {
        return request.into_refusal(why);
    }
    if has_both {
        let why = "`arguments` and `input` mean the same; send only one of them";
        return request.into_refusal(invalid_input("", why));
    }
    if let Some(name) = misplaced {
        let name = Value::from(name);
        let why = format!("put the arguments into `arguments`: {{\"arguments\":{{{name}:…}}}}");
        return request.into_refusal(invalid_input("", &why));
    }
    request
}

/// Returns the first tool argument that is in `fields` itself, if there are neither `arguments` nor
/// `input`.
fn misplaced_argument(fields: &Map<String, Value>) -> Option<&str> {
    if fields.contains_key("arguments") || fields.contains_key("input") {
        return None;
    }
    let mut names = fields.keys().map(String::as_str);
    names.find(|name| !matches!(*name, "tool" | "version" | "metadata"))
}

/// Creates a refused call of a tool whose arguments could not be read.
pub(super) fn unreadable_tool(
    transport: &'static str,
    id: &str,
    why: CallError,
) -> EnvelopeRequest {
    tool(transport, id, Map::new()).into_refusal(why)
}

/// Creates the refusal of an unknown JSON-RPC method.
pub(super) fn unknown(transport: &'static str, route: &str, method: &str) -> EnvelopeRequest {
    let message = format!(
        "unknown method `{}`; methods are mcp.discover, mcp.prompt.get and mcp.tool.invoke",
        clip_name(method)
    );
    let origin = origin(transport, route, &clip_name(method), json!({}));
    EnvelopeRequest { request: HostRequest::Refuse(CallError::NotFound { message }), origin }
}

fn origin(
    transport: &'static str,
    route: &str,
    method: &str,
    payload: Value,
) -> EnvelopeRequestInfo {
    let route = route.to_owned();
    let method = method.to_owned();
    EnvelopeRequestInfo { transport, route, method, payload, tool: None, prompt: None, io: None }
}

/// Creates an error about invalid input at the JSON pointer `pointer`.
pub(super) fn invalid_input(pointer: &str, why: &str) -> CallError {
    let problem = ValidationProblem { pointer: pointer.to_owned(), message: why.to_owned() };
    CallError::InvalidInput { problems: vec![problem] }
}

/// Returns at most [`NAME_CHARS_MAX`] characters of a tool's or prompt's name `name`.
pub(super) fn clip_name(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}
