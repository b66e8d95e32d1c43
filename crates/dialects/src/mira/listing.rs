//! `tools/list`: the filter of a request, and a page of tools in the contract's form.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use toolgate_contract::{AnyTool, ToolId, ToolPage, ToolSpec};

use super::calls::whole;
use super::message::Over;
use super::methods::{Contracted, name_of};
use super::refusals::{Code, Refusal};
use crate::Facts;

/// The number of tools on a page, if the request sets none.
const LIMIT: usize = 50;
/// The prefix of a cursor before its encoding.
const MARK: &str = "after ";
/// The version of the contract and of its own methods.
const CONTRACT_VERSION: &str = "1.0.0";

/// The data needed to list tools.
pub(super) struct Listing {
    pub(super) wanted: Wanted,
    /// The connection on which the request arrived.
    pub(super) over: Over,
    pub(super) facts: Arc<Facts>,
}

/// The filter of a `tools/list` request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    names: Option<Vec<String>>,
    tags: Option<Vec<String>>,
    enabled: Option<bool>,
    /// The last tool of the previous page.
    pub(super) after: Option<ToolId>,
    limit: usize,
}

impl Wanted {
    /// Parses `params`, which satisfy the contract's schema.
    pub(super) fn read(params: &Value) -> Result<Self, Refusal> {
        let filter = &params["filter"];
        let list = |name: &str| -> Option<Vec<String>> {
            let items = filter.get(name)?.as_array()?.iter();
            Some(items.filter_map(Value::as_str).map(str::to_owned).collect())
        };
        let after = match params["cursor"].as_str() {
            None => None,
            Some(cursor) => match read_cursor(cursor) {
                Some(id) => Some(id),
                None => {
                    let why = "it is no cursor of this server's; list from the start";
                    return Err(Refusal::new(Code::Validation, why).about("cursor"));
                }
            },
        };
        let limit = params.get("limit").map(whole).and_then(|limit| usize::try_from(limit).ok());
        Ok(Self {
            names: list("names"),
            tags: list("tags"),
            enabled: filter["enabled"].as_bool(),
            after,
            limit: limit.unwrap_or(LIMIT),
        })
    }

    /// Returns true if the filter matches the tool. All listed tools are enabled.
    fn wants(&self, spec: &ToolSpec) -> bool {
        let named = |names: &Vec<String>| names.contains(&name_of(&spec.id));
        let tagged = |tags: &Vec<String>| tags.iter().any(|wanted| wanted == tag(&spec.id));
        self.enabled != Some(false)
            && self.names.as_ref().is_none_or(named)
            && self.tags.as_ref().is_none_or(tagged)
    }
}

impl Listing {
    /// Encodes the matching tools of `page`, with the cursor of the next page.
    pub(super) fn result(&self, page: &ToolPage) -> Value {
        let mut wanted = page.tools.iter().filter(|tool| self.wanted.wants(tool.spec())).peekable();
        let mut tools = Vec::new();
        let mut last = None;
        while let Some(tool) = wanted.next_if(|_| tools.len() < self.wanted.limit) {
            tools.push(self.item(tool.as_ref()));
            last = Some(&tool.spec().id);
        }
        let next = match wanted.peek() {
            Some(_) => last,
            None => page.next.as_ref(),
        };
        json!({ "tools": tools, "next_cursor": next.map(write_cursor) })
    }

    fn item(&self, tool: &dyn AnyTool) -> Value {
        let spec = tool.spec();
        let Described { title, description, version, input_schema, output_schema } =
            self.described(spec);
        let tag = tag(&spec.id);
        let (transport, endpoint, auth_required) = match &self.over {
            Over::Line => ("stdio", None, false),
            Over::Http { endpoint } => ("http", endpoint.as_deref(), self.facts.keys),
        };
        json!({
            "name": name_of(&spec.id),
            "title": title,
            "description": description,
            "version": version,
            "input_schema": input_schema,
            "output_schema": output_schema,
            "tags": [tag],
            "auth_required": auth_required,
            "rate_limit": null,
            "server": { "id": tag, "transport": transport, "endpoint": endpoint },
            "enabled": true,
        })
    }

    fn described<'s>(&'s self, spec: &'s ToolSpec) -> Described<'s> {
        let Some(method) = Contracted::of(&spec.id) else {
            return Described {
                title: &spec.title,
                description: &spec.about,
                version: &self.facts.version,
                input_schema: &spec.input_schema,
                output_schema: spec.output_schema.as_deref(),
            };
        };
        let (title, description) = described(method);
        let schemas = method.schemas();
        Described {
            title,
            description,
            version: CONTRACT_VERSION,
            input_schema: schemas.params.value(),
            output_schema: Some(schemas.result.value()),
        }
    }
}

/// The description of a tool in the list.
struct Described<'s> {
    title: &'s str,
    description: &'s str,
    version: &'s str,
    input_schema: &'s Value,
    output_schema: Option<&'s Value>,
}

/// Returns the title and the description of a contract method.
fn described(method: Contracted) -> (&'static str, &'static str) {
    match method {
        Contracted::Read => (
            "Read File",
            "Read a file from the workspace, or `length` bytes of it from `offset`. With the \
             `etag` of an earlier read no content comes if the file still has it. More than \
             `max_bytes` is refused, never cut. What is not UTF-8 is read with encoding base64.",
        ),
        Contracted::Write => (
            "Write File",
            "Write a whole file in the workspace: readers see the old content or the new. A file \
             that exists is replaced with `overwrite: true`, or with the `etag` of what was read \
             if it still has it.",
        ),
        Contracted::Run => (
            "Run Command",
            "Run a program in the workspace to its end: no shell unless `shell` is true, each of \
             `args` as it is. Nothing it started is left running. With `stream: true` what it \
             prints is also told as it comes, in `exec/stream` notifications, on stdio and \
             WebSockets.",
        ),
        Contracted::Search => (
            "Search Code",
            "Find the passages of the workspace that are nearest to what `query` says, or to an \
             `embedding`.",
        ),
    }
}

/// Returns the contract's tag for a tool.
fn tag(id: &ToolId) -> &str {
    match id.toolset() {
        "files" => "fs",
        "search" => "vector",
        other => other,
    }
}

fn write_cursor(after: &ToolId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{MARK}{after}"))
}

fn read_cursor(cursor: &str) -> Option<ToolId> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    ToolId::foreign(std::str::from_utf8(&bytes).ok()?.strip_prefix(MARK)?)
}

/// Panics if `text` decodes as a cursor but is not the canonical encoding.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_cursor(text: &str) {
    if let Some(after) = read_cursor(text) {
        assert_eq!(write_cursor(&after), text);
    }
}
