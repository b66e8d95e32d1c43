//! Property tests: MCP's dialect reads any input and answers in JSON.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use proptest::prelude::*;
use serde_json::{Value, from_str, json};
use toolgate_contract::{
    CallEvent, Caller, ChangeFilter, FrameMetadata, HostAnswer, JobId, JobPage, JobSnapshot,
    JobStreamItem, LogLevel, MessageFrame, Reply, ReplyBody, ResultText, ServerChange, ToolOutput,
    ToolRunStatus,
};
use toolgate_dialects::{
    ChangeNotificationEncoder, ClientQuestionResponse, Dialect, JobEventEncoder, ParsedFrame,
    PendingHostRequest,
};

use crate::parse::{read_job, read_job_item, read_outcome, read_page};
use crate::replay::mcp;

proptest! {
    #[test]
    fn reading_bytes_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        context in contexts(),
    ) {
        check_frame(context, bytes)?;
    }

    #[test]
    fn reading_json_never_panics(value in json_value(), context in contexts()) {
        check_frame(context, value.to_string().into_bytes())?;
    }

    #[test]
    fn reading_messages_never_panics(message in message(), context in contexts()) {
        check_frame(context, message.to_string().into_bytes())?;
    }
}

/// Checks that the dialect can read `body` in a session with these headers, and that its answers
/// are JSON.
fn check_frame((session, headers): RandomFrameContext, body: Vec<u8>) -> Result<(), TestCaseError> {
    let mcp = mcp();
    let mut conversation = mcp.start_conversation(&Caller::local());
    if let Some(revision) = session {
        let params = json!({ "protocolVersion": revision });
        let open = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        conversation.read(&MessageFrame::from_line(open.to_string()));
    }
    let head = match headers {
        Some(headers) => {
            let path = "/mcp".into();
            let query = String::new();
            FrameMetadata::Http { method: Method::POST, path, query, headers }
        }
        None => FrameMetadata::Line,
    };
    let reading = conversation.read(&MessageFrame { head, body: body.into() });
    check_reading(reading)
}

/// Checks that the dialect encodes every possible answer to the message `reading` as one line of
/// JSON.
fn check_reading(reading: ParsedFrame) -> Result<(), TestCaseError> {
    let replies = match reading {
        ParsedFrame::Batch(items) => return items.into_iter().try_for_each(check_reading),
        ParsedFrame::Reply(reply)
        | ParsedFrame::OpenSession(reply)
        | ParsedFrame::CloseSession(reply) => vec![reply],
        ParsedFrame::Cancel { reply, .. }
        | ParsedFrame::Unwatch { reply, .. }
        | ParsedFrame::StateChange { reply, .. }
        | ParsedFrame::Response { reply, .. } => vec![reply],
        ParsedFrame::OpenNotifications { .. } => Vec::new(),
        ParsedFrame::Subscribe(subscription) => {
            let messages = all_changes(&subscription.filter, &*subscription.encoder);
            messages.into_iter().map(Reply::json).collect()
        }
        ParsedFrame::Replies(replies) => replies,
        ParsedFrame::Watch(watch) => {
            let messages = jobs().into_iter().flat_map(|job| all_job_events(&*watch.encoder, job));
            messages.map(Reply::json).collect()
        }
        ParsedFrame::Request(ask) => all_replies(&ask),
    };
    for reply in replies {
        if let ReplyBody::Json(bytes) = reply.body {
            prop_assert!(!bytes.contains(&b'\n') && !bytes.contains(&b'\r'));
            let value: Value = serde_json::from_slice(&bytes)
                .map_err(|err| TestCaseError::fail(format!("{bytes:?} is not JSON: {err}")))?;
            prop_assert_eq!(&value["jsonrpc"], "2.0");
        }
    }
    Ok(())
}

/// Returns the replies that a dialect encodes for `ask`, for host answers of every type, even wrong
/// ones.
fn all_replies(ask: &PendingHostRequest) -> Vec<Reply> {
    let odd = "a\nb\u{2028}\0\u{1f600}";
    let output = ToolOutput::new(json!([odd]), ResultText::from_body(odd), ToolRunStatus::Done);
    let progress = CallEvent::Progress { done: 0.5, total: None, message: Some(odd.into()) };
    let line = CallEvent::log(LogLevel::Emergency, odd);
    let mut outcomes =
        vec![Ok(HostAnswer::Output(output)), Ok(HostAnswer::Tools(read_page("files.read")))];
    let page = JobPage { jobs: jobs(), next: Some(JobId::from_bits(7)) };
    outcomes.push(Ok(HostAnswer::Jobs(page)));
    outcomes.extend(jobs().into_iter().map(|job| Ok(HostAnswer::Job(Box::new(job)))));
    let parse_outcome = |(kind, rest)| read_outcome(kind, rest);
    outcomes.extend(ANSWERS.into_iter().map(parse_outcome));
    outcomes.extend(ERRORS.into_iter().map(|rest| read_outcome("error", rest)));
    let follow = |job| ask.encoder.job_encoder(&job).map(|watch| all_job_events(&*watch, job));
    let followed = jobs().into_iter().filter_map(follow).flatten();
    let events = [progress, line, CallEvent::ReleaseConnection].into_iter();
    let events = events.filter_map(|event| ask.encoder.encode_event(&event));
    let question = |text| {
        let question = from_str(text).expect("a question");
        for result in [json!(null), json!({}), json!({ "action": "accept" }), json!([odd])] {
            let _ = ask.encoder.parse_answer(&question, &ClientQuestionResponse::Result(result));
        }
        let _ = ask.encoder.parse_answer(&question, &ClientQuestionResponse::Error(odd.into()));
        ask.encoder.encode_question(odd, odd, &question)
    };
    let questions = QUESTIONS.into_iter().filter_map(question);
    let messages = events.chain(followed).chain(questions).map(Reply::json).collect::<Vec<_>>();
    let answers = outcomes.into_iter().filter_map(|outcome| ask.encoder.encode_reply(outcome));
    messages.into_iter().chain(answers).collect()
}

const ANSWERS: [(&str, &str); 12] = [
    ("resources", r#"[{"uri":"a:b","name":"a\nb","bytes":3}] then more of files"#),
    ("templates", r#"[{"uri":"a:{b}","name":"a\nb"}]"#),
    ("contents", r#"[{"uri":"a:b","held":{"text":"a\nb"}},{"uri":"a:c","held":{"bytes":"AAo="}}]"#),
    ("folder", r#"[{"uri":"a:b","name":"b"}] then more"#),
    ("watched", "a:b"),
    ("prompts", r#"[{"name":"a\nb","arguments":[{"name":"c"}]}] then more"#),
    ("prompt", r#"{"messages":[{"role":"user","content":{"shown":{"text":"a\nb"}}}]}"#),
    ("completion", r#"2 ["a\nb"]"#),
    ("skills", r#"[{"uri":"skill://a/SKILL.md","front_matter":{"name":"a\nb"}}] then more"#),
    ("skill", r#"{"uri":"skill://a/SKILL.md","front_matter":{},"files":[]}"#),
    ("questions", r#"a\nb {"a\nb":{"form":{"message":"a\nb","schema":{}}},"b":"roots"}"#),
    (
        "content",
        r#"[{"shown":{"text":"a\nb"}},{"shown":{"audio":{"media_type":"a/b","data":"AA=="}}}]"#,
    ),
];

const ERRORS: [&str; 6] = [
    r#"not_found {"message":"a\nb"}"#,
    r#"cannot_ask {"kind":"sample"}"#,
    r#"needs_job {"tool":"exec.run"}"#,
    r#"no_job {"tool":"exec.run"}"#,
    r#"mismatch {"message":"a\nb"}"#,
    r#"refused {"code":-7,"message":"a\nb","data":["a\nb"]}"#,
];

const QUESTIONS: [&str; 4] = [
    r#"{"form":{"message":"a\nb","schema":{"type":"object","properties":{}}}}"#,
    r#"{"visit":{"message":"a\nb","url":"https://a.example","id":"1"}}"#,
    r#"{"sample":{"messages":[{"role":"user","content":{"shown":{"text":"a\nb"}}}],"system":null,"max_tokens":1}}"#,
    r#""roots""#,
];

/// Returns the message that `encoder` sends for each change, to a subscriber with `filter`.
fn all_changes(filter: &ChangeFilter, encoder: &dyn ChangeNotificationEncoder) -> Vec<Bytes> {
    let changes = [
        ServerChange::Tools,
        ServerChange::Prompts,
        ServerChange::Resources,
        ServerChange::Resource("a".into()),
    ];
    let changed = changes.iter().filter_map(|change| encoder.encode_change(change));
    let jobs = jobs().into_iter().filter_map(|job| encoder.encode_job(&job));
    encoder
        .encode_start(filter)
        .into_iter()
        .chain(changed)
        .chain(jobs)
        .chain(encoder.encode_end())
        .collect()
}

/// Returns a job in every state, each with unusual text.
fn jobs() -> Vec<JobSnapshot> {
    [
        r#"queued {}"#,
        r#"running {"message":"a\nb\u2028"}"#,
        r#"running {"asks":{"a\nb":{"form":{"message":"a\nb","schema":{}}}}}"#,
        r#"succeeded {} output ["a\nb"] "a\nb""#,
        r#"failed {} failed {} "" "a\nb""#,
        r#"failed {} error unknown_tool {"name":"a\nb"}"#,
        r#"failed {} error interrupted"#,
        r#"failed {}"#,
        r#"canceled {} error canceled"#,
    ]
    .map(read_job)
    .into()
}

/// Returns the messages that `watch` encodes for events of `job`.
fn all_job_events(watch: &dyn JobEventEncoder, job: JobSnapshot) -> Vec<Bytes> {
    let events = ["queued", "started 1", r#"progress 0.5 "a\nb""#, r#"log alert "a\nb""#];
    let items = events.map(|event| watch.encode_item(&read_job_item(event)));
    let start = watch.encode_start(Some(&job));
    let snapshot = watch.encode_snapshot(Some(&job));
    let ended = watch.encode_item(&JobStreamItem::Ended(Box::new(job)));
    [start, snapshot, watch.encode_keep_alive(), ended].into_iter().chain(items).flatten().collect()
}

/// The revision of the session, if any, and the headers of the frame, if any.
type RandomFrameContext = (Option<&'static str>, Option<HeaderMap>);

fn contexts() -> impl Strategy<Value = RandomFrameContext> {
    let session = prop_oneof![
        Just(None),
        Just(Some("2024-11-05")),
        Just(Some("2025-03-26")),
        Just(Some("2025-06-18")),
        Just(Some("2025-11-25")),
    ];
    let name = prop_oneof![
        Just("mcp-protocol-version"),
        Just("mcp-method"),
        Just("mcp-name"),
        Just("mcp-param-region"),
        Just("accept"),
    ];
    let value = prop_oneof![
        Just(b"2026-07-28".to_vec()),
        Just(b"tools/call".to_vec()),
        Just(b"text/event-stream".to_vec()),
        Just(b"=?base64?YQ==?=".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..12),
    ];
    let headers = proptest::collection::vec((name, value), 0..5).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(name, value);
            }
        }
        headers
    });
    (session, proptest::option::of(headers))
}

/// Generates arbitrary JSON values.
pub(crate) fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|entries| entries.into_iter().collect()),
        ]
    })
}

/// Generates values that resemble messages of MCP.
fn message() -> impl Strategy<Value = Value> {
    let method = prop_oneof![
        Just(json!("initialize")),
        Just(json!("ping")),
        Just(json!("tools/list")),
        Just(json!("tools/call")),
        Just(json!("server/discover")),
        Just(json!("logging/setLevel")),
        Just(json!("notifications/cancelled")),
        Just(json!("tasks/get")),
        Just(json!("tasks/result")),
        Just(json!("tasks/list")),
        Just(json!("tasks/update")),
        Just(json!("tasks/cancel")),
        Just(json!("resources/list")),
        Just(json!("resources/templates/list")),
        Just(json!("resources/read")),
        Just(json!("resources/subscribe")),
        Just(json!("resources/unsubscribe")),
        Just(json!("resources/directory/read")),
        Just(json!("prompts/list")),
        Just(json!("prompts/get")),
        Just(json!("completion/complete")),
        Just(json!("skills/list")),
        Just(json!("skills/get")),
        Just(json!("subscriptions/listen")),
        json_value(),
    ];
    let capabilities = prop_oneof![
        Just(json!({})),
        Just(json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })),
        Just(json!({ "elicitation": {}, "sampling": {}, "roots": {} })),
    ];
    let meta =
        (proptest::option::of(json_value()), capabilities).prop_map(|(odd, capabilities)| {
            odd.unwrap_or_else(|| {
                json!({
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": capabilities,
                    "io.modelcontextprotocol/logLevel": "debug",
                    "progressToken": "p",
                })
            })
        });
    let name = prop_oneof![Just(json!("exec_run")), json_value()];
    let input = prop_oneof![Just(json!({})), json_value()];
    let task = prop_oneof![Just(json!({ "ttl": 60000 })), json_value()];
    let params =
        (meta, name, input, task, json_value()).prop_map(|(meta, name, input, task, odd)| {
            json!({
                "_meta": meta, "name": name, "arguments": input, "task": task, "taskId": name,
                "inputResponses": input, "cursor": odd, "level": odd, "requestId": odd,
                "uri": name, "requestState": name, "notifications": input, "ref": odd,
                "argument": input,
            })
        });
    let params = prop_oneof![4 => params, 1 => json_value()];
    let id = prop_oneof![4 => any::<i32>().prop_map(Value::from), 1 => json_value()];
    (id, method, params, any::<bool>()).prop_map(|(id, method, params, batch)| {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        if batch { json!([message, message]) } else { message }
    })
}
