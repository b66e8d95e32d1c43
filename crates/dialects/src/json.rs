//! Strict JSON for frames: one value, no duplicate keys, bounded depth and size. Numbers keep their
//! text.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::de::StrRead;
use serde_json::{Map, Value};
use toolgate_contract::exact_json::{
    JsonMapFirstEntry, JsonValueCheck, JsonValueSeed, OriginalNumberTexts, check_key,
};

/// The maximum number of values in one JSON message. Without this limit, a few megabytes of `0,`
/// would take a gigabyte, because each value takes tens of bytes in memory.
const VALUES_MAX: usize = 1_000_000;

/// Reason why bytes are not accepted as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// Error for bytes that are not JSON or not UTF-8.
    Syntax(String),
    /// The JSON has a duplicate key or more than [`VALUES_MAX`] values.
    Invalid(String),
}

/// Parses the one JSON value in `bytes`.
///
/// Duplicate keys in an object are refused, because parsers differ in which of the two they use.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    read_json(bytes, |strict, reader| strict.deserialize(reader))
}

/// Parses the members of the one object in the JSON `bytes`. Any other JSON value is returned as it
/// is.
pub(crate) fn parse_members(bytes: &[u8]) -> Result<Result<RpcMessageMembers, Value>, JsonError> {
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => read_json(bytes, |strict, reader| {
            strict.check.check_value::<serde_json::Error>()?;
            reader.deserialize_map(RpcMessageVisitor(strict)).map(Ok)
        }),
        Some(_) | None => parse(bytes).map(Err),
    }
}

/// JSON deserializer that borrows strings from the bytes.
type BorrowingJsonReader<'de> = serde_json::Deserializer<StrRead<'de>>;

fn read_json<T>(
    bytes: &[u8],
    read: impl FnOnce(StrictJsonSeed<'_>, &mut BorrowingJsonReader<'_>) -> serde_json::Result<T>,
) -> Result<T, JsonError> {
    // Checking all of it once is cheaper than a check of each string.
    let text = str::from_utf8(bytes).map_err(|err| {
        JsonError::Syntax(format!("invalid UTF-8 at byte {}", err.valid_up_to() + 1))
    })?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let (left, numbers) = (Cell::new(VALUES_MAX), OriginalNumberTexts::new(text));
    let strict = JsonValueSeed { numbers: &numbers, check: StrictJsonCheck(&left) };
    let value = read(strict, &mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|err| {
        if err.is_data() {
            JsonError::Invalid(err.to_string())
        } else {
            JsonError::Syntax(err.to_string())
        }
    })
}

/// Seed that deserializes one JSON value and checks for duplicate keys and too many values.
type StrictJsonSeed<'a> = JsonValueSeed<'a, 'a, StrictJsonCheck<'a>>;

/// The number of JSON values that are still allowed.
#[derive(Clone, Copy)]
struct StrictJsonCheck<'a>(&'a Cell<usize>);

impl JsonValueCheck for StrictJsonCheck<'_> {
    fn check_value<E: Error>(self) -> Result<(), E> {
        let left = self.0.get().checked_sub(1);
        let left = left.ok_or_else(|| {
            E::custom(format_args!("a message may have at most {VALUES_MAX} values"))
        })?;
        self.0.set(left);
        Ok(())
    }

    fn check_repeated_key<E: Error>(self, key: &str) -> Result<(), E> {
        Err(duplicate_key(key))
    }
}

/// The members of a JSON-RPC message. The type has one field per member, which is faster than a
/// map.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RpcMessageMembers {
    pub(crate) jsonrpc: Option<Value>,
    pub(crate) id: Option<Value>,
    pub(crate) method: Option<Value>,
    pub(crate) params: Option<RawRpcParams>,
    pub(crate) result: Option<Value>,
    pub(crate) error: Option<Value>,
}

/// The value of the member `params` of a JSON-RPC message.
#[derive(Debug, PartialEq)]
pub(crate) enum RawRpcParams {
    /// Parameters that are an object. This is the usual case.
    Params(RpcParams),
    /// Parameters that are not an object.
    Other(Value),
}

/// The parameters of a JSON-RPC message by name, in order of arrival. For so few entries, a list is
/// faster than a map.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RpcParams(Vec<(String, Value)>);

impl RpcParams {
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(its, _)| its == name).map(|(_, value)| value)
    }

    pub(crate) fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(its, _)| its == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

impl From<Map<String, Value>> for RpcParams {
    fn from(map: Map<String, Value>) -> Self {
        Self(map.into_iter().collect())
    }
}

impl From<Value> for RawRpcParams {
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => Self::Params(map.into()),
            other => Self::Other(other),
        }
    }
}

impl RpcMessageMembers {
    /// Returns the field for the message's member `name`. `None` for `params` and unknown members.
    fn member_mut(&mut self, name: &str) -> Option<&mut Option<Value>> {
        Some(match name {
            "jsonrpc" => &mut self.jsonrpc,
            "id" => &mut self.id,
            "method" => &mut self.method,
            "result" => &mut self.result,
            "error" => &mut self.error,
            _ => return None,
        })
    }
}

/// The name of the member that holds the parameters of a message.
const PARAMS: &str = "params";

impl From<Map<String, Value>> for RpcMessageMembers {
    fn from(map: Map<String, Value>) -> Self {
        let mut members = Self::default();
        for (name, value) in map {
            if name == PARAMS {
                members.params = Some(value.into());
            } else if let Some(place) = members.member_mut(&name) {
                *place = Some(value);
            }
        }
        members
    }
}

/// Visitor that deserializes a JSON-RPC message.
struct RpcMessageVisitor<'a>(StrictJsonSeed<'a>);

impl<'de> Visitor<'de> for RpcMessageVisitor<'_> {
    type Value = RpcMessageMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RpcMessageMembers, A::Error> {
        let mut members = RpcMessageMembers::default();
        // Unknown members must be unique, too.
        let mut others = HashSet::new();
        while let Some(JsonMemberName(name)) = entries.next_key()? {
            let is_first = match members.member_mut(&name) {
                Some(place) => place.is_none(),
                None if name == PARAMS => members.params.is_none(),
                None => others.insert(name.clone().into_owned()),
            };
            if !is_first {
                return Err(duplicate_key(&name));
            }
            if name == PARAMS {
                members.params = Some(entries.next_value_seed(ParamsVisitor(self.0))?);
                continue;
            }
            let value = entries.next_value_seed(self.0)?;
            if let Some(place) = members.member_mut(&name) {
                *place = Some(value);
            }
        }
        Ok(members)
    }
}

/// Visitor that deserializes the value of `params`.
struct ParamsVisitor<'a>(StrictJsonSeed<'a>);

/// The maximum number of parameters of a message among which a linear search finds duplicates. For
/// more parameters, a set is used.
const LINEAR_SEARCH_MAX: usize = 16;

impl<'de> DeserializeSeed<'de> for ParamsVisitor<'_> {
    type Value = RawRpcParams;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<RawRpcParams, D::Error> {
        self.0.check.check_value()?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ParamsVisitor<'_> {
    type Value = RawRpcParams;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawRpcParams, A::Error> {
        let mut next = match self.0.numbers.start_map(&mut entries)? {
            JsonMapFirstEntry::Number(number) => {
                return Ok(RawRpcParams::Other(Value::Number(number)));
            }
            JsonMapFirstEntry::Key(name) => Some(name),
            JsonMapFirstEntry::Empty => None,
        };
        let mut params = RpcParams(Vec::with_capacity(4));
        let mut many = HashSet::new();
        while let Some(name) = next {
            check_key(&name)?;
            let is_first = match params.0.len() {
                ..LINEAR_SEARCH_MAX => !params.contains_key(&name),
                len => {
                    if len == LINEAR_SEARCH_MAX {
                        many.extend(params.0.iter().map(|(name, _)| name.clone()));
                    }
                    many.insert(name.clone())
                }
            };
            if !is_first {
                return Err(duplicate_key(&name));
            }
            let value = entries.next_value_seed(self.0)?;
            params.0.push((name, value));
            next = entries.next_key()?;
        }
        Ok(RawRpcParams::Params(params))
    }

    fn visit_unit<E: Error>(self) -> Result<RawRpcParams, E> {
        self.0.visit_unit().map(RawRpcParams::Other)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<RawRpcParams, E> {
        self.0.visit_bool(value).map(RawRpcParams::Other)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<RawRpcParams, E> {
        self.0.visit_i64(value).map(RawRpcParams::Other)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<RawRpcParams, E> {
        self.0.visit_u64(value).map(RawRpcParams::Other)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<RawRpcParams, E> {
        self.0.visit_f64(value).map(RawRpcParams::Other)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<RawRpcParams, E> {
        self.0.visit_str(value).map(RawRpcParams::Other)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<RawRpcParams, E> {
        self.0.visit_string(value).map(RawRpcParams::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<RawRpcParams, A::Error> {
        self.0.visit_seq(items).map(RawRpcParams::Other)
    }
}

fn duplicate_key<E: Error>(name: &str) -> E {
    E::custom(format_args!("the key `{name}` is repeated"))
}

/// The name of a member of a JSON object. It is copied only if it contains escapes.
#[derive(Deserialize)]
struct JsonMemberName<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_repeated_key_is_refused_at_any_depth() {
        let bytes = br#"{"a":[{"name":1,"name":2}]}"#;
        assert!(matches!(parse(bytes), Err(JsonError::Invalid(why)) if why.contains("`name`")));
    }

    #[test]
    fn a_repeated_parameter_is_refused_among_any_number() {
        let names = |count: usize| (0..count).map(|at| format!("\"p{at}\":{at}"));
        for count in [1, LINEAR_SEARCH_MAX - 1, LINEAR_SEARCH_MAX, LINEAR_SEARCH_MAX + 1, 100] {
            let unique: Vec<_> = names(count).collect();
            let message = |params: &str| format!("{{\"params\":{{{params}}}}}");
            let parsed = parse_members(message(&unique.join(",")).as_bytes());
            let Ok(Ok(RpcMessageMembers { params: Some(RawRpcParams::Params(params)), .. })) =
                parsed
            else {
                panic!("{count}: {parsed:?}");
            };
            assert_eq!(params.get(&format!("p{}", count - 1)), Some(&json!(count - 1)));
            for repeated in [0, count - 1] {
                let params = format!("{},\"p{repeated}\":0", unique.join(","));
                let parsed = parse_members(message(&params).as_bytes());
                let Err(JsonError::Invalid(why)) = parsed else { panic!("{count}: {parsed:?}") };
                assert!(why.contains(&format!("`p{repeated}`")), "{why}");
            }
        }
    }

    #[test]
    fn a_number_keeps_its_text_in_parameters_and_in_other_members() {
        for number in ["1e2", "1E400", "-0", "1.10", "12345678901234567890123", "-1E-7"] {
            let (deep, text) = (format!("[{number}]"), format!("{{\"a\":{number}}}"));
            let message = format!(
                r#"{{"id":{number},"x":[1e1,"2e2"],"params":{{"a":{deep},"b":{text}}},"result":{number}}}"#
            );
            let Ok(Ok(RpcMessageMembers {
                id,
                params: Some(RawRpcParams::Params(params)),
                result,
                ..
            })) = parse_members(message.as_bytes())
            else {
                panic!("{message}");
            };
            let written = |value: Option<&Value>| value.expect("a value").to_string();
            assert_eq!(written(id.as_ref()), number);
            assert_eq!(written(params.get("a")), deep);
            assert_eq!(written(params.get("b")), text);
            assert_eq!(written(result.as_ref()), number);
            let other = parse_members(format!(r#"{{"params":{number}}}"#).as_bytes());
            let Ok(Ok(RpcMessageMembers { params: Some(RawRpcParams::Other(other)), .. })) = other
            else {
                panic!("{other:?}");
            };
            assert_eq!(other.to_string(), number);
        }
    }

    #[test]
    fn a_key_that_serde_json_treats_specially_is_refused() {
        for object in [
            r#"{"$serde_json::private::Number":"1"}"#,
            r#"{"a":{"b":1,"$serde_json::private::RawValue":"1"}}"#,
        ] {
            for text in [object.to_owned(), format!(r#"{{"params":{object}}}"#)] {
                let read = parse_members(text.as_bytes());
                if text.starts_with(r#"{"params"#) {
                    assert!(
                        matches!(read, Err(JsonError::Invalid(why)) if why.contains("reserved"))
                    );
                }
                let read = parse(text.as_bytes());
                assert!(matches!(read, Err(JsonError::Invalid(why)) if why.contains("reserved")));
            }
        }
    }

    #[test]
    fn a_deep_array_is_refused_without_overflowing_the_stack() {
        let bytes = "[".repeat(1_000_000);
        assert!(matches!(parse(bytes.as_bytes()), Err(JsonError::Syntax(_))));
    }

    #[test]
    fn a_frame_with_too_many_values_is_refused() {
        let bytes = format!("[0{}]", ",0".repeat(VALUES_MAX));
        assert!(
            matches!(parse(bytes.as_bytes()), Err(JsonError::Invalid(why)) if why.contains("1000000"))
        );
    }

    #[test]
    fn invalid_utf8_is_refused() {
        assert!(matches!(parse(b"\"\xff\""), Err(JsonError::Syntax(_))));
    }

    #[test]
    fn a_frame_with_two_values_is_refused() {
        assert!(matches!(parse(b"{} {}"), Err(JsonError::Syntax(_))));
    }

    proptest! {
        /// Checks that parsing only the members of an object gives the same result as parsing the
        /// object.
        #[test]
        fn a_message_has_the_members_of_its_object(
            members in proptest::collection::vec(
                (
                    proptest::sample::select(vec![
                        "jsonrpc", "id", "method", "params", "result", "error", "x", "y\\u0031",
                        "\\u0069d", "p\\u0061rams",
                    ]),
                    proptest::sample::select(vec!["1", "\"2.0\"", "{\"a\":1}", "[{}]", "nul"]),
                ),
                0..6,
            ),
        ) {
            let members: Vec<_> = members.iter().map(|(k, v)| format!("\"{k}\": {v}")).collect();
            let text = format!(" {{{}}}", members.join(","));
            let read = parse_members(text.as_bytes());
            match parse(text.as_bytes()) {
                Ok(Value::Object(map)) => prop_assert_eq!(read, Ok(Ok(map.into()))),
                Ok(other) => prop_assert!(false, "{}", other),
                Err(why) => prop_assert_eq!(read.map(drop), Err(why)),
            }
        }

        #[test]
        fn json_of_serde_json_is_read_unchanged(text in ".{0,40}", n in any::<i64>(), x in any::<f64>()) {
            let value = json!({ "t": text, "n": n, "x": [x, null, true] });
            prop_assert_eq!(parse(value.to_string().as_bytes()), Ok(value));
        }

        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
