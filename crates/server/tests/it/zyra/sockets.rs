//! Tests of the WebSocket of a job, which sends all messages of the job to each watcher.

use serde_json::{Map, Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestWebSocket,
    WebSocketEnd, let_continue,
};

/// Job that a test watches over a WebSocket, and the server that runs it.
struct WatchedZyraJob {
    workspace: TempWorkspace,
    served: HttpServerProcess,
    id: String,
    marker: ProcessMarker,
}

impl WatchedZyraJob {
    /// Starts a job that prints, waits, and exits with `code`. If `queued` is true, the job stays
    /// in the queue instead.
    fn new(queued: bool, code: &str) -> Self {
        let workspace = TempWorkspace::with_commands();
        let served = ServerLaunchOptions::over(&workspace).set("limits_programs", 2).served();
        if queued {
            let blocker = ProcessMarker::new();
            served.start_job("work-wait", json!({ "name": blocker.0 }));
            blocker.wait_until_running();
        }
        let marker = ProcessMarker::new();
        let id = served.start_job("tell-steps", json!({ "name": marker.0, "code": code }));
        Self { workspace, served, id, marker }
    }

    fn watch(&self, query: &str) -> TestWebSocket {
        self.served.socket(&format!("/ws/jobs/{}{query}", self.id))
    }
}

/// Merges the members of all messages: joins texts, and keeps the last of other values.
fn merged(messages: &[Value]) -> Map<String, Value> {
    let mut all = Map::new();
    for (key, value) in messages.iter().flat_map(|message| message.as_object().unwrap()) {
        match (all.get_mut(key), value) {
            (Some(Value::String(text)), Value::String(more)) => text.push_str(more),
            _ => drop(all.insert(key.clone(), value.clone())),
        }
    }
    all
}

/// Checks that the messages report the job `id` from its start to its end.
#[track_caller]
fn check_whole((messages, ended): (Vec<Value>, WebSocketEnd), id: &str) {
    assert_eq!(ended, WebSocketEnd::Closed(1000));
    assert_eq!(messages[..2], [json!({ "stderr": "listening" }), json!({ "progress": 0.0 })]);
    let (end, updates) = messages.split_last().unwrap();
    let expected = json!({
        "status": "succeeded",
        "stdout": "began\nlast\n",
        "stderr": "step 1/4\nstep 3/4\n",
        "exit_code": 0,
        "progress": 1.0,
        "output_file": format!("/v1/jobs/{id}/download"),
    });
    assert_eq!(*end, expected);
    let merged = merged(&updates[2..]);
    assert_eq!((&merged["stdout"], &merged["stderr"]), (&expected["stdout"], &expected["stderr"]));
    assert_eq!(merged["progress"], 0.75);
    assert!(!merged.contains_key("status"), "{merged:?}");
}

#[test]
fn s4_24_a_watcher_gets_the_whole_job_before_during_and_after_its_run() {
    let job = WatchedZyraJob::new(true, "0");
    let mut before = job.watch("");
    assert_eq!(before.receive(), json!({ "stderr": "listening" }));
    assert_eq!(before.receive(), json!({ "progress": 0.0 }));
    let_continue(&job.workspace);
    let (rest, ended) = before.read_rest();
    let first = vec![json!({ "stderr": "listening" }), json!({ "progress": 0.0 })];
    check_whole(([first, rest].concat(), ended), &job.id);
    // After.
    check_whole(job.watch("").read_rest(), &job.id);

    let job = WatchedZyraJob::new(false, "0");
    job.marker.wait_until_running();
    let mut during = job.watch("");
    let first = during.read_until(|message| message["progress"] == 0.25);
    let_continue(&job.workspace);
    let (rest, ended) = during.read_rest();
    check_whole(([first, rest].concat(), ended), &job.id);
}

#[test]
fn the_last_message_of_a_failed_job_has_its_exit_code_and_no_file() {
    let job = WatchedZyraJob::new(false, "7");
    let mut socket = job.watch("");
    let_continue(&job.workspace);
    let (messages, ended) = socket.read_rest();
    let end = messages.last().unwrap();
    assert_eq!((&end["status"], &end["exit_code"]), (&json!("failed"), &json!(7)), "{messages:?}");
    assert_eq!((&end["output_file"], &end["progress"]), (&Value::Null, &json!(1.0)));
    assert_eq!(ended, WebSocketEnd::Closed(1000));
}

#[test]
fn the_last_message_of_a_cancelled_job_has_the_status_canceled() {
    for queued in [true, false] {
        let job = WatchedZyraJob::new(queued, "0");
        let mut socket = job.watch("");
        socket.receive();
        assert_eq!(job.served.delete(&format!("/jobs/{}", job.id)).status, 200);
        let (messages, ended) = socket.read_rest();
        assert_eq!(messages.last().unwrap()["status"], "canceled", "{messages:?}");
        assert_eq!(ended, WebSocketEnd::Closed(1000));
    }
}

#[test]
fn s4_25_a_watcher_gets_only_the_streams_it_chose() {
    let job = WatchedZyraJob::new(false, "0");
    let_continue(&job.workspace);
    job.served.job_in("succeeded", &job.id);
    for bits in 1..64 {
        let names = ["stdout", "stderr", "progress", "status", "exit_code", "output_file"];
        let chosen: Vec<_> =
            (0..6).filter(|bit| bits >> bit & 1 == 1).map(|bit| names[bit]).collect();
        let query = format!("?stream={}", chosen.join(","));
        let (messages, ended) = job.watch(&query).read_rest();
        assert_eq!(ended, WebSocketEnd::Closed(1000));
        let mut expected = chosen;
        expected.sort_unstable();
        let merged = merged(&messages);
        let mut keys: Vec<_> = merged.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected, "{query}");
    }
}

#[test]
fn an_invalid_choice_of_streams_is_refused() {
    let job = WatchedZyraJob::new(false, "0");
    for query in ["?stream=stdout,logs", "?stream=stdout&stream=stderr"] {
        assert_eq!(job.served.refused_socket(&format!("/ws/jobs/{}{query}", job.id)), 400);
    }
}

#[test]
fn the_socket_of_an_unknown_job_sends_an_error_and_is_closed() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for id in ["abc", "0123456789abcdef0123456789abcdef", "..%2Fa"] {
        for version in ["", "/v1"] {
            let (messages, ended) = served.socket(&format!("{version}/ws/jobs/{id}")).read_rest();
            assert_eq!(messages.len(), 1, "{messages:?}");
            let error = messages[0]["error"].as_str().unwrap();
            assert!(error.contains("no job"), "{messages:?}");
            assert_eq!(ended, WebSocketEnd::Closed(1000));
        }
    }
}

#[test]
fn a_socket_is_refused_at_other_paths() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    assert_eq!(served.refused_socket("/v1/mcp"), 400);
    assert_eq!(served.refused_socket("/v1/ws/jobs"), 404);
    assert_eq!(served.refused_socket("/nothing"), 404);
    assert_eq!(served.get("/v1/ws/jobs/abc").status, 426);
    assert_eq!(served.get("/v1/ws/mcp").status, 426);
}

#[test]
fn a_silent_job_sends_keepalives() {
    let job = WatchedZyraJob::new(false, "0");
    let mut socket = job.watch("?stream=stdout");
    assert_eq!(
        socket.read_until(|message| message.get("keepalive").is_some()).pop().unwrap(),
        json!({ "keepalive": true })
    );
    let_continue(&job.workspace);
    let (messages, _) = socket.read_rest();
    assert_eq!(messages.last().unwrap()["stdout"], "began\nlast\n");
}
