//! MCP sessions that several servers of a fleet continue, with the same session key and a
//! PostgreSQL database.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{launch as gateway, with_odd};
use crate::mcp::uri;
use crate::search_engines::server::PostgresServerProcess as Database;
use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpConnection,
    TestHttpRequest, call, initialize, legacy, notification, text, wait_until,
};

const REVISION: &str = "2025-11-25";

/// Database and session key of a fleet.
struct TestFleet {
    database: Database,
    _keys: TempDir,
    key: String,
}

impl TestFleet {
    fn start() -> Self {
        let keys = TempDir::new().unwrap();
        let path = keys.path().join("session.key");
        fs::write(&path, [7; 32]).unwrap();
        Self { database: Database::start(), key: path.display().to_string(), _keys: keys }
    }

    /// Starts a server of the fleet, and waits until it uses the database.
    fn server(&self, launch: ServerLaunchOptions) -> HttpServerProcess {
        let launch = launch.set("fleet_url", self.database.url());
        let server = launch.set("server_session_key", &self.key).served();
        let listed = server.ask(&call(1, "jobs_list", json!({})));
        assert_eq!(listed["result"]["isError"], false, "{listed}");
        server
    }
}

/// Opens a session whose client can answer forms.
fn open_session(server: &HttpServerProcess) -> String {
    let mut hello = initialize("hello", REVISION);
    hello["params"]["capabilities"] = json!({ "elicitation": {} });
    let response = server.send(&TestHttpRequest::mcp(&hello));
    response.header("mcp-session-id").unwrap().to_owned()
}

fn post(session: &str, message: &Value) -> TestHttpRequest {
    TestHttpRequest::mcp(message)
        .with("mcp-session-id", session)
        .with("mcp-protocol-version", REVISION)
}

fn ping(server: &HttpServerProcess, session: &str) -> u16 {
    server.send(&post(session, &legacy(1, "ping", json!({})))).status
}

/// Sends the message of a session, and returns the stream of its answer.
fn open_stream(server: &HttpServerProcess, session: &str, message: &Value) -> TestHttpConnection {
    let mut connection = server.connect();
    connection.post(&post(session, message));
    let head = connection.head();
    assert!(head.is_stream(), "{head:?}");
    connection
}

fn write(id: u64, path: &str) -> Value {
    let arguments = json!({ "path": path, "content": "new" });
    legacy(id, "tools/call", json!({ "name": "files_write", "arguments": arguments }))
}

fn answer_to(question: &Value, action: &str) -> Value {
    let result = json!({ "action": action, "content": {} });
    json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })
}

#[test]
fn a_session_that_ended_at_one_server_is_unknown_at_all_servers() {
    let fleet = TestFleet::start();
    let workspace = TempWorkspace::new();
    let start = || fleet.server(ServerLaunchOptions::over(&workspace));
    let [first, second, third] = [(); 3].map(|()| start());
    let session = open_session(&first);
    for server in [&first, &second] {
        assert_eq!(ping(server, &session), 200);
    }
    let end = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(second.send(&end).status, 204);
    let later = start();
    for server in [&first, &second, &third, &later] {
        assert_eq!(ping(server, &session), 404);
    }
    let other = open_session(&later);
    assert_eq!(ping(&third, &other), 200);
}

#[test]
fn an_answer_that_arrives_at_another_server_reaches_the_call_that_asked() {
    let fleet = TestFleet::start();
    let workspace = TempWorkspace::new();
    let start =
        || fleet.server(ServerLaunchOptions::over(&workspace).set("tools_confirm", "files.write"));
    let [first, second] = [(); 2].map(|()| start());
    let session = open_session(&first);
    let mut wanted = open_stream(&first, &session, &write(1, "wanted"));
    let mut unwanted = open_stream(&second, &session, &write(2, "unwanted"));
    let [wanted_question, unwanted_question] =
        [&mut wanted, &mut unwanted].map(|stream| stream.event().unwrap());
    assert_ne!(wanted_question["id"], unwanted_question["id"]);
    for (server, question, action) in
        [(&first, &unwanted_question, "decline"), (&second, &wanted_question, "accept")]
    {
        assert_eq!(server.send(&post(&session, &answer_to(question, action))).status, 202);
    }
    let done = wanted.event().unwrap();
    assert_eq!((&done["id"], &done["result"]["isError"]), (&json!(1), &json!(false)), "{done}");
    let refused = unwanted.event().unwrap();
    assert_eq!(refused["id"], 2, "{refused}");
    assert_eq!(workspace.read("wanted"), "new");
    assert!(!workspace.path("unwanted").exists(), "{refused}");
}

#[test]
fn a_cancellation_that_arrives_at_another_server_ends_the_call() {
    let fleet = TestFleet::start();
    let workspace = TempWorkspace::new();
    let [first, second] = [(); 2].map(|()| fleet.server(ServerLaunchOptions::over(&workspace)));
    let session = open_session(&first);
    let marker = ProcessMarker::new();
    let arguments = json!({ "command": "sleep", "args": [marker.0] });
    let call = legacy(5, "tools/call", json!({ "name": "exec_run", "arguments": arguments }));
    let mut stream = open_stream(&first, &session, &call);
    wait_until("the program runs", || !marker.pids().is_empty());
    let cancel = notification("notifications/cancelled", json!({ "requestId": 5 }));
    assert_eq!(second.send(&post(&session, &cancel)).status, 202);
    while stream.chunk().is_some() {}
    wait_until("the program ends", || marker.pids().is_empty());
}

#[test]
fn a_log_level_that_one_server_received_applies_at_all_servers() {
    let fleet = TestFleet::start();
    let workspace = with_odd("");
    let start = || fleet.server(gateway(&workspace));
    let [first, second] = [(); 2].map(|()| start());
    let session = open_session(&first);
    assert_eq!(ping(&second, &session), 200);
    let is_logged = |server: &HttpServerProcess| {
        let tell = legacy(9, "tools/call", json!({ "name": "odd_tell", "arguments": {} }));
        let messages = server.send(&post(&session, &tell)).messages();
        assert_eq!(text(messages.last().unwrap()), "told");
        messages.iter().any(|message| message["method"] == "notifications/message")
    };
    for (level, expected) in [("error", false), ("info", true), ("emergency", false)] {
        let message = legacy(2, "logging/setLevel", json!({ "level": level }));
        let set = first.send(&post(&session, &message)).message();
        assert_eq!(set["result"], json!({}), "{set}");
        for server in [&second, &first] {
            assert_eq!(is_logged(server), expected, "{level}");
        }
    }
    // It resumes the session with the level.
    assert!(!is_logged(&start()));
}

#[test]
fn a_subscription_at_one_server_sends_updates_to_the_stream_at_another_server() {
    let fleet = TestFleet::start();
    let workspace = TempWorkspace::new().file("README.md", "old");
    let [first, second] = [(); 2].map(|()| fleet.server(ServerLaunchOptions::over(&workspace)));
    let session = open_session(&first);
    let get = TestHttpRequest::bare("GET", "/mcp").with("mcp-session-id", &session);
    let get = get.with("accept", "text/event-stream").with("mcp-protocol-version", REVISION);
    let mut stream = first.connect();
    stream.post(&get);
    assert!(stream.head().is_stream());
    let uri = uri(&workspace, "README.md");
    let subscribe = legacy(3, "resources/subscribe", json!({ "uri": uri }));
    let subscribed = second.send(&post(&session, &subscribe)).message();
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let is_done = AtomicBool::new(false);
    let update = thread::scope(|scope| {
        // The first server watches the file a moment later, so change it until an update comes.
        scope.spawn(|| {
            for turn in 0..1000 {
                workspace.put("README.md", format!("{turn}"));
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let update = stream.event();
        is_done.store(true, Ordering::Relaxed);
        update.unwrap()
    });
    assert_eq!(update["method"], "notifications/resources/updated", "{update}");
    assert_eq!(update["params"]["uri"], uri, "{update}");
}

#[test]
fn a_session_continues_at_another_server_while_the_database_is_away() {
    let mut fleet = TestFleet::start();
    let workspace = TempWorkspace::new();
    let [first, second] = [(); 2].map(|()| fleet.server(ServerLaunchOptions::over(&workspace)));
    let session = open_session(&first);
    fleet.database.stop();
    for server in [&second, &first] {
        assert_eq!(ping(server, &session), 200);
    }
    let log = second.log();
    assert!(log.contains("sessions of clients continue without messages"), "{log}");
}
