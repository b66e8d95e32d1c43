//! Edits JSON with comments without changing the rest of the text.

use anyhow::{Context, anyhow, bail, ensure};
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use jsonc_parser::errors::ParseError;
use jsonc_parser::{ParseOptions, parse_to_serde_value};
use serde_json::Value;

/// Options for reading a client's settings: JSON with comments and trailing commas. Clients reject
/// every other deviation from JSON.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Parses `text` as JSON with comments and trailing commas. An empty text is null.
///
/// # Errors
/// The text is invalid. The error names the line and the column.
pub(super) fn parse(text: &str) -> anyhow::Result<Value> {
    let value = parse_to_serde_value::<Option<Value>>(text, &OPTIONS);
    Ok(value.map_err(|err| syntax_error(&err))?.unwrap_or_default())
}

/// Returns the JSON `text` in which the member `name` of the object `table` is `entry`. `table` is
/// a member of the root object.
///
/// # Errors
/// The text is invalid, or the root or `table` is not an object.
pub(super) fn set(text: &str, table: &str, name: &str, entry: &Value) -> anyhow::Result<String> {
    let root = parse_tree(text)?;
    let object = root.object_value_or_create().context("the settings are not an object")?;
    let servers = match member(&object, table)? {
        None => {
            object.append(table, CstInputValue::Object(Vec::new()));
            object.object_value(table)
        }
        Some(found) => found.object_value(),
    };
    let servers = servers.with_context(|| format!("`{table}` is not an object"))?;
    match member(&servers, name)? {
        Some(found) => found.set_value(input_value(entry)),
        None => {
            servers.append(name, input_value(entry));
        }
    }
    Ok(root.to_string())
}

/// Returns the JSON `text` without the member `name` of the object `table`, a member of the root
/// object. Returns the text unchanged if there is no such member.
///
/// # Errors
/// The text is invalid, or an object has two members with the same name.
pub(super) fn remove(text: &str, table: &str, name: &str) -> anyhow::Result<String> {
    let root = parse_tree(text)?;
    if let Some(object) = root.object_value()
        && let Some(servers) = member(&object, table)?.and_then(|found| found.object_value())
        && let Some(found) = member(&servers, name)?
    {
        found.remove();
    }
    Ok(root.to_string())
}

fn parse_tree(text: &str) -> anyhow::Result<CstRootNode> {
    let root = CstRootNode::parse(text, &OPTIONS).map_err(|err| syntax_error(&err))?;
    ensure!(
        root.to_string() == text,
        "the file cannot be edited without changing other parts of it"
    );
    Ok(root)
}

fn syntax_error(err: &ParseError) -> anyhow::Error {
    anyhow!("{} in line {}, column {}", err.kind(), err.line_display(), err.column_display())
}

/// Returns the member `name` of the JSON object `object`. Fails if two members have this name,
/// because clients use only the last of them.
fn member(object: &CstObject, name: &str) -> anyhow::Result<Option<CstObjectProp>> {
    let all = object.properties().into_iter();
    let mut found = all.filter(|member| member.decoded_name().as_deref() == Some(name));
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        (_, Some(_)) => bail!("`{name}` occurs twice; remove one of the two"),
    }
}

fn input_value(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(flag) => CstInputValue::Bool(*flag),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input_value).collect()),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), input_value(value)));
            CstInputValue::Object(members.collect())
        }
    }
}
