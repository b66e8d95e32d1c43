//! Checks arguments that a client repeats in HTTP headers.
//!
//! A schema marks such an argument with `x-mcp-header`, whose value is the header's name. Proxies
//! between client and server act on these headers. Therefore a header that differs from its
//! argument is refused.

use serde_json::{Map, Number, Value};
use toolgate_contract::CallError;

/// Schema keyword that marks an argument which clients repeat in an HTTP header.
const KEYWORD: &str = "x-mcp-header";

/// An argument of a tool that clients repeat in an HTTP header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderParam {
    /// Name of the HTTP header that repeats the argument, without the prefix `Mcp-Param-`.
    pub(crate) header: String,
    /// Property names that lead from the tool's input to the argument.
    path: Vec<String>,
}

/// Returns the arguments that `schema` marks for repetition in HTTP headers.
///
/// # Errors
/// A mark is unusable:
/// - its name is no valid header name, or is used twice
/// - its argument is not a string, integer or boolean
/// - its argument has no fixed path in the input
pub(crate) fn parse_header_params(schema: &Value) -> Result<Vec<HeaderParam>, String> {
    let mut found = Vec::new();
    collect_params(schema, &mut Vec::new(), &mut found)?;
    if count_marks(schema) > found.len() {
        return Err(format!(
            "`{KEYWORD}` is only allowed on a property at a fixed place: `properties` may \
             contain the property, but `items` or `anyOf` may not"
        ));
    }
    for (at, HeaderParam { header, .. }) in found.iter().enumerate() {
        if found[..at].iter().any(|other| other.header.eq_ignore_ascii_case(header)) {
            return Err(format!("two arguments have the {KEYWORD} `{header}`"));
        }
    }
    Ok(found)
}

fn collect_params(
    schema: &Value,
    path: &mut Vec<String>,
    found: &mut Vec<HeaderParam>,
) -> Result<(), String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        path.push(name.clone());
        if let Some(header) = property.get(KEYWORD) {
            found.push(new_header_param(header, property, path)?);
        }
        collect_params(property, path, found)?;
        path.pop();
    }
    Ok(())
}

fn new_header_param(
    header: &Value,
    property: &Value,
    path: &[String],
) -> Result<HeaderParam, String> {
    let at = path.join("/");
    let name = header.as_str().filter(|name| is_token(name));
    let Some(name) = name else {
        return Err(format!("the {KEYWORD} of `{at}`, {header}, is not a header name"));
    };
    let kind = property.get("type").and_then(Value::as_str);
    if !matches!(kind, Some("string" | "integer" | "boolean")) {
        return Err(format!("`{at}` has an {KEYWORD} but is not a string, integer or boolean"));
    }
    Ok(HeaderParam { header: name.to_owned(), path: path.to_vec() })
}

fn is_token(name: &str) -> bool {
    let sound = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(sound)
}

/// Returns the number of `x-mcp-header` marks in `schema`.
fn count_marks(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => {
            let here = usize::from(members.contains_key(KEYWORD) && !is_properties(members));
            here + members.values().map(count_marks).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count_marks).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Returns true if `members` are schema properties, one of which has the name `x-mcp-header`. That
/// name is then a property and not a mark.
fn is_properties(members: &Map<String, Value>) -> bool {
    members.get(KEYWORD).is_some_and(Value::is_object)
}

/// Checks that the HTTP header values in `sent` equal the arguments in `input`.
///
/// # Errors
/// A header is missing, malformed or different from its argument.
pub(crate) fn check_headers(
    params: &[HeaderParam],
    input: &Value,
    sent: &[(String, Result<String, String>)],
) -> Result<(), CallError> {
    for HeaderParam { header, path } in params {
        let argument = path.iter().try_fold(input, |value, part| value.get(part));
        let argument = argument.filter(|value| !value.is_null());
        let mut matching = sent.iter().filter(|(name, _)| name.eq_ignore_ascii_case(header));
        let first = matching.next();
        let second = matching.next();
        let header = format!("Mcp-Param-{header}");
        let why = match (argument, first, second) {
            (_, _, Some(_)) => format!("the header `{header}` is present twice"),
            (_, Some((_, Err(why))), None) => why.clone(),
            (Some(value), Some((_, Ok(text))), None) if values_match(value, text) => continue,
            (None, None, None) => continue,
            (Some(value), Some((_, Ok(text))), None) => {
                format!("the header `{header}` is `{text}`, but the argument is {value}")
            }
            (Some(value), None, None) => {
                format!("the header `{header}` is missing, but the argument is {value}")
            }
            (None, Some((_, Ok(_))), None) => {
                format!("the header `{header}` is present, but its argument is missing")
            }
        };
        return Err(CallError::Mismatch { message: why });
    }
    Ok(())
}

/// Returns true if a header's text equals `value`. Numbers are compared by value, other values as
/// text.
fn values_match(value: &Value, text: &str) -> bool {
    match value {
        Value::String(value) => value == text,
        Value::Bool(value) => text == if *value { "true" } else { "false" },
        Value::Number(value) => numbers_match(value, text),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn numbers_match(value: &Number, text: &str) -> bool {
    // Above 2^53, different integers may be equal as floats.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let float = || text.parse::<f64>().ok().filter(|number| number.abs() < EXACT_MAX);
    value.to_string() == text || float().is_some_and(|number| value.as_f64() == Some(number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Vec<(String, Result<String, String>)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), Ok((*text).to_owned()))).collect()
    }

    #[test]
    fn an_argument_at_any_depth_is_compared_with_its_header() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "in": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        }});
        let params = parse_header_params(&schema).expect("sound");
        let input = json!({"region": "eu", "in": {"n": 42}});
        assert!(
            check_headers(&params, &input, &headers(&[("region", "eu"), ("N", "42.0")])).is_ok()
        );
        assert!(check_headers(&params, &input, &headers(&[("region", "eu")])).is_err());
        assert!(
            check_headers(&params, &input, &headers(&[("region", "us"), ("n", "42")])).is_err()
        );
        assert!(check_headers(&params, &json!({"region": null}), &headers(&[])).is_ok());
        assert!(check_headers(&params, &json!({}), &headers(&[("region", "eu")])).is_err());
    }

    #[test]
    fn numbers_are_compared_by_value_and_exactly() {
        for (value, text, is_same) in [
            (json!(42), "42", true),
            (json!(42), "42.0", true),
            (json!(42), "43", false),
            (json!(42), "", false),
            (json!(9_007_199_254_740_993_u64), "9007199254740993", true),
            (json!(9_007_199_254_740_993_u64), "9007199254740992", false),
        ] {
            assert_eq!(values_match(&value, text), is_same, "{value} and {text}");
        }
    }

    #[test]
    fn an_invalid_header_mark_is_refused() {
        for property in [
            json!({"type": "string", "x-mcp-header": ""}),
            json!({"type": "string", "x-mcp-header": "a b"}),
            json!({"type": "number", "x-mcp-header": "N"}),
            json!({"type": "array", "items": {"type": "string", "x-mcp-header": "N"}}),
        ] {
            let schema = json!({"type": "object", "properties": {"p": property}});
            assert!(parse_header_params(&schema).is_err(), "{schema}");
        }
        let twice = json!({"type": "object", "properties": {
            "a": {"type": "string", "x-mcp-header": "N"},
            "b": {"type": "string", "x-mcp-header": "n"},
        }});
        assert!(parse_header_params(&twice).is_err());
    }
}
