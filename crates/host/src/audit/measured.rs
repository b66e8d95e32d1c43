//! Measures the size of a call's input or output without serializing it.

use std::fmt::{self, Write};

use serde_json::{Map, Number, Value};
use toolgate_contract::{Blob, Content, Contents, Held, Media, Output, PromptText, Shape};

/// A value whose size is recorded.
pub(crate) trait Measured {
    /// Returns the approximate size in bytes. Each implementation documents its parts.
    fn bytes(&self) -> u64;
}

/// Counts the structured value (or the text), the content blocks and the metadata.
impl Measured for Output {
    fn bytes(&self) -> u64 {
        let said = match self.structured {
            true => self.value.bytes(),
            false => length(&self.text.body) + self.text.note.as_deref().map_or(0, length),
        };
        let meta = if self.meta.is_empty() { 0 } else { fields(&self.meta) };
        said + sum(&self.content) + meta
    }
}

/// Counts the contents without their URIs.
impl Measured for Vec<Contents> {
    fn bytes(&self) -> u64 {
        sum(self)
    }
}

/// Counts the contents of the messages.
impl Measured for PromptText {
    fn bytes(&self) -> u64 {
        self.messages.iter().map(|message| message.content.bytes()).sum()
    }
}

/// Counts compact JSON without its escapes, so that texts need not be scanned.
impl Measured for Value {
    fn bytes(&self) -> u64 {
        match self {
            Self::Null => 4,
            Self::Bool(is) => 5 - u64::from(*is),
            Self::Number(number) => digits(number),
            Self::String(text) => length(text) + 2,
            Self::Array(items) => 2 + commas(items.len()) + sum(items),
            Self::Object(all) => fields(all),
        }
    }
}

fn fields(all: &Map<String, Value>) -> u64 {
    let bytes = |(name, value): (&String, &Value)| length(name) + 3 + value.bytes();
    2 + commas(all.len()) + all.iter().map(bytes).sum::<u64>()
}

fn commas(items: usize) -> u64 {
    items.saturating_sub(1) as u64
}

impl Measured for Content {
    fn bytes(&self) -> u64 {
        match &self.shown {
            Shape::Text(text) => length(text),
            Shape::Image(Media { data: Blob(bytes), .. })
            | Shape::Audio(Media { data: Blob(bytes), .. }) => bytes.len() as u64,
            Shape::Link(spec) => length(&spec.uri),
            Shape::Resource(contents) => contents.bytes(),
        }
    }
}

impl Measured for Contents {
    fn bytes(&self) -> u64 {
        match &self.held {
            Held::Text(text) => length(text),
            Held::Bytes(Blob(bytes)) => bytes.len() as u64,
        }
    }
}

fn sum<T: Measured>(all: &[T]) -> u64 {
    all.iter().map(Measured::bytes).sum()
}

fn length(text: &str) -> u64 {
    text.len() as u64
}

fn digits(number: &Number) -> u64 {
    /// Writer that counts bytes.
    struct Count(u64);
    impl Write for Count {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += length(text);
            Ok(())
        }
    }
    let mut count = Count(0);
    // Writing to a counter cannot fail.
    let _ = write!(count, "{number}");
    count.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolgate_contract::{Ending, Text};

    use super::*;

    #[test]
    fn a_value_has_the_length_of_its_json_without_what_escapes_add() {
        for value in [
            json!(null),
            json!([true, false, 0, -17, 1.5, 1e300, u64::MAX]),
            json!({ "a": {}, "b": [], "é": "ü", "c": { "d": ["e", ["f"]] } }),
        ] {
            assert_eq!(value.bytes(), value.to_string().len() as u64, "{value}");
        }
        assert_eq!(json!("\n\"").bytes(), 4);
    }

    #[test]
    fn a_result_without_structure_has_the_length_of_its_text_and_of_what_is_beside_it() {
        let text = Text::body("body").with_note("note");
        let mut output = Output::new(json!({ "a": 1 }), text, Ending::Done);
        assert_eq!(output.bytes(), 7);
        output.structured = false;
        output.content = vec![Content::text("beside")];
        assert_eq!(output.bytes(), 4 + 4 + 6);
    }
}
