//! Sizes of JSON: of a text as values, counted before anything is parsed, and of a value as text.

use std::io;

use memchr::{memchr, memchr2};
use serde_json::Value;

/// Returns an upper bound on the number of values in the JSON `text`: the beginnings of its lists
/// and objects, and the commas in them.
pub fn count_json_values(text: &[u8]) -> usize {
    let mut count = 1;
    let mut rest = text;
    loop {
        let end = memchr(b'"', rest).unwrap_or(rest.len());
        let (outside, string) = rest.split_at(end);
        count += outside.iter().filter(|byte| matches!(byte, b'[' | b'{' | b',')).count();
        match string.split_first() {
            Some((_, inside)) => rest = skip_json_string(inside),
            None => return count,
        }
    }
}

/// Returns the rest of the JSON `text` after the string in which `text` begins. The first byte of
/// `text` follows the opening quote of this string.
#[inline]
pub fn skip_json_string(mut text: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', text) {
        if text[at] == b'"' {
            return &text[at + 1..];
        }
        text = text.get(at + 2..).unwrap_or_default();
    }
    &[]
}

/// Returns true if `value` consists of at most `left` JSON values, itself included. Subtracts their
/// number from `left`.
pub fn has_json_values_at_most(value: &Value, left: &mut u64) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| has_json_values_at_most(item, left)),
        Value::Object(fields) => fields.values().all(|field| has_json_values_at_most(field, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Returns the length of `value` as compact JSON, in bytes.
pub fn json_len(value: &Value) -> usize {
    let mut count = ByteCountingWriter::default();
    // The counting writer never fails.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// A writer that only counts bytes.
#[derive(Default)]
pub(crate) struct ByteCountingWriter(pub(crate) usize);

impl io::Write for ByteCountingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_counted_and_no_character_of_a_string() {
        for (text, count) in [
            ("", 1),
            ("7", 1),
            ("[1,2,3]", 4),
            (r#"{"a":[[],[]],"b":1}"#, 7),
            (r#"["a,b[{\"c,d\\","e"]"#, 3),
            (r#"["cut, \"#, 2),
            (r#"["cut, \""#, 2),
        ] {
            assert_eq!(count_json_values(text.as_bytes()), count, "{text}");
        }
    }
}
