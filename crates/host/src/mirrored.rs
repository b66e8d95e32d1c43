//! Arguments that a wire says twice, in headers beside the call: which, and whether they agree.
//!
//! A schema marks such an argument with `x-mcp-header`, which gives the header's name. Whoever
//! stands between client and server acts on headers; if the call could say otherwise, they would
//! act on a lie.

use serde_json::{Map, Number, Value};
use toolgate_contract::CallError;

/// The keyword that marks an argument.
const KEYWORD: &str = "x-mcp-header";

/// An argument that is said twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Its header's name, without what all of them begin with.
    pub(crate) header: String,
    /// Where it is in the arguments.
    path: Vec<String>,
}

/// The arguments that `schema` marks.
///
/// # Errors
/// When a mark cannot be meant: a name that no header may have or that another has, an argument
/// that is no text, integer or boolean, or one that is not in the same place in every call.
pub(crate) fn of(schema: &Value) -> Result<Vec<Mirror>, String> {
    let mut found = Vec::new();
    gather(schema, &mut Vec::new(), &mut found)?;
    if marks(schema) > found.len() {
        return Err(format!(
            "`{KEYWORD}` stands where the argument is not always in the same place: it belongs to \
             a property, reached by `properties` alone"
        ));
    }
    for (at, Mirror { header, .. }) in found.iter().enumerate() {
        if found[..at].iter().any(|other| other.header.eq_ignore_ascii_case(header)) {
            return Err(format!("two arguments have the {KEYWORD} `{header}`"));
        }
    }
    Ok(found)
}

fn gather(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Mirror>) -> Result<(), String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        path.push(name.clone());
        if let Some(header) = property.get(KEYWORD) {
            found.push(mirror(header, property, path)?);
        }
        gather(property, path, found)?;
        path.pop();
    }
    Ok(())
}

fn mirror(header: &Value, property: &Value, path: &[String]) -> Result<Mirror, String> {
    let at = path.join("/");
    let name = header.as_str().filter(|name| is_token(name));
    let Some(name) = name else {
        return Err(format!("the {KEYWORD} of `{at}`, {header}, is no name of a header"));
    };
    let kind = property.get("type").and_then(Value::as_str);
    if !matches!(kind, Some("string" | "integer" | "boolean")) {
        return Err(format!("`{at}` has an {KEYWORD} and is no string, integer or boolean"));
    }
    Ok(Mirror { header: name.to_owned(), path: path.to_vec() })
}

fn is_token(name: &str) -> bool {
    let sound = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(sound)
}

/// How many marks there are anywhere.
fn marks(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => {
            let here = usize::from(members.contains_key(KEYWORD) && !is_properties(members));
            here + members.values().map(marks).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(marks).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Whether an object is one of properties, one of which happens to be called like the keyword.
fn is_properties(members: &Map<String, Value>) -> bool {
    members.get(KEYWORD).is_some_and(Value::is_object)
}

/// Whether `said`, what came in headers, is what `input` says.
pub(crate) fn agree(
    mirrors: &[Mirror],
    input: &Value,
    said: &[(String, Result<String, String>)],
) -> Result<(), CallError> {
    for Mirror { header, path } in mirrors {
        let here = path.iter().try_fold(input, |value, part| value.get(part));
        let here = here.filter(|value| !value.is_null());
        let mut there = said.iter().filter(|(name, _)| name.eq_ignore_ascii_case(header));
        let (first, second) = (there.next(), there.next());
        let header = format!("Mcp-Param-{header}");
        let why = match (here, first, second) {
            (_, _, Some(_)) => format!("the header `{header}` stands twice"),
            (_, Some((_, Err(why))), None) => why.clone(),
            (Some(value), Some((_, Ok(text))), None) if same(value, text) => continue,
            (None, None, None) => continue,
            (Some(value), Some((_, Ok(text))), None) => {
                format!("the header `{header}` says `{text}`, the argument {value}")
            }
            (Some(value), None, None) => {
                format!("the header `{header}` is missing; the argument is {value}")
            }
            (None, Some((_, Ok(_))), None) => {
                format!("the header `{header}` is there, and its argument is not")
            }
        };
        return Err(CallError::Mismatch { message: why });
    }
    Ok(())
}

/// Whether a header's text says `value`: numbers by what they are, the rest letter by letter.
fn same(value: &Value, text: &str) -> bool {
    match value {
        Value::String(value) => value == text,
        Value::Bool(value) => text == if *value { "true" } else { "false" },
        Value::Number(value) => same_number(value, text),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn same_number(value: &Number, text: &str) -> bool {
    // Beyond this, integers that differ are one as floats.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let float = || text.parse::<f64>().ok().filter(|number| number.abs() < EXACT_MAX);
    value.to_string() == text || float().is_some_and(|number| value.as_f64() == Some(number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(pairs: &[(&str, &str)]) -> Vec<(String, Result<String, String>)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), Ok((*text).to_owned()))).collect()
    }

    #[test]
    fn a_mark_is_found_however_deep_the_properties_are() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "in": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        }});
        let mirrors = of(&schema).expect("sound");
        let input = json!({"region": "eu", "in": {"n": 42}});
        assert!(agree(&mirrors, &input, &said(&[("region", "eu"), ("N", "42.0")])).is_ok());
        assert!(agree(&mirrors, &input, &said(&[("region", "eu")])).is_err());
        assert!(agree(&mirrors, &input, &said(&[("region", "us"), ("n", "42")])).is_err());
        assert!(agree(&mirrors, &json!({"region": null}), &said(&[])).is_ok());
        assert!(agree(&mirrors, &json!({}), &said(&[("region", "eu")])).is_err());
    }

    #[test]
    fn numbers_are_the_same_however_they_are_written_and_differ_however_large_they_are() {
        for (value, text, is_same) in [
            (json!(42), "42", true),
            (json!(42), "42.0", true),
            (json!(42), "43", false),
            (json!(42), "", false),
            (json!(9_007_199_254_740_993_u64), "9007199254740993", true),
            (json!(9_007_199_254_740_993_u64), "9007199254740992", false),
        ] {
            assert_eq!(same(&value, text), is_same, "{value} and {text}");
        }
    }

    #[test]
    fn a_mark_that_cannot_be_meant_is_refused() {
        for property in [
            json!({"type": "string", "x-mcp-header": ""}),
            json!({"type": "string", "x-mcp-header": "a b"}),
            json!({"type": "number", "x-mcp-header": "N"}),
            json!({"type": "array", "items": {"type": "string", "x-mcp-header": "N"}}),
        ] {
            let schema = json!({"type": "object", "properties": {"p": property}});
            assert!(of(&schema).is_err(), "{schema}");
        }
        let twice = json!({"type": "object", "properties": {
            "a": {"type": "string", "x-mcp-header": "N"},
            "b": {"type": "string", "x-mcp-header": "n"},
        }});
        assert!(of(&twice).is_err());
    }
}
