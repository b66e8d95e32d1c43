//! Estimates the memory of JSON values: of a message before it is parsed, and of a value before it
//! is copied.
//!
//! In a list of empty lists, each of them takes three bytes of text, but many times as much memory
//! once it is parsed. A list of small objects takes about 50 times the memory of its text.

use memchr::memchr;
use serde_json::Value;
use toolgate_contract::skip_json_string;

/// Memory of one value in a list, in bytes. The allocator may reserve memory for twice as many
/// values. A value itself takes 72 bytes, and the text of a number or string at least 32 more.
const ITEM_BYTES: usize = 140;
/// Memory of the items of a list that is not empty, in bytes. The allocator reserves memory for at
/// least four items.
const LIST_BYTES: usize = 300;
/// Memory of an object that is not empty, in bytes: a hash table, and entries of 104 bytes for at
/// least three fields.
const OBJECT_BYTES: usize = 500;
/// Memory of the name of an object's field, in bytes, in addition to the text of the name.
const NAME_BYTES: usize = 40;
/// Number of copies of a message's text in memory after parsing: one in the parsed values, and one
/// in the data that a tool creates from them.
const TEXT_COPIES: usize = 2;
/// Size of the pieces in which the structure of a JSON text is scanned, in bytes. After each piece,
/// the estimate ends if it has reached its maximum.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum of the estimated memory of a message's values, as a multiple of the maximum size of a
/// message. With this maximum, a message of any allowed size is accepted if there is no other
/// message.
const MESSAGES_MAX: usize = 4;

/// Returns about how many bytes the values of the JSON text `message` take in memory. The estimate
/// is limited to a multiple of `message_bytes_max`, the maximum size of a message.
#[inline]
pub fn parsed_json_bytes(message: &[u8], message_bytes_max: usize) -> usize {
    let bytes_max = message_bytes_max.saturating_mul(MESSAGES_MAX);
    let mut bytes = ITEM_BYTES.saturating_add(message.len().saturating_mul(TEXT_COPIES));
    let mut rest = message;
    loop {
        let end = memchr(b'"', rest).unwrap_or(rest.len());
        let (outside, string) = rest.split_at(end);
        for piece in outside.chunks(PIECE_BYTES) {
            bytes = bytes.saturating_add(structure_bytes(piece));
            if bytes >= bytes_max {
                return bytes_max;
            }
        }
        match string.split_first() {
            Some((_, inside)) => rest = skip_json_string(inside),
            None => return bytes.min(bytes_max),
        }
    }
}

/// Returns about how many bytes of memory the lists and objects in `outside` take. `outside` is a
/// piece of JSON text between two strings.
#[inline]
fn structure_bytes(outside: &[u8]) -> usize {
    let mut bytes: usize = 0;
    for (at, byte) in outside.iter().enumerate() {
        // White space before the end of an empty list makes the estimate too large, which is fine.
        let next = outside.get(at + 1).copied();
        bytes = bytes.saturating_add(match byte {
            b',' => ITEM_BYTES,
            b':' => NAME_BYTES,
            b'[' if next != Some(b']') => LIST_BYTES,
            b'{' if next != Some(b'}') => OBJECT_BYTES,
            _ => 0,
        });
    }
    bytes
}

/// Returns about how many bytes of memory `value` takes, whose depth the parser has limited.
#[inline]
pub fn json_value_bytes(value: &Value) -> usize {
    let bytes = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) if items.is_empty() => 0,
        Value::Array(items) => LIST_BYTES + items.iter().map(json_value_bytes).sum::<usize>(),
        Value::Object(fields) if fields.is_empty() => 0,
        Value::Object(fields) => {
            let fields = fields.iter();
            let bytes = fields.map(|(name, field)| {
                NAME_BYTES.saturating_add(name.len()).saturating_add(json_value_bytes(field))
            });
            OBJECT_BYTES + bytes.sum::<usize>()
        }
    };
    ITEM_BYTES + bytes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the estimated memory of the lists and objects in the JSON text `text`, in bytes,
    /// without the memory of the text itself.
    fn structure(text: &str) -> usize {
        parsed_json_bytes(text.as_bytes(), 1 << 30) - ITEM_BYTES - TEXT_COPIES * text.len()
    }

    #[test]
    fn each_value_counts_and_no_character_of_a_string() {
        for (text, bytes) in [
            ("", 0),
            ("7", 0),
            ("[]", 0),
            ("{}", 0),
            ("[1,2]", LIST_BYTES + ITEM_BYTES),
            ("[[],[]]", LIST_BYTES + ITEM_BYTES),
            (r#"{"a":["b"]}"#, OBJECT_BYTES + NAME_BYTES + LIST_BYTES),
            (r#"["a,b[{:\"c,d\\"]"#, LIST_BYTES),
            (r#"["cut, \"#, LIST_BYTES),
        ] {
            assert_eq!(structure(text), bytes, "{text}");
        }
    }

    #[test]
    fn the_estimate_covers_the_memory_of_the_values() {
        let (value, entry) = (size_of::<Value>(), size_of::<(usize, String, Value)>());
        assert!(value <= 80 && entry <= 112, "{value} {entry}");
        let objects = format!("[{}0]", "{\"n\":1},".repeat(1000));
        // Each object has a table of 64 bytes, room for three fields, a name and a number.
        assert!(parsed_json_bytes(objects.as_bytes(), 1 << 30) > 1000 * (72 + 64 + 312 + 32 + 32));
    }

    #[test]
    fn a_value_takes_as_much_as_its_text_promises() {
        let value = json!({ "list": [1, [], {}, "text"], "none": null });
        let text = value.to_string();
        let estimate = structure(&text) + ITEM_BYTES;
        // In the text, the first item of a list or object has no comma.
        assert_eq!(json_value_bytes(&value), estimate + 2 * ITEM_BYTES + "listtextnone".len());
    }

    #[test]
    fn a_message_of_the_largest_size_has_a_bounded_estimate() {
        let list = format!("[{}0]", "[],".repeat(1000));
        assert!(parsed_json_bytes(list.as_bytes(), 1 << 20) > 1000 * 72);
        assert_eq!(parsed_json_bytes(list.as_bytes(), list.len()), 4 * list.len());
        let text = format!("\"{}\"", ",".repeat(1000));
        assert_eq!(parsed_json_bytes(text.as_bytes(), 1 << 20), ITEM_BYTES + 2 * text.len());
    }
}
