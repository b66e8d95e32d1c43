//! JSON as a frame may hold it: one value, no key twice, nested no deeper than the parser's bound.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The most values in one frame. Each takes tens of bytes however short it is written, so a few
/// megabytes of `0,` would become a gigabyte.
const VALUES_MAX: usize = 1_000_000;

/// Why bytes are not a frame's JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotJson {
    /// They are not JSON, or not UTF-8.
    Syntax(String),
    /// They are, but not as a message may be: a key stands twice, so that what it says depends on
    /// who reads it, or there are too many values.
    Unfit(String),
}

/// The one JSON value that `bytes` hold.
///
/// A key that stands twice in one object is refused, since readers differ in
/// which of the two they believe.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, NotJson> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let left = Cell::new(VALUES_MAX);
    let value =
        Strict(&left).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|err| {
        if err.is_data() {
            NotJson::Unfit(err.to_string())
        } else {
            NotJson::Syntax(err.to_string())
        }
    })
}

/// Reads one value; the cell counts how many more there may be.
#[derive(Clone, Copy)]
struct Strict<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1).ok_or_else(|| {
            D::Error::custom(format_args!("a message holds at most {VALUES_MAX} values"))
        })?;
        self.0.set(left);
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
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
        while let Some(item) = items.next_element_seed(self)? {
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
            let value = entries.next_value_seed(self)?;
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
        assert!(matches!(parse(bytes), Err(NotJson::Unfit(why)) if why.contains("`name`")));
    }

    #[test]
    fn a_deep_array_is_refused_without_overflowing_the_stack() {
        let bytes = "[".repeat(1_000_000);
        assert!(matches!(parse(bytes.as_bytes()), Err(NotJson::Syntax(_))));
    }

    #[test]
    fn a_frame_of_more_values_than_memory_is_for_is_refused() {
        let bytes = format!("[0{}]", ",0".repeat(VALUES_MAX));
        assert!(
            matches!(parse(bytes.as_bytes()), Err(NotJson::Unfit(why)) if why.contains("1000000"))
        );
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
