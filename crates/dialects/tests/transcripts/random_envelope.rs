//! Property tests: the envelope dialect reads any input and answers in an envelope.

use http::{HeaderMap, Method};
use proptest::prelude::*;
use serde_json::{Value, json};
use toolgate_contract::{CallError, Caller, FrameMetadata, HostRequest, MessageFrame, ReplyBody};
use toolgate_dialects::ParsedFrame;

use crate::format::build_envelope;
use crate::random::json_value;
use crate::replay::dialect;

const STATUSES: [u16; 6] = [200, 400, 401, 404, 500, 502];

proptest! {
    #[test]
    fn every_http_answer_has_an_envelope(
        method in prop_oneof![Just(Method::GET), Just(Method::POST), Just(Method::HEAD), Just(Method::DELETE)],
        path in "(/mcp/(tool|prompt|discover)(/(mcp\\.tool:)?[a-z.@%/0-9]{0,12}){0,2}|/.{0,20})",
        query in "([a-z]{1,3}=[a-z%]{0,3}&?){0,3}",
        body in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        check_http(method, path, query, body)?;
    }

    #[test]
    fn the_answer_to_any_body_has_an_envelope(body in json_value()) {
        let path = "/mcp/tool/mcp.tool:files.read".to_owned();
        check_http(Method::POST, path, String::new(), body.to_string().into_bytes())?;
    }

    #[test]
    fn every_answer_on_a_line_has_an_envelope(
        method in prop_oneof![
            Just("mcp.discover"), Just("mcp.prompt.get"), Just("mcp.tool.invoke"), Just("else"),
        ],
        params in json_value(),
        id in json_value(),
    ) {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        check_line(message.to_string().into_bytes())?;
    }

    #[test]
    fn the_answer_to_any_bytes_on_a_line_has_an_envelope(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        check_line(bytes)?;
    }
}

fn check_http(
    method: Method,
    path: String,
    query: String,
    body: Vec<u8>,
) -> Result<(), TestCaseError> {
    let is_health = path == "/healthz";
    let head = FrameMetadata::Http { method, path, query, headers: HeaderMap::new() };
    let (status, envelope) = match answer_of(&MessageFrame { head, body: body.into() })? {
        Some(answer) => answer,
        None => return Err(TestCaseError::fail("a request over HTTP has no answer")),
    };
    prop_assert!(STATUSES.contains(&status), "{}", status);
    prop_assert!(is_health || envelope["meta"]["transport"] == "http", "{}", envelope);
    prop_assert!(is_health || (envelope["ok"] == true) == (status == 200));
    Ok(())
}

fn check_line(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let Some((_, message)) = answer_of(&MessageFrame::from_line(bytes))? else { return Ok(()) };
    let envelope = match message.get("result") {
        Some(envelope) => envelope,
        None => {
            let data = &message["error"]["data"];
            prop_assert!(data["canonical"] == data["envelope"]["error"]["code"], "{}", message);
            &data["envelope"]
        }
    };
    prop_assert!(envelope["meta"]["transport"] == "stdio", "{}", message);
    Ok(())
}

/// Returns the HTTP status and the body of the answer to `frame`, from a host that refuses every
/// call.
fn answer_of(frame: &MessageFrame) -> Result<Option<(u16, Value)>, TestCaseError> {
    let reply = match dialect("envelope").start_conversation(&Caller::local()).read(frame) {
        ParsedFrame::Reply(reply) => reply,
        ParsedFrame::Request(ask) => {
            let why = match ask.request {
                HostRequest::Refuse(why) | HostRequest::RefuseCall { why, .. } => why,
                _ => CallError::NotFound { message: "nothing is here".to_owned() },
            };
            let via = ask.origin.ok_or_else(|| TestCaseError::fail("the request has no origin"))?;
            let reply = ask.encoder.encode_envelope(&build_envelope(*via, Err(why)));
            reply.ok_or_else(|| TestCaseError::fail("the request has no envelope"))?
        }
        _ => return Err(TestCaseError::fail("the reading is neither a reply nor a request")),
    };
    match reply.body {
        ReplyBody::Empty => Ok(None),
        ReplyBody::Json(bytes) => {
            let value = serde_json::from_slice(&bytes);
            Ok(Some((reply.status, value.map_err(|err| TestCaseError::fail(err.to_string()))?)))
        }
        ReplyBody::File(_) => Err(TestCaseError::fail("the reply is a file")),
    }
}
