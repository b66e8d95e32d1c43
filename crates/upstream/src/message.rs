//! JSON-RPC messages, read and written.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// One message.
#[derive(Debug)]
pub(crate) enum Message {
    /// The answer to a request of ours, if its id is one of ours.
    Answer(Option<u64>, Result<Box<RawValue>, RpcError>),
    /// A request of the other side's.
    Request { id: Box<RawValue>, method: String, params: Value },
    /// Something that is only said.
    Notification { method: String, params: Value },
}

/// A refusal in the words of JSON-RPC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

#[derive(Deserialize)]
struct Members {
    id: Option<Box<RawValue>>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<RpcError>,
}

/// The messages of `text`: one, or those of a batch.
///
/// # Errors
/// When it is no JSON-RPC, with what is wrong.
pub(crate) fn read(text: &[u8]) -> Result<Vec<Message>, String> {
    let why = |err: serde_json::Error| err.to_string();
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        let all: Vec<Members> = serde_json::from_slice(text).map_err(why)?;
        return all.into_iter().map(one).collect();
    }
    one(serde_json::from_slice(text).map_err(why)?).map(|one| vec![one])
}

fn one(members: Members) -> Result<Message, String> {
    let Members { id, method, params, result, error } = members;
    let params = params.map_or(Ok(Value::Null), |raw| serde_json::from_str(raw.get()));
    let params = params.map_err(|err| err.to_string())?;
    match (id, method, result, error) {
        (Some(id), Some(method), ..) => Ok(Message::Request { id, method, params }),
        (None, Some(method), ..) => Ok(Message::Notification { method, params }),
        (id, None, Some(result), None) => Ok(Message::Answer(ours(id.as_deref()), Ok(result))),
        (id, None, _, Some(error)) => Ok(Message::Answer(ours(id.as_deref()), Err(error))),
        (_, None, None, None) => {
            Err("it has neither a `method` nor a `result` nor an `error`".to_owned())
        }
    }
}

/// The number that `id` is, some servers' text too.
fn ours(id: Option<&RawValue>) -> Option<u64> {
    id?.get().trim_matches('"').parse().ok()
}

/// A request or, without an id, something only said.
pub(crate) fn written(id: Option<u64>, method: &str, params: &Value) -> Bytes {
    #[derive(Serialize)]
    struct Said<'a> {
        jsonrpc: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        method: &'a str,
        #[serde(skip_serializing_if = "is_nothing")]
        params: &'a Value,
    }
    fn is_nothing(params: &&Value) -> bool {
        params.is_null()
    }
    let said = Said { jsonrpc: "2.0", id, method, params };
    serde_json::to_vec(&said).unwrap_or_default().into()
}

/// The answer to a request of the other side's.
pub(crate) fn answered(id: &RawValue, outcome: Result<Value, RpcError>) -> Bytes {
    let said = match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
    };
    serde_json::to_vec(&said).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_message_is_told_from_the_others() {
        let read = |text: &str| read(text.as_bytes()).map(|mut all| all.remove(0));
        assert!(matches!(read(r#"{"id":7,"result":{}}"#), Ok(Message::Answer(Some(7), Ok(_)))));
        assert!(matches!(
            read(r#"{"id":"7","result":null}"#),
            Ok(Message::Answer(_, Ok(_))) | Err(_)
        ));
        let error = read(r#"{"id":7,"error":{"code":-1,"message":"no"}}"#);
        assert!(matches!(error, Ok(Message::Answer(Some(7), Err(RpcError { code: -1, .. })))));
        assert!(matches!(read(r#"{"id":"a","method":"m"}"#), Ok(Message::Request { .. })));
        assert!(matches!(read(r#"{"method":"m"}"#), Ok(Message::Notification { .. })));
        assert!(read("Server started").is_err() && read("{}").is_err());
    }

    #[test]
    fn a_batch_is_all_of_its_messages() {
        let all = read(br#" [{"method":"a"},{"id":1,"result":{}}]"#).expect("a batch");
        assert_eq!(all.len(), 2);
    }
}
