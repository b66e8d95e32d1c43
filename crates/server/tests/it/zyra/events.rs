//! Tests of a job's progress as server-sent events.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpRequest,
    let_continue,
};

fn running_job() -> (TempWorkspace, HttpServerProcess, String) {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let marker = ProcessMarker::new();
    let id = served.start_job("tell-steps", json!({ "name": marker.0, "code": "0" }));
    marker.wait_until_running();
    served.job_in("running", &id);
    (workspace, served, id)
}

#[test]
fn s4_26_27_events_are_data_lines_of_json_that_end_with_the_job() {
    let (workspace, served, id) = running_job();
    for version in ["/v1", ""] {
        let mut connection = served.connect();
        connection.post(&TestHttpRequest::bare("GET", &format!("{version}/mcp/progress/{id}")));
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
            assert_eq!(connection.event(), Some(running), "the event repeats");
            let_continue(&workspace);
        }
        let mut last = event;
        while let Some(event) = connection.event() {
            last = event;
        }
        let output_file = format!("/v1/jobs/{id}/download");
        let expected = json!({ "job_id": id, "status": "succeeded", "exit_code": 0, "output_file": output_file });
        assert_eq!(last, expected);
        // The connection can be used again.
        connection.post(&TestHttpRequest::bare("GET", &format!("/jobs/{id}")));
        assert_eq!(connection.response().status, 200);
    }
}

#[test]
fn s4_27_the_last_event_has_the_outcome_of_the_job() {
    let workspace = TempWorkspace::with_commands();
    let_continue(&workspace);
    let served = ServerLaunchOptions::over(&workspace).served();
    let failed = served.start_job("tell-steps", json!({ "name": "a", "code": "7" }));
    served.job_in("failed", &failed);
    let canceled = served.start_job("exec-run", json!({ "command": "sleep", "args": ["300.25"] }));
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

/// Reads the stream at `target` to its end. Returns its duration and its events.
#[track_caller]
fn read_stream(served: &HttpServerProcess, target: &str) -> (Duration, Vec<Value>) {
    let started = Instant::now();
    let response = served.get(target);
    (started.elapsed(), response.events())
}

#[test]
fn s4_28_the_stream_ends_at_its_time_limit_and_the_job_continues() {
    let (workspace, served, id) = running_job();
    for (query, from_ms, to_ms, least, most) in [
        ("max_ms=600", 600, 1600, 2, 4),
        ("max_ms=600&interval_ms=50", 600, 1600, 4, 13),
        ("max_ms=0", 0, 900, 1, 1),
        ("max_ms=300&interval_ms=60000", 300, 1300, 1, 1),
    ] {
        let (duration, events) = read_stream(&served, &format!("/v1/mcp/progress/{id}?{query}"));
        let within = Duration::from_millis(from_ms)..Duration::from_millis(to_ms);
        assert!(within.contains(&duration), "{query}: {duration:?}");
        assert!((least..=most).contains(&events.len()), "{query}: {} events", events.len());
        assert!(events.iter().all(|event| event["status"] == "running"), "{query}: {events:?}");
    }
    let_continue(&workspace);
    served.job_in("succeeded", &id);
}

#[test]
fn s4_26_by_default_an_event_comes_every_200_ms_for_10_s() {
    let (_workspace, served, id) = running_job();
    let (duration, events) = read_stream(&served, &format!("/v1/mcp/progress/{id}"));
    let expected = Duration::from_secs(10)..Duration::from_secs(12);
    assert!(expected.contains(&duration), "{duration:?}");
    assert!((35..=51).contains(&events.len()), "{} events", events.len());
}

#[test]
fn an_unknown_job_has_events_with_the_status_unknown() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let (duration, events) = read_stream(&served, "/v1/mcp/progress/abc?max_ms=450");
    assert!(duration >= Duration::from_millis(450), "{duration:?}");
    let unknown =
        json!({ "job_id": "abc", "status": "unknown", "exit_code": null, "output_file": null });
    assert!(events.len() >= 2 && events.iter().all(|event| *event == unknown), "{events:?}");
}

#[test]
fn an_invalid_number_in_the_query_is_refused() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for query in ["interval_ms=fast", "max_ms=-1", "max_ms=0.5", "max_ms=1&max_ms=2"] {
        let refused = served.get(&format!("/v1/mcp/progress/abc?{query}"));
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.json()["detail"].is_string());
    }
}
