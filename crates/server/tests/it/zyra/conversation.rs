//! Tests of conversations over a WebSocket: calls, jobs, and their progress on the same socket.

use serde_json::{Map, Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestWebSocket,
    WebSocketEnd, let_continue, started_commands, wait_until,
};

fn open(workspace: &TempWorkspace, target: &str) -> (HttpServerProcess, TestWebSocket) {
    let served = ServerLaunchOptions::over(workspace).served();
    let socket = served.socket(target);
    (served, socket)
}

fn rpc(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn job(id: u64, tool: &str, arguments: Value) -> Value {
    rpc(id, "tools/call", json!({ "name": tool, "arguments": arguments, "mode": "async" }))
}

#[test]
fn s4_35_36_37_41_a_conversation_has_a_handshake_then_lists_and_calls() {
    let workspace = TempWorkspace::with_commands();
    for target in ["/v1/ws/mcp", "/ws/mcp"] {
        let (_served, mut socket) = open(&workspace, target);
        let answer = socket.ask(&rpc(1, "initialize", json!({})));
        let result = &answer["result"];
        let expected = json!({
            "protocolVersion": "2025-06-18",
            "serverInfo": { "name": "zyra", "version": env!("CARGO_PKG_VERSION") },
            "capabilities": { "tools": { "listChanged": true } },
        });
        assert_eq!((&answer["id"], result), (&json!(1), &expected));
        let initialized =
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized", "params": {} });
        assert_eq!(socket.receive(), initialized);

        let listed = socket.ask(&rpc(2, "tools/list", json!({})));
        let names: Vec<_> = listed["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| &tool["name"])
            .collect();
        assert!(names.contains(&&json!("work-wait")), "{names:?}");

        let params = json!({ "name": "draw-one", "arguments": {}, "mode": "sync" });
        let called = socket.ask(&rpc(3, "tools/call", params));
        assert_eq!(
            (&called["id"], &called["result"]["exit_code"]),
            (&json!(3), &json!(0)),
            "{called}"
        );
        socket.close();
    }
}

#[test]
fn s4_34_an_invalid_request_is_refused_and_the_socket_stays_open() {
    let (_served, mut socket) = open(&TempWorkspace::new(), "/v1/ws/mcp");
    for (text, code) in [
        ("{", -32700),
        ("[]", -32600),
        ("[1]", -32600),
        ("5", -32600),
        ("\"a\"", -32600),
        ("null", -32600),
    ] {
        socket.send_text(text);
        let answer = socket.receive();
        assert_eq!(
            (&answer["error"]["code"], &answer["id"]),
            (&json!(code), &Value::Null),
            "{text}"
        );
    }
    let answer = socket.ask(&rpc(1, "no/such", json!({})));
    assert_eq!(answer["error"]["code"], -32601);
    // Requests that are sent without waiting for answers are answered in order.
    for id in 0..50 {
        socket.send(&rpc(id, "statusReport", json!({})));
    }
    for id in 0..50 {
        let answer = socket.receive();
        assert_eq!((&answer["id"], &answer["result"]["status"]), (&json!(id), &json!("ok")));
    }
}

/// Returns the progress messages of the job `id` until its end.
#[track_caller]
fn progress(socket: &mut TestWebSocket, id: &str) -> Vec<Value> {
    let mut messages = socket.read_until(|message| message["params"].get("status").is_some());
    for message in &mut messages {
        assert_eq!(message["method"], "notifications/progress", "{message}");
        assert_eq!(message["params"]["job_id"], json!(id), "{message}");
    }
    messages.iter_mut().map(|message| message["params"].take()).collect()
}

#[test]
fn s4_37_38_39_40_43_the_progress_of_an_accepted_job_comes_on_the_same_socket_from_0_to_its_end() {
    for (code, status) in [(0, "succeeded"), (7, "failed")] {
        let workspace = TempWorkspace::with_commands();
        let (served, mut socket) = open(&workspace, "/v1/ws/mcp");
        let code_text = code.to_string();
        let answer = socket.ask(&job(3, "tell-steps", json!({ "name": "a", "code": code_text })));
        assert_eq!((&answer["id"], &answer["result"]["status"]), (&json!(3), &json!("accepted")));
        let id = answer["result"]["job_id"].as_str().unwrap().to_owned();
        wait_until("it runs", || started_commands(&workspace) == ["a"]);
        let_continue(&workspace);
        let updates = progress(&mut socket, &id);
        assert_eq!(updates[0], json!({ "job_id": id, "progress": 0.0 }));
        let end = updates.last().unwrap();
        let output_file = match code {
            0 => json!(format!("/v1/jobs/{id}/download")),
            _ => Value::Null,
        };
        let expected = json!({
            "job_id": id, "progress": 1.0, "status": status, "exit_code": code, "output_file": output_file,
        });
        assert_eq!(*end, expected);
        if let Some(url) = output_file.as_str() {
            assert_eq!(served.get(url).status, 200);
        }
        let mut keys = Map::new();
        updates.iter().for_each(|update| keys.extend(update.as_object().unwrap().clone()));
        for key in ["progress", "stdout", "stderr", "status", "exit_code", "output_file"] {
            assert!(keys.contains_key(key), "{key} is missing: {updates:?}");
        }
        let fractions: Vec<_> =
            updates.iter().filter_map(|update| update["progress"].as_f64()).collect();
        assert!(fractions.is_sorted(), "{fractions:?}");
        // Nothing more is sent, and the conversation continues.
        assert_eq!(socket.ask(&rpc(4, "ping", json!({})))["id"], 4);
    }
}

#[test]
fn s4_38_concurrent_jobs_are_distinguished_by_their_ids() {
    let workspace = TempWorkspace::with_commands();
    let (_served, mut socket) = open(&workspace, "/v1/ws/mcp");
    for id in 0..4 {
        socket.send(&job(
            id,
            "tell-steps",
            json!({ "name": id.to_string(), "code": id.to_string() }),
        ));
    }
    wait_until("all run", || started_commands(&workspace).len() == 4);
    let_continue(&workspace);
    let mut jobs = Map::new();
    let mut ends = 0;
    while ends < 4 {
        let message = socket.receive();
        if let Some(id) = message["result"]["job_id"].as_str() {
            jobs.insert(id.to_owned(), message["id"].clone());
            continue;
        }
        let params = &message["params"];
        let nth = jobs.get(params["job_id"].as_str().unwrap()).expect("accepted first");
        if params.get("status").is_some() {
            assert_eq!(params["exit_code"], *nth, "{message}");
            ends += 1;
        }
    }
}

#[test]
fn jobs_continue_when_their_socket_is_closed() {
    let workspace = TempWorkspace::with_commands();
    let (served, mut socket) = open(&workspace, "/v1/ws/mcp");
    let answer = socket.ask(&job(1, "work-wait", json!({ "name": "a" })));
    let id = answer["result"]["job_id"].as_str().unwrap().to_owned();
    drop(socket);
    let_continue(&workspace);
    served.job_in("succeeded", &id);
}

#[test]
fn a_call_is_cancelled_when_its_socket_is_closed() {
    let workspace = TempWorkspace::with_commands();
    let (served, mut socket) = open(&workspace, "/v1/ws/mcp");
    let marker = ProcessMarker::new();
    let params = json!({ "name": "work-wait", "arguments": { "name": marker.0 } });
    socket.send(&rpc(1, "tools/call", params));
    marker.wait_until_running();
    drop(socket);
    marker.wait_until_gone();
    assert_eq!(served.outcomes(1), ["canceled"]);
}

#[test]
fn a_server_that_stops_closes_its_sockets_with_1001() {
    let workspace = TempWorkspace::with_commands();
    let (served, mut socket) = open(&workspace, "/v1/ws/mcp");
    let answer = socket.ask(&job(1, "work-wait", json!({ "name": "a" })));
    let id = answer["result"]["job_id"].as_str().unwrap();
    let mut watcher = served.socket(&format!("/ws/jobs/{id}"));
    watcher.receive();
    let started = std::time::Instant::now();
    served.signal(rustix::process::Signal::TERM);
    assert_eq!(socket.read_rest().1, WebSocketEnd::Closed(1001));
    assert_eq!(watcher.read_rest().1, WebSocketEnd::Closed(1001));
    assert_eq!(served.wait_for_exit().code(), Some(0));
    assert!(started.elapsed() < std::time::Duration::from_secs(4), "{:?}", started.elapsed());
}
