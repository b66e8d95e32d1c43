//! JSON-RPC 2.0 serialization: ids, results, errors and notifications.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value, json};
use toolgate_contract::strip_byte_order_mark_bytes;

use crate::InFlightRequestKey;
use crate::json::{JsonError, parse};

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL_ERROR: i32 = -32603;

/// A JSON-RPC request id: a string or a number. A number keeps its spelling: `1e2` differs from
/// `100.0`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum RequestId {
    Number(Number),
    Text(String),
}

impl RequestId {
    /// Parses a request id or a progress token.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        if is_id_too_long(value) {
            return None;
        }
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Number(number) => Some(Self::Number(number.clone())),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Converts an id that [`RequestId::parse`] accepts, without copying it. Returns `None` if
    /// `value` is neither a string nor a number.
    pub(crate) fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text)),
            Value::Number(number) => Some(Self::Number(number)),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Returns the request id as JSON, which distinguishes `1` from `"1"`.
    pub(crate) fn key(&self) -> InFlightRequestKey {
        match self {
            Self::Number(number) => InFlightRequestKey(number.as_str().to_owned()),
            Self::Text(text) => InFlightRequestKey(json!(text).to_string()),
        }
    }
}

/// The maximum size of a request id or progress token as JSON, in bytes. Every message about a
/// request repeats it.
pub(crate) const ID_BYTES_MAX: usize = 1024;

/// Returns true if `value` is a string or number that exceeds [`ID_BYTES_MAX`] as JSON.
pub(crate) fn is_id_too_long(value: &Value) -> bool {
    let written =
        |text: &str| text.len() >= ID_BYTES_MAX / 6 && json!(text).to_string().len() > ID_BYTES_MAX;
    match value {
        Value::String(text) => text.len() > ID_BYTES_MAX || written(text),
        Value::Number(number) => number.as_str().len() > ID_BYTES_MAX,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

/// Returns the id in the JSON-RPC message `body`, which may be large: the rest of the message is
/// skipped and takes no memory. Returns `None` if the message is not one JSON object, or if its id
/// is longer than [`ID_BYTES_MAX`].
pub(crate) fn skim_id(body: &[u8]) -> Option<Value> {
    /// Member `id` of a JSON-RPC message, not yet parsed.
    #[derive(Deserialize)]
    struct RpcMessageId<'b> {
        #[serde(borrow)]
        id: &'b RawValue,
    }
    let body = strip_byte_order_mark_bytes(body).trim_ascii();
    // A struct could also be read from an array.
    if !body.starts_with(b"{") {
        return None;
    }
    let id = serde_json::from_slice::<RpcMessageId<'_>>(body).ok()?.id.get();
    if id.len() > ID_BYTES_MAX {
        return None;
    }
    serde_json::from_str(id).ok()
}

/// Returns the reason that `value`, the member `name`, is not a valid request id or token of the
/// type `kind`.
pub(crate) fn invalid_id_reason(name: &str, value: &Value, kind: &str) -> String {
    match is_id_too_long(value) {
        true => format!("`{name}` is longer than {ID_BYTES_MAX} bytes"),
        false => format!("`{name}` must be {kind}"),
    }
}

/// Parses the JSON-RPC message `body`, which must be one JSON object.
pub(crate) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, RpcError> {
    match parse(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => {
            let why = "a message must be one JSON object; batches are not supported";
            Err(RpcError::invalid_request(why))
        }
        Err(why) => Err(RpcError::not_json(why)),
    }
}

/// Parses the member `id` of a JSON-RPC message, if there is one.
pub(crate) fn read_id(id: Option<&Value>) -> Result<Option<RequestId>, RpcError> {
    let Some(value) = id else { return Ok(None) };
    let invalid = || invalid_id_reason("id", value, "a string or a number");
    RequestId::parse(value).map(Some).ok_or_else(|| RpcError::invalid_request(invalid()))
}

/// Removes the method and the parameters from the members `fields` of a JSON-RPC message. Missing
/// parameters and `null` are an empty object.
pub(crate) fn take_method_and_params(
    fields: &mut Map<String, Value>,
    is_request: bool,
) -> Result<(String, Map<String, Value>), RpcError> {
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => return Err(RpcError::invalid_request("`method` must be a string")),
        None => return Err(RpcError::invalid_request("`method` is missing")),
    };
    match fields.remove("params") {
        None | Some(Value::Null) => Ok((method, Map::new())),
        Some(Value::Object(params)) => Ok((method, params)),
        // A notification is never answered, even if it is malformed.
        Some(_) if !is_request => Ok((method, Map::new())),
        Some(_) => Err(RpcError::invalid_params("`params` must be an object")),
    }
}

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(INVALID_REQUEST, message)
    }

    pub(crate) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub(crate) fn not_json(why: JsonError) -> Self {
        match why {
            JsonError::Syntax(why) => Self::new(PARSE_ERROR, format!("not JSON: {why}")),
            JsonError::Invalid(why) => Self::invalid_request(why),
        }
    }

    pub(crate) fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Serializes the JSON-RPC error. An unknown request id becomes `null`.
    pub(crate) fn to_json(&self, id: Option<&RequestId>) -> Bytes {
        self.to_json_with_id(&id)
    }

    /// Serializes the JSON-RPC error. `id` is the request id as a dialect represents it.
    pub(crate) fn to_json_with_id(&self, id: &impl Serialize) -> Bytes {
        /// JSON-RPC message that contains an error.
        #[derive(Serialize)]
        struct RpcErrorFrame<'a, I> {
            jsonrpc: &'static str,
            id: &'a I,
            error: RpcErrorBody<'a>,
        }
        /// Member `error` of a JSON-RPC message.
        #[derive(Serialize)]
        struct RpcErrorBody<'a> {
            code: i32,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<&'a Value>,
        }
        let error =
            RpcErrorBody { code: self.code, message: &self.message, data: self.data.as_ref() };
        to_json(&RpcErrorFrame { jsonrpc: "2.0", id, error })
    }
}

/// Serializes `result` as the JSON-RPC answer to the request `id`.
pub(crate) fn success(id: &impl Serialize, result: &impl Serialize) -> Bytes {
    success_with_capacity(id, result, 0)
}

/// Serializes `result`, of about `bytes` bytes, as the JSON-RPC answer to the request `id`. The
/// estimate avoids reallocations.
pub(crate) fn success_with_capacity(
    id: &impl Serialize,
    result: &impl Serialize,
    bytes: usize,
) -> Bytes {
    /// JSON-RPC message that contains a result.
    #[derive(Serialize)]
    struct RpcResultFrame<'a, I, R> {
        jsonrpc: &'static str,
        id: &'a I,
        result: &'a R,
    }
    to_json_with_capacity(&RpcResultFrame { jsonrpc: "2.0", id, result }, bytes)
}

/// Serializes a JSON-RPC notification.
pub(crate) fn notification(method: &'static str, params: &impl Serialize) -> Bytes {
    /// JSON-RPC message that is a notification.
    #[derive(Serialize)]
    struct RpcNotificationFrame<'a, P> {
        jsonrpc: &'static str,
        method: &'static str,
        params: &'a P,
    }
    to_json(&RpcNotificationFrame { jsonrpc: "2.0", method, params })
}

/// Serializes `value` as JSON bytes.
pub(crate) fn to_json(value: &impl Serialize) -> Bytes {
    to_json_with_capacity(value, 0)
}

fn to_json_with_capacity(value: &impl Serialize, bytes: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(256 + bytes);
    // All parts are strings, numbers, booleans or JSON values, so serialization cannot fail.
    serde_json::to_writer(&mut bytes, value).expect("a message is JSON");
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;

    /// Returns the key that identifies a request with the JSON id `text`, and the text of this id
    /// in an answer.
    fn key_and_text(text: &str) -> Option<(String, String)> {
        let id = RequestId::parse(&parse(text.as_bytes()).unwrap())?;
        Some((id.key().0, String::from_utf8(to_json(&id).to_vec()).unwrap()))
    }

    #[test]
    fn a_number_keeps_its_spelling_as_an_id() {
        for number in [
            "-0",
            "7",
            "1.50",
            "2E5",
            "1e2",
            "1e+2",
            "1E400",
            "1e-7",
            "-9223372036854775809",
            "340282366920938463463374607431768211456",
        ] {
            assert_eq!(key_and_text(number), Some((number.to_owned(), number.to_owned())));
        }
    }

    #[test]
    fn the_id_of_a_large_message_is_found_wherever_it_is() {
        let large = format!(r#"{{"id":1,"data":{:?}}}"#, "x".repeat(1 << 20));
        for (body, expected) in [
            (format!(r#"{{"jsonrpc":"2.0","id":7,"params":{large}}}"#), Some(json!(7))),
            (format!(r#" {{"params":{large},"id":"a"}} "#), Some(json!("a"))),
            (format!(r#"{{"params":{large}}}"#), None),
            (format!(r#"[7,{large}]"#), None),
            (format!(r#"{{"id":7,"params":{large}"#), None),
            (format!(r#"{{"id":"{}"}}"#, "x".repeat(ID_BYTES_MAX)), None),
        ] {
            assert_eq!(skim_id(body.as_bytes()), expected, "{}", &body[..20]);
        }
    }

    #[test]
    fn a_number_that_is_too_long_is_no_id() {
        assert_eq!(key_and_text(&format!("1.{}", "0".repeat(ID_BYTES_MAX))), None);
        assert!(key_and_text(&"1".repeat(ID_BYTES_MAX)).is_some());
    }
}
