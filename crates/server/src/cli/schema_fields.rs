//! Describes the fields of a JSON schema for people.

use serde_json::Value;

/// A field of a tool's arguments or result. In a list of fields, nested fields follow their parent.
pub(super) struct SchemaField {
    /// Path of the field, e.g. `edits[].old`.
    pub(super) name: String,
    /// Type, allowed values and range of the field, e.g. `integer 1..`.
    pub(super) kind: String,
    /// `required`, `optional`, or the default value of the field.
    pub(super) presence: String,
    /// Description of the field.
    pub(super) about: String,
}

/// Returns every field of the object that the JSON Schema `schema` describes.
pub(super) fn fields(schema: &Value) -> Vec<SchemaField> {
    let mut all = Vec::new();
    collect_fields(schema, "", &mut all);
    all
}

fn collect_fields(schema: &Value, within: &str, all: &mut Vec<SchemaField>) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = required.iter().any(|field| field == name);
        let presence = match property.get("default").filter(|default| !default.is_null()) {
            _ if is_required => "required".to_owned(),
            Some(default) => format!("default {default}"),
            None => "optional".to_owned(),
        };
        let name = format!("{within}{name}");
        let about = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        all.push(SchemaField { name: name.clone(), kind: type_text(property), presence, about });
        collect_fields(property, &format!("{name}."), all);
        let items = &property["items"];
        collect_fields(items, &format!("{name}[]."), all);
        for choice in items["anyOf"].as_array().into_iter().flatten() {
            collect_fields(choice, &format!("{name}[]."), all);
        }
    }
}

fn type_text(schema: &Value) -> String {
    let rows = ["oneOf", "anyOf", "enum"].iter().find_map(|keyword| schema[*keyword].as_array());
    if let Some(rows) = rows {
        let choice = |row: &Value| match row {
            Value::Object(fields) => match fields.get("const") {
                Some(choice) => choice.to_string(),
                None => type_text(row),
            },
            other => other.to_string(),
        };
        let choices =
            rows.iter().map(choice).filter(|choice| !matches!(choice.as_str(), "" | "null"));
        return choices.collect::<Vec<_>>().join(" or ");
    }
    let Some(types) = schema.get("type") else { return "any JSON value".to_owned() };
    let names = match types {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let names: Vec<_> = names.into_iter().filter(|name| *name != "null").collect();
    if names == ["array"] {
        return format!("list of {}", type_text(&schema["items"]));
    }
    let range = match (schema.get("minimum"), schema.get("maximum")) {
        (None, None) => String::new(),
        (min, max) => {
            let bound = |bound: Option<&Value>| bound.map(ToString::to_string).unwrap_or_default();
            format!(" {}..{}", bound(min), bound(max))
        }
    };
    format!("{}{range}", names.join(" or "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_has_its_type_range_default_and_nested_fields() {
        let schema = json!({
            "properties": {
                "path": { "type": "string" },
                "value": {},
                "form": { "anyOf": [{ "enum": ["a", "b"] }, { "type": "null" }] },
                "limit": { "type": ["integer", "null"], "minimum": 1, "default": 9 },
                "edits": { "type": "array", "items": {
                    "type": "object",
                    "properties": { "how": { "oneOf": [{ "const": "a" }, { "const": "b" }] } },
                } },
            },
            "required": ["path"],
        });
        let described: Vec<_> = fields(&schema)
            .iter()
            .map(|field| format!("{}: {}, {}", field.name, field.kind, field.presence))
            .collect();
        let expected = [
            "path: string, required",
            "value: any JSON value, optional",
            "form: \"a\" or \"b\", optional",
            "limit: integer 1.., default 9",
            "edits: list of object, optional",
            "edits[].how: \"a\" or \"b\", optional",
        ];
        assert_eq!(described, expected);
    }
}
