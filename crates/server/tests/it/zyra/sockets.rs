//! A job on a WebSocket of its own: all of it, whenever one begins to watch.

use serde_json::{Map, Value, json};

use crate::support::{Ended, Launch, Marker, Served, Socket, Workspace, go};

struct Job {
    workspace: Workspace,
    served: Served,
    id: String,
    marker: Marker,
}

impl Job {
    /// One that waits half way, or for its turn.
    fn new(queued: bool, code: &str) -> Self {
        let workspace = Workspace::with_commands();
        let served = Launch::over(&workspace).set("jobs_running", 1).served();
        if queued {
            let blocker = Marker::new();
            served.begin("work-wait", json!({ "name": blocker.0 }));
            blocker.started();
        }
        let marker = Marker::new();
        let id = served.begin("tell-steps", json!({ "name": marker.0, "code": code }));
        Self { workspace, served, id, marker }
    }

    fn watch(&self, query: &str) -> Socket {
        self.served.socket(&format!("/ws/jobs/{}{query}", self.id))
    }
}

/// What all messages say together: text joined, anything else as it was last.
fn together(messages: &[Value]) -> Map<String, Value> {
    let mut all = Map::new();
    for (key, value) in messages.iter().flat_map(|message| message.as_object().unwrap()) {
        match (all.get_mut(key), value) {
            (Some(Value::String(held)), Value::String(more)) => held.push_str(more),
            _ => drop(all.insert(key.clone(), value.clone())),
        }
    }
    all
}

/// Checks a life from its beginning to its end.
#[track_caller]
fn check_whole((told, ended): (Vec<Value>, Ended), id: &str) {
    assert_eq!(ended, Ended::Closed(1000));
    assert_eq!(told[..2], [json!({ "stderr": "listening" }), json!({ "progress": 0.0 })]);
    let (end, life) = told.split_last().unwrap();
    let expected = json!({
        "status": "succeeded",
        "stdout": "began\nlast\n",
        "stderr": "step 1/4\nstep 3/4\n",
        "exit_code": 0,
        "progress": 1.0,
        "output_file": format!("/v1/jobs/{id}/download"),
    });
    assert_eq!(*end, expected);
    let life = together(&life[2..]);
    assert_eq!((&life["stdout"], &life["stderr"]), (&expected["stdout"], &expected["stderr"]));
    assert_eq!(life["progress"], 0.75);
    assert!(!life.contains_key("status"), "{life:?}");
}

#[test]
fn s4_24_all_of_a_job_is_told_to_who_watches_before_it_runs_while_it_runs_and_after() {
    let job = Job::new(true, "0");
    let mut before = job.watch("");
    assert_eq!(before.receive(), json!({ "stderr": "listening" }));
    assert_eq!(before.receive(), json!({ "progress": 0.0 }));
    go(&job.workspace);
    let (rest, ended) = before.rest();
    let told = [vec![json!({ "stderr": "listening" }), json!({ "progress": 0.0 })], rest].concat();
    check_whole((told, ended), &job.id);
    // After.
    check_whole(job.watch("").rest(), &job.id);

    let job = Job::new(false, "0");
    job.marker.started();
    let mut during = job.watch("");
    let first = during.until(|told| told["progress"] == 0.25);
    go(&job.workspace);
    let (rest, ended) = during.rest();
    check_whole(([first, rest].concat(), ended), &job.id);
}

#[test]
fn a_failure_is_told_with_its_exit_code_and_no_file() {
    let job = Job::new(false, "7");
    let mut socket = job.watch("");
    go(&job.workspace);
    let (told, ended) = socket.rest();
    let end = told.last().unwrap();
    assert_eq!((&end["status"], &end["exit_code"]), (&json!("failed"), &json!(7)), "{told:?}");
    assert_eq!((&end["output_file"], &end["progress"]), (&Value::Null, &json!(1.0)));
    assert_eq!(ended, Ended::Closed(1000));
}

#[test]
fn a_cancelled_job_is_told_as_that() {
    for queued in [true, false] {
        let job = Job::new(queued, "0");
        let mut socket = job.watch("");
        socket.receive();
        assert_eq!(job.served.delete(&format!("/jobs/{}", job.id)).status, 200);
        let (told, ended) = socket.rest();
        assert_eq!(told.last().unwrap()["status"], "canceled", "{told:?}");
        assert_eq!(ended, Ended::Closed(1000));
    }
}

#[test]
fn s4_25_each_choice_of_streams_is_told_and_no_more() {
    let job = Job::new(false, "0");
    go(&job.workspace);
    job.served.job_in("succeeded", &job.id);
    let progress = ["status", "exit_code", "progress", "message", "output_file"];
    for bits in 1..8 {
        let names = ["stdout", "stderr", "progress"];
        let chosen: Vec<_> =
            (0..3).filter(|bit| bits >> bit & 1 == 1).map(|bit| names[bit]).collect();
        let query = format!("?stream={}", chosen.join(","));
        let (told, ended) = job.watch(&query).rest();
        assert_eq!(ended, Ended::Closed(1000));
        let mut expected: Vec<_> =
            chosen.iter().filter(|name| **name != "progress").copied().collect();
        if chosen.contains(&"progress") {
            expected.extend(progress);
        }
        expected.sort_unstable();
        let told = together(&told);
        let mut keys: Vec<_> = told.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected, "{query}");
    }
}

#[test]
fn a_choice_that_is_none_is_refused() {
    let job = Job::new(false, "0");
    for query in ["?stream=stdout,logs", "?stream=stdout&stream=stderr"] {
        assert_eq!(job.served.refused_socket(&format!("/ws/jobs/{}{query}", job.id)), 400);
    }
}

#[test]
fn a_job_nobody_knows_is_said_to_be_none_and_the_socket_is_closed() {
    let served = Launch::over(&Workspace::new()).served();
    for id in ["abc", "0123456789abcdef0123456789abcdef", "..%2Fa"] {
        for version in ["", "/v1"] {
            let (told, ended) = served.socket(&format!("{version}/ws/jobs/{id}")).rest();
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0]["error"].as_str().unwrap().contains("no job"), "{told:?}");
            assert_eq!(ended, Ended::Closed(1000));
        }
    }
}

#[test]
fn where_there_is_no_socket_none_is_opened() {
    let served = Launch::over(&Workspace::new()).served();
    assert_eq!(served.refused_socket("/v1/mcp"), 400);
    assert_eq!(served.refused_socket("/v1/ws/jobs"), 404);
    assert_eq!(served.refused_socket("/nothing"), 404);
    assert_eq!(served.get("/v1/ws/jobs/abc").status, 426);
    assert_eq!(served.get("/v1/ws/mcp").status, 426);
}

#[test]
fn a_quiet_job_is_said_to_live() {
    let job = Job::new(false, "0");
    let mut socket = job.watch("?stream=stdout");
    assert_eq!(
        socket.until(|told| told.get("keepalive").is_some()).pop().unwrap(),
        json!({ "keepalive": true })
    );
    go(&job.workspace);
    let (told, _) = socket.rest();
    assert_eq!(told.last().unwrap()["stdout"], "began\nlast\n");
}
