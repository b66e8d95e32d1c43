//! Reads and writes JSON-RPC messages.

pub(crate) mod truncated;

use std::fmt;

use bytes::Bytes;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use toolgate_contract::{count_json_values, exact_json, strip_byte_order_mark_bytes};

use truncated::TruncatedMessageKind;

/// A JSON-RPC message from an upstream.
#[derive(Debug)]
pub(crate) enum UpstreamMessage {
    /// An answer, with its id if that is the id of a request that toolgate sent.
    Answer(Option<u64>, Result<Box<RawValue>, UpstreamRpcError>),
    /// A request from the upstream to toolgate.
    Request { id: Box<RawValue>, method: String, params: Value },
    /// A notification from the upstream.
    Notification { method: String, params: Value },
}

/// A JSON-RPC error that an upstream sent, or that toolgate sends in answer to an upstream's
/// request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UpstreamRpcError {
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "exact_json::deserialize_option"
    )]
    pub(crate) data: Option<Value>,
}

impl UpstreamRpcError {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

/// Members of a JSON-RPC message from an upstream.
#[derive(Deserialize)]
struct UpstreamRpcMembers {
    id: Option<Box<RawValue>>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
}

/// Parses `text` as one JSON-RPC message or as a batch.
///
/// # Errors
///
/// Returns the reason if `text` is not JSON-RPC.
pub(crate) fn parse_messages(text: &[u8]) -> Result<Vec<UpstreamMessage>, String> {
    let text = strip_byte_order_mark_bytes(text);
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        check_values(text)?;
        let RawRpcBatch(all) = serde_json::from_slice(text).map_err(|err| err.to_string())?;
        // An invalid message does not invalidate the rest of its batch.
        let mut parsed = Vec::new();
        let mut first_error = None;
        for raw in all {
            match parse_message(raw.get().as_bytes()) {
                Ok(message) => parsed.push(message),
                Err(why) => first_error = first_error.or(Some(why)),
            }
        }
        return match first_error.filter(|_| parsed.is_empty()) {
            Some(why) => Err(why),
            None => Ok(parsed),
        };
    }
    parse_message(text).map(|one| vec![one])
}

/// The unparsed messages of a JSON-RPC batch.
struct RawRpcBatch<'a>(Vec<&'a RawValue>);

/// Maximum number of JSON values per message, lists and objects counted twice. A value takes many
/// times the memory of its text.
const VALUES_MAX: usize = 2_000_000;
/// Maximum number of messages per JSON-RPC batch.
const BATCH_MAX: usize = 10_000;

impl<'de> Deserialize<'de> for RawRpcBatch<'de> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        /// Visitor that deserializes a JSON-RPC batch into unparsed messages.
        struct RpcBatchVisitor;
        impl<'de> Visitor<'de> for RpcBatchVisitor {
            type Value = RawRpcBatch<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "up to {BATCH_MAX} messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut items: A,
            ) -> Result<RawRpcBatch<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = items.next_element()? {
                    if all.len() == BATCH_MAX {
                        return Err(A::Error::invalid_length(BATCH_MAX + 1, &self));
                    }
                    all.push(one);
                }
                Ok(RawRpcBatch(all))
            }
        }
        reader.deserialize_seq(RpcBatchVisitor)
    }
}

/// Checks that the message `text` does not take too much memory once it is parsed.
fn check_values(text: &[u8]) -> Result<(), String> {
    // Each value takes at least one byte.
    if text.len() > VALUES_MAX && count_json_values(text) > VALUES_MAX {
        return Err(format!("it has more than {VALUES_MAX} values"));
    }
    Ok(())
}

/// Parses one JSON-RPC message. An answer that cannot be parsed becomes an error for its request.
fn parse_message(text: &[u8]) -> Result<UpstreamMessage, String> {
    let parse = || serde_json::from_slice(text).map_err(|err| err.to_string());
    let read = check_values(text).and_then(|()| parse()).and_then(classify);
    read.or_else(|why| match truncated::kind_of_message(text) {
        TruncatedMessageKind::Answer(Some(id)) => {
            let error = UpstreamRpcError::new(-32603, format!("its answer is invalid: {why}"));
            Ok(UpstreamMessage::Answer(Some(id), Err(error)))
        }
        TruncatedMessageKind::Answer(None) | TruncatedMessageKind::Other => Err(why),
    })
}

fn classify(members: UpstreamRpcMembers) -> Result<UpstreamMessage, String> {
    let UpstreamRpcMembers { id, method, params, result, error } = members;
    let params = params.map_or(Ok(Value::Null), |raw| exact_json::parse(raw.get()));
    let params = params.map_err(|err| err.to_string())?;
    match (id, method, result, error) {
        (Some(id), Some(method), ..) => Ok(UpstreamMessage::Request { id, method, params }),
        (None, Some(method), ..) => Ok(UpstreamMessage::Notification { method, params }),
        (id, None, Some(result), None) => {
            Ok(UpstreamMessage::Answer(parse_own_id(id.as_deref()), Ok(result)))
        }
        (id, None, _, Some(error)) => {
            Ok(UpstreamMessage::Answer(parse_own_id(id.as_deref()), Err(parse_error(error.get()))))
        }
        (_, None, None, None) => Err("it has no `method`, `result` or `error`".to_owned()),
    }
}

/// Parses a JSON-RPC error object, tolerating common deviations.
fn parse_error(error: &str) -> UpstreamRpcError {
    if let Ok(error) = serde_json::from_str(error) {
        return error;
    }
    let value = exact_json::parse(error).unwrap_or_default();
    let message = value.as_str().or(value["message"].as_str()).unwrap_or(error);
    let code = &value["code"];
    let code = code.as_i64().or_else(|| code.as_str()?.parse().ok());
    let data = value.get("data").filter(|data| !data.is_null()).cloned();
    UpstreamRpcError { code: code.unwrap_or(-32603), message: message.to_owned(), data }
}

/// Parses the number in the message id `id`. Some servers send it as a string.
fn parse_own_id(id: Option<&RawValue>) -> Option<u64> {
    id?.get().trim_matches('"').parse().ok()
}

/// Returns the method of a message that toolgate wrote, and the id if it is a request.
pub(crate) fn id_and_method(text: &[u8]) -> (Option<u64>, String) {
    /// Method and id of a message that was sent.
    #[derive(Default, Deserialize)]
    struct SentRpcMessage {
        method: Option<String>,
        id: Option<Value>,
    }
    let ours: SentRpcMessage = serde_json::from_slice(text).unwrap_or_default();
    let id = ours.id.as_ref().and_then(Value::as_u64).filter(|_| ours.method.is_some());
    (id, ours.method.unwrap_or_default())
}

/// Encodes a JSON-RPC request, or a notification if there is no id.
pub(crate) fn encode_message(id: Option<u64>, method: &str, params: &Value) -> Bytes {
    /// JSON-RPC request or notification to an upstream.
    #[derive(Serialize)]
    struct OutgoingRpcFrame<'a> {
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
    let frame = OutgoingRpcFrame { jsonrpc: "2.0", id, method, params };
    serde_json::to_vec(&frame).unwrap_or_default().into()
}

/// Encodes the JSON-RPC answer to a request of the upstream.
pub(crate) fn encode_answer(id: &RawValue, outcome: Result<Value, UpstreamRpcError>) -> Bytes {
    // The id is returned verbatim, because not every JSON number survives conversion to a value.
    /// JSON-RPC answer to a request of an upstream.
    #[derive(Serialize)]
    struct OutgoingAnswerFrame<'a> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<UpstreamRpcError>,
    }
    let (result, error) = match outcome {
        Ok(result) => (Some(result), None),
        Err(error) => (None, Some(error)),
    };
    let answer = OutgoingAnswerFrame { jsonrpc: "2.0", id, result, error };
    serde_json::to_vec(&answer).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_message_is_recognized() {
        let read = |text: &str| parse_messages(text.as_bytes()).map(|mut all| all.remove(0));
        assert!(matches!(
            read(r#"{"id":7,"result":{}}"#),
            Ok(UpstreamMessage::Answer(Some(7), Ok(_)))
        ));
        let error = read(r#"{"id":7,"error":{"code":-1,"message":"no"}}"#);
        assert!(matches!(
            error,
            Ok(UpstreamMessage::Answer(Some(7), Err(UpstreamRpcError { code: -1, .. })))
        ));
        assert!(matches!(read(r#"{"id":"a","method":"m"}"#), Ok(UpstreamMessage::Request { .. })));
        assert!(matches!(read(r#"{"method":"m"}"#), Ok(UpstreamMessage::Notification { .. })));
        assert!(read("Server started").is_err() && read("{}").is_err());
    }

    #[test]
    fn a_mark_before_a_message_or_a_batch_is_ignored() {
        for text in ["\u{feff}{\"id\":7,\"result\":{}}", "\u{feff} [{\"method\":\"a\"}]"] {
            assert!(parse_messages(text.as_bytes()).is_ok_and(|all| all.len() == 1), "{text}");
        }
        // Its request fails even if the answer is broken.
        let broken = parse_messages("\u{feff}{\"id\":7,\"result\":".as_bytes());
        assert!(matches!(broken.as_deref(), Ok([UpstreamMessage::Answer(Some(7), Err(_))])));
    }

    #[test]
    fn an_invalid_answer_becomes_an_error_for_its_request() {
        for text in [
            r#"{"id":7,"result":null}"#,
            r#"{"id":"7","result":null}"#,
            r#"{"jsonrpc":"2.0","id":7}"#,
            r#"{"id":7,"id":7,"result":{}}"#,
            r#"{"id":7,"result":{}"#,
            r#"{"id":7,"error":null}"#,
            r#"{"id":7,"error":true}"#,
        ] {
            let read = parse_messages(text.as_bytes()).map(|mut all| all.remove(0));
            assert!(
                matches!(read, Ok(UpstreamMessage::Answer(Some(7), Err(_)))),
                "{text}: {read:?}"
            );
        }
        for text in [
            r#"{"jsonrpc":"2.0","id":null}"#,
            r#"{"level":"info","id":7}"#,
            r#"{"id":7,"method":7}"#,
            r#"{"id":"a","result":null}"#,
        ] {
            assert!(parse_messages(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_with_an_unusual_code_or_message_is_accepted() {
        let refused = |error: &str| {
            let read = parse_messages(format!(r#"{{"id":7,"error":{error}}}"#).as_bytes());
            match read.map(|mut all| all.remove(0)) {
                Ok(UpstreamMessage::Answer(Some(7), Err(error))) => (error.code, error.message),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(r#""no""#), (-32603, "no".to_owned()));
        assert_eq!(refused(r#"{"code":"x","message":"no"}"#), (-32603, "no".to_owned()));
        assert_eq!(refused(r#"{"code":"-32602","message":"no"}"#), (-32602, "no".to_owned()));
        assert_eq!(refused(r#"{"code":1.5,"message":"no"}"#), (-32603, "no".to_owned()));
        assert_eq!(refused(r#"{"code":-1,"message":7}"#).0, -1);
    }

    #[test]
    fn an_invalid_message_in_a_batch_is_skipped() {
        let all =
            parse_messages(br#"[7,{"id":1,"result":{}},{"id":2,"result":null}]"#).expect("a batch");
        assert_eq!(all.len(), 2);
        assert!(parse_messages(b"[7]").is_err());
    }

    #[test]
    fn a_message_with_too_many_values_is_an_error_of_its_request() {
        let values = "0,".repeat(VALUES_MAX);
        let answer = format!(r#"{{"id":7,"result":{{"a":[{values}0]}}}}"#);
        match parse_messages(answer.as_bytes()).map(|mut all| all.remove(0)) {
            Ok(UpstreamMessage::Answer(Some(7), Err(error))) => {
                assert!(error.message.contains("more than 2000000 values"), "{}", error.message);
            }
            other => panic!("{:.200}", format!("{other:?}")),
        }
        assert!(parse_messages(format!("[{answer}]").as_bytes()).is_err());
        let text = format!(r#"{{"id":7,"result":{{"a":"{values}"}}}}"#);
        assert!(matches!(
            parse_messages(text.as_bytes()).map(|mut all| all.remove(0)),
            Ok(UpstreamMessage::Answer(Some(7), Ok(_)))
        ));
    }

    #[test]
    fn a_batch_with_too_many_messages_is_refused() {
        let batch = |count: usize| format!("[{}]", vec![r#"{"method":"a"}"#; count].join(","));
        assert_eq!(parse_messages(batch(BATCH_MAX).as_bytes()).map(|all| all.len()), Ok(BATCH_MAX));
        let why = parse_messages(batch(BATCH_MAX + 1).as_bytes()).expect_err("they are too many");
        assert!(why.contains("up to 10000 messages"), "{why}");
    }

    #[test]
    fn the_id_of_a_request_is_returned_verbatim() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        for id in ["1e999", "7", "\"a\"", &deep] {
            let request = format!(r#"{{"id":{id},"method":"ping"}}"#);
            let all = parse_messages(request.as_bytes()).unwrap_or_default();
            for message in all {
                let UpstreamMessage::Request { id: raw_id, .. } = message else {
                    panic!("{request}")
                };
                let answer = encode_answer(&raw_id, Ok(Value::Null));
                let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":null}}"#);
                assert_eq!(answer, expected.as_bytes());
                let answer = encode_answer(&raw_id, Err(UpstreamRpcError::new(-1, "no")));
                assert!(answer.starts_with(format!(r#"{{"jsonrpc":"2.0","id":{id},"#).as_bytes()));
            }
        }
    }

    #[test]
    fn a_batch_yields_all_its_messages() {
        let all = parse_messages(br#" [{"method":"a"},{"id":1,"result":{}}]"#).expect("a batch");
        assert_eq!(all.len(), 2);
    }
}
