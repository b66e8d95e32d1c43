//! The arguments of a tool, written as one line or as a shortened schema.

use serde_json::{Map, Value};

/// Maximum number of optional arguments that a tool's signature shows.
const OPTIONAL_MAX: usize = 14;
/// Maximum number of values of an enumeration that a tool's signature shows.
const VALUES_MAX: usize = 8;
/// Longest default of an argument that a tool's signature shows, in characters.
const DEFAULT_CHARS_MAX: usize = 20;
/// Deepest level of references, lists and alternatives in a schema that a tool's signature follows.
const DEPTH_MAX: usize = 6;
/// Maximum number of types that a tool's signature contains, because a schema may refer to itself.
const TYPES_MAX: usize = 200;

/// The arguments of a tool in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSignature {
    /// Arguments in parentheses, such as `(path: str, limit?: int = 10)`.
    pub text: String,
    /// True if the signature leaves out information that a caller may need, such as optional
    /// arguments.
    pub is_lossy: bool,
}

/// Returns the signature of a tool with the argument schema `schema`, in one line. Required
/// arguments come first and are never left out.
pub fn signature(schema: &Value) -> ToolSignature {
    let mut writer = ToolSignatureWriter { root: schema, is_lossy: false, types: 0 };
    let mut arguments = Vec::new();
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required = required_names(schema);
    for name in required.iter().filter(|name| properties.contains_key(**name)) {
        arguments.push(format!("{name}: {}", writer.type_of(&properties[*name], 0)));
    }
    let optional = properties.iter().filter(|(name, _)| !required.contains(&name.as_str()));
    let optional: Vec<_> = optional.collect();
    for (name, property) in optional.iter().take(OPTIONAL_MAX) {
        let default = short_default(property);
        arguments.push(format!("{name}?: {}{default}", writer.type_of(property, 0)));
    }
    if optional.len() > OPTIONAL_MAX {
        arguments.push("…".to_owned());
        writer.is_lossy = true;
    }
    if ["anyOf", "oneOf", "allOf", "$ref", "if"].iter().any(|key| schema.get(key).is_some()) {
        writer.is_lossy = true;
    }
    ToolSignature { text: format!("({})", arguments.join(", ")), is_lossy: writer.is_lossy }
}

/// Returns example arguments for a tool to copy, with a placeholder for each required one.
pub fn skeleton(schema: &Value) -> Value {
    example_object(schema, schema, 0)
}

fn example_object(root: &Value, schema: &Value, depth: usize) -> Value {
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut arguments = Map::new();
    for name in required_names(schema) {
        let property = properties.and_then(|all| all.get(name)).unwrap_or(&Value::Null);
        arguments.insert(name.to_owned(), placeholder(root, property, depth));
    }
    Value::Object(arguments)
}

/// Returns a tool's argument schema without `$schema`, without titles, and without descriptions
/// that only repeat the name of their argument.
pub fn lean_schema(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let mut lean = Map::new();
    for (key, value) in fields {
        let kept = match key.as_str() {
            "$schema" => continue,
            "title" if value.is_string() => continue,
            // The keys here are names of arguments, which may be `title`.
            "properties" | "$defs" | "definitions" | "patternProperties" => lean_members(value),
            "items" | "additionalProperties" | "not" | "if" | "then" | "else" => lean_schema(value),
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => match value {
                Value::Array(all) => Value::Array(all.iter().map(lean_schema).collect()),
                other => other.clone(),
            },
            _ => value.clone(),
        };
        lean.insert(key.clone(), kept);
    }
    Value::Object(lean)
}

fn lean_members(members: &Value) -> Value {
    let Value::Object(members) = members else { return members.clone() };
    let lean = members.iter().map(|(name, schema)| {
        let mut schema = lean_schema(schema);
        let letters = |text: &str| -> String {
            text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
        };
        let text = schema.get("description").and_then(Value::as_str);
        if text.is_some_and(|text| letters(text) == letters(name))
            && let Some(fields) = schema.as_object_mut()
        {
            fields.shift_remove("description");
        }
        (name.clone(), schema)
    });
    Value::Object(lean.collect())
}

fn required_names(schema: &Value) -> Vec<&str> {
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    required.filter_map(Value::as_str).collect()
}

/// Writer of the types in a tool's signature.
struct ToolSignatureWriter<'s> {
    root: &'s Value,
    is_lossy: bool,
    /// Number of types written so far.
    types: usize,
}

impl ToolSignatureWriter<'_> {
    /// Returns the type of an argument with the schema `property`, such as `str` or `[int]`.
    fn type_of(&mut self, property: &Value, depth: usize) -> String {
        let property = resolve(self.root, property);
        self.types += 1;
        if depth >= DEPTH_MAX || self.types > TYPES_MAX {
            self.is_lossy = true;
            return "any".to_owned();
        }
        if ["pattern", "format"].iter().any(|key| property.get(key).is_some()) {
            self.is_lossy = true;
        }
        if let Some(values) = property.get("enum").and_then(Value::as_array) {
            return self.values_of(values);
        }
        if let Some(value) = property.get("const") {
            return value.to_string();
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(variants) = property.get(key).and_then(Value::as_array) {
                return self.one_of(variants, depth);
            }
        }
        match property.get("type") {
            Some(Value::String(kind)) => self.named_type(kind, property, depth),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
                let kinds: Vec<&str> = kinds.collect();
                let kinds = kinds.into_iter().map(|kind| self.named_type(kind, property, depth));
                kinds.collect::<Vec<_>>().join("|")
            }
            _ if property.get("properties").is_some() => self.named_type("object", property, depth),
            _ => "any".to_owned(),
        }
    }

    fn named_type(&mut self, kind: &str, property: &Value, depth: usize) -> String {
        match kind {
            "string" => "str".to_owned(),
            "integer" => "int".to_owned(),
            "number" | "float" => "num".to_owned(),
            "boolean" => "bool".to_owned(),
            "array" => match property.get("items") {
                Some(items) => format!("[{}]", self.type_of(items, depth + 1)),
                None => "[any]".to_owned(),
            },
            "object" | "dict" => self.object_type(property, depth),
            other => other.to_owned(),
        }
    }

    /// Returns the type of an object argument, such as `{path: str, limit?: int}`. Leaves out the
    /// content of objects that are nested too deeply or have too many arguments.
    fn object_type(&mut self, property: &Value, depth: usize) -> String {
        let Some(properties) = property.get("properties").and_then(Value::as_object) else {
            return "obj".to_owned();
        };
        if depth >= 2 || properties.len() > OPTIONAL_MAX {
            self.is_lossy = true;
            return "obj".to_owned();
        }
        let required = required_names(property);
        let members = properties.iter().map(|(name, member)| {
            let mark = if required.contains(&name.as_str()) { "" } else { "?" };
            format!("{name}{mark}: {}", self.type_of(member, depth + 2))
        });
        format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
    }

    fn values_of(&mut self, values: &[Value]) -> String {
        let shown = values.iter().take(VALUES_MAX).map(Value::to_string);
        let mut shown: Vec<String> = shown.collect();
        if values.len() > VALUES_MAX {
            self.is_lossy = true;
            shown.push("…".to_owned());
        }
        shown.join("|")
    }

    fn one_of(&mut self, variants: &[Value], depth: usize) -> String {
        let is_null = |variant: &&Value| variant.get("type").is_some_and(|kind| kind == "null");
        let mut kinds: Vec<String> = Vec::new();
        let mut objects = 0;
        for variant in variants.iter().filter(|variant| !is_null(variant)) {
            let kind = self.type_of(variant, depth + 1);
            objects += usize::from(kind.starts_with('{') || kind == "obj");
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        self.is_lossy |= objects > 1;
        kinds.join("|")
    }
}

/// Returns the schema to which the reference in `property` leads within the schema `root`.
fn resolve<'s>(root: &'s Value, property: &'s Value) -> &'s Value {
    let mut found = property;
    for _ in 0..DEPTH_MAX {
        let Some(target) = found.get("$ref").and_then(Value::as_str) else { return found };
        let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        match target {
            Some(target) => found = target,
            None => return found,
        }
    }
    found
}

fn short_default(property: &Value) -> String {
    let default = property.get("default").filter(|default| !default.is_null());
    let text = default.map(Value::to_string).unwrap_or_default();
    match text.is_empty() || text == "\"\"" || text.chars().count() > DEFAULT_CHARS_MAX {
        true => String::new(),
        false => format!(" = {text}"),
    }
}

fn placeholder(root: &Value, property: &Value, depth: usize) -> Value {
    let property = resolve(root, property);
    let value = property.get("enum").and_then(Value::as_array).and_then(|all| all.first());
    if let Some(value) = value.or_else(|| property.get("const")).or_else(|| property.get("default"))
    {
        return value.clone();
    }
    match property.get("type").and_then(Value::as_str) {
        Some("integer" | "number") => Value::from(0),
        Some("boolean") => Value::from(false),
        Some("array") if depth < 2 => {
            let items = property.get("items").unwrap_or(&Value::Null);
            Value::Array(vec![placeholder(root, items, depth + 1)])
        }
        Some("array") => Value::Array(Vec::new()),
        Some("object") if depth < 2 => example_object(root, property, depth + 1),
        Some("object") => Value::Object(Map::new()),
        _ => Value::from("…"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn required_arguments_come_first_and_are_never_left_out() {
        let mut properties = Map::new();
        for at in 0..20 {
            properties.insert(format!("optional_{at}"), json!({ "type": "string" }));
        }
        properties.insert("owner".to_owned(), json!({ "type": "string" }));
        let schema = json!({ "properties": properties, "required": ["owner"] });
        let ToolSignature { text, is_lossy } = signature(&schema);
        assert!(text.starts_with("(owner: str, optional_0?: str"), "{text}");
        assert!(text.ends_with("optional_13?: str, …)") && is_lossy, "{text}");
    }

    #[test]
    fn a_line_says_types_values_and_defaults() {
        let schema = json!({
            "properties": {
                "labels": { "type": "array", "items": { "type": "string" } },
                "state": { "enum": ["open", "closed"], "default": "open" },
                "limit": { "type": ["integer", "null"], "default": 10 },
                "at": { "$ref": "#/$defs/point" },
            },
            "$defs": { "point": { "type": "object", "properties": { "x": { "type": "number" } },
                "required": ["x"] } },
        });
        let expected = "(labels?: [str], state?: \"open\"|\"closed\" = \"open\", \
            limit?: int = 10, at?: {x: num})";
        assert_eq!(signature(&schema), ToolSignature { text: expected.into(), is_lossy: false });
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({ "properties": { "tree": { "$ref": "#" } } });
        assert!(signature(&schema).is_lossy);
        let schema = json!({ "properties": { "a": { "$ref": "#/properties/a" } } });
        assert_eq!(signature(&schema).text, "(a?: any)");
        let schema = json!({
            "type": "object", "required": ["a"],
            "properties": { "a": { "anyOf": vec![json!({ "$ref": "#/properties/a" }); 50] } },
        });
        assert!(signature(&schema).is_lossy);
        let schema = json!({
            "type": "object", "required": ["a"], "properties": { "a": { "$ref": "#" } },
        });
        assert_eq!(skeleton(&schema), json!({ "a": { "a": { "a": {} } } }));
    }

    #[test]
    fn a_lean_schema_keeps_an_argument_named_title() {
        let schema = json!({ "$schema": "x", "title": "Args", "properties": {
            "title": { "type": "string", "title": "Title", "description": "The title." },
            "user_id": { "type": "string", "description": "User ID" },
        }});
        let lean = json!({ "properties": {
            "title": { "type": "string", "description": "The title." },
            "user_id": { "type": "string" },
        }});
        assert_eq!(lean_schema(&schema), lean);
    }

    #[test]
    fn a_skeleton_has_each_required_argument() {
        let schema = json!({ "properties": {
            "words": { "type": "array", "items": { "type": "string" } }, "limit": { "type": "integer" },
        }, "required": ["words"] });
        assert_eq!(skeleton(&schema), json!({ "words": ["…"] }));
    }
}
