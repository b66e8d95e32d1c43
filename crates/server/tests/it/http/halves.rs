//! Tests of clients of revision 2024-11-05 over HTTP, which receive messages on a stream and send
//! theirs by POST requests.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpConnection,
    TestHttpRequest, initialize, legacy, text, waits_for_go,
};

fn served(workspace: &TempWorkspace) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace).set("server_http_sse", true).served()
}

/// Client of revision 2024-11-05 over HTTP, whose event stream is open.
struct DuplexStreamClient<'s> {
    served: &'s HttpServerProcess,
    stream: TestHttpConnection,
    /// Path to which the client posts messages.
    endpoint: String,
}

impl<'s> DuplexStreamClient<'s> {
    fn open(served: &'s HttpServerProcess) -> Self {
        let mut stream = served.connect();
        stream.post(&TestHttpRequest::bare("GET", "/sse").with("accept", "text/event-stream"));
        let head = stream.head();
        assert!(head.status == 200 && head.is_stream(), "{head:?}");
        let first = String::from_utf8(stream.chunk().unwrap()).unwrap();
        let endpoint = first.strip_prefix("event: endpoint\ndata: ").unwrap().trim_end().to_owned();
        assert!(endpoint.starts_with("/messages?session_id="), "{first}");
        Self { served, stream, endpoint }
    }

    fn send(&self, message: &Value) {
        let response = self.served.send(&TestHttpRequest::mcp(message).to(&self.endpoint));
        assert_eq!((response.status, response.body.len()), (202, 0), "{response:?}");
    }

    /// Waits for the answer to the request `id`, skips other messages, and returns the answer.
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.stream.event().unwrap();
            if message["id"] == id {
                return message;
            }
        }
    }
}

#[test]
fn posted_messages_are_answered_on_the_stream() {
    let served = served(&TempWorkspace::new());
    let mut client = DuplexStreamClient::open(&served);
    client.send(&initialize(0, "2024-11-05"));
    assert_eq!(client.answer(0)["result"]["protocolVersion"], "2024-11-05");
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let read = json!({ "name": "files_read", "arguments": { "path": "README.md" } });
    client.send(&legacy(1, "tools/call", read));
    assert_eq!(client.answer(1)["result"]["content"][0]["text"], TempWorkspace::README);
}

#[test]
fn each_client_gets_only_its_own_answers() {
    let served = served(&TempWorkspace::new());
    let mut one = DuplexStreamClient::open(&served);
    let mut other = DuplexStreamClient::open(&served);
    assert_ne!(one.endpoint, other.endpoint);
    for client in [&one, &other] {
        client.send(&initialize(0, "2024-11-05"));
    }
    one.send(&legacy(1, "ping", json!({})));
    other.send(&legacy(2, "ping", json!({})));
    assert_eq!(one.answer(0)["id"], 0);
    assert_eq!(one.stream.event().unwrap()["id"], 1);
    assert_eq!(other.answer(0)["id"], 0);
    assert_eq!(other.stream.event().unwrap()["id"], 2);
}

#[test]
fn disconnecting_cancels_the_calls_of_the_client() {
    let workspace = TempWorkspace::new();
    let served = served(&workspace);
    let mut client = DuplexStreamClient::open(&served);
    client.send(&initialize(0, "2024-11-05"));
    client.answer(0);
    let marker = ProcessMarker::new();
    let call = json!({ "name": "exec_run", "arguments": waits_for_go(&marker) });
    client.send(&legacy(1, "tools/call", call));
    marker.wait_until_running();
    let endpoint = client.endpoint.clone();
    client.stream.close();
    marker.wait_until_gone();
    let late = TestHttpRequest::mcp(&legacy(2, "ping", json!({}))).to(&endpoint);
    assert_eq!(served.send(&late).status, 404);
}

#[test]
fn an_unknown_conversation_is_not_found() {
    let served = served(&TempWorkspace::new());
    for target in ["/messages", "/messages?session_id=", "/messages?session_id=0123456789abcdef"] {
        let post = TestHttpRequest::mcp(&legacy(1, "ping", json!({}))).to(target);
        let response = served.send(&post);
        assert_eq!(response.status, 404, "{target}");
        assert!(response.text().contains("start one with `GET /sse`"), "{response:?}");
    }
}

#[test]
fn the_older_transport_is_off_by_default() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let open = TestHttpRequest::bare("GET", "/sse").with("accept", "text/event-stream");
    assert_eq!(served.send(&open).status, 404);
    assert_eq!(
        served.send(&TestHttpRequest::mcp(&initialize(0, "2024-11-05")).to("/messages")).status,
        404
    );
}

#[test]
fn a_call_in_flight_is_answered_before_the_server_stops() {
    let workspace = TempWorkspace::new();
    let served = served(&workspace);
    let mut client = DuplexStreamClient::open(&served);
    client.send(&initialize(0, "2024-11-05"));
    client.answer(0);
    let marker = ProcessMarker::new();
    let call = json!({ "name": "exec_run", "arguments": waits_for_go(&marker) });
    client.send(&legacy(1, "tools/call", call));
    marker.wait_until_running();
    served.signal(Signal::INT);
    workspace.put("go", "");
    let answer = client.answer(1);
    assert!(text(&answer).contains("went"), "{answer}");
    assert_eq!(client.stream.chunk(), None);
}
