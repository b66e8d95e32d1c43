//! The searchable text of a tool.

use serde_json::Value;

/// Deepest level of a tool's argument schema whose texts are indexed.
const DEPTH_MAX: usize = 4;
/// Maximum number of bytes of one field of a tool that are indexed. Longer fields are probably
/// data, not text.
const FIELD_BYTES_MAX: usize = 8 << 10;

/// The texts of a tool by which it is found, by field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolSearchDocument {
    /// Name of the tool, without its server.
    pub name: String,
    /// Name of the server that offers the tool.
    pub server: String,
    /// Purpose of the server that offers the tool, if the server states one; otherwise empty.
    pub server_description: String,
    /// Description of the tool.
    pub description: String,
    /// Names of the tool's arguments.
    pub argument_names: String,
    /// Descriptions of the tool's arguments, with the values that they accept.
    pub argument_texts: String,
}

impl ToolSearchDocument {
    /// Creates the searchable texts of a tool from the description of its server, its own
    /// description and the JSON Schema of its arguments.
    pub fn new(
        name: &str,
        server: &str,
        server_description: &str,
        description: &str,
        input_schema: &Value,
    ) -> Self {
        let mut document = Self {
            name: name.to_owned(),
            server: server.to_owned(),
            server_description: truncate(server_description).to_owned(),
            description: truncate(description).to_owned(),
            ..Self::default()
        };
        document.read_schema(input_schema, 0);
        document
    }

    /// Returns the text about the tool that a sentence model turns into a vector.
    pub fn sentence(&self) -> String {
        let name = toolgate_chunks::words::plain_words(&self.name);
        let server = toolgate_chunks::words::plain_words(&self.server);
        format!("{server} {name}: {}", self.description)
    }

    fn read_schema(&mut self, schema: &Value, depth: usize) {
        if depth >= DEPTH_MAX {
            return;
        }
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            for (name, property) in properties {
                push_text(&mut self.argument_names, name);
                self.read_property(property, depth);
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for variant in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.read_schema(variant, depth + 1);
            }
        }
        for key in ["$defs", "definitions"] {
            for definition in schema.get(key).and_then(Value::as_object).into_iter().flatten() {
                self.read_schema(definition.1, depth + 1);
            }
        }
    }

    fn read_property(&mut self, property: &Value, depth: usize) {
        if let Some(text) = property.get("description").and_then(Value::as_str) {
            push_text(&mut self.argument_texts, text);
        }
        let values = property.get("enum").and_then(Value::as_array);
        for value in values.into_iter().flatten().filter_map(Value::as_str) {
            push_text(&mut self.argument_texts, value);
        }
        self.read_schema(property, depth + 1);
        if let Some(items) = property.get("items")
            && depth + 1 < DEPTH_MAX
        {
            self.read_property(items, depth + 1);
        }
    }
}

fn truncate(text: &str) -> &str {
    let end = (0..=FIELD_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

fn push_text(into: &mut String, text: &str) {
    if into.len() + text.len() < FIELD_BYTES_MAX {
        into.push(' ');
        into.push_str(text);
    }
}
