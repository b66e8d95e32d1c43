//! Repairs arguments that a model wrote with other types than their schema demands, such as a
//! number in quotes.

use jsonschema::ValidationError;
use serde_json::Value;
use toolgate_contract::exact_json;

/// Maximum number of invalid parts of a call's input that are repaired.
const REPAIRS_MAX: usize = 64;
/// Maximum number of bytes of quoted lists and objects in one input that are parsed. Their values
/// take many times as much memory.
const QUOTED_BYTES_MAX: usize = 64 << 10;

/// Arguments that are lists of names. A model may write a single name as text instead of a list.
const LISTS: [&str; 5] = ["paths", "glob", "langs", "tags", "kinds"];

/// Returns the invalid input `value` with the types that its schema probably demands, or `None` if
/// nothing can be repaired. `errors` are the validation errors of `value`.
///
/// `null` counts as absent, a quoted number, boolean, list or object as unquoted, and a text
/// instead of a list of names as its only item. Only invalid parts change, so a `null` or text that
/// the schema allows stays. The result may still be invalid, because a missing argument is never
/// invented.
pub(super) fn repair<'v>(
    errors: impl Iterator<Item = ValidationError<'v>>,
    value: &Value,
) -> Option<Value> {
    let mut repaired = value.clone();
    let mut has_changed = false;
    let mut quoted_left = QUOTED_BYTES_MAX;
    for error in errors.take(REPAIRS_MAX) {
        let pointer = error.instance_path().as_str();
        has_changed |= match error.instance().as_ref() {
            Value::Null => remove(&mut repaired, pointer),
            Value::String(text) => unquote(&mut repaired, pointer, text, &mut quoted_left),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
        };
    }
    has_changed.then_some(repaired)
}

/// Removes the property of `value` at the JSON `pointer`. Returns false if the pointer names no
/// property of an object.
fn remove(value: &mut Value, pointer: &str) -> bool {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return false };
    let name = name.replace("~1", "/").replace("~0", "~");
    let parent = value.pointer_mut(parent).and_then(Value::as_object_mut);
    parent.is_some_and(|parent| parent.remove(&name).is_some())
}

/// Replaces the text at the JSON `pointer` by the JSON value that `text` spells, or by a list with
/// the item `text` if a list argument is at `pointer`. Returns false if nothing was replaced.
/// Parses lists and objects of at most `quoted_left` bytes, and deducts their size.
fn unquote(value: &mut Value, pointer: &str, text: &str, quoted_left: &mut usize) -> bool {
    let spelled = match text {
        "true" | "True" => Some(Value::Bool(true)),
        "false" | "False" => Some(Value::Bool(false)),
        text if text.starts_with(['[', '{']) => {
            let left = quoted_left.checked_sub(text.len());
            *quoted_left = left.unwrap_or(*quoted_left);
            left.and_then(|_| exact_json::parse(text).ok())
        }
        text => exact_json::parse_number(text.trim()).map(Value::Number),
    };
    let spelled = spelled.or_else(|| {
        let is_list = LISTS.iter().any(|name| pointer.strip_prefix('/') == Some(*name));
        is_list.then(|| Value::from(vec![text]))
    });
    let (Some(spelled), Some(place)) = (spelled, value.pointer_mut(pointer)) else { return false };
    *place = spelled;
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn repaired(schema: &Value, value: &Value) -> Option<Value> {
        let validator = jsonschema::validator_for(schema).expect("a schema");
        repair(validator.iter_errors(value), value).filter(|repaired| validator.is_valid(repaired))
    }

    #[test]
    fn null_counts_as_absent_for_optional_arguments_only() {
        let schema = json!({
            "type": "object",
            "required": ["path"],
            "properties": {
                "path": { "type": "string" },
                "limit": { "type": "integer" },
                "case": { "enum": ["smart", "exact"] },
                "range": { "anyOf": [{ "type": "integer" }, { "type": "array" }] },
                "note": { "type": ["string", "null"] },
                "a/b": { "type": "object", "properties": { "deep": { "type": "boolean" } } },
            },
            "additionalProperties": false,
        });
        let all = json!({
            "path": "p", "limit": null, "case": null, "range": null, "note": null,
            "a/b": { "deep": null },
        });
        let expected = json!({ "path": "p", "note": null, "a/b": {} });
        assert_eq!(repaired(&schema, &all), Some(expected));
        for refused in [
            json!({ "path": null }),
            json!({ "path": "p", "limit": [null] }),
            json!({ "path": "p", "unknown": null }),
        ] {
            assert_eq!(repaired(&schema, &refused), None, "{refused}");
        }
    }

    #[test]
    fn a_text_becomes_the_list_that_it_spells_or_a_list_of_one_name() {
        let list = json!({ "type": "array", "items": { "type": "string" } });
        let schema = json!({ "properties": { "paths": list, "args": list } });
        for (given, expected) in [
            (json!({ "paths": "a b" }), Some(json!({ "paths": ["a b"] }))),
            (json!({ "paths": r#"["a", "b"]"# }), Some(json!({ "paths": ["a", "b"] }))),
            (json!({ "args": r#"["-l"]"# }), Some(json!({ "args": ["-l"] }))),
            (json!({ "args": "-l -a" }), None),
            (json!({ "paths": "[1]" }), None),
        ] {
            assert_eq!(repaired(&schema, &given), expected, "{given}");
        }
    }

    #[test]
    fn quoted_numbers_and_booleans_are_unquoted_where_text_is_invalid() {
        let schema = json!({
            "type": "object",
            "properties": {
                "count": { "type": "integer", "minimum": 1 },
                "ratio": { "type": "number" },
                "all": { "type": "boolean" },
                "text": { "type": "string" },
                "lines": { "type": "array", "items": { "type": "integer" } },
            },
        });
        let quoted = json!({
            "count": "12", "ratio": "-1.5e2", "all": "true", "text": "12", "lines": [1, "2"],
        });
        let plain = exact_json::parse(
            r#"{"count": 12, "ratio": -1.5e2, "all": true, "text": "12", "lines": [1, 2]}"#,
        )
        .expect("JSON");
        assert_eq!(repaired(&schema, &quoted), Some(plain));
        for refused in [
            json!({ "count": "0" }),
            json!({ "count": "1.5" }),
            json!({ "count": "twelve" }),
            json!({ "count": "" }),
            json!({ "all": "yes" }),
            json!({ "all": "1" }),
            json!({ "text": 12 }),
        ] {
            assert_eq!(repaired(&schema, &refused), None, "{refused}");
        }
    }
}
