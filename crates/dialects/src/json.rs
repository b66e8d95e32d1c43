//! JSON as a frame may hold it: one value, no key twice, nested no deeper than the parser's bound.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Why bytes are not a frame's JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotJson {
    /// They are not JSON, or not UTF-8.
    Syntax(String),
    /// They are, but a key stands twice: what it says depends on who reads it.
    Ambiguous(String),
}

/// The one JSON value that `bytes` hold.
///
/// A key that stands twice in one object is refused, since readers differ in
/// which of the two they believe.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, NotJson> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|err| {
        if err.is_data() {
            NotJson::Ambiguous(err.to_string())
        } else {
            NotJson::Syntax(err.to_string())
        }
    })
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` stands twice")));
            }
            let value = entries.next_value_seed(Strict)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_refused_at_any_depth() {
        let bytes = br#"{"a":[{"name":1,"name":2}]}"#;
        assert!(matches!(parse(bytes), Err(NotJson::Ambiguous(why)) if why.contains("`name`")));
    }

    #[test]
    fn a_deep_array_is_refused_without_overflowing_the_stack() {
        let bytes = "[".repeat(1_000_000);
        assert!(matches!(parse(bytes.as_bytes()), Err(NotJson::Syntax(_))));
    }

    #[test]
    fn what_is_not_utf8_is_refused() {
        assert!(matches!(parse(b"\"\xff\""), Err(NotJson::Syntax(_))));
    }

    #[test]
    fn two_values_are_not_one() {
        assert!(matches!(parse(b"{} {}"), Err(NotJson::Syntax(_))));
    }

    proptest! {
        #[test]
        fn it_reads_what_serde_json_writes(text in ".{0,40}", n in any::<i64>(), x in any::<f64>()) {
            let value = json!({ "t": text, "n": n, "x": [x, null, true] });
            prop_assert_eq!(parse(value.to_string().as_bytes()), Ok(value));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
