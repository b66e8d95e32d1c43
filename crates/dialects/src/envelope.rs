//! The envelope dialect: tools and prompts over HTTP and JSON-RPC lines, with every answer in an
//! envelope.

mod requests;
mod http;
mod lines;
mod names;
mod answers;

use serde_json::json;
use toolgate_contract::{
    CallEnvelope, CallError, CallMetadata, Caller, EnvelopeError, EnvelopeErrorCode,
    EnvelopeMetadata, EnvelopeRequestInfo, FrameMetadata, MessageFrame, Reply,
};

use self::answers::{EnvelopeEncoder, EnvelopeTransport};
use self::requests::EnvelopeRequest;
use crate::{
    ClientConversation, Dialect, FrameRefusal, InFlightRequestKey, ParsedFrame, PendingHostRequest,
    WebSocketPurpose,
};

pub use names::{canonical_tool_id, catalog_name};

/// The dialect of RAGX's clients: tools and prompts over HTTP and JSON-RPC lines, with each answer
/// in an envelope.
#[derive(Debug, Default)]
pub struct EnvelopeDialect;

impl Dialect for EnvelopeDialect {
    fn name(&self) -> &'static str {
        "envelope"
    }

    fn paths(&self) -> &'static [&'static str] {
        http::PATHS
    }

    /// Returns `/`: on its own listener, the envelope dialect answers every path with an envelope.
    fn own_paths(&self) -> &'static [&'static str] {
        &["/"]
    }

    fn start_conversation(&self, _caller: &Caller) -> Box<dyn ClientConversation> {
        Box::new(EnvelopeConversation { read: 0 })
    }

    fn unknown_session(&self) -> Reply {
        let message = "the server is shutting down and accepts no new requests".to_owned();
        refusal_reply(&CallError::Unavailable { message })
    }

    fn refuse(&self, why: &FrameRefusal) -> Reply {
        refusal_reply(&refusal_error(why))
    }

    fn reject_frame(&self, frame: &MessageFrame, why: &FrameRefusal) -> ParsedFrame {
        self.read_rejected(&frame.head, refusal_error(why))
    }

    fn reject_unreadable(&self, head: &FrameMetadata, why: &str) -> Option<ParsedFrame> {
        Some(self.read_rejected(head, requests::invalid_input("", why)))
    }

    fn is_public(&self, head: &FrameMetadata) -> bool {
        head.path() == http::HEALTH
    }

    fn upgrade(&self, _head: &FrameMetadata) -> Result<WebSocketPurpose, Reply> {
        let message = "WebSockets are not supported; use HTTP".to_owned();
        let mut reply = refusal_reply(&CallError::NotFound { message });
        reply.status = EnvelopeErrorCode::NotFound.http_status();
        Err(reply)
    }
}

impl EnvelopeDialect {
    fn read_rejected(&self, head: &FrameMetadata, why: CallError) -> ParsedFrame {
        match head {
            FrameMetadata::Line => lines::read_rejected(why),
            FrameMetadata::Http { method, path, .. } => http::read_rejected(method, path, why),
        }
    }
}

/// The conversation of one client of the envelope dialect. Its only state is the number of messages
/// that it has read.
struct EnvelopeConversation {
    read: u64,
}

impl ClientConversation for EnvelopeConversation {
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame {
        self.read += 1;
        match &frame.head {
            FrameMetadata::Line => lines::read(&frame.body, self.read),
            FrameMetadata::Http { method, path, query, .. } => {
                http::read(method, path, query, &frame.head, &frame.body)
            }
        }
    }

    /// Returns the first reply, because the envelope dialect has no batches.
    fn join_replies(&self, replies: Vec<Reply>) -> Reply {
        replies.into_iter().next().unwrap_or_else(|| Reply::empty(204))
    }
}

/// Creates the parsed message for `request` of the envelope dialect. The answer is sent over
/// `transport`. `key` becomes the [`InFlightRequestKey`] of the request.
fn request_reading(
    request: EnvelopeRequest,
    transport: EnvelopeTransport,
    metadata: CallMetadata,
    key: String,
) -> ParsedFrame {
    let EnvelopeRequest { request, origin } = request;
    let encoder =
        EnvelopeEncoder { transport, tool: origin.tool.clone(), prompt: origin.prompt.clone() };
    ParsedFrame::Request(PendingHostRequest {
        metadata: CallMetadata { by_id: true, ..metadata },
        origin: Some(Box::new(origin)),
        // No request is cancelled by its id, so two requests may share one.
        ..PendingHostRequest::new(InFlightRequestKey(key), request, encoder)
    })
}

/// Converts the transport's refusal of a message to a call error.
fn refusal_error(why: &FrameRefusal) -> CallError {
    match why {
        FrameRefusal::TooLarge { limit } => CallError::TooLarge {
            message: format!("the request is larger than {limit} bytes and was not read"),
        },
        FrameRefusal::Busy { message } => CallError::Unavailable { message: message.clone() },
        FrameRefusal::Unauthorized { had_credential: false } => CallError::NotAllowed {
            message:
                "a key is required; send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
                    .to_owned(),
        },
        FrameRefusal::Unauthorized { had_credential: true } => CallError::NotAllowed {
            message:
                "the key or token is unknown, revoked or expired; the operator can list keys with \
                      `toolgate key list` and create one with `toolgate key new NAME`"
                    .to_owned(),
        },
        FrameRefusal::SeveralCredentials => CallError::NotAllowed {
            message: "a header with a key, such as `X-API-Key`, is in the request twice; send the \
                 header once"
                .to_owned(),
        },
        FrameRefusal::Throttled { retry_after } => CallError::Limited {
            message:
                "too many failed authentication attempts from your address; a valid key works at \
                      once"
                    .to_owned(),
            retry_after: *retry_after,
        },
        FrameRefusal::DuplicateId { key: InFlightRequestKey(key) } => {
            requests::invalid_input("/id", &format!("the request id {key} is already in use"))
        }
    }
}

/// Creates an answer with empty ids that refuses a line which the host does not see.
fn refusal_reply(why: &CallError) -> Reply {
    let EnvelopeRequestInfo { transport, route, method, payload, .. } =
        requests::unknown("stdio", "rpc", "unknown").origin;
    let nil = "00000000-0000-0000-0000-000000000000";
    let error = EnvelopeError::from_error(why);
    let meta = EnvelopeMetadata {
        request_id: nil.to_owned(),
        trace_id: nil.to_owned(),
        span_id: nil.to_owned(),
        schema_version: CallEnvelope::VERSION.to_owned(),
        deterministic: false,
        transport: transport.to_owned(),
        route,
        method,
        duration_ms: 0.0,
        status: "error".to_owned(),
        attempt: 0,
        input_bytes: toolgate_contract::canonical_json_len(&payload),
        output_bytes: 0,
        tool_id: None,
        prompt_id: None,
    };
    let envelope = CallEnvelope { ok: false, data: None, error: Some(error), meta };
    answers::line_reply(None, None, &envelope)
}

/// Creates the reaction to a health check: an immediate answer, without a request to the host.
fn health_reading() -> ParsedFrame {
    ParsedFrame::Reply(Reply::json(crate::rpc::to_json(&json!({ "status": "ok" }))))
}
