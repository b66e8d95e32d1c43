//! Property tests: the workstation dialect reads any input, and its answers follow the workstation
//! contract.

use http::{HeaderMap, HeaderValue, Method};
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

/// Sender of a random message, and the transport of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkstationMessageSender {
    /// Client of the workstation contract that sends lines.
    Line,
    /// Client of the workstation contract that sends HTTP requests.
    Http,
    /// MCP client over HTTP, which adds an MCP header to its requests.
    Mcp,
    /// MCP client that sends lines and has completed the handshake.
    Opened,
}

proptest! {
    #[test]
    fn reading_bytes_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        sender in sender(),
    ) {
        check_frame(sender, bytes)?;
    }

    #[test]
    fn reading_json_never_panics(value in json_value(), sender in sender()) {
        check_frame(sender, value.to_string().into_bytes())?;
    }

    #[test]
    fn reading_messages_never_panics(message in message(), sender in sender()) {
        check_frame(sender, message.to_string().into_bytes())?;
    }

    #[test]
    fn reading_calls_never_panics(
        name in tool(), arguments in arguments(), value in json_value(), sender in sender(),
    ) {
        let params = json!({ "name": name, "arguments": arguments });
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        for ending in [ToolRunStatus::Done, ToolRunStatus::ProgramFailed] {
            let ParsedFrame::Request(ask) = read(sender, call.to_string().into_bytes()) else {
                return Err(TestCaseError::fail("a call is not a request"));
            };
            let output = ToolOutput::new(value.clone(), ResultText::from_body(ODD), ending);
            let reply = ask.encoder.encode_reply(Ok(HostAnswer::Output(output))).expect("an answer");
            check_reply(&reply)?;
            let ReplyBody::Json(bytes) = &reply.body else { unreachable!("every answer is JSON") };
            let message: Value = serde_json::from_slice(bytes).expect("a message is JSON");
            let Some(result) = message.get("result") else { continue };
            // A string for the contract's clients, and a list of blocks for MCP's.
            let content = &result["content"];
            match sender {
                WorkstationMessageSender::Line | WorkstationMessageSender::Http => prop_assert!(content.is_string(), "{}", message),
                WorkstationMessageSender::Mcp | WorkstationMessageSender::Opened => {
                    prop_assert!(content[0]["text"].is_string(), "{}", message);
                }
            }
        }
    }
}

/// Returns the message `body` of `sender`, parsed by the workstation dialect.
fn read(sender: WorkstationMessageSender, body: Vec<u8>) -> ParsedFrame {
    let mut workstation = dialect("workstation").start_conversation(&Caller::local());
    let mut headers = HeaderMap::new();
    match sender {
        WorkstationMessageSender::Line | WorkstationMessageSender::Http => {}
        WorkstationMessageSender::Mcp => {
            headers.insert("mcp-protocol-version", HeaderValue::from_static("2025-11-25"));
        }
        WorkstationMessageSender::Opened => {
            let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
            let opened = workstation.read(&MessageFrame::from_line(hello));
            assert!(
                matches!(opened, ParsedFrame::OpenSession(_)),
                "the handshake does not open a session"
            );
        }
    }
    let path = "/workstation".to_owned();
    let query = String::new();
    let head = match sender {
        WorkstationMessageSender::Http | WorkstationMessageSender::Mcp => {
            FrameMetadata::Http { method: Method::POST, path, query, headers }
        }
        WorkstationMessageSender::Line | WorkstationMessageSender::Opened => FrameMetadata::Line,
    };
    workstation.read(&MessageFrame { head, body: body.into() })
}

/// Reads a message in the workstation dialect, and checks the encoded answer to it.
fn check_frame(sender: WorkstationMessageSender, body: Vec<u8>) -> Result<(), TestCaseError> {
    match read(sender, body) {
        ParsedFrame::Reply(reply)
        | ParsedFrame::OpenSession(reply)
        | ParsedFrame::Cancel { reply, .. } => check_reply(&reply),
        ParsedFrame::Request(ask) => {
            let chunk =
                CallEvent::ProgramOutput { stream: OutputStreamKind::Stdout, text: ODD.to_owned() };
            prop_assert!(
                ask.encoder.encode_event(&chunk).is_none(),
                "this contract has only one answer"
            );
            let output = ToolOutput::new(
                json!([ODD]),
                ResultText::from_body(ODD),
                ToolRunStatus::ProgramFailed,
            );
            let tools = read_page("files.read then more").tools;
            for outcome in [
                Ok(HostAnswer::Output(output)),
                Ok(HostAnswer::Everything { tools, prompts: Vec::new() }),
                Ok(HostAnswer::Job(Box::new(read_job("queued")))),
                Err(CallError::NotFound { message: ODD.into() }),
                Err(CallError::Conflict { message: ODD.into(), details: json!([1]) }),
                Err(CallError::InvalidInput { problems: Vec::new() }),
                Err(CallError::UnknownTool {
                    name: ODD.into(),
                    nearest: Some(ODD.into()),
                    unavailable: None,
                }),
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

/// Checks that a reply follows the workstation contract.
fn check_reply(reply: &Reply) -> Result<(), TestCaseError> {
    let bytes = match &reply.body {
        ReplyBody::Empty => {
            prop_assert_eq!(reply.status, 202);
            return Ok(());
        }
        ReplyBody::Json(bytes) => bytes,
        ReplyBody::File(_) => return Err(TestCaseError::fail("this contract has no files")),
    };
    prop_assert_eq!(reply.status, 200);
    prop_assert!(!bytes.contains(&b'\n'), "an answer is a line");
    let message: Value = serde_json::from_slice(bytes).expect("a message is JSON");
    prop_assert_eq!(&message["jsonrpc"], "2.0");
    let id = &message["id"];
    prop_assert!(id.is_null() || id.is_string() || id.is_number(), "{}", message);
    let Some(error) = message.get("error") else {
        prop_assert!(message.get("result").is_some() && !id.is_null(), "{}", message);
        return Ok(());
    };
    prop_assert!(message.get("result").is_none(), "{}", message);
    let expected = match error["code"].as_i64() {
        Some(-32700) => "Parse error",
        Some(-32600) => "Invalid Request",
        Some(-32601) => "Method not found",
        Some(-32602) => "Invalid params",
        Some(-32603) => "Internal error",
        other => return Err(TestCaseError::fail(format!("unknown code {other:?}: {message}"))),
    };
    prop_assert_eq!(&error["message"], expected);
    let data = &error["data"];
    prop_assert!(data["reason"].is_string() && data["detail"].is_string(), "{}", message);
    Ok(())
}

fn sender() -> impl Strategy<Value = WorkstationMessageSender> {
    proptest::sample::select(vec![
        WorkstationMessageSender::Line,
        WorkstationMessageSender::Http,
        WorkstationMessageSender::Mcp,
        WorkstationMessageSender::Opened,
    ])
}

fn message() -> impl Strategy<Value = Value> {
    let fields = (
        proptest::option::weighted(0.9, prop_oneof![9 => Just(json!("2.0")), 1 => json_value()]),
        proptest::option::weighted(
            0.9,
            prop_oneof![4 => Just(json!(1)), 4 => Just(json!("a")), 1 => json_value()],
        ),
        proptest::option::weighted(
            0.9,
            prop_oneof![9 => method().prop_map(Value::from), 1 => json_value()],
        ),
        proptest::option::of(prop_oneof![4 => params(), 1 => json_value()]),
        proptest::option::weighted(0.1, json_value()),
    );
    fields.prop_map(|(version, id, method, params, result)| {
        let fields = [
            ("jsonrpc", version),
            ("id", id),
            ("method", method),
            ("params", params),
            ("result", result),
        ];
        let present =
            fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(present.collect())
    })
}

fn method() -> impl Strategy<Value = String> {
    let known = ["initialize", "ping", "tools/list", "tools/call", "notifications/cancelled"];
    prop_oneof![4 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => ".{0,20}"]
}

fn tool() -> impl Strategy<Value = String> {
    let known = [
        "filesystem/read",
        "filesystem/write",
        "filesystem/list",
        "filesystem/delete",
        "filesystem/file_exists",
        "git/status",
        "git/log",
        "git/commit",
        "ci/build",
        "ci/run",
        "ci/diagnostics",
        "exec/run",
        "files.read",
    ];
    prop_oneof![4 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => ".{0,20}"]
}

fn arguments() -> impl Strategy<Value = Value> {
    let names = ["path", "content", "repositoryPath", "maxCount", "message", "files", "command"];
    let value = prop_oneof![Just(json!("a")), Just(json!(1e300)), Just(json!([ODD])), json_value()];
    proptest::collection::btree_map(proptest::sample::select(names.to_vec()), value, 0..5)
        .prop_map(|arguments| json!(arguments))
}

fn params() -> impl Strategy<Value = Value> {
    let call = (tool(), prop_oneof![arguments(), json_value()])
        .prop_map(|(name, arguments)| json!({ "name": name, "arguments": arguments }));
    let names =
        ["name", "arguments", "_meta", "cursor", "requestId", "protocolVersion", "capabilities"];
    let any = proptest::collection::btree_map(
        proptest::sample::select(names.to_vec()),
        json_value(),
        0..4,
    );
    prop_oneof![call, any.prop_map(|params| json!(params))]
}
