//! Encodes the tools in `tools/list` for each MCP revision.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use toolgate_contract::{
    AnyTool, Effects, Icon, JobSupport, MetaFields, ToolResultFormat, ToolSpec, fold_name,
};

use super::content::{icons_if_supported, meta_if_supported};
use super::listed_schema::listed_schema;
use super::mcp_tool_name;
use super::revision::{McpRevision, SchemaSupport, TaskSupport};

/// MCP's JSON for a tool in the list of tools.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolListEntry<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<Cow<'a, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<ToolAnnotations<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution: Option<ToolExecutionInfo>,
    #[serde(skip_serializing_if = "<[Icon]>::is_empty")]
    icons: &'a [Icon],
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

/// Encodes `tool` as an entry of the tool list for `revision`, with results in the format
/// `results`. The entry is cached with the tool.
pub(crate) fn tool_entry(
    tool: &dyn AnyTool,
    revision: &'static McpRevision,
    results: ToolResultFormat,
) -> Arc<RawValue> {
    // Revisions are aligned, so the lowest bit of an address is free.
    let key = std::ptr::from_ref(revision).addr() | usize::from(results.has_structure());
    tool.spec().list_cache.get_or_create(key, || {
        // All parts are strings, booleans or JSON values, so serialization cannot fail.
        let entry = ToolListEntry::new(tool, revision, results);
        to_raw_value(&entry).expect("a tool is JSON").into()
    })
}

/// Returns the part of a tool's list entry that clients show to a model, as JSON: name, description
/// and input schema.
pub fn model_text(spec: &ToolSpec) -> String {
    /// Part of a listed tool that clients show to a model.
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ListedToolText<'a> {
        name: String,
        description: &'a str,
        input_schema: Cow<'a, Value>,
    }
    let entry = ListedToolText {
        name: fold_name(spec.id.as_str()).into_owned(),
        description: &spec.description,
        input_schema: listed_schema(spec),
    };
    serde_json::to_string(&entry).unwrap_or_default()
}

impl<'a> ToolListEntry<'a> {
    fn new(tool: &'a dyn AnyTool, revision: &McpRevision, results: ToolResultFormat) -> Self {
        let spec = tool.spec();
        let has_structure = spec.group.is_some() || results.has_structure();
        Self {
            name: mcp_tool_name(spec.id.as_str()),
            title: revision.structured.then_some(&spec.title),
            description: &spec.description,
            input_schema: adapt_schema(listed_schema(spec), revision.schemas),
            output_schema: spec
                .output_schema
                .as_ref()
                .filter(|schema| {
                    has_structure
                        && revision.structured
                        && is_supported_schema(schema, revision.schemas)
                })
                .map(|schema| adapt_schema(Cow::Borrowed(&**schema), revision.schemas)),
            annotations: revision
                .annotations
                .then(|| ToolAnnotations::new(spec, revision))
                .flatten(),
            execution: match revision.tasks {
                TaskSupport::None | TaskSupport::Extension => None,
                TaskSupport::Param => ToolExecutionInfo::new(spec.job),
            },
            icons: icons_if_supported(&spec.icons, revision),
            meta: meta_if_supported(&spec.meta, revision),
        }
    }
}

/// MCP's JSON for a tool's support for tasks.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolExecutionInfo {
    task_support: &'static str,
}

impl ToolExecutionInfo {
    /// Converts a tool's support for jobs to its support for MCP tasks. `None` if the tool never
    /// runs as a task, which clients assume.
    fn new(job: JobSupport) -> Option<Self> {
        let task_support = match job {
            JobSupport::Never => return None,
            JobSupport::Optional | JobSupport::Preferred => "optional",
            JobSupport::Required => "required",
        };
        Some(Self { task_support })
    }
}

/// Returns true if the protocol revision supports structured results of `schema`.
fn is_supported_schema(schema: &Value, shapes: SchemaSupport) -> bool {
    match shapes {
        SchemaSupport::Objects => schema["type"] == "object",
        SchemaSupport::Any => true,
    }
}

/// Adapts the input schema `schema` to the protocol revision. Older clients may refuse the whole
/// list if the schema of a property is not an object. Therefore `true` becomes `{}` and `false`
/// becomes `{"not": {}}`.
fn adapt_schema(schema: Cow<'_, Value>, shapes: SchemaSupport) -> Cow<'_, Value> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let has_booleans = properties.is_some_and(|all| all.values().any(Value::is_boolean));
    match shapes {
        SchemaSupport::Objects if has_booleans => {
            let mut schema = schema.into_owned();
            if let Some(properties) = schema["properties"].as_object_mut() {
                for property in properties.values_mut() {
                    match property {
                        Value::Bool(true) => *property = json!({}),
                        Value::Bool(false) => *property = json!({ "not": {} }),
                        _ => {}
                    }
                }
            }
            Cow::Owned(schema)
        }
        SchemaSupport::Objects | SchemaSupport::Any => schema,
    }
}

/// The hints about a tool's effects (`annotations`). Hints with the value that clients assume are
/// left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolAnnotations<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only_hint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destructive_hint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotent_hint: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open_world_hint: Option<bool>,
}

impl<'a> ToolAnnotations<'a> {
    /// Converts the effects of the tool `spec` to hints. Returns `None` if all hints have the
    /// values that clients assume.
    fn new(spec: &'a ToolSpec, revision: &McpRevision) -> Option<Self> {
        let effects = spec.announced_effects.unwrap_or(spec.effects);
        let is_read_only = effects == Effects::Reads;
        let is_open_world = spec.open_world.unwrap_or(effects == Effects::Runs);
        let hints = Self {
            // Newer revisions have the title beside the annotations.
            title: (!revision.structured).then_some(spec.title.as_str()),
            read_only_hint: is_read_only.then_some(true),
            // Both hints matter only for tools that change something.
            destructive_hint: (effects == Effects::Adds).then_some(false),
            idempotent_hint: (spec.idempotent && !is_read_only).then_some(true),
            open_world_hint: (!is_open_world).then_some(false),
        };
        let Self { title, read_only_hint, destructive_hint, idempotent_hint, open_world_hint } =
            &hints;
        let flags = [read_only_hint, destructive_hint, idempotent_hint, open_world_hint];
        (title.is_some() || flags.into_iter().any(Option::is_some)).then_some(hints)
    }
}
