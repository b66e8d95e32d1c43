//! Memory of a JSON message once it is parsed, estimated before anything is parsed.
//!
//! A list of empty lists takes three bytes for each of them as text, and many times as much as values.

use memchr::{memchr, memchr2};

/// Memory of one parsed value in a list that has grown, in bytes.
const VALUE_BYTES: usize = 100;
/// Largest estimate, in messages of the largest size. A message of that size must still be accepted
/// if no other one is there.
const MESSAGES_MAX: usize = 4;

/// Returns about how many bytes the values of the JSON text `message` take once they are parsed, if
/// messages have at most `message_bytes_max` bytes. Never returns too little for short texts in
/// lists.
pub fn parsed_json_bytes(message: &[u8], message_bytes_max: usize) -> usize {
    let bytes = count_values(message).saturating_mul(VALUE_BYTES);
    bytes.min(message_bytes_max.saturating_mul(MESSAGES_MAX))
}

/// Returns a number of values that the JSON `text` does not exceed. Counts the beginnings of lists
/// and objects, and the commas in them.
fn count_values(text: &[u8]) -> usize {
    let mut count = 1;
    let mut rest = text;
    loop {
        let end = memchr(b'"', rest).unwrap_or(rest.len());
        let (outside, string) = rest.split_at(end);
        count += outside.iter().filter(|byte| matches!(byte, b'[' | b'{' | b',')).count();
        match string.split_first() {
            Some((_, inside)) => rest = skip_string(inside),
            None => return count,
        }
    }
}

/// Returns the part of `text` after the string whose first character is the first byte of `text`.
fn skip_string(mut text: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', text) {
        if text[at] == b'"' {
            return &text[at + 1..];
        }
        text = text.get(at + 2..).unwrap_or_default();
    }
    &[]
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
            assert_eq!(count_values(text.as_bytes()), count, "{text}");
        }
    }

    #[test]
    fn a_message_of_the_largest_size_has_a_bounded_estimate() {
        let list = format!("[{}0]", "[],".repeat(1000));
        assert_eq!(parsed_json_bytes(list.as_bytes(), 1 << 20), 200_200);
        assert_eq!(parsed_json_bytes(list.as_bytes(), list.len()), 4 * list.len());
        let text = format!("\"{}\"", ",".repeat(1000));
        assert_eq!(parsed_json_bytes(text.as_bytes(), 1 << 20), VALUE_BYTES);
    }
}
