//! Requests nobody wrote: whatever comes, Zyra's dialect reads it and answers as its wire does.

use std::sync::Arc;

use http::{HeaderMap, Method};
use proptest::prelude::*;
use serde_json::{Value, json};
use toolgate_contract::{
    Answer, Body, CallError, Caller, Ending, Event, Frame, Happened, Head, JobEvent, Output, Reply,
    Stream, Text, Watched,
};
use toolgate_dialects::{Reading, Upgrade, WatchTicket};

use crate::chance::json_value;
use crate::stage::dialect;
use crate::words::{read_job, read_outcome, read_page};

const ODD: &str = "a\nb\u{2028}\0\u{1f600}";
const ID: &str = "00000000000000000000000000000001";

proptest! {
    #[test]
    fn no_request_makes_a_reader_panic(
        method in method(),
        path in path(),
        query in query(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        tell(Some((method, path, query)), body)?;
    }

    #[test]
    fn no_message_makes_a_reader_panic(message in message(), http in any::<bool>()) {
        let head = http.then(|| (Method::POST, "/v1/mcp".to_owned(), String::new()));
        tell(head, message.to_string().into_bytes())?;
    }

    #[test]
    fn no_bytes_make_a_reader_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        http in any::<bool>(),
    ) {
        tell(http.then(|| (Method::POST, "/v1/mcp".to_owned(), String::new())), bytes)?;
    }
}

/// Reads a frame and answers whatever it asks.
fn tell(head: Option<(Method, String, String)>, body: Vec<u8>) -> Result<(), TestCaseError> {
    let zyra = dialect("zyra");
    let head = match head {
        Some((method, path, query)) => {
            Head::Http { method, path, query, headers: HeaderMap::new() }
        }
        None => Head::Line,
    };
    match zyra.upgrade(&head) {
        Ok(Upgrade::Converse | Upgrade::Close(..)) => {}
        Ok(Upgrade::Watch(watching)) => watched(&*watching.ticket)?,
        Err(reply) => written(&reply)?,
    }
    let line = matches!(head, Head::Line);
    match zyra.converse(&Caller::local()).read(&Frame { head, body: body.into() }) {
        Reading::Reply(reply) => written(&reply),
        Reading::Replies(replies) => {
            prop_assert!(line, "only a connection takes two answers");
            replies.iter().try_for_each(written)
        }
        Reading::Cancel { reply, .. } => written(&reply),
        Reading::Watch(watching) => watched(&*watching.ticket),
        Reading::Ask(ask) => {
            let output = Output::new(json!([ODD]), Text::body(ODD), Ending::ProgramFailed);
            let job = read_job("failed error failed {\"message\":\"no\"}");
            let outcomes = [
                Ok(Answer::Output(output)),
                Ok(Answer::Tools(read_page("files.read"))),
                Ok(Answer::Job(Box::new(job.clone()))),
                read_outcome("artefact", &format!("0 a/b {}", json!(ODD))),
                Err(CallError::NotFound { message: ODD.into() }),
            ];
            let event = Event::Progress { done: 0.5, total: None, message: None };
            prop_assert!(!ask.ticket.listens() && ask.ticket.event(&event).is_none());
            for outcome in outcomes {
                let reply = ask.ticket.reply(outcome);
                written(&reply.expect("every request is answered"))?;
            }
            ask.ticket.follow(&job).map_or(Ok(()), |ticket| watched(&*ticket))
        }
        Reading::Batch(_)
        | Reading::Opened(_)
        | Reading::Closed(_)
        | Reading::Listen(_)
        | Reading::Tidings { .. }
        | Reading::Unwatch { .. }
        | Reading::Told { .. } => {
            Err(TestCaseError::fail("this wire has no batches, no sessions and no changes"))
        }
    }
}

/// Whether all that is told of a job is JSON on a line.
fn watched(ticket: &dyn WatchTicket) -> Result<(), TestCaseError> {
    let job = read_job("canceled error canceled");
    let mut told = vec![ticket.begin(None), ticket.begin(Some(&job)), ticket.alive()];
    told.extend([ticket.snapshot(None), ticket.snapshot(Some(&job))]);
    let at = job.created;
    for what in [
        Happened::Queued,
        Happened::Progress { fraction: 0.5, message: Some(ODD.into()) },
        Happened::Output { stream: Stream::Stderr, text: ODD.into() },
        Happened::Finished { state: job.state },
    ] {
        told.push(ticket.told(&Watched::Event(Arc::new(JobEvent { seq: 1, at, what }))));
    }
    told.push(ticket.told(&Watched::Ended(Box::new(job))));
    told.into_iter().flatten().try_for_each(|bytes| written(&Reply::json(bytes)))
}

/// Whether `reply` can go out: its headers are headers and its body is JSON on a line.
fn written(reply: &Reply) -> Result<(), TestCaseError> {
    prop_assert!(http::StatusCode::from_u16(reply.status).is_ok());
    for (name, value) in &reply.headers {
        prop_assert!(http::HeaderName::try_from(*name).is_ok());
        prop_assert!(http::HeaderValue::try_from(value.as_str()).is_ok(), "{value:?}");
    }
    if let Body::Json(bytes) = &reply.body {
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

/// Something that has much of a message of Zyra.
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
