//! Tests that no request waits for an answer that can never arrive (rows C2, L11, L15, L19, L20,
//! SU6 and T6 of the MCP checklist).

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::uri;
use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpConnection, TestHttpRequest,
    TestMcpClient, initialize, modern, notification, refusal,
};

const REVISION: &str = "2025-11-25";

/// Highest number of requests in flight from one stdio client.
const IN_FLIGHT_MAX: u64 = 1024;

fn with_confirmations(workspace: &TempWorkspace) -> ServerLaunchOptions {
    ServerLaunchOptions::over(workspace).set("tools_confirm", "files.write")
}

fn can_fill_in() -> Value {
    json!({ "elicitation": {} })
}

fn write(client: &mut TestMcpClient, path: &str) -> Value {
    let arguments = json!({ "path": path, "content": "new" });
    client.request("tools/call", json!({ "name": "files_write", "arguments": arguments }))
}

fn accept(question: &Value) -> Value {
    let result = json!({ "action": "accept", "content": {} });
    json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })
}

/// Returns the answer to `message`, and skips all other messages on its stream.
fn answer_of(connection: &mut TestHttpConnection, message: &Value) -> Value {
    loop {
        let received = connection.event().expect("the stream ended");
        if received["id"] == message["id"] {
            return received;
        }
    }
}

#[test]
fn l20_answers_are_read_even_while_many_calls_wait_for_them() {
    let workspace = TempWorkspace::new();
    let launch = with_confirmations(&workspace);
    let mut client =
        TestMcpClient::open(TestClientTransport::Stdio(launch.stdio()), REVISION, can_fill_in());
    let mut writes: Vec<_> =
        (0..=IN_FLIGHT_MAX).map(|n| write(&mut client, &format!("d/{n}"))).collect();
    let ping = client.request("ping", json!({}));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    for message in writes.iter().chain([&ping]) {
        stdio.send(message);
    }
    stdio.answer(ping["id"].clone());
    // One call more than may be in flight: there is no room for its question to wait.
    let received: Vec<_> = writes.iter().map(|_| stdio.receive()).collect();
    let (asked, refused): (Vec<_>, Vec<_>) =
        received.iter().partition(|message| message["method"] == "elicitation/create");
    let [refused] = refused[..] else { panic!("{} are refused", refused.len()) };
    assert!(refusal(refused).contains("open questions for this client"), "{refused}");
    for question in asked {
        stdio.send(&accept(question));
    }
    writes.retain(|write| write["id"] != refused["id"]);
    for write in &writes {
        let answer = stdio.answer(write["id"].clone());
        assert!(answer["result"]["isError"] != true, "{answer}");
    }
    let again = write(&mut client, "c");
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&again);
    let question = stdio.receive();
    stdio.send(&accept(&question));
    assert!(stdio.answer(again["id"].clone())["result"]["isError"] != true);
}

#[test]
fn su6_one_subscription_too_many_is_refused_by_id() {
    let workspace = TempWorkspace::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    let listen = |id| {
        let wanted = json!({ "notifications": { "toolsListChanged": true } });
        modern(id, "subscriptions/listen", wanted)
    };
    for id in 0..IN_FLIGHT_MAX {
        stdio.send(&listen(id));
        assert_eq!(stdio.receive()["method"], "notifications/subscriptions/acknowledged");
    }
    let refused = stdio.ask(&listen(IN_FLIGHT_MAX));
    assert!(refused["error"]["message"].as_str().unwrap().contains("cancel some"), "{refused}");
}

#[test]
fn l15_a_client_is_read_even_while_its_requests_wait_for_tasks() {
    let workspace = TempWorkspace::with_commands();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), REVISION);
    let task = json!({ "name": "exec_run", "task": {}, "arguments": { "command": "sleep 60", "shell": true } });
    let id = client.ask("tools/call", task)["result"]["task"]["taskId"].clone();
    let mut wait = || client.request("tasks/result", json!({ "taskId": id }));
    let waiting: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| wait()).collect();
    let more = wait();
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    waiting.iter().for_each(|request| stdio.send(request));
    let refused = stdio.ask(&more);
    assert!(refused["error"]["message"].as_str().unwrap().contains("cancel some"), "{refused}");
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    client.ask("tasks/cancel", json!({ "taskId": id }));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    waiting.iter().for_each(|request| drop(stdio.answer(request["id"].clone())));
}

#[test]
fn t6_an_open_question_is_given_up_when_the_input_ends() {
    let workspace = TempWorkspace::new();
    let launch = with_confirmations(&workspace);
    let mut client =
        TestMcpClient::open(TestClientTransport::Stdio(launch.stdio()), REVISION, can_fill_in());
    let message = write(&mut client, "a");
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&message);
    assert_eq!(stdio.receive()["method"], "elicitation/create");
    stdio.close_input();
    let answer = stdio.answer(message["id"].clone());
    assert!(refusal(&answer).contains("no answer: the client"), "{answer}");
    assert!(!workspace.path("a").exists());
}

#[test]
fn t6_a_server_that_stops_does_not_wait_for_an_answer() {
    for over_http in [false, true] {
        let workspace = TempWorkspace::new();
        let launch = with_confirmations(&workspace).set("server_drain_ms", 60_000);
        let wire = if over_http {
            TestClientTransport::Http(launch.served())
        } else {
            TestClientTransport::Stdio(launch.stdio())
        };
        let mut client = TestMcpClient::open(wire, REVISION, can_fill_in());
        let message = write(&mut client, "a");
        let post = over_http.then(|| client.post(&message));
        let answer = match &mut client.wire {
            TestClientTransport::Stdio(stdio) => {
                stdio.send(&message);
                assert_eq!(stdio.receive()["method"], "elicitation/create");
                stdio.signal(Signal::INT);
                stdio.answer(message["id"].clone())
            }
            TestClientTransport::Http(served) => {
                let mut connection = served.connect();
                connection.post(&post.unwrap());
                assert!(connection.head().is_stream());
                assert_eq!(connection.event().unwrap()["method"], "elicitation/create");
                served.signal(Signal::INT);
                answer_of(&mut connection, &message)
            }
        };
        assert!(refusal(&answer).contains("no answer: the client"), "{answer}");
    }
}

#[test]
fn l11_a_second_handshake_over_stdio_does_not_duplicate_notifications() {
    let workspace = TempWorkspace::new();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), REVISION);
    let hello = initialize(77, REVISION);
    let file = uri(&workspace, "README.md");
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.ask(&hello);
    client.ask("resources/subscribe", json!({ "uri": file }));
    workspace.put("README.md", "changed");
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    assert_eq!(stdio.receive()["method"], "notifications/resources/updated");
    stdio.close_input();
    assert_eq!(stdio.read_rest(), [] as [Value; 0]);
}

#[test]
fn c2_a_question_is_withdrawn_when_its_call_is_cancelled() {
    for over_http in [false, true] {
        let workspace = TempWorkspace::new();
        let launch = with_confirmations(&workspace);
        let wire = if over_http {
            TestClientTransport::Http(launch.served())
        } else {
            TestClientTransport::Stdio(launch.stdio())
        };
        let mut client = TestMcpClient::open(wire, REVISION, can_fill_in());
        let message = write(&mut client, "a");
        let cancel = notification("notifications/cancelled", json!({ "requestId": message["id"] }));
        let post = client.post(&message);
        let stop = client.post(&cancel);
        let (question, withdrawn) = match &mut client.wire {
            TestClientTransport::Stdio(stdio) => {
                stdio.send(&message);
                let question = stdio.receive();
                stdio.send(&cancel);
                (question, stdio.receive())
            }
            TestClientTransport::Http(served) => {
                let mut connection = served.connect();
                connection.post(&post);
                assert!(connection.head().is_stream());
                let question = connection.event().unwrap();
                assert_eq!(served.send(&stop).status, 202);
                (question, connection.event().unwrap())
            }
        };
        assert_eq!(withdrawn["method"], "notifications/cancelled", "{withdrawn}");
        assert_eq!(withdrawn["params"]["requestId"], question["id"], "{withdrawn}");
        match &mut client.wire {
            TestClientTransport::Stdio(stdio) => stdio.send(&accept(&question)),
            TestClientTransport::Http(_) => {
                assert_eq!(client.response(&accept(&question)).status, 202);
            }
        }
        assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
        assert!(!workspace.path("a").exists());
    }
}

#[test]
fn l13_a_session_that_ends_does_not_wait_for_an_answer() {
    let workspace = TempWorkspace::new();
    let launch = with_confirmations(&workspace);
    let mut client =
        TestMcpClient::open(TestClientTransport::Http(launch.served()), REVISION, can_fill_in());
    let message = write(&mut client, "a");
    let post = client.post(&message);
    let session = client.session.clone().unwrap();
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let mut connection = served.connect();
    connection.post(&post);
    assert!(connection.head().is_stream());
    assert_eq!(connection.event().unwrap()["method"], "elicitation/create");
    let started = Instant::now();
    let end = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(served.send(&end).status, 204);
    let answer = answer_of(&mut connection, &message);
    assert!(refusal(&answer).contains("the session was ended"), "{answer}");
    // The time is shorter than the grace of a cancelled call.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}
