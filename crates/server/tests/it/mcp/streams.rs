//! L5 to L17: streams, events and subscriptions of the revisions with sessions, over HTTP.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::uri;
use crate::support::{
    Client, Connection, Head, Launch, Post, Wire, Workspace, initialize, legacy, notification,
};

const PROMPT: &str = "---\ndescription: d\n---\nSay.\n";
const REVISION: &str = "2025-11-25";

/// The fields of an event.
#[derive(Debug, Default)]
struct Event {
    id: Option<String>,
    data: String,
}

/// The next event with anything in it; `None` at the stream's end.
#[track_caller]
fn event(connection: &mut Connection) -> Option<Event> {
    loop {
        let text = String::from_utf8(connection.chunk()?).unwrap();
        let mut event = Event::default();
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

fn message(event: &Event) -> Value {
    if event.data.is_empty() { Value::Null } else { serde_json::from_str(&event.data).unwrap() }
}

fn get(session: &str) -> Post {
    let get = Post::bare("GET", "/mcp").with("mcp-session-id", session);
    get.with("accept", "text/event-stream").with("mcp-protocol-version", REVISION)
}

/// Opens a stream with `post`.
#[track_caller]
fn open(client: &Client, post: &Post) -> (Connection, Head) {
    let Wire::Http(served) = &client.wire else { unreachable!() };
    let mut connection = served.connect();
    connection.post(post);
    let head = connection.head();
    (connection, head)
}

fn client(workspace: &Workspace) -> Client {
    Client::http(Launch::over(workspace).set("server_stream_after_ms", 50), REVISION)
}

/// A call that says three things.
fn chatty(client: &mut Client, token: &str) -> Value {
    let script = "for n in 1 2 3; do echo line $n; sleep 0.15; done";
    let params = json!({
        "name": "exec_run",
        "arguments": { "command": script, "shell": true },
        "_meta": { "progressToken": token },
    });
    client.request("tools/call", params)
}

#[test]
fn l5_a_session_may_open_a_stream_and_nobody_else_may() {
    let client = client(&Workspace::new());
    let session = client.session.clone().unwrap();
    let (_connection, head) = open(&client, &get(&session));
    assert_eq!((head.status, head.is_stream()), (200, true), "{head:?}");
    let Wire::Http(served) = &client.wire else { unreachable!() };
    let without = get(&session).without("mcp-session-id");
    let status = served.send(&without).status;
    assert!([400, 405].contains(&status), "{status}");
    assert_eq!(served.send(&get("none")).status, 404);
    let json = get(&session).with("accept", "application/json");
    assert_ne!(served.send(&json).header("content-type"), Some("text/event-stream"));
}

#[test]
fn l9_a_stream_begins_with_an_event_to_come_back_to_and_ends_with_the_answer() {
    let mut client = client(&Workspace::new());
    let call = chatty(&mut client, "p");
    let (mut connection, head) = open(&client, &client.post(&call));
    assert!(head.is_stream(), "{head:?}");
    let first = event(&mut connection).unwrap();
    assert!(first.id.is_some() && first.data.is_empty(), "{first:?}");
    let mut ids = vec![first.id.unwrap()];
    let mut last = Value::Null;
    while let Some(event) = event(&mut connection) {
        last = message(&event);
        ids.extend(event.id);
    }
    assert_eq!(last["id"], call["id"], "{last}");
    let unique: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
}

#[test]
fn l12_who_loses_a_stream_comes_back_for_the_rest_of_that_one() {
    let mut client = client(&Workspace::new());
    let session = client.session.clone().unwrap();
    let (one, other) = (chatty(&mut client, "one"), chatty(&mut client, "other"));
    let (mut first, _) = open(&client, &client.post(&one));
    let (mut second, _) = open(&client, &client.post(&other));
    let begun = event(&mut first).unwrap().id.unwrap();
    let told = event(&mut first).unwrap();
    assert_eq!(message(&told)["params"]["progressToken"], "one");
    let other_id = event(&mut second).unwrap().id.unwrap();
    assert_ne!(begun, other_id);
    first.close();

    let again = get(&session).with("last-event-id", told.id.as_deref().unwrap_or(&begun));
    let (mut resumed, head) = open(&client, &again);
    assert!(head.is_stream(), "{head:?}");
    let mut last = Value::Null;
    while let Some(event) = event(&mut resumed) {
        let message = message(&event);
        if message.get("method").is_some() {
            assert_eq!(message["params"]["progressToken"], "one", "another stream's: {message}");
            assert_ne!(message, self::message(&told), "told again");
        }
        if !message.is_null() {
            last = message;
        }
    }
    assert_eq!(last["id"], one["id"], "{last}");
    assert_eq!(last["result"]["isError"], false, "{last}");
}

#[test]
fn l12_an_event_of_another_session_or_of_none_resumes_nothing() {
    let workspace = Workspace::new();
    let mut client = client(&workspace);
    let call = chatty(&mut client, "p");
    let (mut connection, _) = open(&client, &client.post(&call));
    let id = event(&mut connection).unwrap().id.unwrap();
    let Wire::Http(served) = &client.wire else { unreachable!() };
    let other = served.session(REVISION);
    for (session, last) in
        [(other.as_str(), id.as_str()), (other.as_str(), "garbage"), (other.as_str(), "999-999")]
    {
        let mut connection = served.connect();
        connection.post(&get(session).with("last-event-id", last));
        let head = connection.head();
        if head.is_stream() {
            // It may be a stream of its own; nothing of the other's is on it.
            workspace.put(".toolgate/prompts/say.md", PROMPT);
            connection.close();
        } else {
            assert!((400..500).contains(&head.status), "{head:?}");
        }
    }
    while let Some(event) = event(&mut connection) {
        let _ = event;
    }
}

#[test]
fn l11_what_is_told_unasked_comes_on_one_stream_and_no_answer_does() {
    let workspace = Workspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    // Whoever has asked for a list wants to know that it is another.
    client.ask("prompts/list", json!({}));
    let (mut stream, head) = open(&client, &get(&session));
    assert!(head.is_stream(), "{head:?}");
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    workspace.put(".toolgate/prompts/say.md", PROMPT);
    let told = loop {
        let next = message(&event(&mut stream).unwrap());
        if !next.is_null() {
            break next;
        }
    };
    assert_eq!(told, notification("notifications/prompts/list_changed", json!({})));
}

#[test]
fn l11_of_two_streams_of_a_session_one_is_told() {
    let workspace = Workspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    client.ask("prompts/list", json!({}));
    let (mut first, _) = open(&client, &get(&session));
    assert!(event(&mut first).unwrap().id.is_some());
    let (mut second, head) = open(&client, &get(&session));
    assert!(head.is_stream(), "{head:?}");
    workspace.put(".toolgate/prompts/say.md", PROMPT);
    let told = loop {
        let next = message(&event(&mut second).unwrap());
        if !next.is_null() {
            break next;
        }
    };
    assert_eq!(told["method"], "notifications/prompts/list_changed", "{told}");
    // The first has ended, or will with the session: nothing is on it.
    let Wire::Http(served) = &client.wire else { unreachable!() };
    served.send(&Post::bare("DELETE", "/mcp").with("mcp-session-id", &session));
    while let Some(event) = event(&mut first) {
        assert!(event.data.is_empty(), "told twice: {event:?}");
    }
}

#[test]
fn l12_who_opens_another_stream_is_told_nothing_twice_and_no_id_comes_twice() {
    let workspace = Workspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    client.ask("prompts/list", json!({}));
    let next = |stream: &mut Connection| loop {
        let event = event(stream).unwrap();
        if !event.data.is_empty() {
            break event.id.unwrap();
        }
    };
    let (mut first, _) = open(&client, &get(&session));
    workspace.put(".toolgate/prompts/say.md", PROMPT);
    let told = next(&mut first);
    drop(first);
    let (mut second, _) = open(&client, &get(&session));
    assert_eq!(event(&mut second).unwrap().id.unwrap(), told);
    workspace.put(".toolgate/prompts/more.md", PROMPT);
    assert_ne!(next(&mut second), told);
    drop(second);
    // Who says what it heard last is told the rest.
    let (mut third, _) = open(&client, &get(&session).with("last-event-id", &told));
    assert_ne!(next(&mut third), told);
}

#[test]
fn l17_only_subscribers_are_told_and_only_until_they_are_none() {
    let workspace = Workspace::new().file("other.txt", "1");
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
    let mut told = || loop {
        let next = message(&event(&mut stream).unwrap());
        if !next.is_null() {
            return next;
        }
    };
    assert_eq!(told()["params"]["uri"], file);
    assert_eq!(client.ask("resources/unsubscribe", json!({ "uri": file }))["result"], json!({}));
    workspace.put("README.md", "changed once more");
    workspace.put("other.txt", "2");
    // The first may have been told before it was not wanted any more, and then is told no more.
    let mut said = told();
    while said["params"]["uri"] == *file {
        said = told();
    }
    assert_eq!(said["method"], "notifications/resources/updated", "{said}");
    assert_eq!(said["params"]["uri"], other, "{said}");
    let Wire::Http(served) = &client.wire else { unreachable!() };
    let quiet = served.session(REVISION);
    let unknown = legacy(1, "resources/subscribe", json!({ "uri": "unheard:of" }));
    let answer = served.send(&Post::mcp(&unknown).with("mcp-session-id", &quiet)).json();
    assert!(answer["error"]["code"].is_i64(), "{answer}");
}

#[test]
fn l17_who_subscribes_before_there_is_a_stream_is_told_on_it() {
    let workspace = Workspace::new();
    let mut client = client(&workspace);
    let session = client.session.clone().unwrap();
    let file = uri(&workspace, "README.md");
    assert_eq!(client.ask("resources/subscribe", json!({ "uri": file }))["result"], json!({}));
    let (mut stream, _) = open(&client, &get(&session));
    let heard = AtomicBool::new(false);
    let told = thread::scope(|scope| {
        // The stream begins a moment before the file is watched: it changes until that is told.
        scope.spawn(|| {
            for turn in 0..500 {
                workspace.put("README.md", format!("{turn}"));
                if heard.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let told = loop {
            let told = event(&mut stream).map(|event| message(&event));
            if told.as_ref().is_none_or(|told| !told.is_null()) {
                break told;
            }
        };
        heard.store(true, Ordering::Relaxed);
        told.expect("the stream ended")
    });
    assert_eq!(told["params"]["uri"], json!(file), "{told}");
}

#[test]
fn l17_over_stdio_a_subscriber_is_told_on_the_line() {
    for revision in super::sessions() {
        let workspace = Workspace::new();
        let file = uri(&workspace, "README.md");
        let mut client = Client::stdio(Launch::over(&workspace), revision);
        assert_eq!(client.ask("resources/subscribe", json!({ "uri": file }))["result"], json!({}));
        workspace.put("README.md", "changed");
        let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
        let told = stdio.receive();
        assert_eq!(told["method"], "notifications/resources/updated", "{told}");
        assert_eq!(told["params"], json!({ "uri": file }), "{told}");
    }
}

#[test]
fn l13_a_stream_ends_with_its_session() {
    let client = client(&Workspace::new());
    let session = client.session.clone().unwrap();
    let (mut stream, _) = open(&client, &get(&session));
    let Wire::Http(served) = &client.wire else { unreachable!() };
    let end = Post::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(served.send(&end).status, 204);
    while let Some(event) = event(&mut stream) {
        let _ = event;
    }
    assert_eq!(served.send(&get(&session)).status, 404);
    assert_eq!(served.send(&Post::mcp(&initialize(1, REVISION))).status, 200);
}
