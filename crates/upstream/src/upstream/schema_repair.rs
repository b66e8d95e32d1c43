//! Repairs schemas that are invalid but have only one possible meaning, such as `"required": null`.
//!
//! A model's API may refuse a whole list because of one invalid schema.

mod keyword_values;

use serde_json::{Map, Value, json};

use keyword_values::{schema_named, spelled_boolean};

/// Schema keywords for which null means absent. In `const`, `default` and `enum`, null is a valid
/// value.
const NULLABLE_KEYWORDS: [&str; 55] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "$anchor",
    "anyOf",
    "$comment",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "definitions",
    "$defs",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "$id",
    "if",
    "items",
    "maxContains",
    "maximum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minContains",
    "minimum",
    "minItems",
    "minLength",
    "minProperties",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "readOnly",
    "$ref",
    "required",
    "$schema",
    "then",
    "title",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "writeOnly",
];
/// Schema keywords whose value is an object of schemas by name.
const SCHEMA_MAPS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// Schema keywords whose value is a schema or a list of schemas.
const SUBSCHEMAS: [&str; 16] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Maximum number of notes on the repairs of one schema.
const NOTES_MAX: usize = 5;

/// Repairs `schema`, the JSON Schema of a tool's arguments. Returns a note on each repair.
pub(super) fn repair_input_schema(schema: &mut Value) -> Vec<String> {
    let mut notes = repair_schema(schema);
    // Arguments are always an object, and clients refuse a schema without this type.
    if let Value::Object(root) = schema
        && !root.contains_key("type")
    {
        root.insert("type".to_owned(), json!("object"));
        notes.push("`type` was missing".to_owned());
    }
    notes
}

/// Repairs common errors in `schema`, a JSON Schema of a tool. Returns notes on the repairs, at
/// most five.
pub(super) fn repair_schema(schema: &mut Value) -> Vec<String> {
    // In draft 4, `exclusiveMinimum` is a boolean.
    let declared = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let is_draft_4 = declared.contains("draft-04");
    let mut repair = ToolSchemaRepair { is_draft_4, notes: Vec::new() };
    repair.visit(schema, "");
    repair.notes
}

/// A repair of a tool's schema, in progress.
struct ToolSchemaRepair {
    is_draft_4: bool,
    notes: Vec<String>,
}

impl ToolSchemaRepair {
    fn note(&mut self, at: &str, keyword: &str, was: &str) {
        if self.notes.len() < NOTES_MAX {
            let place = if at.is_empty() { String::new() } else { format!(" at {at}") };
            self.notes.push(format!("`{keyword}` was {was}{place}"));
        }
    }

    /// Repairs `schema`, which is at the JSON pointer `at`, and the schemas inside it.
    fn visit(&mut self, schema: &mut Value, at: &str) {
        let Value::Object(keywords) = schema else { return };
        self.remove_nulls(keywords, at);
        self.replace_empty_lists(keywords, at);
        self.repair_values(keywords, at);
        if !self.is_draft_4 {
            self.repair_bound(keywords, at, "exclusiveMinimum", "minimum");
            self.repair_bound(keywords, at, "exclusiveMaximum", "maximum");
        }
        self.repair_required(keywords, at);
        for name in SCHEMA_MAPS {
            let Some(Value::Object(schemas)) = keywords.get_mut(name) else { continue };
            for (key, schema) in schemas {
                let at = format!("{at}/{name}/{key}");
                // A dependency may be a list of names, and in draft 3 a name.
                let is_schema = name != "dependencies";
                if schema.is_null() {
                    *schema = json!({});
                    self.note(&at, key, "null");
                } else if is_schema && *schema == json!([]) {
                    *schema = json!({});
                    self.note(&at, key, "an empty list");
                } else if is_schema {
                    self.expand_type(schema, &at, key);
                }
                self.visit(schema, &at);
            }
        }
        for name in SUBSCHEMAS {
            match keywords.get_mut(name) {
                Some(Value::Array(schemas)) => {
                    for (index, schema) in schemas.iter_mut().enumerate() {
                        let at = format!("{at}/{name}/{index}");
                        self.expand_type(schema, &at, name);
                        self.visit(schema, &at);
                    }
                }
                Some(schema) => {
                    let at = format!("{at}/{name}");
                    self.expand_type(schema, &at, name);
                    self.visit(schema, &at);
                }
                None => {}
            }
        }
    }

    /// Replaces `schema` by the schema of a type if it is only the name of this type, such as
    /// `"string"`.
    fn expand_type(&mut self, schema: &mut Value, at: &str, keyword: &str) {
        if let Some(expanded) = schema.as_str().and_then(schema_named) {
            *schema = expanded;
            self.note(at, keyword, "a type");
        }
    }

    fn remove_nulls(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        for name in NULLABLE_KEYWORDS {
            if keywords.get(name).is_some_and(Value::is_null) {
                keywords.remove(name);
                self.note(at, name, "null");
            }
        }
    }

    /// Replaces an empty list where the schema must have an object, and removes an empty object
    /// where it must have a list. PHP programs write empty lists and objects in the same way.
    fn replace_empty_lists(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        for name in SCHEMA_MAPS {
            if keywords.get(name) == Some(&json!([])) {
                keywords.insert(name.to_owned(), json!({}));
                self.note(at, name, "an empty list");
            }
        }
        if keywords.get("required") == Some(&json!({})) {
            keywords.remove("required");
            self.note(at, "required", "an empty object");
        }
    }

    /// Converts the boolean bound `exclusive` of JSON Schema draft 4, such as `exclusiveMinimum`,
    /// into a number.
    fn repair_bound(
        &mut self,
        keywords: &mut Map<String, Value>,
        at: &str,
        exclusive: &str,
        inclusive: &str,
    ) {
        let Some(&Value::Bool(is_exclusive)) = keywords.get(exclusive) else { return };
        keywords.remove(exclusive);
        if is_exclusive && let Some(bound) = keywords.remove(inclusive) {
            keywords.insert(exclusive.to_owned(), bound);
        }
        self.note(at, exclusive, "a boolean");
    }

    /// Moves `required: true` of a property to the list `required` of its object.
    fn repair_required(&mut self, keywords: &mut Map<String, Value>, at: &str) {
        if keywords.get("required").and_then(spelled_boolean).is_some() {
            keywords.remove("required");
            self.note(at, "required", "a boolean");
        }
        let mut names = Vec::new();
        let properties = keywords.get_mut("properties").and_then(Value::as_object_mut);
        for (name, property) in properties.into_iter().flatten() {
            let Value::Object(property) = property else { continue };
            let is_required = property.get("required").and_then(spelled_boolean);
            let Some(is_required) = is_required else { continue };
            property.remove("required");
            names.extend(is_required.then(|| name.clone()));
            self.note(&format!("{at}/properties/{name}"), "required", "a boolean");
        }
        if names.is_empty() {
            return;
        }
        let required = keywords.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(required) = required {
            names.retain(|name| !required.iter().any(|known| known == name));
            required.extend(names.into_iter().map(Value::from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mut schema: Value, expected: &Value, notes: &[&str]) {
        assert_eq!(repair_schema(&mut schema), notes);
        assert_eq!(schema, *expected);
    }

    #[test]
    fn a_keyword_that_is_null_is_removed_and_other_nulls_are_kept() {
        check(
            json!({ "type": "object", "description": null, "x-order": null, "properties": {
                "enum": { "enum": ["a", null], "default": null, "items": null },
                "nothing": null,
                "choice": { "const": null, "type": ["string", null] },
            }}),
            &json!({ "type": "object", "x-order": null, "properties": {
                "enum": { "enum": ["a", null], "default": null },
                "nothing": {},
                "choice": { "const": null, "type": ["string", "null"] },
            }}),
            &[
                "`description` was null",
                "`items` was null at /properties/enum",
                "`nothing` was null at /properties/nothing",
                "`type` was a list with null at /properties/choice",
            ],
        );
    }

    #[test]
    fn a_boolean_bound_becomes_a_number_unless_draft_4_is_declared() {
        check(
            json!({ "items": [{ "maximum": 9, "exclusiveMaximum": true, "minimum": 1 },
                { "minimum": 2, "exclusiveMinimum": false }, { "exclusiveMinimum": true }] }),
            &json!({ "items": [{ "exclusiveMaximum": 9, "minimum": 1 }, { "minimum": 2 }, {}] }),
            &[
                "`exclusiveMaximum` was a boolean at /items/0",
                "`exclusiveMinimum` was a boolean at /items/1",
                "`exclusiveMinimum` was a boolean at /items/2",
            ],
        );
        let declared = json!({ "$schema": "http://json-schema.org/draft-04/schema#",
            "minimum": 2, "exclusiveMinimum": true });
        check(declared.clone(), &declared, &[]);
    }

    #[test]
    fn a_required_property_is_named_by_its_object() {
        check(
            json!({ "required": true, "properties": {
                "a": { "required": true, "properties": { "b": { "required": false } } },
                "c": { "required": true },
                "required": { "type": "boolean" },
            }}),
            &json!({ "required": ["a", "c"], "properties": {
                "a": { "properties": { "b": {} } },
                "c": {},
                "required": { "type": "boolean" },
            }}),
            &[
                "`required` was a boolean",
                "`required` was a boolean at /properties/a",
                "`required` was a boolean at /properties/c",
                "`required` was a boolean at /properties/a/properties/b",
            ],
        );
        check(
            json!({ "anyOf": [{ "required": ["a"], "properties": { "a": { "required": true },
                "b": { "required": true } } }, { "properties": [], "required": {} }] }),
            &json!({ "anyOf": [{ "required": ["a", "b"], "properties": { "a": {}, "b": {} } },
                { "properties": {} }] }),
            &[
                "`required` was a boolean at /anyOf/0/properties/a",
                "`required` was a boolean at /anyOf/0/properties/b",
                "`properties` was an empty list at /anyOf/1",
                "`required` was an empty object at /anyOf/1",
            ],
        );
    }

    #[test]
    fn a_valid_schema_is_unchanged() {
        let schema = json!({ "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": { "a": { "minimum": 0, "exclusiveMinimum": 0, "default": null },
            "b": true, "null": { "examples": [null] } } });
        check(schema.clone(), &schema, &[]);
    }

    #[test]
    fn the_schema_of_arguments_is_that_of_an_object() {
        for (mut schema, notes) in [
            (json!({ "type": null, "properties": null }), 3),
            (json!({}), 1),
            (json!({ "type": "object" }), 0),
        ] {
            assert_eq!(repair_input_schema(&mut schema).len(), notes, "{schema}");
            assert_eq!(schema, json!({ "type": "object" }));
        }
    }
}
