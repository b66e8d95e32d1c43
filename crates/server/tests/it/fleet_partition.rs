//! Tests of a server of a fleet that loses the connection to its database, while the database
//! itself runs.

#[path = "../../../../tests/postgres/proxy.rs"]
#[allow(dead_code, reason = "the chaos test uses all of it")]
mod proxy;

use proxy::{DatabaseProxy, DatabaseProxyMode};
use serde_json::json;

use crate::search_engines::server::PostgresServerProcess as Database;
use crate::shared_jobs::{TAKEOVER, launch, wait_for_state};
use crate::support::{
    ProcessMarker, TempWorkspace, call, is_alive, let_continue, started_commands, wait_long_for,
    wait_until, wait_until_began,
};

#[test]
fn the_programs_of_a_server_whose_database_stalls_end_before_its_job_runs_again_elsewhere() {
    let database = Database::start();
    let proxy = DatabaseProxy::start(&database.socket()).unwrap();
    let workspace = TempWorkspace::with_commands();
    let first = launch(&workspace, &database).set("fleet_url", proxy.url()).served();
    let marker = ProcessMarker::new();
    let id = first.start_job("work-again", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let second = launch(&workspace, &database).served();
    // The other server takes jobs over once it has held its lease for a while.
    wait_for_state(&second, &id, "running");
    let stalled = marker.pids();
    assert!(!stalled.is_empty());
    proxy.set_mode(DatabaseProxyMode::Stalled);
    wait_long_for(TAKEOVER, "the job runs again", || {
        let runs = started_commands(&workspace);
        (runs.iter().filter(|name| **name == marker.0).count() >= 2).then_some(())
    });
    let left: Vec<_> = stalled.into_iter().filter(|pid| is_alive(*pid)).collect();
    assert!(left.is_empty(), "programs of the stalled server still run: {left:?}");
    let answer = first.ask(&call(1, "files_tree", json!({})));
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    proxy.set_mode(DatabaseProxyMode::Open);
    let_continue(&workspace);
    for server in [&second, &first] {
        wait_for_state(server, &id, "succeeded");
    }
    assert_eq!(started_commands(&workspace).len(), 2);
}

#[test]
fn a_job_that_is_refused_without_the_database_never_runs_and_later_ones_are_accepted() {
    let database = Database::start();
    let proxy = DatabaseProxy::start(&database.socket()).unwrap();
    let workspace = TempWorkspace::with_commands();
    let server = launch(&workspace, &database).set("fleet_url", proxy.url()).served();
    let first = server.start_job("work-quick", json!({ "name": "first" }));
    wait_for_state(&server, &first, "succeeded");
    let start = |name: &str| {
        let arguments = json!({ "tool": "work_quick", "arguments": { "name": name } });
        server.ask(&call(1, "jobs_start", arguments))
    };
    for mode in [DatabaseProxyMode::Dropped, DatabaseProxyMode::Unanswered] {
        proxy.set_mode(mode);
        let refused = start("refused");
        assert_eq!(refused["result"]["isError"], true, "{mode:?}: {refused}");
        proxy.set_mode(DatabaseProxyMode::Open);
        wait_until("a job is accepted", || start("accepted")["result"]["isError"] == false);
    }
    let started = started_commands(&workspace);
    assert!(started.iter().all(|name| name != "refused"), "{started:?}");
}
