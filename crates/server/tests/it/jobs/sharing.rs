//! Two servers of one workspace: each runs its own jobs, both tell of all.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    Launch, Marker, Served, Workspace, began, call, go, ran, refusal, wait_long_for,
};

/// How often a server looks for what another left, and some time for it to be done.
const LOOK: Duration = Duration::from_secs(15 + 10);

fn served(workspace: &Workspace, state: &TempDir) -> Served {
    Launch::over(workspace).remembering(state).set("jobs_running", 1).served()
}

/// Slow: the second looks every 15 seconds.
#[test]
fn servers_run_none_of_each_others_jobs_until_one_dies() {
    let workspace = Workspace::with_commands();
    let state = TempDir::new().unwrap();
    let [first, second] = [(); 2].map(|()| served(&workspace, &state));
    let one = Marker::new();
    let two = Marker::new();
    let cut = first.begin("work-wait", json!({ "name": one.0 }));
    began(&workspace, &one.0);
    let waiting = first.begin("work-wait", json!({ "name": "waiting" }));
    let own = second.begin("work-wait", json!({ "name": two.0 }));
    began(&workspace, &two.0);
    // Each sees all, as they are, and stops only its own.
    for served in [&first, &second] {
        let states = [&cut, &waiting, &own].map(|id| served.job(id)["status"].clone());
        assert_eq!(states, ["running", "queued", "running"]);
    }
    for id in [&cut, &waiting] {
        let refused = second.delete(&format!("/jobs/{id}"));
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(refused.text().contains("run by another server"), "{refused:?}");
        let refused = second.ask(&call(1, "jobs_cancel", json!({ "job_id": id })));
        assert!(refusal(&refused).contains("run by another server"), "{refused}");
    }
    assert_eq!(ran(&workspace), [&*one.0, &*two.0]);

    // Whoever watches the first's job at the second sees how it goes on.
    let mut watcher = second.socket(&format!("/ws/jobs/{waiting}?stream=progress"));
    first.signal(Signal::KILL);
    first.ended();
    go(&workspace);
    second.job_in("succeeded", &own);
    let end = wait_long_for(LOOK, "the second takes over", || {
        let job = second.job(&cut);
        (job["status"] != "running").then_some(job)
    });
    assert_eq!(end["status"], "failed", "{end}");
    assert!(end["stderr"].as_str().unwrap().contains("the server ended"), "{end}");
    second.job_in("succeeded", &waiting);
    let (told, _) = watcher.rest();
    assert_eq!(told.last().unwrap()["status"], "succeeded", "{told:?}");
    assert_eq!(ran(&workspace), [&*one.0, &*two.0, "waiting"]);
}

#[test]
fn a_job_of_another_server_is_waited_for_and_watched_to_its_end() {
    let workspace = Workspace::with_commands();
    let state = TempDir::new().unwrap();
    let [first, second] = [(); 2].map(|()| served(&workspace, &state));
    let marker = Marker::new();
    let id = first.begin("tell-steps", json!({ "name": marker.0 }));
    began(&workspace, &marker.0);
    let mut watcher = second.socket(&format!("/ws/jobs/{id}"));
    watcher.until(|told| told["progress"] == 0.25);
    go(&workspace);
    let (told, _) = watcher.rest();
    let end = told.last().unwrap();
    assert_eq!((&end["status"], &end["exit_code"]), (&json!("succeeded"), &json!(0)), "{told:?}");
    let get = json!({ "job_id": id, "wait_ms": 10_000 });
    let answer = second.ask(&call(1, "jobs_get", get));
    assert_eq!(answer["result"]["structuredContent"]["state"], "succeeded", "{answer}");
}
