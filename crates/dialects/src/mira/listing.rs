//! Reads the filter of a `tools/list` request, and encodes a page of tools in the contract's form.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use toolgate_contract::{AnyTool, ToolId, ToolPage, ToolSpec};

use super::calls::whole_number;
use super::message::MiraConnection;
use super::methods::{MiraContractMethod, method_name};
use super::refusals::{MiraErrorCode, MiraRequestError};
use crate::ServerInfo;
use crate::tool_mentions::{is_own_tool, rename_tools};

/// The number of tools on a page of the list, if the request sets none.
const PAGE_SIZE_DEFAULT: usize = 50;
/// The prefix of a list cursor before the cursor is encoded.
const MARK: &str = "after ";
/// The version of Mira's contract and of its methods.
const CONTRACT_VERSION: &str = "1.0.0";

/// The data of a request to list tools on which the answer depends.
pub(super) struct MiraToolListing {
    pub(super) filter: ToolListFilter,
    /// The connection on which the request to list tools arrived.
    pub(super) connection: MiraConnection,
    pub(super) facts: Arc<ServerInfo>,
}

/// The filter and page of a `tools/list` request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolListFilter {
    names: Option<Vec<String>>,
    tags: Option<Vec<String>>,
    enabled: Option<bool>,
    /// The last tool of the previous page, if the page is not the first.
    pub(super) after: Option<ToolId>,
    limit: usize,
}

impl ToolListFilter {
    /// Parses `params` of `tools/list`, which satisfy the schema of Mira's contract.
    pub(super) fn parse(params: &Value) -> Result<Self, MiraRequestError> {
        let filter = &params["filter"];
        let list = |name: &str| -> Option<Vec<String>> {
            let items = filter.get(name)?.as_array()?.iter();
            Some(items.filter_map(Value::as_str).map(str::to_owned).collect())
        };
        let after = match params["cursor"].as_str() {
            None => None,
            Some(cursor) => match decode_cursor(cursor) {
                Some(id) => Some(id),
                None => {
                    let why = "the cursor is invalid; list from the start";
                    return Err(
                        MiraRequestError::new(MiraErrorCode::Validation, why).with_field("cursor")
                    );
                }
            },
        };
        let limit =
            params.get("limit").map(whole_number).and_then(|limit| usize::try_from(limit).ok());
        Ok(Self {
            names: list("names"),
            tags: list("tags"),
            enabled: filter["enabled"].as_bool(),
            after,
            limit: limit.unwrap_or(PAGE_SIZE_DEFAULT),
        })
    }

    /// Returns true if the filter matches the tool `spec`. All listed tools are enabled.
    fn matches(&self, spec: &ToolSpec) -> bool {
        let named = |names: &Vec<String>| names.contains(&method_name(&spec.id));
        let tagged = |tags: &Vec<String>| tags.iter().any(|wanted| wanted == tag(&spec.id));
        self.enabled != Some(false)
            && self.names.as_ref().is_none_or(named)
            && self.tags.as_ref().is_none_or(tagged)
    }
}

impl MiraToolListing {
    /// Encodes the tools of `page` that match the filter, with the cursor of the next page.
    pub(super) fn result(&self, page: &ToolPage) -> Value {
        let mut wanted =
            page.tools.iter().filter(|tool| self.filter.matches(tool.spec())).peekable();
        let mut tools = Vec::new();
        let mut last = None;
        while let Some(tool) = wanted.next_if(|_| tools.len() < self.filter.limit) {
            tools.push(self.item(tool.as_ref()));
            last = Some(&tool.spec().id);
        }
        let next = match wanted.peek() {
            Some(_) => last,
            None => page.next.as_ref(),
        };
        json!({ "tools": tools, "next_cursor": next.map(encode_cursor) })
    }

    fn item(&self, tool: &dyn AnyTool) -> Value {
        let spec = tool.spec();
        let MiraToolDescription { title, description, version, input_schema, output_schema } =
            self.describe(spec);
        let tag = tag(&spec.id);
        let (transport, endpoint, auth_required) = match &self.connection {
            MiraConnection::Line => ("stdio", None, false),
            MiraConnection::Http { endpoint } => {
                ("http", endpoint.as_deref(), self.facts.requires_auth)
            }
        };
        let mut item = json!({
            "name": method_name(&spec.id),
            "title": title,
            "description": description,
            "version": version,
            "input_schema": null,
            "output_schema": null,
            "tags": [tag],
            "auth_required": auth_required,
            "rate_limit": null,
            "server": { "id": tag, "transport": transport, "endpoint": endpoint },
            "enabled": true,
        });
        // `json!` would change the text of their numbers.
        item["input_schema"] = Value::clone(input_schema);
        item["output_schema"] = output_schema.cloned().unwrap_or_default();
        item
    }

    fn describe<'s>(&'s self, spec: &'s ToolSpec) -> MiraToolDescription<'s> {
        let Some(method) = MiraContractMethod::for_tool(&spec.id) else {
            let id = spec.id.as_str();
            let name_of = |id: &str| ToolId::foreign(id).map(|id| method_name(&id));
            let description = match is_own_tool(id) {
                true => Cow::Owned(rename_tools(&spec.description, Some(id), name_of)),
                false => Cow::Borrowed(spec.description.as_str()),
            };
            return MiraToolDescription {
                title: &spec.title,
                description,
                version: &self.facts.version,
                input_schema: &spec.input_schema,
                output_schema: spec.output_schema.as_deref(),
            };
        };
        let (title, description) = contract_description(method);
        let schemas = method.schemas();
        MiraToolDescription {
            title,
            description: description.into(),
            version: CONTRACT_VERSION,
            input_schema: schemas.params.value(),
            output_schema: Some(schemas.result.value()),
        }
    }
}

/// The description of a tool in the list of Mira's dialect.
struct MiraToolDescription<'s> {
    title: &'s str,
    description: Cow<'s, str>,
    version: &'s str,
    input_schema: &'s Value,
    output_schema: Option<&'s Value>,
}

/// Returns the title and the description of a method of Mira's contract.
fn contract_description(method: MiraContractMethod) -> (&'static str, &'static str) {
    match method {
        MiraContractMethod::Read => (
            "Read File",
            "Read a file from the workspace, or `length` bytes of it from `offset`. If the file \
             still has the given `etag`, no content is returned. A read above `max_bytes` fails; \
             it is never truncated. Use encoding base64 if the file is not UTF-8.",
        ),
        MiraContractMethod::Write => (
            "Write File",
            "Write a whole file in the workspace. Other programs see the old or the new content, \
             never a mixture. To replace an existing file, set `overwrite: true` or pass its \
             current `etag`.",
        ),
        MiraContractMethod::Run => (
            "Run Command",
            "Run a program in the workspace and wait for its end. There is no shell unless \
             `shell` is true, and `args` are passed unchanged. Processes that the program leaves \
             are stopped. With `stream: true`, its output is also sent as it arrives, in \
             `exec/stream` notifications, on stdio and WebSockets.",
        ),
        MiraContractMethod::Search => (
            "Search Code",
            "Find the passages of the workspace whose meaning is closest to `query`, or to an \
             `embedding`.",
        ),
    }
}

/// Returns the tag that Mira's contract has for a tool.
fn tag(id: &ToolId) -> &str {
    match id.toolset() {
        "files" => "fs",
        "search" => "vector",
        other => other,
    }
}

fn encode_cursor(after: &ToolId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{MARK}{after}"))
}

fn decode_cursor(cursor: &str) -> Option<ToolId> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    ToolId::foreign(std::str::from_utf8(&bytes).ok()?.strip_prefix(MARK)?)
}

/// Panics if `text` decodes as a list cursor but is not the canonical encoding.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_cursor(text: &str) {
    if let Some(after) = decode_cursor(text) {
        assert_eq!(encode_cursor(&after), text);
    }
}
