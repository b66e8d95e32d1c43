//! Checks the texts of a tool that an upstream lists and nobody has approved.

use serde_json::Value;
use toolgate_contract::printable::{check_visible, json_texts};

/// The parts of a tool that reach models, and the longest text of each, in bytes.
const PARTS: [(&str, usize); 6] = [
    ("name", 1 << 10),
    ("title", 1 << 10),
    ("description", 64 << 10),
    ("annotations", 1 << 10),
    ("inputSchema", 64 << 10),
    ("outputSchema", 64 << 10),
];
/// The most bytes that the texts of all parts may have together.
const TOTAL_BYTES_MAX: usize = 1 << 20;

/// Checks that no text of the tool list's `entry` is too long or has a hidden character.
///
/// # Errors
///
/// Returns the first fault as the end of a sentence about the tool.
pub(super) fn check_definition_texts(entry: &Value) -> Result<(), String> {
    let mut bytes = 0;
    for (part, bytes_max) in PARTS {
        let Some(value) = entry.get(part) else { continue };
        for text in json_texts(value) {
            check_visible(text, bytes_max)
                .map_err(|fault| format!("a text of its `{part}` {fault}"))?;
            bytes += text.len();
        }
    }
    match bytes > TOTAL_BYTES_MAX {
        true => Err(format!("its texts have {bytes} bytes, more than {TOTAL_BYTES_MAX}")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_and_hidden_characters_are_found_in_each_part() {
        let check = |entry: Value, expected: Result<(), &str>| {
            assert_eq!(check_definition_texts(&entry), expected.map_err(str::to_owned));
        };
        check(
            json!({ "name": "add", "description": "Adds.\n👩\u{200d}🔬", "_meta": "\u{1b}" }),
            Ok(()),
        );
        check(
            json!({ "name": "add", "title": "\u{202e}dda" }),
            Err("a text of its `title` has the hidden character U+202E at byte 0"),
        );
        check(
            json!({ "inputSchema": { "properties": { "a\u{200b}": {} } } }),
            Err("a text of its `inputSchema` has the hidden character U+200B at byte 1"),
        );
        check(
            json!({ "description": "x".repeat(65_537) }),
            Err("a text of its `description` has 65537 bytes, more than 65536"),
        );
        let many = vec!["x".repeat(65_536); 17];
        check(
            json!({ "inputSchema": { "enum": many } }),
            Err("its texts have 1114116 bytes, more than 1048576"),
        );
    }
}
