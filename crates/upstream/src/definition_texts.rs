//! Checks the texts in an upstream's lists that reach models and people.

use serde_json::Value;
use toolgate_contract::printable::{check_visible, escape_hidden, json_texts};

/// Members of a tool's definition whose texts reach models, each with its maximum length in bytes.
const TOOL_PARTS: [(&str, usize); 6] = [
    ("name", 1 << 10),
    ("title", 1 << 10),
    ("description", 64 << 10),
    ("annotations", 1 << 10),
    ("inputSchema", 64 << 10),
    ("outputSchema", 64 << 10),
];
/// Members of the definition of a resource, a template or a prompt whose texts reach models and
/// people, each with its maximum length in bytes.
const ITEM_PARTS: [(&str, usize); 8] = [
    ("uri", 8 << 10),
    ("uriTemplate", 8 << 10),
    ("name", 1 << 10),
    ("title", 1 << 10),
    ("description", 64 << 10),
    ("mimeType", 1 << 10),
    ("annotations", 1 << 10),
    ("arguments", 64 << 10),
];
/// Members of a skill's definition whose texts reach models and people, each with its maximum
/// length in bytes.
const SKILL_PARTS: [(&str, usize); 3] =
    [("uri", 8 << 10), ("frontmatter", 64 << 10), ("resources", 8 << 10)];
/// Maximum number of bytes of all checked texts of one listed entry, such as a tool, together.
const TOTAL_BYTES_MAX: usize = 1 << 20;

/// Maximum number of removed entries of a list that get a log line of their own. One further log
/// line reports all other removed entries.
const LOGGED_MAX: usize = 3;

/// Checks that no text of the tool list's `entry` is too long or has a hidden character.
///
/// # Errors
///
/// Returns the first fault as the end of a sentence about the tool.
pub(crate) fn check_definition_texts(entry: &Value) -> Result<(), String> {
    check_parts(entry, &TOOL_PARTS)
}

/// Checks that no text of the skill list's `entry` is too long or has a hidden character.
///
/// # Errors
///
/// Returns the first fault as the end of a sentence about the skill.
pub(crate) fn check_skill_texts(entry: &Value) -> Result<(), String> {
    check_parts(entry, &SKILL_PARTS)
}

/// Removes the resources, templates or prompts from `entries` that have a text that is too long or
/// has a hidden character, and logs them. The log names the list `kind` of the upstream `name`.
pub(crate) fn remove_hidden_texts(name: &str, kind: &str, entries: &mut Vec<Value>) {
    let mut removed = 0;
    entries.retain(|entry| {
        let Err(fault) = check_parts(entry, &ITEM_PARTS) else { return true };
        removed += 1;
        if removed <= LOGGED_MAX {
            let label = [&entry["uri"], &entry["uriTemplate"], &entry["name"]];
            let label = label.into_iter().find_map(Value::as_str).unwrap_or_default();
            let label: String = label.chars().take(64).collect();
            tracing::warn!(
                "`{}` in the {kind} of the upstream `{name}` is not listed: {fault}; fix the \
                 upstream",
                escape_hidden(&label)
            );
        }
        false
    });
    if removed > LOGGED_MAX {
        tracing::warn!(
            "{} more {kind} of the upstream `{name}` are not listed for such reasons",
            removed - LOGGED_MAX
        );
    }
}

/// Checks that no text in the members `parts` of the listed `entry` is too long or has a hidden
/// character. `parts` also contains the maximum length of each text.
fn check_parts(entry: &Value, parts: &[(&str, usize)]) -> Result<(), String> {
    let mut bytes = 0;
    for (part, bytes_max) in parts {
        let Some(value) = entry.get(*part) else { continue };
        for text in json_texts(value) {
            check_visible(text, *bytes_max)
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
    fn resources_and_prompts_with_hidden_characters_are_removed() {
        let arguments = json!([{ "name": "a", "description": "\u{1b}[2J" }]);
        let plain = [json!({ "uri": "a://1", "name": "One 👩\u{200d}🔬" }), json!({ "name": "p" })];
        let mut entries = vec![
            json!({ "uri": "a://2\u{200b}", "name": "two" }),
            plain[0].clone(),
            json!({ "uriTemplate": "a://{x}", "title": "\u{202e}x" }),
            json!({ "name": "p", "arguments": arguments }),
            json!({ "name": "p", "description": "x".repeat(65_537) }),
            plain[1].clone(),
        ];
        remove_hidden_texts("up", "resources", &mut entries);
        assert_eq!(entries, plain);
    }

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
            Err("a text of its `description` has 65537 bytes, and the limit is 65536"),
        );
        let many = vec!["x".repeat(65_536); 17];
        check(
            json!({ "inputSchema": { "enum": many } }),
            Err("its texts have 1114116 bytes, more than 1048576"),
        );
    }
}
