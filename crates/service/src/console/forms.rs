//! Reads submitted forms, and renders forms from JSON schemas.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::{Map, Value};

/// Prefix of the names of form fields that are arguments of a tool.
const ARGUMENT: &str = "arg.";
/// Maximum number of fields in a submitted form.
const FIELDS_MAX: usize = 500;

/// Fields of a form submitted to the console, or of a URL's query, by name. If a field occurs more
/// than once, the last value counts.
pub(crate) struct FormFields(BTreeMap<String, String>);

impl FormFields {
    /// Parses `bytes`, a form in the encoding of a URL's query.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let fields = form_urlencoded::parse(bytes).take(FIELDS_MAX);
        Self(fields.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// Returns the value of the form field `name`, or `None` if the field is missing or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Converts the form fields to the arguments of a tool, or the values of a question, that
    /// `schema` describes.
    ///
    /// # Errors
    /// A value is not of the type that the schema demands. The message names the argument.
    pub(crate) fn arguments(&self, schema: &Value) -> Result<Map<String, Value>, String> {
        let mut arguments = Map::new();
        for (name, property) in properties(schema) {
            let text = self.0.get(&format!("{ARGUMENT}{name}")).map(String::as_str);
            if let Some(value) = parse_argument(name, property, text)? {
                arguments.insert(name.clone(), value);
            }
        }
        Ok(arguments)
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// HTML form field that the console shows for an argument.
enum FormFieldKind {
    Text,
    LongText,
    Number,
    Checkbox,
    Choice(Vec<String>),
    Json,
}

impl FormFieldKind {
    fn for_property(name: &str, property: &Value) -> Self {
        if let Some(choices) = property.get("enum").and_then(Value::as_array) {
            let texts: Option<Vec<_>> =
                choices.iter().map(|choice| Some(choice.as_str()?.to_owned())).collect();
            return texts.map_or(Self::Json, Self::Choice);
        }
        let kind = match property.get("type") {
            Some(Value::String(kind)) => Some(kind.as_str()),
            Some(Value::Array(kinds)) => {
                kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null")
            }
            _ => None,
        };
        match kind {
            Some("string") if matches!(name, "content" | "text" | "script" | "message") => {
                Self::LongText
            }
            Some("string") => Self::Text,
            Some("integer" | "number") => Self::Number,
            Some("boolean") => Self::Checkbox,
            _ => Self::Json,
        }
    }
}

fn parse_argument(
    name: &str,
    property: &Value,
    text: Option<&str>,
) -> Result<Option<Value>, String> {
    let given = text.filter(|text| !text.is_empty());
    Ok(match FormFieldKind::for_property(name, property) {
        // A form does not contain an unchecked box.
        FormFieldKind::Checkbox => given.map(|_| Value::Bool(true)),
        FormFieldKind::Text | FormFieldKind::LongText | FormFieldKind::Choice(_) => {
            given.map(Value::from)
        }
        FormFieldKind::Number | FormFieldKind::Json => match given {
            None => None,
            Some(text) => {
                let value = serde_json::from_str(text.trim());
                Some(value.map_err(|why| format!("`{name}` is not valid JSON: {why}"))?)
            }
        },
    })
}

/// Returns the HTML form fields for the arguments that `schema` describes. Required arguments come
/// first.
pub(crate) fn argument_fields(schema: &Value) -> Markup {
    let required = |name: &str| {
        let names = schema.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|one| one.as_str() == Some(name)))
    };
    let mut fields: Vec<_> = properties(schema).collect();
    fields.sort_by_key(|(name, _)| !required(name));
    html! {
        @for (at, (name, property)) in fields.iter().enumerate() {
            (argument_field(at, name, property, required(name)))
        }
    }
}

fn argument_field(at: usize, name: &str, property: &Value, required: bool) -> Markup {
    let id = format!("argument-{at}");
    let field = format!("{ARGUMENT}{name}");
    let about = property.get("description").and_then(Value::as_str).unwrap_or_default();
    let hint = format!("{id}-hint");
    html! {
        div .field {
            label for=(id) { (name) @if required { " (required)" } }
            @match FormFieldKind::for_property(name, property) {
                FormFieldKind::Text => {
                    input #(id) name=(field) required[required] aria-describedby=(hint);
                }
                FormFieldKind::LongText => {
                    textarea #(id) name=(field) rows="5" aria-describedby=(hint) {}
                }
                FormFieldKind::Number => {
                    input #(id) name=(field) inputmode="decimal" required[required]
                        aria-describedby=(hint);
                }
                FormFieldKind::Checkbox => {
                    input #(id) name=(field) type="checkbox" value="true" aria-describedby=(hint);
                }
                FormFieldKind::Choice(choices) => {
                    select #(id) name=(field) required[required] aria-describedby=(hint) {
                        option value="" { "" }
                        @for choice in &choices { option { (choice) } }
                    }
                }
                FormFieldKind::Json => {
                    textarea #(id) name=(field) rows="2" aria-describedby=(hint)
                        placeholder="JSON" required[required] {}
                }
            }
            p #(hint) .hint { (about) }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_become_arguments_of_the_types_in_the_schema() {
        let schema = json!({ "properties": {
            "path": { "type": "string" },
            "limit": { "type": ["integer", "null"] },
            "all": { "type": "boolean" },
            "kind": { "enum": ["a", "b"] },
            "args": { "type": "array" },
        } });
        let form = FormFields::parse(
            b"arg.path=a+b&arg.limit=3&arg.all=true&arg.kind=b&arg.args=%5B1%5D&arg.other=x",
        );
        let expected = json!({ "path": "a b", "limit": 3, "all": true, "kind": "b", "args": [1] });
        assert_eq!(form.arguments(&schema).map(Value::Object), Ok(expected));
        let empty = FormFields::parse(b"arg.path=&arg.limit=");
        assert_eq!(empty.arguments(&schema).map(Value::Object), Ok(json!({})));
        let wrong = FormFields::parse(b"arg.args=%5B").arguments(&schema);
        assert!(wrong.is_err_and(|why| why.contains("`args`")));
    }

    #[test]
    fn names_and_descriptions_in_a_schema_are_no_markup() {
        let hostile = "\"><script>alert(1)</script>";
        let schema = json!({ "properties": {
            hostile: { "type": "string", "description": hostile, "enum": [hostile] },
        } });
        let form = argument_fields(&schema).into_string();
        assert!(!form.contains("<script"), "{form}");
    }
}
