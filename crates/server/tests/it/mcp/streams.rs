//! Tests of streams, events and subscriptions of the revisions with sessions, over HTTP (rows L5 to
//! L17 of the MCP checklist).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::uri;
use crate::support::{
    HttpResponseHead, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpConnection,
    TestHttpRequest, TestMcpClient, initialize, legacy, notification,
};

const PROMPT: &str = "---\ndescription: d\n---\nSay.\n";
const REVISION: &str = "2025-11-25";

/// Fields of a server-sent event that a client received.
#[derive(Debug, Default)]
struct ReceivedStreamEvent {
    id: Option<String>,
    data: String,
}

/// Returns the next event that has content, or `None` at the end of the stream.
#[track_caller]
fn next_event(connection: &mut TestHttpConnection) -> Option<ReceivedStreamEvent> {
    loop {
        let text = String::from_utf8(connection.chunk()?).unwrap();
        let mut event = ReceivedStreamEvent::default();
        for line in text.lines() {
            if let Some(id) = line.strip_prefix("id:") {
                event.id = Some(id.trim().to_owned());
            } else if let Some(data) = line.strip_prefix("data:") {
                event.data += data.trim();
            }
        }
        if event.id.is_some() || !event.data.is_empty() {
            return Some(event);
        }
    }
}

fn message(event: &ReceivedStreamEvent) -> Value {
    if event.data.is_empty() { Value::Null } else { serde_json::from_str(&event.data).unwrap() }
}

fn get(session: &str) -> TestHttpRequest {
    let get = TestHttpRequest::bare("GET", "/mcp").with("mcp-session-id", session);
    get.with("accept", "text/event-stream").with("mcp-protocol-version", REVISION)
}

/// Sends `post` and returns the open response stream with its head.
#[track_caller]
fn open(client: &TestMcpClient, post: &TestHttpRequest) -> (TestHttpConnection, HttpResponseHead) {
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let mut connection = served.connect();
    connection.post(post);
    let head = connection.head();
    (connection, head)
}

fn client(workspace: &TempWorkspace) -> TestMcpClient {
    TestMcpClient::http(ServerLaunchOptions::over(workspace), REVISION)
}

/// Returns a call that reports progress three times, with the progress token `token`.
fn report_progress_call(client: &mut TestMcpClient, token: &str) -> Value {
    let script = "for n in 1 2 3; do echo line $n; sleep 0.15; done";
    let params = json!({
        "name": "exec_run",
        "arguments": { "command": script, "shell": true },
        "_meta": { "progressToken": token },
    });
    client.request("tools/call", params)
}

#[test]
fn l5_only_a_session_can_open_a_stream() {
    let client = client(&TempWorkspace::new());
    let session = client.session.clone().unwrap();
    let (_connection, head) = open(&client, &get(&session));
    assert_eq!((head.status, head.is_stream()), (200, true), "{head:?}");
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let without = get(&session).without("mcp-session-id");
    let status = served.send(&without).status;
    assert!([400, 405].contains(&status), "{status}");
    assert_eq!(served.send(&get("none")).status, 404);
    let json = get(&session).with("accept", "application/json");
    assert_ne!(served.send(&json).header("content-type"), Some("text/event-stream"));
}

#[test]
fn l9_a_stream_starts_with_a_resumable_event_and_ends_with_the_answer() {
    let mut client = client(&TempWorkspace::new());
    let call = report_progress_call(&mut client, "p");
    let (mut connection, head) = open(&client, &client.post(&call));
    assert!(head.is_stream(), "{head:?}");
    let first = next_event(&mut connection).unwrap();
    assert!(first.id.is_some() && first.data.is_empty(), "{first:?}");
    let mut ids = vec![first.id.unwrap()];
    let mut last = Value::Null;
    while let Some(event) = next_event(&mut connection) {
        last = message(&event);
        ids.extend(event.id);
    }
    assert_eq!(last["id"], call["id"], "{last}");
    let unique: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
}

#[test]
fn l12_a_lost_stream_is_resumed_with_its_own_remaining_events() {
    let mut client = client(&TempWorkspace::new());
    let session = client.session.clone().unwrap();
    let (one, other) =
        (report_progress_call(&mut client, "one"), report_progress_call(&mut client, "other"));
    let (mut first, _) = open(&client, &client.post(&one));
    let (mut second, _) = open(&client, &client.post(&other));
    let started = next_event(&mut first).unwrap().id.unwrap();
    let progress = next_event(&mut first).unwrap();
    assert_eq!(message(&progress)["params"]["progressToken"], "one");
    let other_id = next_event(&mut second).unwrap().id.unwrap();
    assert_ne!(started, other_id);
    first.close();

    let again = get(&session).with("last-event-id", progress.id.as_deref().unwrap_or(&started));
    let (mut resumed, head) = open(&client, &again);
    assert!(head.is_stream(), "{head:?}");
    let mut last = Value::Null;
    while let Some(event) = next_event(&mut resumed) {
        let message = message(&event);
        if message.get("method").is_some() {
            assert_eq!(message["params"]["progressToken"], "one", "another stream's: {message}");
            assert_ne!(message, self::message(&progress), "the event was repeated");
        }
        if !message.is_null() {
            last = message;
        }
    }
    assert_eq!(last["id"], one["id"], "{last}");
    assert_eq!(last["result"]["isError"], false, "{last}");
}

#[test]
fn l12_an_event_id_of_another_session_or_of_none_resumes_nothing() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace);
    let call = report_progress_call(&mut client, "p");
    let (mut connection, _) = open(&client, &client.post(&call));
    let id = next_event(&mut connection).unwrap().id.unwrap();
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let other = served.session(REVISION);
    for (session, last) in
        [(other.as_str(), id.as_str()), (other.as_str(), "garbage"), (other.as_str(), "999-999")]
    {
        let mut connection = served.connect();
        connection.post(&get(session).with("last-event-id", last));
        let head = connection.head();
        if head.is_stream() {
            // It may be a new stream; events of the other session are not on it.
            workspace.put(".toolgate/prompts/say.md", PROMPT);
            connection.close();
        } else {
            assert!((400..500).contains(&head.status), "{head:?}");
        }
    }
    while let Some(event) = next_event(&mut connection) {
        let _ = event;
    }
}

#[test]
fn l11_notifications_come_on_the_open_stream_and_answers_do_not() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    // A session that has listed prompts is notified of changes.
    client.ask("prompts/list", json!({}));
    let (mut stream, head) = open(&client, &get(&session));
    assert!(head.is_stream(), "{head:?}");
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    workspace.put(".toolgate/prompts/say.md", PROMPT);
    let received = loop {
        let next = message(&next_event(&mut stream).unwrap());
        if !next.is_null() {
            break next;
        }
    };
    assert_eq!(received, notification("notifications/prompts/list_changed", json!({})));
}

#[test]
fn l11_a_notification_is_sent_on_one_of_two_streams() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    client.ask("prompts/list", json!({}));
    let (mut first, _) = open(&client, &get(&session));
    assert!(next_event(&mut first).unwrap().id.is_some());
    let (mut second, head) = open(&client, &get(&session));
    assert!(head.is_stream(), "{head:?}");
    workspace.put(".toolgate/prompts/say.md", PROMPT);
    let received = loop {
        let next = message(&next_event(&mut second).unwrap());
        if !next.is_null() {
            break next;
        }
    };
    assert_eq!(received["method"], "notifications/prompts/list_changed", "{received}");
    // The first stream has ended, or ends with the session, without the notification.
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    served.send(&TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session));
    while let Some(event) = next_event(&mut first) {
        assert!(event.data.is_empty(), "sent twice: {event:?}");
    }
}

#[test]
fn l12_a_reopened_stream_repeats_no_event_and_no_id() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    client.ask("prompts/list", json!({}));
    let next = |stream: &mut TestHttpConnection| loop {
        let event = next_event(stream).unwrap();
        if !event.data.is_empty() {
            break event.id.unwrap();
        }
    };
    let (mut first, _) = open(&client, &get(&session));
    workspace.put(".toolgate/prompts/say.md", PROMPT);
    let event_id = next(&mut first);
    drop(first);
    let (mut second, _) = open(&client, &get(&session));
    assert_eq!(next_event(&mut second).unwrap().id.unwrap(), event_id);
    workspace.put(".toolgate/prompts/more.md", PROMPT);
    assert_ne!(next(&mut second), event_id);
    drop(second);
    // A stream with `last-event-id` gets the later events.
    let (mut third, _) = open(&client, &get(&session).with("last-event-id", &event_id));
    assert_ne!(next(&mut third), event_id);
}

#[test]
fn l17_updates_are_sent_to_subscribers_until_they_unsubscribe() {
    let workspace = TempWorkspace::new().file("other.txt", "1");
    let file = uri(&workspace, "README.md");
    let other = uri(&workspace, "other.txt");
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    let (mut stream, _) = open(&client, &get(&session));
    for method in ["resources/subscribe", "resources/unsubscribe", "resources/subscribe"] {
        assert_eq!(client.ask(method, json!({ "uri": file }))["result"], json!({}), "{method}");
    }
    assert_eq!(client.ask("resources/subscribe", json!({ "uri": other }))["result"], json!({}));
    workspace.put("README.md", "changed");
    let mut next_message = || loop {
        let next = message(&next_event(&mut stream).unwrap());
        if !next.is_null() {
            return next;
        }
    };
    assert_eq!(next_message()["params"]["uri"], file);
    assert_eq!(client.ask("resources/unsubscribe", json!({ "uri": file }))["result"], json!({}));
    workspace.put("README.md", "changed once more");
    workspace.put("other.txt", "2");
    // An update of the first file may have been sent before the unsubscription.
    let mut update = next_message();
    while update["params"]["uri"] == *file {
        update = next_message();
    }
    assert_eq!(update["method"], "notifications/resources/updated", "{update}");
    assert_eq!(update["params"]["uri"], other, "{update}");
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let quiet = served.session(REVISION);
    let unknown = legacy(1, "resources/subscribe", json!({ "uri": "unheard:of" }));
    let answer = served.send(&TestHttpRequest::mcp(&unknown).with("mcp-session-id", &quiet)).json();
    assert!(answer["error"]["code"].is_i64(), "{answer}");
}

#[test]
fn l17_updates_of_an_earlier_subscription_come_on_a_later_stream() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    let file = uri(&workspace, "README.md");
    assert_eq!(client.ask("resources/subscribe", json!({ "uri": file }))["result"], json!({}));
    let (mut stream, _) = open(&client, &get(&session));
    let is_done = AtomicBool::new(false);
    let update = thread::scope(|scope| {
        // The watch starts a moment after the stream, so change the file until an update comes.
        scope.spawn(|| {
            for turn in 0..500 {
                workspace.put("README.md", format!("{turn}"));
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let update = loop {
            let update = next_event(&mut stream).map(|event| message(&event));
            if update.as_ref().is_none_or(|update| !update.is_null()) {
                break update;
            }
        };
        is_done.store(true, Ordering::Relaxed);
        update.expect("the stream ended")
    });
    assert_eq!(update["params"]["uri"], json!(file), "{update}");
}

#[test]
fn l17_a_subscriber_over_stdio_gets_updates() {
    for revision in super::sessions() {
        let workspace = TempWorkspace::new();
        let file = uri(&workspace, "README.md");
        let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), revision);
        assert_eq!(client.ask("resources/subscribe", json!({ "uri": file }))["result"], json!({}));
        workspace.put("README.md", "changed");
        let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
        let update = stdio.receive();
        assert_eq!(update["method"], "notifications/resources/updated", "{update}");
        assert_eq!(update["params"], json!({ "uri": file }), "{update}");
    }
}

#[test]
fn l13_a_stream_ends_with_its_session() {
    let client = client(&TempWorkspace::new());
    let session = client.session.clone().unwrap();
    let (mut stream, _) = open(&client, &get(&session));
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let end = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(served.send(&end).status, 204);
    while let Some(event) = next_event(&mut stream) {
        let _ = event;
    }
    assert_eq!(served.send(&get(&session)).status, 404);
    assert_eq!(served.send(&TestHttpRequest::mcp(&initialize(1, REVISION))).status, 200);
}
