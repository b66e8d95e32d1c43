//! Tests of servers with separate state folders, like servers of several machines, that share their
//! jobs and used confirmations in a PostgreSQL database.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::mcp::asking::{agree_again, questions, with_confirmations};
use crate::search_engines::server::PostgresServerProcess;
use crate::support::{
    HttpServerProcess, MODERN, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestMcpClient,
    call, let_continue, refusal, started_commands, structured, wait_long_for, wait_until,
    wait_until_began,
};

/// Longest wait until a server takes over the jobs of another server that no longer responds.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(40);

/// Returns start options of toolgate for `workspace`, with jobs in `database` and leases of only 3
/// s.
pub(crate) fn launch(
    workspace: &TempWorkspace,
    database: &PostgresServerProcess,
) -> ServerLaunchOptions {
    ServerLaunchOptions::over(workspace)
        .set("fleet_url", database.url())
        .set("fleet_lease_ms", 3000)
        .set("fleet_lost_ms", 3000)
}

fn served(workspace: &TempWorkspace, database: &PostgresServerProcess) -> HttpServerProcess {
    launch(workspace, database).set("limits_programs", 4).served()
}

/// Waits until the job `id` is in `state` at `server`.
#[track_caller]
pub(crate) fn wait_for_state(
    server: &HttpServerProcess,
    id: &str,
    state: &str,
) -> serde_json::Value {
    wait_long_for(TAKEOVER, &format!("job {id} is {state}"), || {
        let job = server.job(id);
        (job["status"] == state).then_some(job)
    })
}

#[test]
fn jobs_of_a_killed_server_run_at_another_and_end_as_interrupted_if_they_may_not_run_twice() {
    let database = PostgresServerProcess::start();
    let workspace = TempWorkspace::with_commands();
    let [first, second] = [(); 2].map(|()| served(&workspace, &database));
    let once = ProcessMarker::new();
    let again = ProcessMarker::new();
    let cut = first.start_job("work-wait", json!({ "name": once.0 }));
    let repeated = first.start_job("work-again", json!({ "name": again.0 }));
    wait_until_began(&workspace, &once.0);
    wait_until_began(&workspace, &again.0);
    // The other server may claim it before the first one is killed, or after that.
    let waiting = first.start_job("work-wait", json!({ "name": "waiting" }));
    for server in [&first, &second] {
        let states = [&cut, &repeated].map(|id| server.job(id)["status"].clone());
        assert_eq!(states, ["running", "running"]);
    }
    first.signal(Signal::KILL);
    first.wait_for_exit();
    once.wait_until_gone();
    again.wait_until_gone();
    wait_long_for(TAKEOVER, "the idempotent job runs again", || {
        let runs = started_commands(&workspace);
        (runs.iter().filter(|name| **name == again.0).count() == 2).then_some(())
    });
    let_continue(&workspace);
    wait_for_state(&second, &repeated, "succeeded");
    wait_for_state(&second, &waiting, "succeeded");
    let end = wait_for_state(&second, &cut, "failed");
    assert!(end["stderr"].as_str().unwrap().contains("the server stopped"), "{end}");
    let runs = started_commands(&workspace);
    assert_eq!(runs.iter().filter(|name| **name == once.0).count(), 1, "{runs:?}");
}

#[test]
fn a_queued_and_a_running_job_are_cancelled_at_a_server_of_another_machine() {
    let database = PostgresServerProcess::start();
    let workspace = TempWorkspace::with_commands();
    let start = || launch(&workspace, &database).set("limits_programs", 2).served();
    let [first, second] = [(); 2].map(|()| start());
    let marker = ProcessMarker::new();
    let running = first.start_job("work-wait", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let queued = first.start_job("work-wait", json!({ "name": "queued" }));
    let answer = second.delete(&format!("/jobs/{queued}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = second.ask(&call(1, "jobs_cancel", json!({ "job_id": running })));
    assert_eq!(structured(&answer)["state"], "canceled", "{answer}");
    assert!(marker.pids().is_empty(), "programs are still running: {:?}", marker.pids());
    for server in [&first, &second] {
        let states = [&running, &queued].map(|id| server.job(id)["status"].clone());
        assert_eq!(states, ["canceled", "canceled"]);
    }
}

#[test]
fn a_job_that_the_database_does_not_let_begin_is_cancelled_without_a_start() {
    let database = PostgresServerProcess::start();
    let workspace = TempWorkspace::with_commands();
    // The next renewal of the lease is a minute away.
    let server = launch(&workspace, &database).set("fleet_lease_ms", 240_000).served();
    let first = server.start_job("work-quick", json!({ "name": "first" }));
    wait_for_state(&server, &first, "succeeded");
    database.run("update toolgate_fleet.servers set lease_until = now() - interval '1 minute'");
    let id = server.start_job("work-quick", json!({ "name": "second" }));
    wait_until("the job is refused a start", || server.log().contains("this server as stopped"));
    assert_eq!(server.job(&id)["status"], "queued");
    server.delete(&format!("/jobs/{id}"));
    wait_for_state(&server, &id, "canceled");
    assert_eq!(started_commands(&workspace), ["first"]);
}

#[test]
fn a_confirmation_is_valid_once_at_servers_that_share_a_database() {
    let database = PostgresServerProcess::start();
    let workspace = TempWorkspace::new();
    let keys = TempDir::new().unwrap();
    let key = keys.path().join("session.key");
    fs::write(&key, [1_u8; 32]).unwrap();
    let start = || {
        let launch = with_confirmations(launch(&workspace, &database));
        TestMcpClient::http(launch.set("server_session_key", key.display()), MODERN)
    };
    let [mut one, mut other] = [(); 2].map(|()| start());
    let reply = questions(&mut one, "a");
    let state = &reply["requestState"];
    let done = agree_again(&mut other, "a", &reply, state);
    assert_eq!(done["result"]["isError"], false, "{done}");
    workspace.put("a", "meanwhile");
    for client in [&mut one, &mut start()] {
        let answer = agree_again(client, "a", &reply, state);
        assert!(refusal(&answer).contains("already used"), "{answer}");
    }
    assert_eq!(workspace.read("a"), "meanwhile");
}

#[test]
fn without_the_database_plain_calls_go_on_and_jobs_are_unavailable() {
    let nowhere = TempDir::new().unwrap();
    let workspace = TempWorkspace::with_commands();
    workspace.put("a.txt", "plain");
    let url = format!("postgresql://u@/db?host={}", nowhere.path().display());
    let server = ServerLaunchOptions::over(&workspace).set("fleet_url", url).served();
    let answer = server.ask(&call(1, "files_read", json!({ "path": "a.txt" })));
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    let start = json!({ "tool": "work_quick", "arguments": { "name": "never" } });
    let refused = server.ask(&call(2, "jobs_start", start));
    let why = refusal(&refused);
    assert!(why.contains("the job store is unavailable: PostgreSQL `db` at"), "{refused}");
    assert!(started_commands(&workspace).is_empty());
}
