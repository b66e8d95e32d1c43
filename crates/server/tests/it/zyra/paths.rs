//! Tests of requests to the URL path of a job: its state, and its cancellation.

use serde_json::{Value, json};

use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpRequest, let_continue,
};

const KEYS: [&str; 7] =
    ["job_id", "status", "stdout", "stderr", "exit_code", "output_file", "resolved_input_paths"];

#[test]
fn s4_44_the_state_of_a_job_always_has_the_same_fields() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).set("limits_programs", 2).served();
    let marker = ProcessMarker::new();
    let runs = served.start_job("tell-steps", json!({ "name": marker.0 }));
    marker.wait_until_running();
    let fails = served.start_job("tell-steps", json!({ "name": "b", "code": "7" }));
    let fields = |job: &Value| {
        let keys: Vec<_> = job.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS);
        KEYS.map(|key| job[key].clone())
    };
    let unfinished = |id: &str, status: &str| {
        let null = Value::Null;
        [json!(id), json!(status), json!(""), json!(""), null.clone(), null, json!([])]
    };
    assert_eq!(fields(&served.job(&runs)), unfinished(&runs, "running"));
    assert_eq!(fields(&served.job(&fails)), unfinished(&fails, "queued"));
    let_continue(&workspace);
    let mut expected = unfinished(&runs, "succeeded");
    expected[2] = json!("began\nlast\n");
    expected[3] = json!("step 1/4\nstep 3/4\n");
    expected[4] = json!(0);
    expected[5] = json!(format!("/v1/jobs/{runs}/download"));
    assert_eq!(fields(&served.job_in("succeeded", &runs)), expected);
    let mut expected = unfinished(&fails, "failed");
    expected[2] = json!("began\nlast\n");
    expected[3] = json!("step 1/4\nstep 3/4\n");
    expected[4] = json!(7);
    assert_eq!(fields(&served.job_in("failed", &fails)), expected);
}

#[test]
fn s4_44_45_46_an_unknown_job_is_not_found_at_any_path() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for id in ["0123456789abcdef0123456789abcdef", "abc", "..%2F..%2Fetc", "%00", "a%ff"] {
        for path in ["/jobs/ID", "/jobs/ID/download", "/jobs/ID/manifest"] {
            for version in ["", "/v1"] {
                let target = format!("{version}{path}").replace("ID", id);
                let response = served.get(&target);
                assert_eq!(response.status, 404, "{target}: {response:?}");
                assert!(response.json()["detail"].is_string(), "{target}");
            }
        }
        assert_eq!(served.delete(&format!("/v1/jobs/{id}")).status, 404);
    }
}

#[test]
fn s4_47_a_deleted_job_is_cancelled() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).set("limits_programs", 2).served();
    let marker = ProcessMarker::new();
    let runs = served.start_job("work-wait", json!({ "name": marker.0 }));
    marker.wait_until_running();
    let waits = served.start_job("work-wait", json!({ "name": "b" }));
    for (id, version) in [(&waits, "/v1"), (&runs, "")] {
        let target = format!("{version}/jobs/{id}");
        let answer = served.delete(&target);
        assert_eq!((answer.status, answer.json()["status"].clone()), (200, json!("canceled")));
        assert_eq!(served.job(id)["status"], "canceled");
        let again = served.delete(&target);
        assert_eq!((again.status, again.json()["status"].clone()), (200, json!("canceled")));
    }
    assert!(marker.pids().is_empty());
}

#[test]
fn a_cancelled_job_keeps_what_it_printed() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let marker = ProcessMarker::new();
    let id = served.start_job("tell-steps", json!({ "name": marker.0 }));
    for (stream, text) in [("stdout", "began\n"), ("stderr", "step 1/4\n")] {
        let mut socket = served.socket(&format!("/ws/jobs/{id}?stream={stream}"));
        socket.read_until(|message| message[stream] == text);
    }
    assert_eq!(served.delete(&format!("/jobs/{id}")).status, 200);
    let job = served.job(&id);
    assert_eq!((&job["status"], &job["stdout"]), (&json!("canceled"), &json!("began\n")), "{job}");
    assert_eq!(job["stderr"], "step 1/4\nthe call was cancelled", "{job}");
    let (messages, _) = served.socket(&format!("/ws/jobs/{id}")).read_rest();
    let end = messages.last().unwrap();
    assert_eq!((&end["stdout"], &end["stderr"]), (&job["stdout"], &job["stderr"]), "{end}");
}

#[test]
fn head_matches_get_and_other_methods_get_the_allowed_ones() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("draw-one", json!({}));
    served.job_in("succeeded", &id);
    for path in ["", "/download", "/manifest"] {
        let target = format!("/jobs/{id}{path}");
        let get = served.get(&target);
        let mut connection = served.connect();
        connection.post(&TestHttpRequest::bare("HEAD", &target));
        let head = connection.head();
        assert_eq!(head.status, 200);
        for name in ["content-type", "content-length", "content-disposition"] {
            assert_eq!(head.header(name), get.header(name), "{target}: {name}");
        }
        // No body follows, only the next answer.
        connection.post(&TestHttpRequest::bare("GET", &target));
        assert_eq!(connection.response().body, get.body);
        let refused = served.send(
            &TestHttpRequest::bare("POST", &target)
                .with("content-length", "0")
                .with("content-type", "application/json"),
        );
        assert_eq!(refused.status, 405, "{target}");
        assert!(refused.header("allow").unwrap().contains("GET"), "{target}");
    }
}
