//! Input schemas in the short form in which a list shows them to models.
//!
//! The short form means the same, except that it hides `null` for optional arguments, bounds, and
//! arguments that agents rarely need. Calls are validated against the whole schema.

use std::borrow::Cow;

use serde_json::{Map, Value};
use toolgate_contract::ToolSpec;

/// Returns the input schema of the tool `spec` as the list of tools shows it. Schemas of upstreams,
/// and schemas that name their own draft, are not changed: their authors wrote them for clients.
pub(crate) fn listed_schema(spec: &ToolSpec) -> Cow<'_, Value> {
    if spec.group.is_some() || spec.input_schema.get("$schema").is_some() {
        return Cow::Borrowed(&spec.input_schema);
    }
    let mut schema = Value::clone(&spec.input_schema);
    for name in spec.rare_arguments {
        remove_argument(&mut schema, name);
    }
    shorten(&mut schema);
    Cow::Owned(schema)
}

/// Removes the argument `name` from `schema`, the JSON Schema of a tool's arguments.
/// `edits[].count` is an argument of each item of `edits`.
fn remove_argument(schema: &mut Value, name: &str) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    match name.split_once("[].") {
        None => {
            // Other arguments keep their order.
            properties.retain(|known, _| known != name);
        }
        Some((list, field)) => {
            if let Some(items) = properties.get_mut(list).and_then(|list| list.get_mut("items")) {
                remove_argument(items, field);
            }
        }
    }
}

/// Keywords for bounds of values, which a listed schema leaves out because a call checks them.
const BOUNDS: [&str; 5] = ["minimum", "maximum", "minItems", "maxItems", "minLength"];

/// Shortens the JSON Schema `schema`, and all schemas in it, for the list of tools.
fn shorten(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    drop_null(fields);
    list_choices(fields);
    if fields.get("additionalProperties").is_some_and(Value::is_boolean) {
        fields.remove("additionalProperties");
    }
    if fields.get("default").is_some_and(is_empty) {
        fields.remove("default");
    }
    fields.retain(|name, _| !BOUNDS.contains(&name.as_str()));
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(shorten);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(keyword) {
            shorten(inner);
        }
    }
}

/// Removes `null` from the types and alternatives that a JSON Schema with the keywords `fields`
/// allows.
fn drop_null(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(names)) = fields.get_mut("type") {
        names.retain(|name| name != "null");
        if let [only] = names.as_mut_slice() {
            let only = only.take();
            fields.insert("type".to_owned(), only);
        }
    }
    for keyword in ["anyOf", "oneOf"] {
        let Some(Value::Array(choices)) = fields.get_mut(keyword) else { continue };
        choices.retain(|choice| choice["type"] != "null");
        if let [Value::Object(only)] = choices.as_mut_slice() {
            let only = std::mem::take(only);
            fields.remove(keyword);
            for (name, value) in only {
                fields.entry(name).or_insert(value);
            }
        }
    }
}

/// Replaces alternatives in the keywords `fields` of a JSON Schema with an `enum`, if all
/// alternatives are constant strings.
fn list_choices(fields: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = fields.get("oneOf") else { return };
    let constant = |choice: &Value| choice.get("const").filter(|only| only.is_string()).cloned();
    let Some(names) = choices.iter().map(constant).collect::<Option<Vec<_>>>() else { return };
    fields.remove("oneOf");
    fields.insert("type".to_owned(), "string".into());
    fields.insert("enum".to_owned(), names.into());
}

/// Returns true if `value` is a default that a reader expects anyway, such as `false` or an empty
/// list.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty() || text == ".",
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolgate_contract::{ConcurrencyGroup, Effects, ToolId};

    use super::*;

    fn spec() -> ToolSpec {
        let id = ToolId::new("files.sample").expect("an id");
        let choice = |name: &str| json!({ "type": "string", "const": name, "description": "One." });
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "path": { "type": "string", "default": "." },
                "limit": { "type": ["integer", "null"], "default": null, "minimum": 1 },
                "depth": { "type": "integer", "default": 3, "minimum": 1, "maximum": 9 },
                "mode": { "type": ["integer", "string", "null"] },
                "kind": {
                    "anyOf": [{ "oneOf": [choice("a"), choice("b")] }, { "type": "null" }],
                    "description": "The\nkind.",
                },
                "edits": { "type": "array", "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "properties": { "old": { "type": ["string", "null"] }, "count": {} },
                } },
                "rare": { "type": "string" },
            },
            "required": ["path"],
        });
        ToolSpec {
            input_schema: schema.into(),
            rare_arguments: &["rare", "edits[].count"],
            ..ToolSpec::new(id, "Sample", "Sample.", Effects::Reads)
        }
    }

    #[test]
    fn a_listed_schema_has_plain_types_and_no_rare_arguments() {
        let expected = json!({
            "type": "object",
            "properties": {
                "path": { "type": "string" },
                "limit": { "type": "integer" },
                "depth": { "type": "integer", "default": 3 },
                "mode": { "type": ["integer", "string"] },
                "kind": { "type": "string", "enum": ["a", "b"], "description": "The kind." },
                "edits": { "type": "array", "items": {
                    "type": "object",
                    "properties": { "old": { "type": "string" } },
                } },
            },
            "required": ["path"],
        });
        assert_eq!(*listed_schema(&spec()), expected);
    }

    #[test]
    fn the_schema_of_an_upstreams_tool_is_listed_unchanged() {
        let group = ConcurrencyGroup { name: "upstream".into(), concurrency_max: 1 };
        let spec = ToolSpec { group: Some(group), ..spec() };
        assert_eq!(*listed_schema(&spec), *spec.input_schema);
    }
}
