//! Tests that jobs survive their server, however it ends.

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, call, let_continue,
    started_commands, structured, wait_until, wait_until_began,
};

/// Starts a server that runs `running` jobs at once and stores them in `state`.
fn served(workspace: &TempWorkspace, state: &TempDir, running: usize) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace)
        .with_state(state)
        .set("limits_programs", 2 * running)
        .served()
}

/// Returns the job `id` as the tool `jobs_get` shows it.
#[track_caller]
fn get_job(served: &HttpServerProcess, id: &str) -> Value {
    structured(&served.ask(&call(1, "jobs_get", json!({ "job_id": id })))).clone()
}

#[test]
fn an_accepted_job_runs_even_if_the_server_is_killed_at_once() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let ids = [1, 2, 3, 4].map(|nth| {
        let served = served(&workspace, &state, 8);
        let id = served.start_job("work-again", json!({ "name": nth.to_string() }));
        served.signal(Signal::KILL);
        served.wait_for_exit();
        id
    });
    let_continue(&workspace);
    let served = served(&workspace, &state, 8);
    for id in ids {
        assert_eq!(served.job_in("succeeded", &id)["stdout"], "began\nwent\n");
    }
}

#[test]
fn after_a_kill_queued_jobs_run_once_and_running_ones_only_if_idempotent() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let once = ProcessMarker::new();
    let again = ProcessMarker::new();
    let first = served(&workspace, &state, 2);
    let cut = first.start_job("work-wait", json!({ "name": once.0 }));
    let repeated = first.start_job("work-again", json!({ "name": again.0 }));
    wait_until_began(&workspace, &once.0);
    wait_until_began(&workspace, &again.0);
    let waiting = first.start_job("work-wait", json!({ "name": "waiting" }));
    assert_eq!(first.job(&waiting)["status"], "queued");
    assert_eq!(first.job(&cut)["status"], "running");
    first.signal(Signal::KILL);
    first.wait_for_exit();
    once.wait_until_gone();
    again.wait_until_gone();

    let second = served(&workspace, &state, 2);
    let end = second.job_in("failed", &cut);
    let why = end["stderr"].as_str().unwrap();
    assert!(why.contains("the server stopped during the call"), "{end}");
    assert_eq!((&end["exit_code"], &end["output_file"]), (&Value::Null, &Value::Null), "{end}");
    wait_until("it runs again", || {
        started_commands(&workspace).iter().filter(|name| **name == again.0).count() == 2
    });
    let_continue(&workspace);
    assert_eq!(second.job_in("succeeded", &waiting)["stdout"], "began\nwent\n");
    second.job_in("succeeded", &repeated);
    assert_eq!(
        [&cut, &waiting, &repeated].map(|id| get_job(&second, id)["attempts"].clone()),
        [1, 1, 2]
    );
    let mut result = started_commands(&workspace);
    result.sort();
    let mut expected = [&once.0, &again.0, &again.0, "waiting"].map(str::to_owned);
    expected.sort();
    assert_eq!(result, expected);
}

#[test]
fn after_a_kill_an_ended_job_has_its_result_its_output_and_its_files() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let first = served(&workspace, &state, 8);
    let drawn = first.start_job("draw-one", json!({}));
    let_continue(&workspace);
    let failed = first.start_job("tell-steps", json!({ "name": "steps", "code": "3" }));
    first.job_in("succeeded", &drawn);
    first.job_in("failed", &failed);
    let all = |served: &HttpServerProcess| {
        let file = served.get(&format!("/jobs/{drawn}/download")).body;
        let manifest = served.get(&format!("/jobs/{drawn}/manifest")).json();
        let output = served.ask(&call(1, "jobs_output", json!({ "job_id": failed })));
        let jobs = [&drawn, &failed].map(|id| (served.job(id), get_job(served, id)));
        (file, manifest, structured(&output).clone(), jobs)
    };
    let before = all(&first);
    first.signal(Signal::KILL);
    first.wait_for_exit();
    // Files of the tool in the workspace may be removed by now.
    std::fs::remove_dir_all(workspace.path("out")).unwrap();

    let second = served(&workspace, &state, 8);
    let after = all(&second);
    assert_eq!(after, before);
    assert_eq!(after.0, b"drawn");
    assert_eq!(after.3[1].0["exit_code"], 3);
    assert_eq!(started_commands(&workspace), ["steps"], "it ran again");
}

#[test]
fn after_a_signal_the_next_server_runs_the_jobs_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let workspace = TempWorkspace::with_commands();
        let state = TempDir::new().unwrap();
        let once = ProcessMarker::new();
        let again = ProcessMarker::new();
        let first = served(&workspace, &state, 2);
        let cut = first.start_job("work-wait", json!({ "name": once.0 }));
        let repeated = first.start_job("work-again", json!({ "name": again.0 }));
        wait_until_began(&workspace, &once.0);
        wait_until_began(&workspace, &again.0);
        let waiting = first.start_job("work-wait", json!({ "name": "waiting" }));
        first.signal(signal);
        assert_eq!(first.wait_for_exit().code(), Some(0), "{signal:?}");
        assert!(once.pids().is_empty() && again.pids().is_empty(), "programs are still running");
        let mut outcomes = first.outcomes(2);
        outcomes.sort();
        assert_eq!(outcomes, ["canceled", "canceled"]);

        let_continue(&workspace);
        let second = served(&workspace, &state, 2);
        second.job_in("succeeded", &repeated);
        second.job_in("succeeded", &waiting);
        let end = second.job_in("failed", &cut);
        assert!(end["stderr"].as_str().unwrap().contains("the server stopped"), "{end}");
        assert_eq!(
            [&cut, &waiting, &repeated].map(|id| get_job(&second, id)["attempts"].clone()),
            [1, 1, 2]
        );
    }
}

#[test]
fn a_second_signal_loses_no_job() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let marker = ProcessMarker::new();
    let first = served(&workspace, &state, 1);
    let repeated = first.start_job("work-again", json!({ "name": marker.0 }));
    let waiting = first.start_job("work-wait", json!({ "name": "waiting" }));
    wait_until_began(&workspace, &marker.0);
    first.signal(Signal::TERM);
    first.signal(Signal::TERM);
    first.wait_for_exit();
    marker.wait_until_gone();
    let_continue(&workspace);
    let second = served(&workspace, &state, 1);
    second.job_in("succeeded", &repeated);
    second.job_in("succeeded", &waiting);
}

#[test]
fn a_job_of_a_stdio_client_that_disconnects_continues_on_the_next_server() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let marker = ProcessMarker::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).with_state(&state).stdio();
    let start = json!({ "tool": "work_again", "arguments": { "name": marker.0 } });
    let job = structured(&stdio.ask(&call(1, "jobs_start", start))).clone();
    wait_until_began(&workspace, &marker.0);
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    marker.wait_until_gone();

    let mut next = ServerLaunchOptions::over(&workspace).with_state(&state).stdio();
    let_continue(&workspace);
    let get = json!({ "job_id": job["job_id"], "wait_ms": 10_000 });
    let end = structured(&next.ask(&call(1, "jobs_get", get))).clone();
    assert_eq!((&end["state"], &end["attempts"]), (&json!("succeeded"), &json!(2)), "{end}");
    assert_eq!(started_commands(&workspace).len(), 2);
}
