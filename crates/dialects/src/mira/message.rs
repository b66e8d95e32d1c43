//! Parsing of Mira requests.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolgate_contract::{CallError, HostRequest, Reply};

use super::calls::{MiraCallParams, tool_input};
use super::encoder::{MiraEncoder, MiraRequest};
use super::listing::{MiraToolListing, ToolListFilter};
use super::methods::{MiraContractMethod, MiraMethod};
use super::refusals::{MiraErrorCode, MiraRequestError};
use super::schemas;
use crate::json::{JsonError, parse};
use crate::rpc::{invalid_id_reason, is_id_too_long, skim_id};
use crate::{
    AcceptedResponseMode, InFlightRequestKey, ParsedFrame, PendingHostRequest, ServerInfo,
};

/// The connection on which a message of Mira's client arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MiraConnection {
    /// A connection on which the server can send at any time.
    Line,
    /// An HTTP request, which gets one answer.
    Http {
        /// The URL under which the client reached the server.
        endpoint: Option<String>,
    },
}

/// A request id in its original spelling, so that numbers keep their digits.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(super) struct MiraRequestId(Arc<RawValue>);

impl MiraRequestId {
    /// Parses a request id. `None` if it is invalid or too long.
    fn parse(value: &Value) -> Option<Self> {
        if is_id_too_long(value) {
            return None;
        }
        let text = match value {
            Value::String(_) | Value::Number(_) => value.to_string(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
        };
        RawValue::from_string(text).ok().map(|raw| Self(raw.into()))
    }

    /// Returns the request id as JSON, which distinguishes `1` from `"1"`.
    fn key(&self) -> InFlightRequestKey {
        InFlightRequestKey(self.0.get().to_owned())
    }
}

/// Parses only the request id of a message, without storing the rest of the message.
pub(super) fn parse_id(body: &[u8]) -> Option<MiraRequestId> {
    MiraRequestId::parse(&skim_id(body)?)
}

/// Reads one message of Mira's client.
pub(super) fn read_message(
    facts: &Arc<ServerInfo>,
    connection: &MiraConnection,
    body: &[u8],
) -> ParsedFrame {
    let refused = |id: Option<&MiraRequestId>, refusal: MiraRequestError| {
        ParsedFrame::Reply(refusal.reply(id))
    };
    let fields = match parse(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => {
            let why = "a message must be one JSON object; batches are not supported";
            return refused(None, MiraRequestError::new(MiraErrorCode::InvalidRequest, why));
        }
        Err(JsonError::Syntax(why)) => {
            return refused(
                None,
                MiraRequestError::new(MiraErrorCode::ParseError, format!("not JSON: {why}")),
            );
        }
        Err(JsonError::Invalid(why)) => {
            return refused(None, MiraRequestError::new(MiraErrorCode::InvalidRequest, why));
        }
    };
    let id = match fields.get("id") {
        None => None,
        Some(value) => match MiraRequestId::parse(value) {
            Some(id) => Some(id),
            None => {
                let why = invalid_id_reason("id", value, "a string or a number");
                return refused(None, MiraRequestError::new(MiraErrorCode::InvalidRequest, why));
            }
        },
    };
    let reading = read_fields(facts, connection, id.as_ref(), fields);
    reading.unwrap_or_else(|refusal| refused(id.as_ref(), refusal))
}

fn read_fields(
    facts: &Arc<ServerInfo>,
    connection: &MiraConnection,
    id: Option<&MiraRequestId>,
    mut fields: Map<String, Value>,
) -> Result<ParsedFrame, MiraRequestError> {
    // This comes before all checks, because answering an answer would never end.
    let answers = fields.contains_key("result") || fields.contains_key("error");
    if answers && !fields.contains_key("method") {
        return Ok(ParsedFrame::Reply(Reply::empty(204)));
    }
    let invalid_request = |why: &str| MiraRequestError::new(MiraErrorCode::InvalidRequest, why);
    match fields.get("jsonrpc") {
        Some(version) if version == "2.0" => {}
        Some(_) => return Err(invalid_request("`jsonrpc` must be \"2.0\"")),
        None => return Err(invalid_request("`jsonrpc` is missing; it must be \"2.0\"")),
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => return Err(invalid_request("`method` must be a string")),
        None => return Err(invalid_request("`method` is missing")),
    };
    // A notification is not run, because nobody would see the result.
    let Some(id) = id else { return Ok(ParsedFrame::Reply(Reply::empty(204))) };
    let Some(method) = MiraMethod::parse(&method) else {
        return Err(MiraRequestError::unknown_method(&method));
    };
    let params = match fields.remove("params") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(params @ Value::Object(_)) => params,
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            let why = "it must be an object";
            return Err(
                MiraRequestError::new(MiraErrorCode::InvalidParams, why).with_field("params")
            );
        }
    };
    let (request, mira_request) = parse_method(facts, connection, method, params)?;
    Ok(request_reading(connection, MiraEncoder::new(id.clone(), mira_request), request))
}

/// Converts the JSON-RPC `method` with `params` to a host request.
fn parse_method(
    facts: &Arc<ServerInfo>,
    connection: &MiraConnection,
    method: MiraMethod,
    params: Value,
) -> Result<(HostRequest, MiraRequest), MiraRequestError> {
    let schema_error = |schema: &schemas::MiraSchema| match schema.error_problems(&params) {
        problems if problems.is_empty() => None,
        problems => Some(CallError::InvalidInput { problems }),
    };
    Ok(match method {
        MiraMethod::List => match schema_error(&schemas::LIST.params) {
            Some(error) => return Err(MiraRequestError::from_error(&error, &MiraRequest::Invalid)),
            None => {
                let filter = ToolListFilter::parse(&params)?;
                let after = filter.after.clone();
                let listing = MiraToolListing {
                    filter,
                    connection: connection.clone(),
                    facts: facts.clone(),
                };
                (HostRequest::ListTools { after }, MiraRequest::List(Box::new(listing)))
            }
        },
        MiraMethod::Contracted(method) => match schema_error(&method.schemas().params) {
            // The host refuses the call, so that it leaves an audit record.
            Some(error) => {
                let tool = method.tool().to_owned();
                (HostRequest::RefuseCall { tool, why: error }, MiraRequest::Invalid)
            }
            None => {
                let (input, called) = tool_input(method, params);
                let tool = method.tool().to_owned();
                (HostRequest::CallTool { tool, input }, MiraRequest::Contracted(called))
            }
        },
        MiraMethod::Tool { name, tool } => {
            (HostRequest::CallTool { tool, input: params }, MiraRequest::Tool { name })
        }
    })
}

fn request_reading(
    connection: &MiraConnection,
    encoder: MiraEncoder,
    request: HostRequest,
) -> ParsedFrame {
    let time_limit = match &encoder.request {
        MiraRequest::Contracted(
            MiraCallParams::Read(_) | MiraCallParams::Write(_) | MiraCallParams::Search,
        ) => Some(MiraContractMethod::TIME_LIMIT),
        MiraRequest::Contracted(MiraCallParams::Run { .. })
        | MiraRequest::List(_)
        | MiraRequest::Tool { .. }
        | MiraRequest::Invalid => None,
    };
    let answer_form = match connection {
        MiraConnection::Line => AcceptedResponseMode::Stream,
        MiraConnection::Http { .. } => AcceptedResponseMode::Message,
    };
    let encoder = match answer_form {
        AcceptedResponseMode::Message => encoder.without_chunks(),
        AcceptedResponseMode::Stream | AcceptedResponseMode::Resumable => encoder,
    };
    ParsedFrame::Request(PendingHostRequest {
        answer_form,
        time_limit,
        ..PendingHostRequest::new(encoder.id.key(), request, encoder)
    })
}
