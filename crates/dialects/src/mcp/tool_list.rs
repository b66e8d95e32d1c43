//! Tools in `tools/list`, as each MCP revision encodes them.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use toolgate_contract::{AnyTool, Effects, Icon, JobSupport, MetaFields, ToolSpec};

use super::content::{icons_if_supported, meta_if_supported};
use super::mcp_tool_name;
use super::revision::{Revision, SchemaSupport, TaskSupport};

/// A tool in the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolEntry<'a> {
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
    execution: Option<TaskExecution>,
    #[serde(skip_serializing_if = "<[Icon]>::is_empty")]
    icons: &'a [Icon],
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

/// Encodes `tool` for `revision`. The result is cached with the tool.
pub(crate) fn tool_entry(tool: &dyn AnyTool, revision: &'static Revision) -> Arc<RawValue> {
    tool.spec().list_cache.get_or_create(std::ptr::from_ref(revision).addr(), || {
        // All parts are strings, booleans or JSON values, so serialization cannot fail.
        let written = to_raw_value(&ToolEntry::new(tool, revision)).expect("a tool is JSON");
        written.into()
    })
}

impl<'a> ToolEntry<'a> {
    fn new(tool: &'a dyn AnyTool, revision: &Revision) -> Self {
        let spec = tool.spec();
        Self {
            name: mcp_tool_name(spec.id.as_str()),
            title: revision.structured.then_some(&spec.title),
            description: &spec.description,
            input_schema: adapt_schema(&spec.input_schema, revision.schemas),
            output_schema: spec
                .output_schema
                .as_ref()
                .filter(|schema| {
                    revision.structured && is_supported_schema(schema, revision.schemas)
                })
                .map(|schema| adapt_schema(schema, revision.schemas)),
            annotations: revision.annotations.then(|| ToolAnnotations::new(spec)),
            execution: match revision.tasks {
                TaskSupport::None | TaskSupport::Extension => None,
                TaskSupport::Param => Some(TaskExecution {
                    task_support: match spec.job {
                        JobSupport::Never => "forbidden",
                        JobSupport::Optional | JobSupport::Preferred => "optional",
                        JobSupport::Required => "required",
                    },
                }),
            },
            icons: icons_if_supported(&spec.icons, revision),
            meta: meta_if_supported(&spec.meta, revision),
        }
    }
}

/// A tool's support for tasks.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskExecution {
    task_support: &'static str,
}

/// Returns true if the revision supports results of `schema`.
fn is_supported_schema(schema: &Value, shapes: SchemaSupport) -> bool {
    match shapes {
        SchemaSupport::Objects => schema["type"] == "object",
        SchemaSupport::Any => true,
    }
}

/// Adapts `schema` to the revision. Older clients may refuse the whole list if the schema of a
/// property is not an object. Therefore `true` becomes `{}` and `false` becomes `{"not": {}}`.
fn adapt_schema(schema: &Value, shapes: SchemaSupport) -> Cow<'_, Value> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let has_booleans = properties.is_some_and(|all| all.values().any(Value::is_boolean));
    match shapes {
        SchemaSupport::Objects if has_booleans => {
            let mut schema = schema.clone();
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
        SchemaSupport::Objects | SchemaSupport::Any => Cow::Borrowed(schema),
    }
}

/// The hints about a tool's effects (`annotations`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolAnnotations<'a> {
    title: &'a str,
    read_only_hint: bool,
    destructive_hint: bool,
    idempotent_hint: bool,
    open_world_hint: bool,
}

impl<'a> ToolAnnotations<'a> {
    fn new(spec: &'a ToolSpec) -> Self {
        let effects = spec.announced_effects.unwrap_or(spec.effects);
        Self {
            title: &spec.title,
            read_only_hint: effects == Effects::Reads,
            destructive_hint: matches!(effects, Effects::Changes | Effects::Runs),
            idempotent_hint: spec.idempotent,
            open_world_hint: spec.open_world.unwrap_or(effects == Effects::Runs),
        }
    }
}
