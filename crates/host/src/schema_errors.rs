//! Turns schema validation errors into messages that help to fix the value.

use std::borrow::Cow;

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind as Kind;
use serde_json::Value;
use toolgate_contract::printable;

/// Maximum number of characters of a value or of a message that a schema error repeats.
const CHARS_MAX: usize = 300;
/// Longest unknown name whose similarity to known names is computed, in bytes. The client chooses
/// the length, and the computation takes time in proportion to it.
const NAME_BYTES_MAX: usize = 64;

/// Describes the schema violation `error` in plain words. `schema` is the complete violated schema.
pub(crate) fn describe_error(error: &ValidationError<'_>, schema: &Value) -> String {
    let subschema = failing_subschema(error, schema);
    match error.kind() {
        Kind::Required { property } => {
            format!("`{}` is missing", property.as_str().unwrap_or_default())
        }
        Kind::AdditionalProperties { unexpected } => {
            unknown_properties(unexpected, subschema, error.instance())
        }
        Kind::Type { .. } => wrong_type(subschema, error.instance()),
        Kind::OneOfNotValid { .. } | Kind::AnyOf { .. } | Kind::Enum { .. } => {
            invalid_choice(subschema, error.instance())
                .unwrap_or_else(|| shorten_middle(&error.to_string()))
        }
        _ => shorten_middle(&error.to_string()),
    }
}

/// Returns the subschema of `schema` that contains the violated keyword.
fn failing_subschema<'s>(error: &ValidationError<'_>, schema: &'s Value) -> &'s Value {
    let keyword = error.schema_path().as_str();
    let parent = keyword.rsplit_once('/').map_or("", |(parent, _)| parent);
    schema.pointer(parent).unwrap_or(&Value::Null)
}

fn unknown_properties(names: &[String], subschema: &Value, instance: &Value) -> String {
    let given: Vec<_> = names.iter().take(4).map(|name| format!("`{}`", truncate(name))).collect();
    let noun = if names.len() == 1 { "field" } else { "fields" };
    let message = format!("unknown {noun} {}", given.join(", "));
    let Some(known) = subschema["properties"].as_object() else { return message };
    let free: Vec<_> = known.keys().filter(|name| instance.get(name.as_str()).is_none()).collect();
    let meant = names.iter().take(4).filter_map(|name| nearest_property(name, &free));
    let meant: Vec<_> = meant.map(|name| format!("`{name}`")).collect();
    if !meant.is_empty() {
        return format!("{message}; did you mean {}?", meant.join(", "));
    }
    let all: Vec<_> = known.keys().map(|name| format!("`{name}`")).collect();
    format!("{message}; use {}", all.join(", "))
}

/// Returns the name among `known` that the unknown `name` probably means.
fn nearest_property<'n>(name: &str, known: &[&'n String]) -> Option<&'n String> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let similarity = |known: &str| {
        // `file_path` contains `path`, and `cmd` is `command` with letters left out.
        let within = name.split('_').any(|word| word == known);
        if within || abbreviates(name, known) { 0.95 } else { strsim::jaro_winkler(name, known) }
    };
    let best = known.iter().copied().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    // Below this, listing all known names helps more.
    (similarity(best) > 0.88).then_some(best)
}

/// Returns true if `short` is `name` with some letters left out, but not the first or last.
fn abbreviates(short: &str, name: &str) -> bool {
    let ends = |text: &str| (text.chars().next(), text.chars().next_back());
    let mut letters = name.chars();
    short.len() >= 3
        && ends(short) == ends(name)
        && short.chars().all(|letter| letters.any(|other| other == letter))
}

fn wrong_type(subschema: &Value, instance: &Value) -> String {
    let names = match &subschema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    // An optional value is left out, not written as null.
    let names: Vec<_> = names.into_iter().filter(|name| *name != "null").collect();
    let quoted = instance.as_str().is_some_and(|text| text.parse::<f64>().is_ok());
    let number = names.iter().any(|name| matches!(*name, "integer" | "number"));
    let hint = if quoted && number { "; remove the quotes" } else { "" };
    format!("must be {}, not {}{hint}", names.join(" or "), truncate(&instance.to_string()))
}

fn invalid_choice(subschema: &Value, instance: &Value) -> Option<String> {
    let choices: Vec<_> = allowed_values(subschema)?.iter().map(ToString::to_string).collect();
    Some(format!("{} is not one of {}", truncate(&instance.to_string()), choices.join(", ")))
}

/// Returns the allowed values if `subschema` allows only certain constants.
fn allowed_values(subschema: &Value) -> Option<Vec<Value>> {
    let rows =
        ["oneOf", "anyOf", "enum"].iter().find_map(|keyword| subschema[*keyword].as_array())?;
    // An optional value is left out, not written as null.
    let rows = rows.iter().filter(|row| row["type"] != "null");
    let choice = |row: &Value| match row {
        Value::Object(only) => match only.get("const") {
            Some(only) => Some(vec![only.clone()]),
            None => allowed_values(row),
        },
        other => Some(vec![other.clone()]),
    };
    let choices: Option<Vec<_>> = rows.map(choice).collect();
    Some(choices?.concat()).filter(|choices| !choices.is_empty())
}

fn truncate(text: &str) -> Cow<'_, str> {
    printable::shorten(text, 80)
}

/// Shortens a long message in its middle, because it may repeat a long value.
pub(crate) fn shorten_middle(message: &str) -> String {
    let Some((cut, _)) = message.char_indices().nth(CHARS_MAX) else { return message.to_owned() };
    let tail = message.char_indices().rev().nth(79).map_or(0, |(at, _)| at);
    format!("{}… {}", &message[..cut], &message[tail..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: &Value, expected: &str) {
        let schema = json!({
            "type": "object",
            "properties": {
                "command": { "type": "string" },
                "cwd": { "type": ["string", "null"] },
                "count": { "type": ["integer", "null"], "minimum": 1 },
                "encoding": { "oneOf": [{ "const": "utf-8" }, { "const": "base64" }] },
                "edits": { "type": "array", "items": {
                    "type": "object",
                    "properties": { "old": { "type": "string" }, "new": { "type": "string" } },
                    "additionalProperties": false,
                } },
            },
            "required": ["command"],
            "additionalProperties": false,
        });
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let all: Vec<_> = validator
            .iter_errors(value)
            .map(|error| format!("{}: {}", error.instance_path(), describe_error(&error, &schema)))
            .collect();
        assert_eq!(all.join("\n"), expected);
    }

    #[test]
    fn a_missing_property_is_named() {
        check(&json!({}), ": `command` is missing");
    }

    #[test]
    fn an_unknown_property_is_reported_with_the_absent_one_that_was_meant() {
        let expected = ": unknown field `cmd`; did you mean `command`?\n: `command` is missing";
        check(&json!({ "cmd": "ls" }), expected);
        let edit = json!({ "command": "x", "edits": [{ "old_string": "a", "new_string": "b" }] });
        let expected =
            "/edits/0: unknown fields `old_string`, `new_string`; did you mean `old`, `new`?";
        check(&edit, expected);
        let expected = ": unknown field `zebra`; use `command`, `cwd`, `count`, `encoding`, \
                        `edits`";
        check(&json!({ "command": "x", "zebra": 1 }), expected);
    }

    #[test]
    fn a_wrong_type_is_reported_with_the_expected_one() {
        check(&json!({ "command": 5 }), "/command: must be string, not 5");
        let expected = "/count: must be integer, not \"2\"; remove the quotes";
        check(&json!({ "command": "x", "count": "2" }), expected);
    }

    #[test]
    fn an_invalid_choice_is_reported_with_the_choices() {
        let expected = "/encoding: \"utf8\" is not one of \"utf-8\", \"base64\"";
        check(&json!({ "command": "x", "encoding": "utf8" }), expected);
    }
}
