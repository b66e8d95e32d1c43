//! Property tests: the Zyra dialect reads any input, and its answers follow Zyra's contract.

use std::sync::Arc;

use http::{HeaderMap, Method};
use proptest::prelude::*;
use serde_json::{Value, json};
use toolgate_contract::{
    CallError, CallEvent, Caller, FrameMetadata, HostAnswer, JobEvent, JobEventKind, JobStreamItem,
    MessageFrame, OutputStreamKind, Reply, ReplyBody, ResultText, ToolOutput, ToolRunStatus,
};
use toolgate_dialects::{JobEventEncoder, ParsedFrame, WebSocketPurpose};

use crate::parse::{read_job, read_outcome, read_page};
use crate::random::json_value;
use crate::replay::dialect;

const ODD: &str = "a\nb\u{2028}\0\u{1f600}";
const ID: &str = "00000000000000000000000000000001";

proptest! {
    #[test]
    fn reading_requests_never_panics(
        method in method(),
        path in path(),
        query in query(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        check_frame(Some((method, path, query)), body)?;
    }

    #[test]
    fn reading_messages_never_panics(message in message(), http in any::<bool>()) {
        let head = http.then(|| (Method::POST, "/v1/mcp".to_owned(), String::new()));
        check_frame(head, message.to_string().into_bytes())?;
    }

    #[test]
    fn reading_bytes_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        http in any::<bool>(),
    ) {
        check_frame(http.then(|| (Method::POST, "/v1/mcp".to_owned(), String::new())), bytes)?;
    }
}

/// Reads a message in the Zyra dialect, and checks the encoded answer to it.
fn check_frame(head: Option<(Method, String, String)>, body: Vec<u8>) -> Result<(), TestCaseError> {
    let zyra = dialect("zyra");
    let head = match head {
        Some((method, path, query)) => {
            FrameMetadata::Http { method, path, query, headers: HeaderMap::new() }
        }
        None => FrameMetadata::Line,
    };
    match zyra.upgrade(&head) {
        Ok(WebSocketPurpose::Converse | WebSocketPurpose::Close(..)) => {}
        Ok(WebSocketPurpose::Watch(watching)) => check_job_events(&*watching.encoder)?,
        Err(reply) => check_reply(&reply)?,
    }
    let line = matches!(head, FrameMetadata::Line);
    match zyra.start_conversation(&Caller::local()).read(&MessageFrame { head, body: body.into() })
    {
        ParsedFrame::Reply(reply) => check_reply(&reply),
        ParsedFrame::Replies(replies) => {
            prop_assert!(line, "only a connection can have two answers");
            replies.iter().try_for_each(check_reply)
        }
        ParsedFrame::Cancel { reply, .. } => check_reply(&reply),
        ParsedFrame::Watch(watching) => check_job_events(&*watching.encoder),
        ParsedFrame::Request(ask) => {
            let output = ToolOutput::new(
                json!([ODD]),
                ResultText::from_body(ODD),
                ToolRunStatus::ProgramFailed,
            );
            let job = read_job("failed error failed {\"message\":\"no\"}");
            let outcomes = [
                Ok(HostAnswer::Output(output)),
                Ok(HostAnswer::Tools(read_page("files.read"))),
                Ok(HostAnswer::Job(Box::new(job.clone()))),
                read_outcome("artefact", &format!("0 a/b {}", json!(ODD))),
                Err(CallError::NotFound { message: ODD.into() }),
            ];
            let event = CallEvent::Progress { done: 0.5, total: None, message: None };
            prop_assert!(
                !ask.encoder.encodes_events() && ask.encoder.encode_event(&event).is_none()
            );
            for outcome in outcomes {
                let reply = ask.encoder.encode_reply(outcome);
                check_reply(&reply.expect("every request is answered"))?;
            }
            ask.encoder.job_encoder(&job).map_or(Ok(()), |encoder| check_job_events(&*encoder))
        }
        ParsedFrame::Batch(_)
        | ParsedFrame::OpenSession(_)
        | ParsedFrame::CloseSession(_)
        | ParsedFrame::Subscribe(_)
        | ParsedFrame::OpenNotifications { .. }
        | ParsedFrame::Unwatch { .. }
        | ParsedFrame::StateChange { .. }
        | ParsedFrame::Response { .. } => {
            Err(TestCaseError::fail("this contract has no batches, sessions or changes"))
        }
    }
}

/// Checks that every message about a job is JSON on one line.
fn check_job_events(encoder: &dyn JobEventEncoder) -> Result<(), TestCaseError> {
    let job = read_job("canceled error canceled");
    let mut messages = vec![
        encoder.encode_start(None),
        encoder.encode_start(Some(&job)),
        encoder.encode_keep_alive(),
    ];
    messages.extend([encoder.encode_snapshot(None), encoder.encode_snapshot(Some(&job))]);
    let at = job.created;
    for event in [
        JobEventKind::Queued,
        JobEventKind::Progress { fraction: 0.5, message: Some(ODD.into()) },
        JobEventKind::Output { stream: OutputStreamKind::Stderr, text: ODD.into() },
        JobEventKind::Finished { state: job.state },
    ] {
        messages.push(encoder.encode_item(&JobStreamItem::Event(Arc::new(JobEvent {
            seq: 1,
            at,
            kind: event,
        }))));
    }
    messages.push(encoder.encode_item(&JobStreamItem::Ended(Box::new(job))));
    messages.into_iter().flatten().try_for_each(|bytes| check_reply(&Reply::json(bytes)))
}

/// Checks that `reply` can be sent: its headers are valid and its body is JSON on one line.
fn check_reply(reply: &Reply) -> Result<(), TestCaseError> {
    prop_assert!(http::StatusCode::from_u16(reply.status).is_ok());
    for (name, value) in &reply.headers {
        prop_assert!(http::HeaderName::try_from(*name).is_ok());
        prop_assert!(http::HeaderValue::try_from(value.as_str()).is_ok(), "{value:?}");
    }
    if let ReplyBody::Json(bytes) = &reply.body {
        prop_assert!(!bytes.contains(&b'\n') && !bytes.contains(&b'\r'));
        let value: Result<Value, _> = serde_json::from_slice(bytes);
        prop_assert!(value.is_ok_and(|value| value.is_object()), "{bytes:?}");
    }
    Ok(())
}

fn method() -> impl Strategy<Value = Method> {
    prop_oneof![
        Just(Method::GET),
        Just(Method::HEAD),
        Just(Method::POST),
        Just(Method::DELETE),
        Just(Method::OPTIONS),
        Just(Method::PUT),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        Just("v1".to_owned()),
        Just("mcp".to_owned()),
        Just("ws".to_owned()),
        Just("jobs".to_owned()),
        Just("progress".to_owned()),
        Just("download".to_owned()),
        Just("manifest".to_owned()),
        Just(ID.to_owned()),
        Just("..%2f%ff%0d%0a".to_owned()),
        ".{0,6}",
    ];
    proptest::collection::vec(segment, 0..6).prop_map(|segments| format!("/{}", segments.join("/")))
}

fn query() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("file"),
        Just("zip"),
        Just("stream"),
        Just("interval_ms"),
        Just("max_ms"),
    ];
    let value = prop_oneof![
        Just("1".to_owned()),
        Just("stdout,progress".to_owned()),
        Just("%ff%00%".to_owned()),
        ".{0,6}",
    ];
    proptest::collection::vec((name, value), 0..3).prop_map(|pairs| {
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    })
}

/// Generates values that resemble messages of Zyra.
fn message() -> impl Strategy<Value = Value> {
    let method = prop_oneof![
        Just(json!("initialize")),
        Just(json!("tools/list")),
        Just(json!("tools/call")),
        Just(json!("callTool")),
        Just(json!("statusReport")),
        Just(json!("notifications/cancelled")),
        json_value(),
    ];
    let mode = prop_oneof![Just(json!("sync")), Just(json!("async")), json_value()];
    let name = prop_oneof![Just(json!("process decode-grib2")), Just(Value::Null), json_value()];
    let arguments = prop_oneof![Just(json!({})), json_value()];
    let params = (name, arguments, mode, json_value()).prop_map(|(name, arguments, mode, odd)| {
        json!({
            "name": name, "stage": "process", "command": odd, "arguments": arguments,
            "mode": mode, "_meta": { "progressToken": odd }, "requestId": odd,
        })
    });
    let params = prop_oneof![4 => params, 1 => json_value()];
    let id = prop_oneof![4 => any::<i32>().prop_map(Value::from), 1 => json_value()];
    (id, method, params).prop_map(|(id, method, params)| {
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
    })
}
