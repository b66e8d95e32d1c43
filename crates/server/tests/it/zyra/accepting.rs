//! Tests of the answer that accepts a job, and of the URLs in it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ServerLaunchOptions, TempWorkspace, job_params, let_continue};

/// Time limit for accepting a job, in a debug build beside other tests. A release build alone takes
/// a few milliseconds.
const ACCEPT_TIME_MAX: Duration = Duration::from_millis(200);

#[test]
fn s4_12_a_job_is_accepted_within_200_ms() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    // The first job opens the store.
    served.start_job("work-wait", json!({ "name": "first" }));
    let mut times: Vec<_> = (0..9)
        .map(|nth| {
            let started = Instant::now();
            served.start_job("work-wait", json!({ "name": nth.to_string() }));
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert!(times[times.len() / 2] < ACCEPT_TIME_MAX, "half of them took longer: {times:?}");
}

#[test]
fn s4_10_12_42_49_an_accepted_job_is_found_at_every_returned_address_with_and_without_v1() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let params = job_params("draw-one", json!({}));
    for (method, params) in [
        ("tools/call", params),
        ("callTool", json!({ "stage": "draw", "command": "one", "args": {}, "mode": "async" })),
    ] {
        let result = served.result(method, params);
        let id = result["job_id"].as_str().unwrap();
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        let mut addresses = result.clone();
        addresses.as_object_mut().unwrap().remove("content");
        let expected = json!({
            "status": "accepted",
            "job_id": id,
            "poll": format!("/jobs/{id}"),
            "ws": format!("/ws/jobs/{id}"),
            "download": format!("/jobs/{id}/download"),
            "manifest": format!("/jobs/{id}/manifest"),
        });
        assert_eq!(addresses, expected);
        served.job_in("succeeded", id);
        for version in ["", "/v1"] {
            let at = |key: &str| format!("{version}{}", result[key].as_str().unwrap());
            assert_eq!(served.get(&at("poll")).json()["status"], "succeeded");
            assert_eq!(served.get(&at("download")).body, b"drawn");
            assert_eq!(served.get(&at("manifest")).json()["artifacts"][0]["name"], "plot.png");
            let (messages, _) = served.socket(&at("ws")).read_rest();
            assert_eq!(messages.last().unwrap()["status"], "succeeded");
            let events = served.get(&format!("{version}/mcp/progress/{id}")).events();
            assert_eq!(events.last().unwrap()["status"], "succeeded");
        }
    }
}

#[test]
fn s4_52_every_spelling_of_a_tool_starts_its_job() {
    let workspace = TempWorkspace::with_commands();
    let_continue(&workspace);
    let served = ServerLaunchOptions::over(&workspace).served();
    for name in ["work-wait", "work.wait", "work wait", "work:wait", "work_wait"] {
        let id = served.start_job(name, json!({ "name": "a" }));
        assert_eq!(served.job_in("succeeded", &id)["exit_code"], 0, "{name}");
    }
}

#[test]
fn s4_22_a_null_argument_counts_as_absent() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let read = json!({ "path": "README.md", "encoding": null, "start_line": null });
    let params = json!({ "name": "files-read", "arguments": read });
    let answer = served.rpc("tools/call", params).json();
    assert!(answer["error"].is_null() && answer.to_string().contains("status"), "{answer}");
}

#[test]
fn s4_22_an_invalid_job_is_refused_like_a_call() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    for (params, part) in [
        (json!({ "name": "work-wiat", "mode": "async" }), "work-wait"),
        (json!({ "name": "work-wait", "arguments": { "nome": "a" }, "mode": "async" }), "name"),
        (json!({ "name": "work-wait", "arguments": [], "mode": "async" }), "arguments"),
        (json!({ "name": "work-wait", "arguments": { "name": "a" }, "mode": "later" }), "mode"),
    ] {
        let answer = served.rpc("tools/call", params.clone()).json();
        let error = &answer["error"];
        assert_eq!(error["code"], -32602, "{params}: {answer}");
        assert!(error["message"].as_str().unwrap().contains(part), "{params}: {answer}");
    }
    let batch = Value::Array(Vec::new());
    assert_eq!(served.rpc("tools/call", batch).json()["error"]["code"], -32602);
}
