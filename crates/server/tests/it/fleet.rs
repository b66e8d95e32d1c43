//! Servers and workers of a fleet that run each other's jobs, with their jobs in a PostgreSQL database.

use rustix::process::Signal;
use serde_json::json;

use crate::search_engines::server::Server as Database;
use crate::shared_jobs::{TAKEOVER, launch, wait_for_state};
use crate::support::{
    HttpServer, Launch, Marker, Workspace, let_continue, started_commands, wait_long_for,
    wait_until, wait_until_began,
};

/// Starts a server that accepts jobs and runs none.
fn front(workspace: &Workspace, database: &Database) -> HttpServer {
    launch(workspace, database).arg("--no-jobs").served()
}

/// Returns the number of starts of the command `name`.
fn starts_of(workspace: &Workspace, name: &str) -> usize {
    started_commands(workspace).iter().filter(|started| *started == name).count()
}

/// Waits until the command `name` has started `count` times.
#[track_caller]
fn wait_for_starts(workspace: &Workspace, name: &str, count: usize) {
    wait_long_for(TAKEOVER, "the command starts", || {
        (starts_of(workspace, name) >= count).then_some(())
    });
}

#[test]
fn a_worker_runs_the_jobs_of_a_server_that_runs_none() {
    let database = Database::start();
    let workspace = Workspace::with_commands();
    let front = front(&workspace, &database);
    let id = front.start_job("work-quick", json!({ "name": "one" }));
    assert_eq!(front.job(&id)["status"], "queued");
    let worker = launch(&workspace, &database).worker();
    wait_for_state(&front, &id, "succeeded");
    assert_eq!(starts_of(&workspace, "one"), 1);
    assert_eq!(worker.outcomes(1), ["ok"]);
    assert!(front.records().iter().all(|record| record["job"] != id.as_str()));
}

#[test]
fn a_job_that_waits_at_a_busy_server_runs_at_a_server_with_a_free_place() {
    let database = Database::start();
    let workspace = Workspace::with_commands();
    let start = || launch(&workspace, &database).set("limits_programs", 2).served();
    let [first, second] = [(); 2].map(|()| start());
    let ids = ["one", "two"].map(|name| first.start_job("work-wait", json!({ "name": name })));
    for name in ["one", "two"] {
        wait_for_starts(&workspace, name, 1);
    }
    let_continue(&workspace);
    for id in &ids {
        for server in [&first, &second] {
            wait_for_state(server, id, "succeeded");
        }
    }
    for name in ["one", "two"] {
        assert_eq!(starts_of(&workspace, name), 1);
    }
    for server in [&first, &second] {
        assert_eq!(server.outcomes(1), ["ok"]);
    }
}

#[test]
fn a_stopped_worker_lets_its_running_job_end_and_leaves_the_next_one_to_others() {
    let database = Database::start();
    let workspace = Workspace::with_commands();
    let front = front(&workspace, &database);
    let worker = || {
        let launch = launch(&workspace, &database).set("limits_programs", 2);
        launch.set("jobs_drain_ms", 120_000).worker()
    };
    let first = worker();
    let running = front.start_job("work-wait", json!({ "name": "running" }));
    wait_for_starts(&workspace, "running", 1);
    first.signal(Signal::TERM);
    wait_until("the worker drains", || first.log().contains("running jobs end"));
    let next = front.start_job("work-again", json!({ "name": "next" }));
    let second = worker();
    wait_for_starts(&workspace, "next", 1);
    assert!(first.is_running(), "it waits for its job: {}", first.log());
    let_continue(&workspace);
    assert!(first.wait_for_exit().success());
    for id in [&running, &next] {
        wait_for_state(&front, id, "succeeded");
    }
    assert_eq!(second.outcomes(1), ["ok"]);
}

#[test]
fn a_job_that_outlasts_the_drain_of_its_worker_runs_again_only_if_it_is_idempotent() {
    let database = Database::start();
    let workspace = Workspace::with_commands();
    let front = front(&workspace, &database);
    let first = launch(&workspace, &database).set("jobs_drain_ms", 100).worker();
    let again = front.start_job("work-again", json!({ "name": "again" }));
    let once = front.start_job("work-wait", json!({ "name": "once" }));
    for name in ["again", "once"] {
        wait_for_starts(&workspace, name, 1);
    }
    first.signal(Signal::TERM);
    assert!(first.wait_for_exit().success());
    let end = wait_for_state(&front, &once, "failed");
    assert!(end["stderr"].as_str().unwrap().contains("the server stopped"), "{end}");
    let _second = launch(&workspace, &database).worker();
    wait_for_starts(&workspace, "again", 2);
    let_continue(&workspace);
    wait_for_state(&front, &again, "succeeded");
    assert_eq!(starts_of(&workspace, "once"), 1);
}

#[test]
fn a_job_is_cancelled_at_the_server_that_accepted_it_while_a_worker_runs_it() {
    let database = Database::start();
    let workspace = Workspace::with_commands();
    let front = front(&workspace, &database);
    let _worker = launch(&workspace, &database).worker();
    let marker = Marker::new();
    let id = front.start_job("work-again", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let answer = front.delete(&format!("/jobs/{id}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(front.job(&id)["status"], "canceled");
    assert!(marker.pids().is_empty(), "programs are still running: {:?}", marker.pids());
}

#[test]
fn a_worker_and_a_server_without_jobs_are_refused_without_a_database() {
    let workspace = Workspace::new();
    let started = [
        Launch::over(&workspace).worker(),
        Launch::over(&workspace).serve_with_flags(&["--no-jobs", "--listen", "127.0.0.1:0"]),
    ];
    for server in started {
        assert_eq!(server.wait_for_exit().code(), Some(2));
        wait_until("the reason is logged", || server.log().contains("fleet.url"));
    }
}
