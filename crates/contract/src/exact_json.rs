//! JSON whose numbers keep their text: `1e2`, `1E400`, `-0` and integers of any length.
//!
//! serde_json keeps all digits of a number, but rewrites its exponent: `1E2` becomes `1e+2`. It
//! does so whenever it parses or converts a number. Use these functions, not those of serde_json,
//! for a value that passes through toolgate:
//!
//! | instead of | use |
//! |---|---|
//! | `serde_json::from_str`, `from_slice` | [`parse`], [`parse_bytes`] |
//! | `serde_json::to_value` | [`to_value`] |
//! | a field of the type `Value` that is deserialized | [`deserialize`] or its variants |
//! | `json!` around a value of somebody else | [`object`] |
//!
//! If one of these is forgotten, the text of an exponent changes, but the number never does.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::map::Entry;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// The maximum length of a number in JSON, in bytes. Every comparison and validation reads all
/// digits.
pub const NUMBER_BYTES_MAX: usize = 4096;

/// The key under which serde_json passes a number that is no 64-bit integer to a visitor.
const NUMBER_KEY: &str = "$serde_json::private::Number";
/// The start of the keys that serde_json treats specially. JSON with such a key is refused, because
/// serde_json would misread the key as a marker when it converts the value.
const RESERVED_KEYS: &str = "$serde_json::private::";

/// Parses the JSON `text` without changing the spelling of numbers. If a key is repeated, the last
/// one counts.
///
/// # Errors
/// Fails if `text` is not one JSON value, if a number is longer than [`NUMBER_BYTES_MAX`], or if a
/// key begins with `$serde_json::private::`.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    let numbers = OriginalNumberTexts::new(text);
    let mut reader = serde_json::Deserializer::from_str(text);
    let seed = JsonValueSeed { numbers: &numbers, check: NoJsonCheck };
    let value = seed.deserialize(&mut reader)?;
    reader.end().map(|()| value)
}

/// Parses the JSON in `bytes`, UTF-8 text. See [`parse`].
///
/// # Errors
/// Fails as [`parse`] does, and if `bytes` are not UTF-8.
pub fn parse_bytes(bytes: &[u8]) -> serde_json::Result<Value> {
    parse(str::from_utf8(bytes).map_err(serde_json::Error::custom)?)
}

/// Parses the JSON object in `text`. See [`parse`].
///
/// # Errors
/// Fails as [`parse`] does, and if the value is not an object.
pub fn parse_object(text: &str) -> serde_json::Result<Map<String, Value>> {
    match parse(text)? {
        Value::Object(fields) => Ok(fields),
        other => serde_json::from_value(other),
    }
}

/// Converts `value` to JSON.
///
/// # Errors
/// Fails if `value` cannot be serialized.
pub fn to_value(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Value> {
    let converted = serde_json::to_value(value)?;
    match has_exponent(&converted) {
        true => parse(&serde_json::to_string(value)?),
        false => Ok(converted),
    }
}

fn has_exponent(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_str().contains('e'),
        Value::Array(items) => items.iter().any(has_exponent),
        Value::Object(fields) => fields.values().any(has_exponent),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Creates a JSON object of `fields`, in their order.
pub fn object<const COUNT: usize>(fields: [(&str, Value); COUNT]) -> Value {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Creates a number from `text`, a number in JSON. `None` if `text` is not a number of at most
/// [`NUMBER_BYTES_MAX`] bytes.
pub fn parse_number(text: &str) -> Option<Number> {
    match parse(text).ok()? {
        // JSON allows spaces around it.
        Value::Number(number) if number.as_str() == text => Some(number),
        _ => None,
    }
}

/// Returns the float that is nearest to `number`. The float is infinite for `1E400`, for which
/// [`Number::as_f64`] is `None`.
pub fn nearest_float(number: &Number) -> f64 {
    number.as_str().parse().unwrap_or(f64::NAN)
}

/// Returns true if `number` is written without a fraction and without an exponent.
pub fn is_plain_integer(number: &Number) -> bool {
    number.as_str().as_bytes().iter().all(|byte| !matches!(byte, b'.' | b'e' | b'E'))
}

/// Deserializes a field of the type `Value` without changing numbers, for
/// `#[serde(deserialize_with)]`.
///
/// # Errors
/// Fails as [`parse`] does.
pub fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Value, D::Error> {
    parse(Box::<RawValue>::deserialize(reader)?.get()).map_err(D::Error::custom)
}

/// Deserializes a field of the type `Option<Value>` without changing numbers, for `#[serde(default,
/// deserialize_with)]`. `null` counts as absent.
///
/// # Errors
/// Fails as [`parse`] does.
pub fn deserialize_option<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Value>, D::Error> {
    deserialize(reader).map(|value| Some(value).filter(|value| !value.is_null()))
}

/// Deserializes a field of the type `Map<String, Value>` without changing numbers, for
/// `#[serde(deserialize_with)]`.
///
/// # Errors
/// Fails as [`parse`] does, and if the JSON is not an object.
pub fn deserialize_object<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Map<String, Value>, D::Error> {
    parse_object(Box::<RawValue>::deserialize(reader)?.get()).map_err(D::Error::custom)
}

/// Deserializes a field of the type `Option<Map<String, Value>>` without changing numbers, for
/// `#[serde(default, deserialize_with)]`.
///
/// # Errors
/// Fails as [`parse`] does, and if the JSON is neither an object nor `null`.
pub fn deserialize_optional_object<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    match deserialize(reader)? {
        Value::Object(fields) => Ok(Some(fields)),
        other => serde_json::from_value(other).map_err(D::Error::custom),
    }
}

/// Deserializes a field of the type `Vec<Value>` without changing numbers, for
/// `#[serde(deserialize_with)]`.
///
/// # Errors
/// Fails as [`parse`] does, and if the JSON is not an array.
pub fn deserialize_list<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<Value>, D::Error> {
    match deserialize(reader)? {
        Value::Array(items) => Ok(items),
        other => serde_json::from_value(other).map_err(D::Error::custom),
    }
}

/// The original texts of the numbers with an exponent in a JSON text, in order.
///
/// serde_json passes these numbers to a visitor in another spelling, and the visitor looks up the
/// original text here. The visitor must visit every value of the JSON text exactly once.
#[derive(Debug)]
pub struct OriginalNumberTexts<'t> {
    /// The rest of the JSON text, which has not been searched for numbers yet.
    rest: Cell<&'t str>,
}

impl<'t> OriginalNumberTexts<'t> {
    /// Creates the source of the numbers in the JSON `text`.
    pub fn new(text: &'t str) -> Self {
        Self { rest: Cell::new(text) }
    }

    /// Reads the first key of a map that a visitor got from serde_json, which passes numbers as
    /// maps, too.
    ///
    /// # Errors
    /// Fails if a number is too long or a key is reserved. See [`parse`].
    pub fn start_map<'de, A: MapAccess<'de>>(
        &self,
        entries: &mut A,
    ) -> Result<JsonMapFirstEntry, A::Error> {
        Ok(match entries.next_key_seed(FirstMapKeySeed)? {
            None => JsonMapFirstEntry::Empty,
            Some(FirstMapKey::Number) => {
                let text = entries.next_value_seed(NumberTextSeed)?;
                JsonMapFirstEntry::Number(self.exact_number(text)?)
            }
            Some(FirstMapKey::Key(key)) => {
                check_key(&key)?;
                JsonMapFirstEntry::Key(key)
            }
        })
    }

    /// Returns the number that serde_json passes as `text`, with the spelling of the JSON text.
    fn exact_number<E: serde::de::Error>(&self, text: String) -> Result<Number, E> {
        if text.len() > NUMBER_BYTES_MAX {
            let why = format_args!("a number may have at most {NUMBER_BYTES_MAX} characters");
            return Err(E::custom(why));
        }
        let own = if text.contains('e') { self.next_with_exponent() } else { None };
        // This function is the only way to keep the spelling of an exponent.
        Ok(Number::from_string_unchecked(own.map_or(text, str::to_owned)))
    }

    /// Returns the next number with an exponent in the JSON text, or `None` after the last. Skips
    /// strings.
    fn next_with_exponent(&self) -> Option<&'t str> {
        let text = self.rest.get();
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => at = string_end(bytes, at),
                b'-' | b'0'..=b'9' => {
                    let len =
                        bytes[at..].iter().position(|byte| !b"+-.0123456789eE".contains(byte));
                    let end = len.map_or(bytes.len(), |len| at + len);
                    let number = text.get(at..end)?;
                    if number.contains(['e', 'E']) {
                        self.rest.set(text.get(end..)?);
                        return Some(number);
                    }
                    at = end;
                }
                _ => at += 1,
            }
        }
        None
    }
}

/// Returns the position after the JSON string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    loop {
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            Some(b'"') | None => return at + 1,
            Some(_) => at += 1,
        }
    }
}

/// The first entry of a map that serde_json passed to a visitor: a number, or an object's first
/// key.
#[derive(Debug)]
pub enum JsonMapFirstEntry {
    /// The visitor got a map that stands for this number.
    Number(Number),
    /// The visitor got an object with this first key. The value of the key is next.
    Key(String),
    /// The visitor got an object without keys.
    Empty,
}

/// Checks that serde_json does not treat `key` specially.
///
/// # Errors
/// Fails if `key` is reserved.
pub fn check_key<E: serde::de::Error>(key: &str) -> Result<(), E> {
    match key.starts_with(RESERVED_KEYS) {
        true => Err(E::custom(format_args!("the key `{key}` is reserved"))),
        false => Ok(()),
    }
}

/// Seed that deserializes the first key of a map.
struct FirstMapKeySeed;

/// First key of a map: of an object, or the marker of a number.
enum FirstMapKey {
    Number,
    Key(String),
}

impl<'de> DeserializeSeed<'de> for FirstMapKeySeed {
    type Value = FirstMapKey;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<FirstMapKey, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for FirstMapKeySeed {
    type Value = FirstMapKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<FirstMapKey, E> {
        Ok(match key {
            NUMBER_KEY => FirstMapKey::Number,
            key => FirstMapKey::Key(key.to_owned()),
        })
    }

    fn visit_string<E>(self, key: String) -> Result<FirstMapKey, E> {
        Ok(match key.as_str() {
            NUMBER_KEY => FirstMapKey::Number,
            _ => FirstMapKey::Key(key),
        })
    }
}

/// Seed that deserializes the text of a number. serde_json passes this text as an owned string, but
/// strings of the JSON text as borrowed ones. So an object with the key of a number is recognized.
struct NumberTextSeed;

impl<'de> DeserializeSeed<'de> for NumberTextSeed {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<String, D::Error> {
        reader.deserialize_any(self)
    }
}

impl Visitor<'_> for NumberTextSeed {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no key `{NUMBER_KEY}`, which is reserved")
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<String, E> {
        Err(E::custom(format_args!("the key `{NUMBER_KEY}` is reserved")))
    }

    fn visit_string<E>(self, text: String) -> Result<String, E> {
        Ok(text)
    }
}

/// Checks of the values and keys of a JSON text while a [`JsonValueSeed`] reads it. Allows
/// everything by default.
pub trait JsonValueCheck: Copy {
    /// Checks whether one more value is allowed.
    ///
    /// # Errors
    /// The reason why it is not.
    fn check_value<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    /// Checks whether an object may repeat `key`. The last value of a repeated key counts.
    ///
    /// # Errors
    /// The reason why it may not.
    fn check_repeated_key<E: serde::de::Error>(self, _key: &str) -> Result<(), E> {
        Ok(())
    }
}

/// Check that allows any number of values, and repeated keys.
#[derive(Debug, Clone, Copy)]
struct NoJsonCheck;

impl JsonValueCheck for NoJsonCheck {}

/// Seed that deserializes a JSON value without changing the spelling of its numbers.
#[derive(Debug, Clone, Copy)]
pub struct JsonValueSeed<'a, 't, C> {
    /// The numbers of the JSON text.
    pub numbers: &'a OriginalNumberTexts<'t>,
    /// The check of each value and key.
    pub check: C,
}

impl<'de, C: JsonValueCheck> DeserializeSeed<'de> for JsonValueSeed<'_, '_, C> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.check.check_value()?;
        reader.deserialize_any(self)
    }
}

impl<'de, C: JsonValueCheck> Visitor<'de> for JsonValueSeed<'_, '_, C> {
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
        let mut next = match self.numbers.start_map(&mut entries)? {
            JsonMapFirstEntry::Number(number) => return Ok(Value::Number(number)),
            JsonMapFirstEntry::Key(key) => Some(key),
            JsonMapFirstEntry::Empty => None,
        };
        while let Some(key) = next {
            check_key(&key)?;
            match object.entry(key) {
                Entry::Vacant(place) => _ = place.insert(entries.next_value_seed(self)?),
                Entry::Occupied(mut taken) => {
                    self.check.check_repeated_key(taken.key())?;
                    taken.insert(entries.next_value_seed(self)?);
                }
            }
            next = entries.next_key()?;
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Sample numbers. Some change their spelling when serde_json writes them, and some do not.
    const NUMBERS: [&str; 18] = [
        "0",
        "-0",
        "7",
        "-1",
        "1.50",
        "1e2",
        "1E2",
        "1e+2",
        "1E+02",
        "1.0e-7",
        "1E-7",
        "1E400",
        "-1e999999999",
        "12345678901234567890123",
        "-9223372036854775809",
        "18446744073709551616",
        "0.1000000000000000055511151231257827",
        "1.0",
    ];

    #[test]
    fn every_number_keeps_its_text_when_it_is_parsed_and_converted() {
        for number in NUMBERS {
            let text = format!(r#"{{"a":[{number},"\"1e5\\",{{"b":{number}}}],"c":{number}}}"#);
            let value = parse(&text).unwrap();
            assert_eq!(value.to_string(), text);
            assert_eq!(to_value(&value).unwrap().to_string(), text);
            assert_eq!(parse(number).unwrap().to_string(), number);
            assert_eq!(parse_number(number).unwrap().as_str(), number);
        }
    }

    #[test]
    fn a_field_keeps_the_text_of_its_numbers_from_text_and_from_a_value() {
        #[derive(Deserialize)]
        struct NumberFields {
            #[serde(deserialize_with = "deserialize")]
            any: Value,
            #[serde(default, deserialize_with = "deserialize_option")]
            maybe: Option<Value>,
            #[serde(deserialize_with = "deserialize_object")]
            all: Map<String, Value>,
        }
        let text = r#"{"any":[1E2],"maybe":1E400,"all":{"a":-0}}"#;
        let value = parse(text).unwrap();
        for fields in [serde_json::from_str::<NumberFields>(text), serde_json::from_value(value)] {
            let NumberFields { any, maybe, all } = fields.unwrap();
            assert_eq!(any.to_string(), "[1E2]");
            assert_eq!(maybe.unwrap().to_string(), "1E400");
            assert_eq!(Value::Object(all).to_string(), r#"{"a":-0}"#);
        }
        let without: NumberFields =
            serde_json::from_str(r#"{"any":null,"maybe":null,"all":{}}"#).unwrap();
        assert_eq!((without.any, without.maybe), (Value::Null, None));
    }

    #[test]
    fn a_number_that_is_too_long_is_refused() {
        let long = |digits: usize| parse(&"9".repeat(digits));
        assert!(long(NUMBER_BYTES_MAX).is_ok());
        let err = long(NUMBER_BYTES_MAX + 1).unwrap_err().to_string();
        assert!(err.contains("at most 4096 characters"), "{err}");
    }

    #[test]
    fn a_key_that_serde_json_treats_specially_is_refused() {
        for text in [
            r#"{"$serde_json::private::Number":"1"}"#,
            r#"{"$serde_json::private::Number":1}"#,
            r#"{"$serde_json::private::Number":1e2}"#,
            r#"{"\u0024serde_json::private::Number":"1"}"#,
            r#"{"a":[{"$serde_json::private::RawValue":"1"}]}"#,
            r#"{"a":1,"$serde_json::private::Number":"1"}"#,
        ] {
            let err = parse(text).unwrap_err().to_string();
            assert!(err.contains("reserved"), "{text}: {err}");
        }
        let text = r#"["$serde_json::private::Number"]"#;
        assert_eq!(parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn text_that_is_no_number_is_not_parsed_as_one() {
        for text in ["", " 1", "1 ", "01", "+1", "1.", ".5", "1e", "0x1", "NaN", "\"1\"", "[1]"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }

    fn any_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            proptest::sample::select(NUMBERS.to_vec()).prop_map(str::to_owned),
            "[a-z\"\\\\1e9 ]{0,6}".prop_map(|text| json!(text).to_string()),
            Just("null".to_owned()),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4)
                    .prop_map(|items| format!("[{}]", items.join(","))),
                proptest::collection::vec(("[a-z1\"]{0,3}", inner), 0..4).prop_map(|fields| {
                    let fields = fields.iter().enumerate();
                    let fields = fields.map(|(at, (key, value))| {
                        format!("{}:{value}", json!(format!("{at}1e1{key}")))
                    });
                    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_is_the_same_text_after_it_was_parsed(text in any_json()) {
            let value = parse(&text).unwrap();
            prop_assert_eq!(value.to_string(), text.as_str());
            prop_assert_eq!(to_value(&value).unwrap().to_string(), text);
        }

        #[test]
        fn parsing_accepts_what_serde_json_accepts(text in "[\\[\\]{}\",:0-9eE.+\\- ]{0,24}") {
            prop_assert_eq!(parse(&text).is_ok(), serde_json::from_str::<Value>(&text).is_ok());
        }
    }
}
