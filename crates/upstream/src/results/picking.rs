//! Picks fields from a stored result that is JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use toolgate_contract::{ToolError, count_json_values, exact_json};

use super::piece;

/// Longest stored result from which fields are picked, in bytes. A parsed result takes several
/// times as much memory.
const JSON_BYTES_MAX: usize = 16 << 20;
/// Maximum number of JSON values in a stored result from which fields are picked. Each value takes
/// up to 100 bytes of memory.
const JSON_VALUES_MAX: usize = 1_000_000;
/// Maximum number of fields that one request picks.
const FIELDS_MAX: usize = 50;
/// Maximum number of names in one field, such as two in `rows.name`. Deeper JSON is not parsed, and
/// the tree of a deeper field would overflow the stack.
const NAMES_MAX: usize = 128;
/// Maximum number of existing fields that the error about a missing field lists.
const NAMED_FIELDS_MAX: usize = 30;
/// Deepest level of a result's fields that the error about a missing field lists.
const NAMED_DEPTH_MAX: usize = 3;
/// Maximum number of bytes of a requested field that an error message repeats.
const NAME_BYTES_MAX: usize = 100;

/// Returns the JSON in `text` with only the `fields`.
///
/// # Errors
/// There are too many fields, a field has too many names, `text` is too long or not JSON, or it has
/// none of the fields.
pub(super) fn pick_fields(text: &str, fields: &[String]) -> Result<String, ToolError> {
    let refuse = |message: String| Err(ToolError::invalid("/fields", message));
    if fields.len() > FIELDS_MAX {
        return refuse(format!("at most {FIELDS_MAX} fields; pick the object that has them"));
    }
    if fields.iter().any(|field| field_names(field).len() > NAMES_MAX) {
        return refuse(format!("a field may have at most {NAMES_MAX} names"));
    }
    if text.len() > JSON_BYTES_MAX {
        let message = format!(
            "the result has {} bytes, more than {JSON_BYTES_MAX}; use `find` or `offset`",
            text.len()
        );
        return refuse(message);
    }
    // Each value takes at least one byte.
    if text.len() > JSON_VALUES_MAX && count_json_values(text.as_bytes()) > JSON_VALUES_MAX {
        let message =
            format!("the result has more than {JSON_VALUES_MAX} values; use `find` or `offset`");
        return refuse(message);
    }
    let Ok(value) = exact_json::parse(text) else {
        return refuse("the result is not JSON; use `find` or `offset`".to_owned());
    };
    match JsonFieldSelection::parse(fields).pick(&value) {
        Some(picked) => Ok(picked.to_string()),
        None => {
            let mut known = Vec::new();
            collect_fields(&value, "", NAMED_DEPTH_MAX, &mut known);
            let known = match known.is_empty() {
                true => "it has no fields".to_owned(),
                false => format!("it has: {}", known.join(", ")),
            };
            refuse(format!("the result has none of these fields; {known}"))
        }
    }
}

/// The fields to pick from a JSON value, as a tree of names.
#[derive(Default)]
struct JsonFieldSelection {
    /// True if the complete JSON value at this node of the tree is picked.
    is_whole: bool,
    members: BTreeMap<String, JsonFieldSelection>,
}

impl JsonFieldSelection {
    fn parse(fields: &[String]) -> Self {
        let mut root = Self::default();
        for field in fields {
            let mut place = &mut root;
            for name in field_names(field) {
                place = place.members.entry(name).or_default();
            }
            place.is_whole = true;
        }
        root
    }

    /// Returns the picked part of `value`, or `None` if there is none. In a list, a name is the
    /// index of an item, or else a field of each item.
    fn pick(&self, value: &Value) -> Option<Value> {
        if self.is_whole {
            return Some(value.clone());
        }
        match value {
            Value::Object(fields) => {
                let picked = fields.iter().filter_map(|(name, value)| {
                    Some((name.clone(), self.member(name)?.pick(value)?))
                });
                let picked: Map<String, Value> = picked.collect();
                (!picked.is_empty()).then_some(Value::Object(picked))
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let picked = items.filter_map(|(at, item)| match self.member(&at.to_string()) {
                    Some(inner) => inner.pick(item),
                    None => self.pick(item),
                });
                let picked: Vec<Value> = picked.collect();
                (!picked.is_empty()).then_some(Value::Array(picked))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }

    fn member(&self, name: &str) -> Option<&Self> {
        self.members.get(name).or_else(|| self.members.get("*"))
    }
}

/// Splits a field such as `rows.name`, `rows[0].name`, `$.rows[*].name` or `/rows/0/name`.
fn field_names(field: &str) -> Vec<String> {
    let field = field.trim();
    if let Some(pointer) = field.strip_prefix('/') {
        let names = pointer.split('/').map(|name| name.replace("~1", "/").replace("~0", "~"));
        return names.collect();
    }
    let path = field.strip_prefix('$').unwrap_or(field);
    let names = path.split(['.', '[', ']']).filter(|name| !name.is_empty());
    names.map(|name| name.trim_matches(['"', '\'']).to_owned()).collect()
}

/// Appends to `found` the names of the fields of `value` down to `depth`, after the prefix `path`.
/// A list stands for its first item.
fn collect_fields(value: &Value, path: &str, depth: usize, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if depth > 0 => {
            for (name, inner) in fields {
                if found.len() >= NAMED_FIELDS_MAX {
                    return;
                }
                let name = piece(name, 0, NAME_BYTES_MAX);
                let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                let before = found.len();
                collect_fields(inner, &path, depth - 1, found);
                if found.len() == before {
                    found.push(format!("`{path}`"));
                }
            }
        }
        Value::Array(items) if depth > 0 => {
            if let Some(first) = items.first() {
                collect_fields(first, path, depth, found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: &Value, fields: &[&str], expected: &Value) {
        let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
        let picked = pick_fields(&value.to_string(), &fields).expect("there is such a field");
        assert_eq!(picked, expected.to_string(), "{fields:?}");
    }

    #[test]
    fn a_field_is_picked_from_each_item_of_a_list_in_every_spelling() {
        let value = json!({ "rows": [{ "id": 1, "a.b": 2 }, { "id": 3 }, 4], "count": 3 });
        let ids = json!({ "rows": [{ "id": 1 }, { "id": 3 }] });
        for field in
            ["rows.id", "rows[].id", "rows[*].id", "$.rows[*].id", ".rows[].id", "/rows/*/id"]
        {
            check(&value, &[field], &ids);
        }
        check(&value, &["rows.1", "count"], &json!({ "rows": [{ "id": 3 }], "count": 3 }));
        check(&value, &["/rows/0/a.b"], &json!({ "rows": [{ "a.b": 2 }] }));
        check(&json!([[{ "id": 1 }], []]), &["id"], &json!([[{ "id": 1 }]]));
    }

    #[test]
    fn numbers_keep_their_text() {
        let picked = pick_fields("{\"a\":1E400,\"b\":2}", &["a".to_owned()]);
        assert_eq!(picked.expect("it has the field"), "{\"a\":1E400}");
    }

    #[test]
    fn a_field_of_too_many_names_is_refused() {
        for field in ["a.", "/a", "[0]"].map(|part| part.repeat(100_000)) {
            let error = pick_fields("{\"a\":1}", &[field]).expect_err("it has too many names");
            assert!(error.message.contains("at most 128 names"), "{}", error.message);
        }
    }

    #[test]
    fn a_result_of_too_many_values_is_refused() {
        let text = format!("[{}0]", "0,".repeat(JSON_VALUES_MAX));
        let error = pick_fields(&text, &["a".to_owned()]).expect_err("it has too many values");
        assert!(error.message.contains("more than 1000000 values"), "{}", error.message);
    }

    #[test]
    fn a_missing_field_is_answered_with_those_that_exist() {
        let refusal = |text: &str, field: &str| match pick_fields(text, &[field.to_owned()]) {
            Ok(picked) => panic!("{picked}"),
            Err(error) => error.message,
        };
        let why = refusal("{\"rows\":[{\"id\":1}],\"count\":2}", "id");
        assert!(why.contains("it has: `rows.id`, `count`"), "{why}");
        assert!(refusal("[1]", "id").contains("it has no fields"));
        assert!(refusal("no JSON", "id").contains("is not JSON"));
    }
}
