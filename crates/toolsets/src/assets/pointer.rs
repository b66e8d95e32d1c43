//! Builds JSON Pointers (RFC 6901) step by step.

use serde_json::Value;
use toolgate_contract::{ToolError, ToolErrorKind};

/// The maximum total length of the JSON Pointers to all values in one asset, in bytes.
const POINTERS_BYTES_MAX: usize = 64 << 20;

/// Appends `/` and the escaped name `key` to the JSON Pointer `pointer`.
pub(super) fn push_step(pointer: &mut String, key: &str) {
    pointer.push('/');
    for c in key.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            _ => pointer.push(c),
        }
    }
}

/// Fails if the JSON Pointers to all values in `asset` are too long in total.
///
/// A long key with many children makes the pointers, and thus the error report, far larger than the
/// asset.
pub(super) fn check_pointers(asset: &Value) -> Result<(), ToolError> {
    let mut left = POINTERS_BYTES_MAX;
    if subtract_pointers(&mut left, asset, 0) {
        return Ok(());
    }
    let message = format!(
        "the JSON Pointers to the asset's values have more than {POINTERS_BYTES_MAX} bytes in \
         total; shorten keys that have many values beneath them, or validate the asset in parts"
    );
    Err(ToolError::new(ToolErrorKind::TooLarge, message))
}

/// Subtracts from `left` the lengths of the JSON Pointers to `value` and to all values inside
/// `value`. Returns false if `left` has too few bytes. The pointer to `value` itself has `at`
/// bytes.
fn subtract_pointers(left: &mut usize, value: &Value, at: usize) -> bool {
    let Some(rest) = left.checked_sub(at) else { return false };
    *left = rest;
    match value {
        Value::Object(fields) => {
            fields.iter().all(|(key, value)| subtract_pointers(left, value, at + 1 + key.len()))
        }
        Value::Array(items) => items.iter().all(|value| subtract_pointers(left, value, at + 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}
