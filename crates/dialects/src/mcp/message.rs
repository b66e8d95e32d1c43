//! MCP's JSON-RPC messages: parsing and serialization.

use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{Body, Reply};

use crate::json::{Given, Members, NotJson, Params};
use crate::rpc::{self, written};
pub(crate) use crate::rpc::{
    INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Id, METHOD_NOT_FOUND, PARSE_ERROR,
    notification,
};
use crate::{Heard, Key};

/// Parses an id or a token: a string or an integer.
pub(crate) fn read_id(value: &Value) -> Option<Id> {
    Id::read(value).filter(|_| !value.is_f64())
}

/// Returns the key of the request that `notifications/cancelled` names.
pub(crate) fn cancelled_key(params: &Params) -> Option<Key> {
    params.get("requestId").and_then(read_id).map(|id| id.key())
}

/// A parsed JSON-RPC message.
#[derive(Debug)]
pub(crate) enum Message {
    Request {
        id: Id,
        method: String,
        params: Params,
    },
    Notification {
        method: String,
        params: Params,
    },
    /// An answer to a server request. The server's ids are always strings.
    Response {
        id: Option<String>,
        heard: Heard,
    },
}

impl Message {
    /// Parses the members of a message.
    pub(crate) fn read(members: Members) -> Result<Self, Failure> {
        let Members { jsonrpc, id, method, params, result, error } = members;
        // This comes before all checks, because answering an answer would never end.
        if method.is_none() && (result.is_some() || error.is_some()) {
            let id = id.as_ref().and_then(Value::as_str).map(str::to_owned);
            let heard = match error {
                Some(error) => Heard::Error(sentence(&error)),
                None => Heard::Result(result.unwrap_or_default()),
            };
            return Ok(Self::Response { id, heard });
        }
        let id = match &id {
            None => None,
            Some(value) => match read_id(value) {
                Some(id) => Some(id),
                None => {
                    let why = rpc::no_id("id", value, "a string or an integer");
                    return Err(Failure::invalid_request(None, why));
                }
            },
        };
        if jsonrpc.as_ref().and_then(Value::as_str) != Some("2.0") {
            return Err(Failure::invalid_request(id, "`jsonrpc` must be \"2.0\""));
        }
        let method = match method {
            Some(Value::String(method)) => method,
            Some(_) => return Err(Failure::invalid_request(id, "`method` must be a string")),
            None => return Err(Failure::invalid_request(id, "`method` is missing")),
        };
        let params = match params {
            None => Params::default(),
            Some(Given::Params(params)) => params,
            // A notification is never answered, even if it is malformed.
            Some(Given::Other(_)) if id.is_none() => Params::default(),
            Some(Given::Other(_)) => {
                return Err(Failure::invalid_params(id, "`params` must be an object"));
            }
        };
        Ok(match id {
            Some(id) => Self::Request { id, method, params },
            None => Self::Notification { method, params },
        })
    }
}

/// Returns a client's error as a sentence.
fn sentence(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
    match error.get("code") {
        Some(code) => format!("{message} ({code})"),
        None => message.to_owned(),
    }
}

/// A JSON-RPC error. Serialization writes the `error` object without the id.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    #[serde(skip)]
    pub(crate) id: Option<Id>,
    pub(crate) code: i32,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<Value>>,
    /// The HTTP status; ignored by other transports.
    #[serde(skip)]
    pub(crate) status: u16,
}

/// The code for a missing resource in session revisions.
pub(crate) const RESOURCE_NOT_FOUND: i32 = -32002;
pub(crate) const HEADER_MISMATCH: i32 = -32020;
pub(crate) const MISSING_CAPABILITY: i32 = -32021;
pub(crate) const UNSUPPORTED_VERSION: i32 = -32022;

impl Failure {
    pub(crate) fn new(id: Option<Id>, code: i32, message: impl Into<String>) -> Self {
        Self { id, code, message: message.into(), data: None, status: 400 }
    }

    pub(crate) fn invalid_request(id: Option<Id>, message: impl Into<String>) -> Self {
        Self::new(id, INVALID_REQUEST, message)
    }

    pub(crate) fn invalid_params(id: Option<Id>, message: impl Into<String>) -> Self {
        Self::new(id, INVALID_PARAMS, message)
    }

    pub(crate) fn not_json(why: NotJson, id: Option<Id>) -> Self {
        match why {
            NotJson::Syntax(why) => Self::new(id, PARSE_ERROR, format!("not JSON: {why}")),
            NotJson::Unfit(why) => Self::invalid_request(id, why),
        }
    }

    /// Creates the error for an unsupported protocol version.
    pub(crate) fn unsupported(id: Option<Id>, requested: &str, supported: &[&str]) -> Self {
        let message = format!(
            "protocol version `{requested}` is not supported; supported: {}",
            supported.join(", ")
        );
        Self::new(id, UNSUPPORTED_VERSION, message)
            .with_data(json!({ "supported": supported, "requested": requested }))
    }

    pub(crate) fn with_data(self, data: Value) -> Self {
        Self { data: Some(Box::new(data)), ..self }
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Encodes the error. If `anonymous` is true, an unknown id is left out instead of `null`.
    pub(crate) fn reply(&self, anonymous: bool) -> Reply {
        #[derive(Serialize)]
        struct Frame<'a> {
            jsonrpc: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<Option<&'a Id>>,
            error: &'a Failure,
        }
        let id = match &self.id {
            Some(id) => Some(Some(id)),
            None if anonymous => None,
            None => Some(None),
        };
        Reply::json(written(&Frame { jsonrpc: "2.0", id, error: self })).with_status(self.status)
    }
}

/// Creates the error for a parameter `at` that is missing or is not a `kind`.
pub(crate) fn not_a(kind: &str, id: &Id, at: &str, value: Option<&Value>) -> Failure {
    let why = match value {
        None => format!("`{at}` is missing"),
        Some(_) => format!("`{at}` must be {kind}"),
    };
    Failure::invalid_params(Some(id.clone()), why)
}

/// Encodes a successful result.
pub(crate) fn success(id: &Id, result: &impl Serialize) -> Reply {
    Reply::json(rpc::success(id, result))
}

/// Encodes a successful result of about `bytes` bytes.
pub(crate) fn success_of_about(id: &Id, result: &impl Serialize, bytes: usize) -> Reply {
    Reply::json(rpc::success_of_about(id, result, bytes))
}

/// Joins the replies to a batch into one array. Replies without a body are left out.
pub(crate) fn batch(replies: Vec<Reply>) -> Reply {
    let mut bytes = vec![b'['];
    for reply in replies {
        if let Body::Json(body) = reply.body {
            if bytes.len() > 1 {
                bytes.push(b',');
            }
            bytes.extend_from_slice(&body);
        }
    }
    if bytes.len() == 1 {
        return Reply::empty(202);
    }
    bytes.push(b']');
    Reply::json(bytes)
}
