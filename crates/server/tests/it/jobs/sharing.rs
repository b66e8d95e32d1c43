//! Tests of two servers of one workspace: each runs its own jobs, and both list and cancel all
//! jobs.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, call, let_continue,
    started_commands, structured, wait_long_for, wait_until_began,
};

/// Interval of 15 s at which a server looks for orphaned jobs, plus 10 s to run them.
const LOOK: Duration = Duration::from_secs(15 + 10);

fn served(workspace: &TempWorkspace, state: &TempDir) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace).with_state(state).set("limits_programs", 2).served()
}

/// Takes long, because the second server looks for orphaned jobs only every 15 seconds.
#[test]
fn a_server_runs_jobs_of_another_only_after_that_one_died() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let [first, second] = [(); 2].map(|()| served(&workspace, &state));
    let one = ProcessMarker::new();
    let two = ProcessMarker::new();
    let cut = first.start_job("work-wait", json!({ "name": one.0 }));
    wait_until_began(&workspace, &one.0);
    let waiting = first.start_job("work-wait", json!({ "name": "waiting" }));
    let own = second.start_job("work-wait", json!({ "name": two.0 }));
    wait_until_began(&workspace, &two.0);
    // Each shows all jobs.
    for served in [&first, &second] {
        let states = [&cut, &waiting, &own].map(|id| served.job(id)["status"].clone());
        assert_eq!(states, ["running", "queued", "running"]);
    }
    assert_eq!(started_commands(&workspace), [&*one.0, &*two.0]);

    // A watcher at the second server sees the first server's job go on.
    let mut watcher = second.socket(&format!("/ws/jobs/{waiting}?stream=progress,status"));
    first.signal(Signal::KILL);
    first.wait_for_exit();
    let_continue(&workspace);
    second.job_in("succeeded", &own);
    let end = wait_long_for(LOOK, "the second takes over", || {
        let job = second.job(&cut);
        (job["status"] != "running").then_some(job)
    });
    assert_eq!(end["status"], "failed", "{end}");
    assert!(end["stderr"].as_str().unwrap().contains("the server stopped"), "{end}");
    second.job_in("succeeded", &waiting);
    let (events, _) = watcher.read_rest();
    assert_eq!(events.last().unwrap()["status"], "succeeded", "{events:?}");
    assert_eq!(started_commands(&workspace), [&*one.0, &*two.0, "waiting"]);
}

#[test]
fn a_queued_and_a_running_job_of_another_server_are_cancelled() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let [first, second] = [(); 2].map(|()| served(&workspace, &state));
    let marker = ProcessMarker::new();
    let running = first.start_job("work-wait", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let queued = first.start_job("work-wait", json!({ "name": "queued" }));
    let answer = second.delete(&format!("/jobs/{queued}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = second.ask(&call(1, "jobs_cancel", json!({ "job_id": running })));
    assert_eq!(structured(&answer)["state"], "canceled", "{answer}");
    assert!(marker.pids().is_empty(), "programs are still running: {:?}", marker.pids());
    for served in [&first, &second] {
        let states = [&running, &queued].map(|id| served.job(id)["status"].clone());
        assert_eq!(states, ["canceled", "canceled"]);
    }
    let again = second.delete(&format!("/jobs/{running}"));
    assert_eq!((again.status, &again.json()["status"]), (200, &json!("canceled")), "{again:?}");
    // The first server goes on, and has its slot back.
    let_continue(&workspace);
    let next = first.start_job("work-wait", json!({ "name": "next" }));
    first.job_in("succeeded", &next);
    assert_eq!(started_commands(&workspace), [&*marker.0, "next"]);
}

/// Takes long, because the second server looks for orphaned jobs only every 15 seconds.
#[test]
fn a_cancellation_that_a_frozen_server_missed_is_done_by_the_next_server() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let [first, second] = [(); 2].map(|()| served(&workspace, &state));
    let marker = ProcessMarker::new();
    first.start_job("work-wait", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let queued = first.start_job("work-wait", json!({ "name": "queued" }));
    first.signal(Signal::STOP);
    let refused = second.delete(&format!("/jobs/{queued}"));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.text().contains("did not stop it within"), "{refused:?}");
    first.signal(Signal::KILL);
    first.wait_for_exit();
    let_continue(&workspace);
    wait_long_for(LOOK, "the second cancels it", || {
        let job = second.job(&queued);
        (job["status"] == "canceled").then_some(())
    });
    assert_eq!(started_commands(&workspace), [&*marker.0]);
}

#[test]
fn a_job_of_another_server_can_be_awaited_and_watched() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let [first, second] = [(); 2].map(|()| served(&workspace, &state));
    let marker = ProcessMarker::new();
    let id = first.start_job("tell-steps", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let mut watcher = second.socket(&format!("/ws/jobs/{id}"));
    watcher.read_until(|message| message["progress"] == 0.25);
    let_continue(&workspace);
    let (messages, _) = watcher.read_rest();
    let end = messages.last().unwrap();
    assert_eq!(
        (&end["status"], &end["exit_code"]),
        (&json!("succeeded"), &json!(0)),
        "{messages:?}"
    );
    let get = json!({ "job_id": id, "wait_ms": 10_000 });
    let answer = second.ask(&call(1, "jobs_get", get));
    assert_eq!(answer["result"]["structuredContent"]["state"], "succeeded", "{answer}");
}
