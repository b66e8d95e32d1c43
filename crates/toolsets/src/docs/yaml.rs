//! Converts JSON to YAML with sorted keys, so that equal values give equal text.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Formats `fields` as a block of YAML lines. Returns `None` if the block has more than `bytes_max`
/// bytes.
///
/// Deeply nested values take far more bytes than in JSON, because each of their lines is indented.
pub(super) fn yaml_block(fields: &Map<String, Value>, bytes_max: usize) -> Option<String> {
    let mut block = YamlBlockWriter { text: String::new(), bytes_max };
    block.write_fields(fields, 0)?;
    Some(block.text)
}

/// YAML block under construction. Methods return `None` as soon as the block is too long.
struct YamlBlockWriter {
    text: String,
    bytes_max: usize,
}

impl YamlBlockWriter {
    fn write_fields(&mut self, fields: &Map<String, Value>, depth: usize) -> Option<()> {
        for (key, value) in sorted_fields(fields) {
            self.write_indent(depth);
            self.text.push_str(&scalar(key));
            self.text.push(':');
            self.write_value(value, depth, depth + 1)?;
        }
        Some(())
    }

    /// Writes the value after `key:` or `-`, for a line at the indentation level `depth`. Nested
    /// values are indented to the level `inner`.
    fn write_value(&mut self, value: &Value, depth: usize, inner: usize) -> Option<()> {
        match value {
            Value::Object(fields) if fields.is_empty() => self.text.push_str(" {}\n"),
            Value::Array(items) if items.is_empty() => self.text.push_str(" []\n"),
            Value::Object(fields) => {
                self.text.push('\n');
                self.write_fields(fields, inner)?;
            }
            Value::Array(items) => {
                self.text.push('\n');
                for item in items {
                    self.write_indent(depth + 1);
                    self.text.push('-');
                    self.write_value(item, depth + 1, depth + 2)?;
                }
            }
            Value::String(words) => {
                let _ = writeln!(self.text, " {}", scalar(words));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                let _ = writeln!(self.text, " {value}");
            }
        }
        (self.text.len() <= self.bytes_max).then_some(())
    }

    fn write_indent(&mut self, depth: usize) {
        (0..depth).for_each(|_| self.text.push_str("  "));
    }
}

fn sorted_fields(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_unstable_by_key(|(key, _)| *key);
    fields
}

/// Returns `words` as a plain YAML scalar if YAML reads that as text, or else in double quotes.
fn scalar(words: &str) -> String {
    let is_plain_char =
        |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | '/' | ',' | '(' | ')');
    let is_plain = words.starts_with(|c: char| c.is_alphabetic())
        && !words.ends_with(' ')
        && words.chars().all(is_plain_char);
    // Other YAML readers take these words for a boolean, a number or null.
    let lower = words.to_lowercase();
    let special = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan"];
    if is_plain && !special.contains(&lower.as_str()) {
        return words.to_owned();
    }
    let mut quoted = String::with_capacity(words.len() + 2);
    quoted.push('"');
    for c in words.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') =>
            {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::front_matter::parse;

    fn block(fields: &Map<String, Value>) -> String {
        yaml_block(fields, usize::MAX).unwrap()
    }

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(fields) => fields,
            other => unreachable!("{other}"),
        }
    }

    #[test]
    fn keys_are_sorted_at_every_depth() {
        let fields = object(json!({
            "title": "A walk", "b": [1, { "z": true, "a": [] }, ["x"]], "a": { "no": "yes" },
            "date": "2024-01-02", "empty": {}, "colon": "a: b", "none": null,
        }));
        let text = "a:\n  \"no\": \"yes\"\nb:\n  - 1\n  -\n    a: []\n    z: true\n  -\n    - x\n\
                    colon: \"a: b\"\ndate: \"2024-01-02\"\nempty: {}\nnone: null\ntitle: A walk\n";
        assert_eq!(block(&fields), text);
    }

    #[test]
    fn a_block_beyond_the_limit_is_none_even_if_its_json_is_short() {
        let deep = (0..100).fold(json!(vec![1; 20_000]), |inner, _| json!([inner]));
        let fields = object(json!({ "a": deep }));
        assert!(serde_json::to_string(&fields).unwrap().len() < 50_000);
        assert_eq!(yaml_block(&fields, 1 << 20), None);
        let few = object(json!({ "a": [1] }));
        assert_eq!(yaml_block(&few, 9).as_deref(), Some("a:\n  - 1\n"));
        assert_eq!(yaml_block(&few, 8), None);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            "[-yesnoYNtrufal0-9:.#&*!|>'\"%@,? \n\t\r\u{0}\u{7f}\u{85}\u{2028}\u{feff}]{0,8}"
                .prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-z~ :0-9-]{0,6}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_written_block_is_read_back_unchanged(value in any_value()) {
            let fields = object(json!({ "value": value }));
            let read: Value = parse(&block(&fields), &[]).map_err(|err| {
                TestCaseError::fail(format!("{err:?}: {}", block(&fields)))
            })?;
            prop_assert_eq!(read, Value::Object(fields));
        }
    }
}
