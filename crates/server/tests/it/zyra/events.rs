//! A job's progress as server-sent events.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Launch, Marker, Post, Served, Workspace, go};

fn waiting() -> (Workspace, Served, String) {
    let workspace = Workspace::with_commands();
    let served = Launch::over(&workspace).served();
    let marker = Marker::new();
    let id = served.begin("tell-steps", json!({ "name": marker.0, "code": "0" }));
    marker.started();
    served.job_in("running", &id);
    (workspace, served, id)
}

#[test]
fn s4_26_27_events_are_data_lines_of_json_that_end_with_the_job() {
    let (workspace, served, id) = waiting();
    for version in ["/v1", ""] {
        let mut connection = served.connect();
        connection.post(&Post::bare("GET", &format!("{version}/mcp/progress/{id}")));
        let head = connection.head();
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        assert!(head.header("cache-control").unwrap().contains("no-cache"), "{head:?}");
        let first = connection.chunk().unwrap();
        let text = String::from_utf8(first).unwrap();
        let data = text.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n"));
        let event: Value =
            serde_json::from_str(data.unwrap_or_else(|| panic!("{text:?}"))).unwrap();
        let running =
            json!({ "job_id": id, "status": "running", "exit_code": null, "output_file": null });
        if version == "/v1" {
            assert_eq!(event, running);
            assert_eq!(connection.event(), Some(running), "it is told again");
            go(&workspace);
        }
        let mut last = event;
        while let Some(event) = connection.event() {
            last = event;
        }
        let output_file = format!("/v1/jobs/{id}/download");
        let expected = json!({ "job_id": id, "status": "succeeded", "exit_code": 0, "output_file": output_file });
        assert_eq!(last, expected);
        // The connection serves on.
        connection.post(&Post::bare("GET", &format!("/jobs/{id}")));
        assert_eq!(connection.response().status, 200);
    }
}

#[test]
fn s4_27_every_way_to_end_is_told_as_the_last_event() {
    let workspace = Workspace::with_commands();
    go(&workspace);
    let served = Launch::over(&workspace).served();
    let failed = served.begin("tell-steps", json!({ "name": "a", "code": "7" }));
    served.job_in("failed", &failed);
    let canceled = served.begin("exec-run", json!({ "command": "sleep", "args": ["300.25"] }));
    assert_eq!(served.delete(&format!("/jobs/{canceled}")).status, 200);
    for (id, status, exit_code) in
        [(failed, "failed", json!(7)), (canceled, "canceled", Value::Null)]
    {
        let events = served.get(&format!("/v1/mcp/progress/{id}")).events();
        let expected =
            json!({ "job_id": id, "status": status, "exit_code": exit_code, "output_file": null });
        assert_eq!(events, [expected]);
    }
}

/// How long the stream at `target` goes on, and its events.
#[track_caller]
fn watched(served: &Served, target: &str) -> (Duration, Vec<Value>) {
    let begun = Instant::now();
    let response = served.get(target);
    (begun.elapsed(), response.events())
}

#[test]
fn s4_28_the_stream_closes_when_its_time_is_over_and_the_job_goes_on() {
    let (workspace, served, id) = waiting();
    for (query, from_ms, to_ms, least, most) in [
        ("max_ms=600", 600, 1600, 2, 4),
        ("max_ms=600&interval_ms=50", 600, 1600, 4, 13),
        ("max_ms=0", 0, 900, 1, 1),
        ("max_ms=300&interval_ms=60000", 300, 1300, 1, 1),
    ] {
        let (took, events) = watched(&served, &format!("/v1/mcp/progress/{id}?{query}"));
        let within = Duration::from_millis(from_ms)..Duration::from_millis(to_ms);
        assert!(within.contains(&took), "{query}: {took:?}");
        assert!((least..=most).contains(&events.len()), "{query}: {} events", events.len());
        assert!(events.iter().all(|event| event["status"] == "running"), "{query}: {events:?}");
    }
    go(&workspace);
    served.job_in("succeeded", &id);
}

#[test]
fn s4_26_by_default_it_is_told_every_200_ms_for_10_s() {
    let (_workspace, served, id) = waiting();
    let (took, events) = watched(&served, &format!("/v1/mcp/progress/{id}"));
    assert!((Duration::from_secs(10)..Duration::from_secs(12)).contains(&took), "{took:?}");
    assert!((35..=51).contains(&events.len()), "{} events", events.len());
}

#[test]
fn a_job_nobody_knows_is_told_as_unknown_for_as_long_as_one_asks() {
    let served = Launch::over(&Workspace::new()).served();
    let (took, events) = watched(&served, "/v1/mcp/progress/abc?max_ms=450");
    assert!(took >= Duration::from_millis(450), "{took:?}");
    let unknown =
        json!({ "job_id": "abc", "status": "unknown", "exit_code": null, "output_file": null });
    assert!(events.len() >= 2 && events.iter().all(|event| *event == unknown), "{events:?}");
}

#[test]
fn what_is_no_number_is_refused() {
    let served = Launch::over(&Workspace::new()).served();
    for query in ["interval_ms=fast", "max_ms=-1", "max_ms=0.5", "max_ms=1&max_ms=2"] {
        let refused = served.get(&format!("/v1/mcp/progress/abc?{query}"));
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.json()["detail"].is_string());
    }
}
