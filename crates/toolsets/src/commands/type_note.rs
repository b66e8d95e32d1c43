//! Parses type notes such as `"string!"`, and converts them to JSON Schema.

use serde_json::{Value, json};
use toolgate_contract::exact_json;

/// The type of the values of a command's argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArgumentValueKind {
    /// Any text.
    String,
    /// A file path, which is text that is not empty.
    Path,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// A boolean.
    Flag,
    /// One of the listed words.
    Choice(Vec<String>),
    /// Any JSON value. The argument's JSON Schema can restrict the value.
    Any,
}

/// A parsed type note, such as `"string!"`: type, number of values, required or not, and default.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ArgumentTypeNote {
    pub(super) kind: ArgumentValueKind,
    pub(super) count: ArgumentValueCount,
    pub(super) required: bool,
    pub(super) default: Option<Value>,
}

/// The number of values that a command's argument takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentValueCount {
    One,
    /// A list of any length.
    Many,
    /// A list of exactly this length.
    Exactly(usize),
}

const KINDS: [&str; 5] = ["string", "path", "integer", "number", "flag"];

impl ArgumentTypeNote {
    /// Parses a type note: `KIND`, `KIND[]`, `KIND[4]` or `one|other`, optionally followed by `!`
    /// or ` = DEFAULT`.
    pub(super) fn parse(note: &str) -> Result<Self, String> {
        let (what, default) = match note.split_once('=') {
            Some((what, default)) => (what.trim(), Some(default.trim())),
            None => (note.trim(), None),
        };
        let (what, required) = match what.strip_suffix('!') {
            Some(what) => (what.trim_end(), true),
            None => (what, false),
        };
        if required && default.is_some() {
            return Err(format!(
                "`{note}` is required and has a default; leave out the `!` or the `= …`"
            ));
        }
        let (what, count) = Self::parse_count(what, note)?;
        let kind = Self::parse_kind(what, note)?;
        if kind == ArgumentValueKind::Flag && count != ArgumentValueCount::One {
            return Err(format!("`{note}` is a list of flags; a flag cannot be a list"));
        }
        let mut this = Self { kind, count, required, default: None };
        if let Some(default) = default {
            this.default = Some(this.parse_default(default, note)?);
        }
        Ok(this)
    }

    fn parse_count<'n>(what: &'n str, note: &str) -> Result<(&'n str, ArgumentValueCount), String> {
        let Some(list) = what.strip_suffix(']') else { return Ok((what, ArgumentValueCount::One)) };
        let malformed =
            || format!("`{note}` is not a type note; write `string[]` for a list or `number[4]`");
        let (what, count) = list.rsplit_once('[').ok_or_else(malformed)?;
        let count = match count.trim() {
            "" => ArgumentValueCount::Many,
            count => match count.parse() {
                Ok(count) if count > 0 => ArgumentValueCount::Exactly(count),
                Ok(_) | Err(_) => return Err(malformed()),
            },
        };
        Ok((what.trim_end(), count))
    }

    fn parse_kind(what: &str, note: &str) -> Result<ArgumentValueKind, String> {
        match what {
            "string" => return Ok(ArgumentValueKind::String),
            "path" => return Ok(ArgumentValueKind::Path),
            "integer" => return Ok(ArgumentValueKind::Integer),
            "number" => return Ok(ArgumentValueKind::Number),
            "flag" => return Ok(ArgumentValueKind::Flag),
            _ => {}
        }
        if what.contains('|') {
            let words: Vec<String> = what.split('|').map(|word| word.trim().to_owned()).collect();
            if words.iter().any(String::is_empty) {
                return Err(format!("`{note}` has an empty choice"));
            }
            return Ok(ArgumentValueKind::Choice(words));
        }
        let suggestion = super::suggestion(what, KINDS);
        Err(format!(
            "`{note}` is not a type note; write {} or `one|other`, with `[]` for a list, `!` for \
             required and ` = …` for a default{suggestion}",
            KINDS.join(", ")
        ))
    }

    /// Parses `text`, the default value in the type note `note`.
    fn parse_default(&self, text: &str, note: &str) -> Result<Value, String> {
        let is_plain = matches!(
            self.kind,
            ArgumentValueKind::String | ArgumentValueKind::Path | ArgumentValueKind::Choice(_)
        ) && self.count == ArgumentValueCount::One
            && !text.starts_with('"');
        let value = if is_plain {
            Value::from(text)
        } else {
            exact_json::parse(text)
                .map_err(|err| format!("the default in `{note}` cannot be read: {err}"))?
        };
        if self.accepts(&value) {
            Ok(value)
        } else {
            Err(format!("the default in `{note}` does not match its type"))
        }
    }

    /// Returns true if `value` has the type and the number of values that this type note states.
    pub(super) fn accepts(&self, value: &Value) -> bool {
        match self.count {
            ArgumentValueCount::One => self.kind.accepts(value),
            ArgumentValueCount::Many | ArgumentValueCount::Exactly(_) => {
                value.as_array().is_some_and(|items| {
                    items.iter().all(|item| self.kind.accepts(item))
                        && match self.count {
                            ArgumentValueCount::Exactly(count) => items.len() == count,
                            ArgumentValueCount::One | ArgumentValueCount::Many => true,
                        }
                })
            }
        }
    }

    /// Returns true if the values that this type note allows are file paths.
    pub(super) fn is_path(&self) -> bool {
        self.kind == ArgumentValueKind::Path
    }

    /// Returns the JSON Schema for the values that this type note allows.
    pub(super) fn schema(&self) -> Value {
        let item = self.kind.schema();
        match self.count {
            ArgumentValueCount::One => item,
            ArgumentValueCount::Many if self.required => {
                json!({"type": "array", "items": item, "minItems": 1})
            }
            ArgumentValueCount::Many => json!({"type": "array", "items": item}),
            ArgumentValueCount::Exactly(count) => {
                json!({"type": "array", "items": item, "minItems": count, "maxItems": count})
            }
        }
    }
}

impl ArgumentValueKind {
    fn accepts(&self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Path => value.as_str().is_some_and(|path| !path.is_empty()),
            Self::Integer => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            Self::Number => value.is_number(),
            Self::Flag => value.is_boolean(),
            Self::Choice(words) => value.as_str().is_some_and(|it| words.iter().any(|w| w == it)),
            Self::Any => true,
        }
    }

    fn schema(&self) -> Value {
        match self {
            Self::String => json!({"type": "string"}),
            Self::Path => json!({"type": "string", "minLength": 1}),
            Self::Integer => json!({"type": "integer"}),
            Self::Number => json!({"type": "number"}),
            Self::Flag => json!({"type": "boolean"}),
            Self::Choice(words) => json!({"type": "string", "enum": words}),
            Self::Any => json!({}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_gives_type_count_and_default() {
        let schema = |note| ArgumentTypeNote::parse(note).map(|note| note.schema());
        assert_eq!(schema("string!"), Ok(json!({"type": "string"})));
        assert_eq!(schema("integer = 10"), Ok(json!({"type": "integer"})));
        assert_eq!(schema("png|svg"), Ok(json!({"type": "string", "enum": ["png", "svg"]})));
        assert_eq!(
            schema("number[4]"),
            Ok(json!({"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}))
        );
        assert_eq!(
            schema("path[]!"),
            Ok(json!({
                "type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1
            }))
        );
        let default = |note| ArgumentTypeNote::parse(note).unwrap().default;
        assert_eq!(default("integer = 10"), Some(json!(10)));
        assert_eq!(default("png|svg = svg"), Some(json!("svg")));
        assert_eq!(default("string = a = b"), Some(json!("a = b")));
        assert_eq!(default("number[2] = [1, 2.5]"), Some(json!([1, 2.5])));
        assert_eq!(default("flag"), None);
    }

    #[test]
    fn an_invalid_note_gets_an_error_with_a_fix() {
        let error = |note| ArgumentTypeNote::parse(note).unwrap_err();
        assert!(error("strnig!").contains("did you mean `string`?"), "{}", error("strnig!"));
        assert!(error("string! = x").contains("required and has a default"));
        assert!(error("number[0]").contains("`string[]` for a list"));
        assert!(error("flag[]").contains("a list of flags"));
        assert!(error("integer = ten").contains("cannot be read"));
        assert!(error("integer = 1.5").contains("does not match its type"));
        assert!(error("a||b").contains("empty choice"));
    }
}
