//! Tools in `tools/list`, as each MCP revision encodes them.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use toolgate_contract::{AnyTool, AsJob, Effects, Icon, MetaFields, ToolSpec};

use super::content::{meta, shown};
use super::revision::{Revision, Shapes, Tasks};
use super::spell;

/// A tool in the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<Cow<'a, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Annotations<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution: Option<Execution>,
    #[serde(skip_serializing_if = "<[Icon]>::is_empty")]
    icons: &'a [Icon],
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

/// Encodes `tool` for `revision`. The result is cached with the tool.
pub(crate) fn listed(tool: &dyn AnyTool, revision: &'static Revision) -> Arc<RawValue> {
    tool.spec().listed.said(std::ptr::from_ref(revision).addr(), || {
        // All parts are strings, booleans or JSON values, so serialization cannot fail.
        let written = to_raw_value(&Listed::new(tool, revision)).expect("a tool is JSON");
        written.into()
    })
}

impl<'a> Listed<'a> {
    fn new(tool: &'a dyn AnyTool, revision: &Revision) -> Self {
        let spec = tool.spec();
        Self {
            name: spell(spec.id.as_str()),
            title: revision.structured.then_some(&spec.title),
            description: &spec.about,
            input_schema: worded(&spec.input_schema, revision.shapes),
            output_schema: spec
                .output_schema
                .as_ref()
                .filter(|schema| revision.structured && sayable(schema, revision.shapes))
                .map(|schema| worded(schema, revision.shapes)),
            annotations: revision.annotations.then(|| Annotations::new(spec)),
            execution: match revision.tasks {
                Tasks::None | Tasks::Extension => None,
                Tasks::Param => Some(Execution {
                    task_support: match spec.job {
                        AsJob::Never => "forbidden",
                        AsJob::May | AsJob::Rather => "optional",
                        AsJob::Must => "required",
                    },
                }),
            },
            icons: shown(&spec.icons, revision),
            meta: meta(&spec.meta, revision),
        }
    }
}

/// The support for tasks of a tool.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Execution {
    task_support: &'static str,
}

/// Returns true if the revision supports results of `schema`.
fn sayable(schema: &Value, shapes: Shapes) -> bool {
    match shapes {
        Shapes::Objects => schema["type"] == "object",
        Shapes::Any => true,
    }
}

/// Adapts `schema` to the revision. Older clients require object schemas for properties, so `true`
/// becomes `{}` and `false` becomes `{"not": {}}`. Such a client may otherwise refuse the whole
/// list.
fn worded(schema: &Value, shapes: Shapes) -> Cow<'_, Value> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let odd = properties.is_some_and(|all| all.values().any(Value::is_boolean));
    match shapes {
        Shapes::Objects if odd => {
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
        Shapes::Objects | Shapes::Any => Cow::Borrowed(schema),
    }
}

/// The hints about a tool's effects.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations<'a> {
    title: &'a str,
    read_only_hint: bool,
    destructive_hint: bool,
    idempotent_hint: bool,
    open_world_hint: bool,
}

impl<'a> Annotations<'a> {
    fn new(spec: &'a ToolSpec) -> Self {
        Self {
            title: &spec.title,
            read_only_hint: spec.effects == Effects::Reads,
            destructive_hint: matches!(spec.effects, Effects::Changes | Effects::Runs),
            idempotent_hint: spec.idempotent,
            open_world_hint: spec.open_world.unwrap_or(spec.effects == Effects::Runs),
        }
    }
}
