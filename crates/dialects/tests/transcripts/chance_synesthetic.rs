//! Lines nobody wrote: whatever comes, Synesthetic's dialect reads it and answers as its wire does.

use proptest::prelude::*;
use serde_json::{Value, json};
use toolgate_contract::{
    CallEnding, CallError, Caller, HostAnswer, HostRequest, MessageFrame, Reply, ReplyBody,
    ResultText, ToolOutput,
};
use toolgate_dialects::FrameReading;

use crate::chance::json_value;
use crate::stage::dialect;

proptest! {
    #[test]
    fn reading_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        tell(&bytes)?;
    }

    #[test]
    fn every_request_is_answered_compactly_with_its_id(
        id in json_value(), method in method(), params in json_value(), output in json_value(),
    ) {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        for reply in tell_with(line.to_string().as_bytes(), &output)? {
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
        for reply in tell_with(line.as_bytes(), &Value::Null)? {
            let ReplyBody::Json(bytes) = reply.body else { panic!("a request is answered") };
            let wanted = format!("{{\"jsonrpc\":\"2.0\",\"id\":{digits},\"result\"");
            prop_assert!(bytes.starts_with(wanted.as_bytes()), "{bytes:?}");
        }
    }
}

fn tell(line: &[u8]) -> Result<(), TestCaseError> {
    tell_with(line, &json!({ "ok": true })).map(drop)
}

/// All that is said to `line`, whether its tool gives `output` or fails.
fn tell_with(line: &[u8], output: &Value) -> Result<Vec<Reply>, TestCaseError> {
    let frame = MessageFrame::from_line(line.to_vec());
    match dialect("synesthetic").start_conversation(&Caller::local()).read(&frame) {
        FrameReading::Reply(reply) => Ok(vec![reply]),
        FrameReading::Request(ask) => {
            let is_ours = matches!(&ask.request, HostRequest::CallTool { tool, .. } if tool.starts_with("assets."));
            prop_assert!(is_ours && !ask.encoder.encodes_events());
            let output =
                ToolOutput::new(output.clone(), ResultText::from_body("said"), CallEnding::Done);
            let failed = CallError::NotFound { message: "a\nb".to_owned() };
            let outcomes = [Ok(HostAnswer::Output(output)), Err(failed)];
            Ok(outcomes
                .into_iter()
                .filter_map(|outcome| ask.encoder.encode_reply(outcome))
                .collect())
        }
        FrameReading::Replies(_)
        | FrameReading::Cancel { .. }
        | FrameReading::Watch(_)
        | FrameReading::Batch(_)
        | FrameReading::OpenSession(_)
        | FrameReading::CloseSession(_)
        | FrameReading::Subscribe(_)
        | FrameReading::OpenNotifications { .. }
        | FrameReading::Unwatch { .. }
        | FrameReading::Response { .. } => {
            Err(TestCaseError::fail("this wire has a request and an answer, and nothing else"))
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
