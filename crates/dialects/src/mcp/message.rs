//! MCP's JSON-RPC messages: parsing and serialization.

use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{Reply, ReplyBody, exact_json};

use crate::json::{JsonError, RawRpcParams, RpcMessageMembers, RpcParams};
use crate::rpc::{self, to_json};
pub(crate) use crate::rpc::{
    INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RequestId,
    notification,
};
use crate::{ClientQuestionResponse, InFlightRequestKey};

/// Parses a request id or a progress token: a string or an integer.
pub(crate) fn read_id(value: &Value) -> Option<RequestId> {
    RequestId::parse(value).filter(|_| is_id(value))
}

/// Returns true if `value` is a request id or a progress token: a string or an integer that is not
/// too long.
fn is_id(value: &Value) -> bool {
    let is_text_or_integer = match value {
        Value::String(_) => true,
        Value::Number(number) => exact_json::is_plain_integer(number),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    };
    is_text_or_integer && !rpc::is_id_too_long(value)
}

/// Returns the key of the request that `notifications/cancelled` names, or `None` if the
/// notification names no valid request id.
pub(crate) fn cancelled_key(params: &RpcParams) -> Option<InFlightRequestKey> {
    params.get("requestId").and_then(read_id).map(|id| id.key())
}

/// A parsed JSON-RPC message of MCP.
#[derive(Debug)]
pub(crate) enum McpMessage {
    Request {
        id: RequestId,
        method: String,
        params: RpcParams,
    },
    Notification {
        method: String,
        params: RpcParams,
    },
    /// A client's answer to a server request. The server's ids are always strings.
    Response {
        id: Option<String>,
        heard: ClientQuestionResponse,
    },
}

impl McpMessage {
    /// Parses the members of a JSON-RPC message.
    pub(crate) fn parse(members: RpcMessageMembers) -> Result<Self, McpError> {
        let RpcMessageMembers { jsonrpc, id, method, params, result, error } = members;
        // This comes before all checks, because answering an answer would never end.
        if method.is_none() && (result.is_some() || error.is_some()) {
            let id = id.as_ref().and_then(Value::as_str).map(str::to_owned);
            let response = match error {
                Some(error) => ClientQuestionResponse::Error(error_sentence(&error)),
                None => ClientQuestionResponse::Result(result.unwrap_or_default()),
            };
            return Ok(Self::Response { id, heard: response });
        }
        let id = match id {
            None => None,
            Some(value) if is_id(&value) => RequestId::from_value(value),
            Some(value) => {
                let why = rpc::invalid_id_reason("id", &value, "a string or an integer");
                return Err(McpError::invalid_request(None, why));
            }
        };
        if jsonrpc.as_ref().and_then(Value::as_str) != Some("2.0") {
            return Err(McpError::invalid_request(id, "`jsonrpc` must be \"2.0\""));
        }
        let method = match method {
            Some(Value::String(method)) => method,
            Some(_) => return Err(McpError::invalid_request(id, "`method` must be a string")),
            None => return Err(McpError::invalid_request(id, "`method` is missing")),
        };
        let params = match params {
            // Some clients write null for no parameters.
            None | Some(RawRpcParams::Other(Value::Null)) => RpcParams::default(),
            Some(RawRpcParams::Params(params)) => params,
            // A notification is never answered, even if it is malformed.
            Some(RawRpcParams::Other(_)) if id.is_none() => RpcParams::default(),
            Some(RawRpcParams::Other(_)) => {
                return Err(McpError::invalid_params(id, "`params` must be an object"));
            }
        };
        Ok(match id {
            Some(id) => Self::Request { id, method, params },
            None => Self::Notification { method, params },
        })
    }
}

/// Returns the error in a client's response as a sentence.
fn error_sentence(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
    match error.get("code") {
        Some(code) => format!("{message} ({code})"),
        None => message.to_owned(),
    }
}

/// A JSON-RPC error with its HTTP status. Serialization writes the `error` object without the id.
#[derive(Debug, Serialize)]
pub(crate) struct McpError {
    #[serde(skip)]
    pub(crate) id: Option<RequestId>,
    pub(crate) code: i32,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<Value>>,
    /// The HTTP status of the error. Other transports ignore it.
    #[serde(skip)]
    pub(crate) status: u16,
}

/// The error code for a missing resource in session revisions.
pub(crate) const RESOURCE_NOT_FOUND: i32 = -32002;
/// The error code for an HTTP header that does not match the body, in stateless revisions.
pub(crate) const HEADER_MISMATCH: i32 = -32020;
/// The error code for a request that needs a capability which the client did not declare, in
/// stateless revisions.
pub(crate) const MISSING_CAPABILITY: i32 = -32021;
/// The error code for a protocol revision that the server does not support, in stateless revisions.
pub(crate) const UNSUPPORTED_VERSION: i32 = -32022;

impl McpError {
    pub(crate) fn new(id: Option<RequestId>, code: i32, message: impl Into<String>) -> Self {
        Self { id, code, message: message.into(), data: None, status: 400 }
    }

    pub(crate) fn invalid_request(id: Option<RequestId>, message: impl Into<String>) -> Self {
        Self::new(id, INVALID_REQUEST, message)
    }

    pub(crate) fn invalid_params(id: Option<RequestId>, message: impl Into<String>) -> Self {
        Self::new(id, INVALID_PARAMS, message)
    }

    pub(crate) fn not_json(why: JsonError, id: Option<RequestId>) -> Self {
        match why {
            JsonError::Syntax(why) => Self::new(id, PARSE_ERROR, format!("not JSON: {why}")),
            JsonError::Invalid(why) => Self::invalid_request(id, why),
        }
    }

    /// Creates the error for an unsupported version of MCP.
    pub(crate) fn unsupported(id: Option<RequestId>, requested: &str, supported: &[&str]) -> Self {
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

    /// Encodes the error as a reply. If `anonymous` is true, an unknown request id is omitted.
    /// Otherwise it is `null`.
    pub(crate) fn reply(&self, anonymous: bool) -> Reply {
        /// JSON-RPC message that contains an error.
        #[derive(Serialize)]
        struct McpErrorFrame<'a> {
            jsonrpc: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<Option<&'a RequestId>>,
            error: &'a McpError,
        }
        let id = match &self.id {
            Some(id) => Some(Some(id)),
            None if anonymous => None,
            None => Some(None),
        };
        Reply::json(to_json(&McpErrorFrame { jsonrpc: "2.0", id, error: self }))
            .with_status(self.status)
    }
}

/// Creates the error for the parameter `at`, which is missing or is not a `kind`.
pub(crate) fn wrong_type(kind: &str, id: &RequestId, at: &str, value: Option<&Value>) -> McpError {
    let why = match value {
        None => format!("`{at}` is missing"),
        Some(_) => format!("`{at}` must be {kind}"),
    };
    McpError::invalid_params(Some(id.clone()), why)
}

/// Encodes a successful result as the answer to the request `id`.
pub(crate) fn success(id: &RequestId, result: &impl Serialize) -> Reply {
    Reply::json(rpc::success(id, result))
}

/// Encodes a successful result as the answer to the request `id`. `bytes` is the approximate length
/// of the result.
pub(crate) fn success_with_capacity(
    id: &RequestId,
    result: &impl Serialize,
    bytes: usize,
) -> Reply {
    Reply::json(rpc::success_with_capacity(id, result, bytes))
}

/// Joins the replies to a JSON-RPC batch into one array. Replies without a body are left out.
pub(crate) fn join_batch(replies: Vec<Reply>) -> Reply {
    let mut bytes = vec![b'['];
    for reply in replies {
        if let ReplyBody::Json(body) = reply.body {
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
