//! Repairs keyword values of the wrong type, such as `"minimum": "1"`.

use serde_json::{Map, Value, json};
use toolgate_contract::exact_json;

use super::ToolSchemaRepair;

/// Schema keywords whose value may be a boolean.
const BOOLEANS: [&str; 10] = [
    "additionalItems",
    "additionalProperties",
    "deprecated",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "readOnly",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "writeOnly",
];
/// Schema keywords whose value is a count. Some generators write -1 for no limit.
const COUNTS: [&str; 8] = [
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
];
/// Schema keywords whose value is a number, but no count.
const NUMBERS: [&str; 5] =
    ["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"];
/// Schema keywords whose value is a text that only describes.
const TEXTS: [&str; 6] = ["$comment", "$id", "$schema", "description", "format", "title"];
/// Schema keywords whose value is a list of schemas.
const SCHEMA_LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Schema keywords for which an empty list means no schema.
const SINGLE_SCHEMAS: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

impl ToolSchemaRepair {
    /// Repairs the values of `keywords`, the keywords of the schema at the JSON pointer `at`.
    pub(super) fn repair_values(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        self.unquote(keywords, at);
        self.repair_numbers(keywords, at);
        self.repair_texts(keywords, at);
        self.repair_lists(keywords, at);
        self.repair_type(keywords, at);
        self.repair_names(keywords, at);
    }

    /// Replaces booleans and numbers that are quoted in a schema, such as `"1"`, by their values.
    fn unquote(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        for name in BOOLEANS {
            let Some(value) = keywords.get_mut(name) else { continue };
            if let Some(spelled) = spelled_boolean(value).filter(|_| value.is_string()) {
                *value = Value::Bool(spelled);
                self.note(at, name, "a text");
            }
        }
        for name in COUNTS.into_iter().chain(NUMBERS) {
            let Some(value) = keywords.get_mut(name) else { continue };
            let number = value.as_str().and_then(|text| exact_json::parse_number(text.trim()));
            if let Some(number) = number {
                *value = Value::Number(number);
                self.note(at, name, "a text");
            }
        }
    }

    /// Removes numbers that limit nothing from a schema, such as -1 for a maximum length.
    fn repair_numbers(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        let value = |keywords: &Map<String, Value>, name: &str| keywords.get(name)?.as_f64();
        for name in COUNTS {
            if value(keywords, name).is_some_and(|count| count < 0.0) {
                keywords.remove(name);
                self.note(at, name, "negative");
            }
        }
        if value(keywords, "multipleOf") == Some(0.0) {
            keywords.remove("multipleOf");
            self.note(at, "multipleOf", "zero");
        }
    }

    /// Converts descriptions in a schema to text. Removes other values that are not text although
    /// their keyword demands text.
    fn repair_texts(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        for name in TEXTS {
            let Some(value) = keywords.get_mut(name) else { continue };
            let text = match value {
                Value::String(_) => continue,
                Value::Number(_) | Value::Bool(_) if !name.starts_with('$') => {
                    Some(value.to_string())
                }
                Value::Array(lines) => {
                    let lines: Option<Vec<&str>> = lines.iter().map(Value::as_str).collect();
                    lines.filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n"))
                }
                _ => None,
            };
            match text {
                Some(text) => *value = Value::String(text),
                None => drop(keywords.remove(name)),
            }
            self.note(at, name, "not a text");
        }
    }

    /// Repairs lists in a schema that are empty or contain null. Puts a single schema into a list
    /// where the keyword requires a list of schemas.
    fn repair_lists(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        for name in SINGLE_SCHEMAS.into_iter().chain(SCHEMA_LISTS).chain(["enum"]) {
            if keywords.get(name) == Some(&json!([])) {
                keywords.remove(name);
                self.note(at, name, "an empty list");
            }
        }
        for name in SCHEMA_LISTS {
            let Some(value) = keywords.get_mut(name) else { continue };
            if value.is_object() {
                *value = json!([value.take()]);
                self.note(at, name, "an object");
            }
            // A choice of null is a value, and a condition of null is none.
            let Value::Array(schemas) = value else { continue };
            if schemas.iter().any(Value::is_null) {
                match name {
                    "allOf" => schemas.retain(|schema| !schema.is_null()),
                    _ => {
                        let nulls = schemas.iter_mut().filter(|schema| schema.is_null());
                        nulls.for_each(|schema| *schema = json!({ "type": "null" }));
                    }
                }
                self.note(at, name, "a list with null");
            }
        }
        if keywords.get("enum") == Some(&json!({})) {
            keywords.remove("enum");
            self.note(at, "enum", "an empty object");
        }
        for name in ["enum", "examples"] {
            let Some(value) = keywords.get_mut(name) else { continue };
            if !value.is_array() && (name == "examples" || !value.is_object()) {
                *value = json!([value.take()]);
                self.note(at, name, "not a list");
            }
        }
    }

    /// Replaces type names of programming languages in a schema, such as `str`, by types of JSON
    /// Schema.
    fn repair_type(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        let Some(value) = keywords.get_mut("type") else { return };
        let mut names = match &*value {
            Value::String(name) => vec![name.clone()],
            Value::Array(names) => {
                let name = |name: &Value| match name {
                    Value::Null => Some("null".to_owned()),
                    name => name.as_str().map(str::to_owned),
                };
                let names: Option<Vec<String>> = names.iter().map(name).collect();
                let Some(names) = names else { return };
                names
            }
            _ => return,
        };
        for name in &mut names {
            if let Some(known) = type_named(name) {
                known.clone_into(name);
            }
        }
        let mut known: Vec<String> = Vec::new();
        names.retain(|name| {
            let is_new = !known.contains(name);
            known.extend(is_new.then(|| name.clone()));
            is_new
        });
        let next = match (&*value, names.is_empty() || names.iter().any(|name| name == "any")) {
            (_, true) => None,
            (Value::String(_), false) => names.pop().map(Value::String),
            (_, false) => Some(json!(names)),
        };
        if next.as_ref() == Some(&*value) {
            return;
        }
        let was = match &*value {
            Value::Array(names) if names.iter().any(Value::is_null) => {
                "a list with null".to_owned()
            }
            before => before.to_string(),
        };
        match next {
            Some(next) => *value = next,
            None => drop(keywords.remove("type")),
        }
        self.note(at, "type", &was);
    }

    /// Converts `required` of a schema to a list of names without duplicates.
    fn repair_names(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        let Some(value) = keywords.get_mut("required") else { return };
        let next = match &*value {
            Value::String(_) if spelled_boolean(value).is_none() => vec![value.clone()],
            Value::Object(names) if names.values().all(|is| spelled_boolean(is).is_some()) => {
                let required = names.iter().filter(|(_, is)| spelled_boolean(is) == Some(true));
                required.map(|(name, _)| json!(name)).collect()
            }
            Value::Array(names) => {
                let mut next: Vec<Value> = Vec::new();
                for name in names.iter().filter(|name| !name.is_null()) {
                    if !next.contains(name) {
                        next.push(name.clone());
                    }
                }
                next
            }
            _ => return,
        };
        let next = Value::Array(next);
        if *value == next {
            return;
        }
        let was =
            if value.is_array() { "a list with null or a repeated name" } else { "not a list" };
        *value = next;
        self.note(at, "required", was);
    }
}

/// Returns the boolean that `value` is, or that it spells as text, such as `"true"`.
pub(super) fn spelled_boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(is) => Some(*is),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Returns the schema for a type name such as `"string"`, which an upstream wrote instead of a
/// schema.
pub(super) fn schema_named(text: &str) -> Option<Value> {
    match type_named(text)? {
        "any" => Some(json!({})),
        name => Some(json!({ "type": name })),
    }
}

/// Returns the type of JSON Schema that the type name `name` of another language means, or `any`.
fn type_named(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "any" => "any",
        "array" | "list" => "array",
        "bool" | "boolean" => "boolean",
        "int" | "integer" | "long" => "integer",
        "none" | "nonetype" | "null" => "null",
        "double" | "float" | "number" => "number",
        "dict" | "object" => "object",
        "str" | "string" => "string",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::repair_schema;

    #[test]
    fn a_value_in_another_form_has_the_meaning_of_its_keyword() {
        for (keywords, expected) in [
            (json!({ "type": "any" }), json!({})),
            (json!({ "type": ["string", "ANY"] }), json!({})),
            (json!({ "type": [] }), json!({})),
            (json!({ "type": "STRING" }), json!({ "type": "string" })),
            (json!({ "type": ["int", "integer", null] }), json!({ "type": ["integer", "null"] })),
            (json!({ "items": [] }), json!({})),
            (json!({ "items": "str" }), json!({ "items": { "type": "string" } })),
            (json!({ "not": [], "anyOf": [], "enum": [] }), json!({})),
            (json!({ "enum": {} }), json!({})),
            (json!({ "enum": "x" }), json!({ "enum": ["x"] })),
            (json!({ "examples": { "a": 1 } }), json!({ "examples": [{ "a": 1 }] })),
            (json!({ "additionalProperties": "False" }), json!({ "additionalProperties": false })),
            (
                json!({ "minimum": "1", "maxLength": " 5 " }),
                json!({ "minimum": 1, "maxLength": 5 }),
            ),
            (json!({ "maxLength": -1, "multipleOf": 0 }), json!({})),
            (json!({ "minimum": 2, "exclusiveMinimum": "true" }), json!({ "exclusiveMinimum": 2 })),
            (json!({ "exclusiveMinimum": "2" }), json!({ "exclusiveMinimum": 2 })),
            (json!({ "uniqueItems": "true" }), json!({ "uniqueItems": true })),
            (
                json!({ "description": 5, "title": ["a", "b"] }),
                json!({ "description": "5", "title": "a\nb" }),
            ),
            (json!({ "$id": 5, "$schema": 7, "format": {} }), json!({})),
            (json!({ "allOf": { "type": "str" } }), json!({ "allOf": [{ "type": "string" }] })),
            (
                json!({ "anyOf": [{ "minLength": 1 }, null] }),
                json!({ "anyOf": [{ "minLength": 1 }, { "type": "null" }] }),
            ),
            (
                json!({ "allOf": [null, { "minLength": 1 }] }),
                json!({ "allOf": [{ "minLength": 1 }] }),
            ),
            (json!({ "required": "a" }), json!({ "required": ["a"] })),
            (json!({ "required": ["a", null, "a"] }), json!({ "required": ["a"] })),
            (json!({ "required": { "a": true, "b": false } }), json!({ "required": ["a"] })),
            (
                json!({ "properties": { "a": "int", "b": [], "c": "any" } }),
                json!({ "properties": { "a": { "type": "integer" }, "b": {}, "c": {} } }),
            ),
            (
                json!({ "properties": { "a": { "required": "true" } } }),
                json!({ "properties": { "a": {} }, "required": ["a"] }),
            ),
        ] {
            let mut schema = keywords.clone();
            let notes = repair_schema(&mut schema);
            assert_eq!(schema, expected, "{keywords}");
            assert!(!notes.is_empty(), "{keywords}");
        }
    }

    #[test]
    fn a_value_with_several_possible_meanings_stays() {
        for keywords in [
            json!({ "type": "date" }),
            json!({ "type": { "type": "string" } }),
            json!({ "enum": { "a": "A" } }),
            json!({ "items": "Person" }),
            json!({ "minimum": "low" }),
            json!({ "additionalProperties": "string or number" }),
            json!({ "dependencies": { "a": [], "b": "string" } }),
            json!({ "const": "5", "default": [], "examples": [] }),
        ] {
            let mut schema = keywords.clone();
            assert_eq!(repair_schema(&mut schema), Vec::<String>::new());
            assert_eq!(schema, keywords);
        }
    }
}
