//! Property tests: the Synesthetic dialect reads any line, and its answers follow the Synesthetic
//! contract.

use proptest::prelude::*;
use serde_json::{Value, json};
use toolgate_contract::{
    CallError, Caller, HostAnswer, HostRequest, MessageFrame, Reply, ReplyBody, ResultText,
    ToolOutput, ToolRunStatus,
};
use toolgate_dialects::ParsedFrame;

use crate::random::json_value;
use crate::replay::dialect;

proptest! {
    #[test]
    fn reading_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        check_line(&bytes)?;
    }

    #[test]
    fn every_request_is_answered_compactly_with_its_id(
        id in json_value(), method in method(), params in json_value(), output in json_value(),
    ) {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        for reply in replies_to(line.to_string().as_bytes(), &output)? {
            let ReplyBody::Json(bytes) = reply.body else { panic!("a request is answered") };
            let answer: Value = serde_json::from_slice(&bytes).expect("JSON");
            let compact = answer.to_string();
            prop_assert_eq!(compact.as_bytes(), &*bytes);
            let is_id = id.is_string() || id.is_number();
            prop_assert_eq!(&answer["id"], if is_id { &id } else { &Value::Null });
            prop_assert_eq!(answer["jsonrpc"].as_str(), Some("2.0"));
            let has = |key| answer.get(key).is_some();
            prop_assert!(has("result") != has("error"), "{}", answer);
        }
    }

    #[test]
    fn an_id_is_copied_without_parsing(digits in "-?[1-9][0-9]{0,60}(\\.[0-9]{1,30})?") {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{digits},\"method\":\"nothing\"}}");
        for reply in replies_to(line.as_bytes(), &Value::Null)? {
            let ReplyBody::Json(bytes) = reply.body else { panic!("a request is answered") };
            let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":{digits},\"result\"");
            prop_assert!(bytes.starts_with(expected.as_bytes()), "{bytes:?}");
        }
    }
}

fn check_line(line: &[u8]) -> Result<(), TestCaseError> {
    replies_to(line, &json!({ "ok": true })).map(drop)
}

/// Returns two replies to `line`: one for a tool that returns `output`, and one for a tool that
/// fails.
fn replies_to(line: &[u8], output: &Value) -> Result<Vec<Reply>, TestCaseError> {
    let frame = MessageFrame::from_line(line.to_vec());
    match dialect("synesthetic").start_conversation(&Caller::local()).read(&frame) {
        ParsedFrame::Reply(reply) => Ok(vec![reply]),
        ParsedFrame::Request(ask) => {
            let is_asset_call = matches!(&ask.request, HostRequest::CallTool { tool, .. } if tool.starts_with("assets."));
            prop_assert!(is_asset_call && !ask.encoder.encodes_events());
            let output =
                ToolOutput::new(output.clone(), ResultText::from_body("text"), ToolRunStatus::Done);
            let failed = CallError::NotFound { message: "a\nb".to_owned() };
            let outcomes = [Ok(HostAnswer::Output(output)), Err(failed)];
            Ok(outcomes
                .into_iter()
                .filter_map(|outcome| ask.encoder.encode_reply(outcome))
                .collect())
        }
        ParsedFrame::Replies(_)
        | ParsedFrame::Cancel { .. }
        | ParsedFrame::Watch(_)
        | ParsedFrame::Batch(_)
        | ParsedFrame::OpenSession(_)
        | ParsedFrame::CloseSession(_)
        | ParsedFrame::Subscribe(_)
        | ParsedFrame::OpenNotifications { .. }
        | ParsedFrame::Unwatch { .. }
        | ParsedFrame::StateChange { .. }
        | ParsedFrame::Response { .. } => {
            Err(TestCaseError::fail("this contract only has requests and answers"))
        }
    }
}

fn method() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("list_schemas")),
        Just(json!("get_example")),
        Just(json!("populate_backend")),
        Just(json!("explode")),
        json_value(),
    ]
}
