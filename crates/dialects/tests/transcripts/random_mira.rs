//! Property tests: the Mira dialect reads any input, and its answers follow Mira's contract.

use http::{HeaderMap, Method};
use proptest::prelude::*;
use serde_json::{Value, json};
use toolgate_contract::{
    CallError, CallEvent, Caller, FrameMetadata, HostAnswer, MessageFrame, OutputStreamKind, Reply,
    ReplyBody, ResultText, ToolOutput, ToolRunStatus,
};
use toolgate_dialects::ParsedFrame;

use crate::parse::{read_job, read_page};
use crate::random::json_value;
use crate::replay::dialect;

const ODD: &str = "a\nb\u{2028}\0\u{1f600}";

proptest! {
    #[test]
    fn reading_bytes_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        http in any::<bool>(),
    ) {
        check_frame(http, bytes)?;
    }

    #[test]
    fn reading_messages_never_panics(message in message(), http in any::<bool>()) {
        check_frame(http, message.to_string().into_bytes())?;
    }

    #[test]
    fn encoding_outputs_never_panics(method in method(), value in json_value(), failed: bool) {
        let request = json!({
            "jsonrpc": "2.0", "id": 1, "method": method,
            "params": { "path": "a", "command": "a", "query": "a" },
        });
        let mut mira = dialect("mira").start_conversation(&Caller::local());
        // A call with parameters that the method lacks is refused before.
        for params in [json!({ "path": "a" }), json!({ "command": "a" }), json!({ "query": "a" })] {
            let mut request = request.clone();
            request["params"] = params;
            if let ParsedFrame::Request(ask) = mira.read(&MessageFrame::from_line(request.to_string())) {
                let ending = if failed { ToolRunStatus::ProgramFailed } else { ToolRunStatus::Done };
                let output = ToolOutput::new(value.clone(), ResultText::from_body(ODD), ending);
                check_reply(&ask.encoder.encode_reply(Ok(HostAnswer::Output(output))).expect("an answer"))?;
            }
        }
    }
}

/// Reads a message in the Mira dialect, and checks the encoded answer to it.
fn check_frame(http: bool, body: Vec<u8>) -> Result<(), TestCaseError> {
    let path = "/".to_owned();
    let query = String::new();
    let headers = HeaderMap::new();
    let head = match http {
        true => FrameMetadata::Http { method: Method::POST, path, query, headers },
        false => FrameMetadata::Line,
    };
    match dialect("mira")
        .start_conversation(&Caller::local())
        .read(&MessageFrame { head, body: body.into() })
    {
        ParsedFrame::Reply(reply) => check_reply(&reply),
        ParsedFrame::Request(ask) => {
            let chunk =
                CallEvent::ProgramOutput { stream: OutputStreamKind::Stdout, text: ODD.to_owned() };
            if let Some(message) = ask.encoder.encode_event(&chunk) {
                prop_assert!(
                    !http && ask.encoder.encodes_events(),
                    "the client receives no events"
                );
                prop_assert!(serde_json::from_slice::<Value>(&message).is_ok());
            }
            let output = ToolOutput::new(
                json!([ODD]),
                ResultText::from_body(ODD),
                ToolRunStatus::ProgramFailed,
            );
            for outcome in [
                Ok(HostAnswer::Output(output)),
                Ok(HostAnswer::Tools(read_page("files.read then more"))),
                Ok(HostAnswer::Job(Box::new(read_job("queued")))),
                Err(CallError::NotFound { message: ODD.into() }),
                Err(CallError::Conflict { message: ODD.into(), details: json!([1]) }),
                Err(CallError::InvalidInput { problems: Vec::new() }),
            ] {
                check_reply(
                    &ask.encoder.encode_reply(outcome).expect("every request is answered"),
                )?;
            }
            Ok(())
        }
        _ => Err(TestCaseError::fail("the reading is neither a reply nor a request")),
    }
}

/// Checks that a Mira client can read a reply.
fn check_reply(reply: &Reply) -> Result<(), TestCaseError> {
    match &reply.body {
        ReplyBody::Empty => prop_assert_eq!(reply.status, 204),
        ReplyBody::Json(bytes) => {
            prop_assert_eq!(reply.status, 200);
            let message: Value = serde_json::from_slice(bytes).expect("a message is JSON");
            prop_assert_eq!(&message["jsonrpc"], "2.0");
            let id = &message["id"];
            prop_assert!(id.is_null() || id.is_string() || id.is_number(), "{}", message);
            match message.get("error") {
                None => prop_assert!(message.get("result").is_some(), "{}", message),
                Some(error) => {
                    prop_assert!(error["data"]["reason"].is_string(), "{}", message);
                    prop_assert!(error["code"].is_i64() && error["message"].is_string());
                }
            }
        }
        ReplyBody::File(_) => return Err(TestCaseError::fail("this contract has no files")),
    }
    Ok(())
}

fn message() -> impl Strategy<Value = Value> {
    let fields = (
        proptest::option::of(prop_oneof![Just(json!("2.0")), json_value()]),
        proptest::option::of(prop_oneof![Just(json!(1)), Just(json!("a")), json_value()]),
        proptest::option::of(prop_oneof![method().prop_map(Value::from), json_value()]),
        proptest::option::of(prop_oneof![params(), json_value()]),
    );
    fields.prop_map(|(version, id, method, params)| {
        let fields = [("jsonrpc", version), ("id", id), ("method", method), ("params", params)];
        let present =
            fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(present.collect())
    })
}

fn method() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("tools/list".to_owned()),
        Just("files/read".to_owned()),
        Just("files/write".to_owned()),
        Just("exec/run".to_owned()),
        Just("vector/search".to_owned()),
        Just("files/mkdir".to_owned()),
        ".{0,20}",
    ]
}

fn params() -> impl Strategy<Value = Value> {
    let names = [
        "path",
        "encoding",
        "max_bytes",
        "etag",
        "offset",
        "content",
        "content_base64",
        "command",
        "stream",
        "env",
        "args",
        "query",
        "filter",
        "cursor",
        "limit",
    ];
    let value = prop_oneof![
        Just(json!("base64")),
        Just(json!(true)),
        Just(json!(1e300)),
        Just(json!({ "tags": ["a"] })),
        json_value(),
    ];
    proptest::collection::btree_map(proptest::sample::select(names.to_vec()), value, 0..5)
        .prop_map(|params| json!(params))
}
