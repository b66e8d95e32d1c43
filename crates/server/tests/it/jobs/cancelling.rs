//! Tests of cancelled jobs: queued jobs never run, and running jobs stop with all their programs.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, at_once, call,
    let_continue, refusal, started_commands, structured, wait_until,
};

fn served(workspace: &TempWorkspace) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace).set("limits_programs", 2).served()
}

#[track_caller]
fn wait_until_canceled(served: &HttpServerProcess, id: &str) {
    let answer = served.delete(&format!("/jobs/{id}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json(), json!({ "status": "canceled", "job_id": id }));
    let job = served.job(id);
    assert_eq!((&job["status"], &job["output_file"]), (&json!("canceled"), &Value::Null), "{job}");
}

#[test]
fn a_queued_job_is_cancelled_at_once_and_never_runs() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace);
    let blocker = served.start_job("work-wait", json!({ "name": "blocker" }));
    let doomed = served.start_job("work-wait", json!({ "name": "doomed" }));
    let other = served.start_job("work-wait", json!({ "name": "other" }));
    wait_until_canceled(&served, &doomed);
    let_continue(&workspace);
    served.job_in("succeeded", &blocker);
    served.job_in("succeeded", &other);
    assert_eq!(started_commands(&workspace), ["blocker", "other"]);
    assert_eq!(served.job(&doomed)["status"], "canceled");
}

#[test]
fn a_running_job_is_cancelled_with_every_program_it_started() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace);
    let marker = ProcessMarker::new();
    // One in its own session, one that ignores signals, one in the foreground.
    let script = "setsid sleep $1 & (trap '' TERM INT HUP; sleep $1) & sleep $1";
    let arguments = json!({ "command": script, "shell": true, "args": [marker.0] });
    let id = served.start_job("exec-run", arguments);
    wait_until("all run", || marker.pids().len() >= 4);
    wait_until_canceled(&served, &id);
    assert!(marker.pids().is_empty(), "programs are still running: {:?}", marker.pids());
    // Its slot is free again.
    let_continue(&workspace);
    let next = served.start_job("work-wait", json!({ "name": "next" }));
    served.job_in("succeeded", &next);
}

#[test]
fn the_cancellation_of_an_ended_job_shows_how_it_ended() {
    let workspace = TempWorkspace::with_commands();
    let_continue(&workspace);
    let served = served(&workspace);
    let succeeded = served.start_job("work-wait", json!({ "name": "one" }));
    let failed = served.start_job("tell-steps", json!({ "name": "two", "code": "1" }));
    let doomed = served.start_job("exec-run", json!({ "command": "sleep", "args": ["300.5"] }));
    served.job_in("succeeded", &succeeded);
    served.job_in("failed", &failed);
    wait_until_canceled(&served, &doomed);
    for (id, state) in [(&succeeded, "succeeded"), (&failed, "failed"), (&doomed, "canceled")] {
        for target in [format!("/jobs/{id}"), format!("/v1/jobs/{id}")] {
            let answer = served.delete(&target);
            assert_eq!(
                (answer.status, &answer.json()["status"]),
                (200, &json!(state)),
                "{answer:?}"
            );
        }
        let answer = served.ask(&call(1, "jobs_cancel", json!({ "job_id": id })));
        if state == "canceled" {
            assert_eq!(structured(&answer)["state"], "canceled", "{answer}");
        } else {
            assert!(refusal(&answer).contains("has ended already"), "{answer}");
        }
        assert_eq!(served.job(id)["status"], state);
    }
}

#[test]
fn concurrent_cancellations_agree() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace);
    let marker = ProcessMarker::new();
    let id = served.start_job("work-wait", json!({ "name": marker.0 }));
    marker.wait_until_running();
    at_once(0..8, |_| {
        let answer = served.delete(&format!("/jobs/{id}"));
        assert_eq!(answer.status, 200, "{answer:?}");
    });
    assert_eq!(served.job(&id)["status"], "canceled");
    assert!(marker.pids().is_empty());
}

#[test]
fn cancelling_the_starting_call_does_not_cancel_the_job() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace);
    let session = served.session("2025-11-25");
    let start = json!({ "tool": "work_wait", "arguments": { "name": "one" } });
    let params = json!({ "name": "jobs_start", "arguments": start });
    let message = crate::support::legacy(1, "tools/call", params);
    let post = crate::support::TestHttpRequest::mcp(&message).with("mcp-session-id", &session);
    let id = structured(&served.send(&post).message())["job_id"].as_str().unwrap().to_owned();
    let end =
        crate::support::TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(served.send(&end).status, 204);
    let_continue(&workspace);
    served.job_in("succeeded", &id);
}
