//! Tests of a fleet: servers and workers that run each other's jobs, with the jobs in a PostgreSQL
//! database.

use std::collections::VecDeque;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::search_engines::server::PostgresServerProcess as Database;
use crate::shared_jobs::{TAKEOVER, launch, wait_for_state};
use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, binary, call, is_alive,
    let_continue, path, refusal, started_commands, structured, trust_config, wait_for,
    wait_long_for, wait_until, wait_until_began,
};

/// Number of jobs in the test that kills the workers while jobs run.
const JOBS: usize = 40;
/// Declared commands that run for 0.3 s. Each writes its `name` to the file `ran` when it begins.
const BRIEF_COMMANDS: &str = r#"
[command."work.once"]
about = "Takes a moment."
program = "sh"
argv = ["-c", "echo $0 >> ran; sleep 0.3", "{name}"]
args = { name = "string!" }

[command."work.repeat"]
about = "Takes a moment, and may be run twice."
program = "sh"
argv = ["-c", "echo $0 >> ran; sleep 0.3", "{name}"]
args = { name = "string!" }
idempotent = true
"#;

/// Starts a server that accepts jobs and runs none.
fn front(workspace: &TempWorkspace, database: &Database) -> HttpServerProcess {
    launch(workspace, database).arg("--no-jobs").served()
}

/// Returns the number of starts of the command `name`.
fn starts_of(workspace: &TempWorkspace, name: &str) -> usize {
    started_commands(workspace).iter().filter(|started| *started == name).count()
}

/// Waits until the command `name` has started `count` times.
#[track_caller]
fn wait_for_starts(workspace: &TempWorkspace, name: &str, count: usize) {
    wait_long_for(TAKEOVER, "the command starts", || {
        (starts_of(workspace, name) >= count).then_some(())
    });
}

/// Runs `toolgate fleet` with `args`. Returns its exit code and its output, or its error message.
fn fleet(workspace: &TempWorkspace, database: &Database, args: &[&str]) -> (Option<i32>, String) {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(binary());
    command.arg("fleet").args(args).arg("--root").arg(workspace.root());
    command.env_clear().env("PATH", path()).env("HOME", home.path());
    command.env("TOOLGATE_AUDIT_TO", "off").env("TOOLGATE_FLEET_URL", database.url());
    trust_config(&mut command, workspace.root());
    let output = command.output().unwrap();
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Returns the status of the fleet, as `toolgate fleet` prints it.
fn status(workspace: &TempWorkspace, database: &Database) -> Value {
    let (_, text) = fleet(workspace, database, &["status", "--json"]);
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text}"))
}

#[test]
fn a_worker_runs_the_jobs_of_a_server_that_runs_none() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
    let front = front(&workspace, &database);
    let id = front.start_job("work-quick", json!({ "name": "one" }));
    assert_eq!(front.job(&id)["status"], "queued");
    let alone = status(&workspace, &database);
    assert_eq!(alone["unserved"], json!({ "work.quick": 1 }), "{alone}");
    let worker = launch(&workspace, &database).worker();
    wait_for_state(&front, &id, "succeeded");
    assert_eq!(starts_of(&workspace, "one"), 1);
    assert_eq!(worker.outcomes(1), ["ok"]);
    assert!(front.records().iter().all(|record| record["job"] != id.as_str()));
}

#[test]
fn a_worker_with_another_version_of_a_command_leaves_its_jobs_to_others() {
    let commands = |pause: &str| {
        let command = |name: &str, pause: &str| {
            format!(
                "[command.\"work.{name}\"]\nabout = \"Takes a moment.\"\nprogram = \"sh\"\n\
                 argv = [\"-c\", \"echo $0 >> ran; sleep {pause}\", \"{{name}}\"]\n\
                 args = {{ name = \"string!\" }}\nidempotent = true\n"
            )
        };
        command("changed", pause) + &command("same", "0.1")
    };
    let database = Database::start();
    let [workspace, other] =
        ["0.2", "0.3"].map(|pause| TempWorkspace::new().file("toolgate.toml", commands(pause)));
    let launch_in =
        |workspace: &TempWorkspace| launch(workspace, &database).set("fleet_workspace", "both");
    let front = launch_in(&workspace).arg("--no-jobs").served();
    let changed = front.start_job("work-changed", json!({ "name": "changed" }));
    let same = front.start_job("work-same", json!({ "name": "same" }));
    let _other_worker = launch_in(&other).worker();
    // Its turn comes after that of the other job.
    wait_for_state(&front, &same, "succeeded");
    assert_eq!(front.job(&changed)["status"], "queued");
    assert_eq!(started_commands(&other), ["same"]);
    let _worker = launch_in(&workspace).worker();
    wait_for_state(&front, &changed, "succeeded");
    assert_eq!(started_commands(&workspace), ["changed"]);
}

#[test]
fn a_job_that_waits_at_a_busy_server_runs_at_a_server_with_a_free_place() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
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
    let workspace = TempWorkspace::with_commands();
    let front = front(&workspace, &database);
    let worker = || {
        let launch = launch(&workspace, &database).set("limits_programs", 2);
        launch.set("jobs_drain_ms", 120_000).worker()
    };
    let first = worker();
    let running = front.start_job("work-wait", json!({ "name": "running" }));
    wait_for_starts(&workspace, "running", 1);
    first.signal(Signal::TERM);
    wait_until("the worker drains", || first.log().contains("waits for its running jobs"));
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
    let workspace = TempWorkspace::with_commands();
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
    let workspace = TempWorkspace::with_commands();
    let front = front(&workspace, &database);
    let _worker = launch(&workspace, &database).worker();
    let marker = ProcessMarker::new();
    let id = front.start_job("work-again", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let answer = front.delete(&format!("/jobs/{id}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(front.job(&id)["status"], "canceled");
    assert!(marker.pids().is_empty(), "programs are still running: {:?}", marker.pids());
}

#[test]
fn the_programs_of_a_frozen_server_end_before_its_job_runs_again_elsewhere() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
    let first = launch(&workspace, &database).served();
    let marker = ProcessMarker::new();
    let id = first.start_job("work-again", json!({ "name": marker.0 }));
    wait_until_began(&workspace, &marker.0);
    let second = launch(&workspace, &database).served();
    let frozen = marker.pids();
    assert!(!frozen.is_empty());
    first.signal(Signal::STOP);
    wait_for_starts(&workspace, &marker.0, 2);
    let left: Vec<_> = frozen.into_iter().filter(|pid| is_alive(*pid)).collect();
    assert!(left.is_empty(), "programs of the frozen server still run: {left:?}");
    first.signal(Signal::CONT);
    let_continue(&workspace);
    for server in [&second, &first] {
        wait_for_state(server, &id, "succeeded");
    }
    assert_eq!(starts_of(&workspace, &marker.0), 2);
}

#[test]
fn no_job_is_lost_and_none_that_may_do_harm_runs_twice_while_workers_are_killed_and_frozen() {
    let database = Database::start();
    let workspace = TempWorkspace::new().file("toolgate.toml", BRIEF_COMMANDS);
    let front = front(&workspace, &database);
    let start = || launch(&workspace, &database).set("limits_programs", 4).worker();
    let mut workers = VecDeque::from([start(), start(), start()]);
    let start_job = |number: usize| {
        let tool = if number.is_multiple_of(2) { "work-once" } else { "work-repeat" };
        front.start_job(tool, json!({ "name": format!("job-{number}") }))
    };
    let ids: Vec<_> = (0..JOBS).map(start_job).collect();
    let mut stopped = Vec::new();
    for round in 1..=4 {
        wait_long_for(TAKEOVER, "more jobs start", || {
            (started_commands(&workspace).len() >= 6 * round).then_some(())
        });
        let worker = workers.pop_front().unwrap();
        worker.signal(if round % 2 == 0 { Signal::STOP } else { Signal::KILL });
        stopped.push(worker);
        workers.push_back(start());
    }
    for (number, id) in ids.iter().enumerate() {
        let end = wait_long_for(TAKEOVER, &format!("job {number} ends"), || {
            let job = front.job(id);
            ["succeeded", "failed"].into_iter().find(|state| job["status"] == *state)
        });
        let runs = starts_of(&workspace, &format!("job-{number}"));
        match number % 2 {
            0 => assert!(runs <= 1 && (end == "failed" || runs == 1), "{number}: {end}, {runs}"),
            _ => assert!(end == "succeeded" && runs >= 1, "{number}: {end}, {runs}"),
        }
    }
    // A frozen worker that wakes up changes nothing.
    for worker in stopped.iter().skip(1).step_by(2) {
        worker.signal(Signal::CONT);
    }
    let before = started_commands(&workspace);
    let last = front.start_job("work-repeat", json!({ "name": "last" }));
    wait_for_state(&front, &last, "succeeded");
    let added: Vec<_> = started_commands(&workspace).split_off(before.len());
    assert!(added.iter().all(|name| name == "last"), "{added:?}");
}

#[test]
fn a_rate_counts_for_all_servers_together() {
    let database = Database::start();
    let rate = "[[limits.rate]]\ntools = \"files.read\"\ncalls = 6\nin_ms = 86400000\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", rate).file("a.txt", "text");
    let [first, second] = [(); 2].map(|()| launch(&workspace, &database).served());
    for server in [&first, &second] {
        // It waits until the server uses the database.
        let listed = server.ask(&call(1, "jobs_list", json!({})));
        assert_eq!(listed["result"]["isError"], false, "{listed}");
    }
    let mut admitted = 0;
    for server in [&first, &second].into_iter().cycle().take(10) {
        let answer = server.ask(&call(1, "files_read", json!({ "path": "a.txt" })));
        admitted += usize::from(answer["result"]["isError"] == false);
    }
    assert_eq!(admitted, 6);
    let refused = second.ask(&call(2, "files_read", json!({ "path": "a.txt" })));
    assert!(refusal(&refused).contains("called too often (limit: 6 at once"), "{refused}");
    let other = second.ask(&call(3, "files_tree", json!({})));
    assert_eq!(other["result"]["isError"], false, "{other}");
}

#[test]
fn a_call_with_a_rate_is_refused_without_the_database_if_the_settings_say_so() {
    let mut database = Database::start();
    let limits = "[limits]\naway = \"refuse\"\n\n[[limits.rate]]\ntools = \"files.read\"\n\
                  calls = 600\nin_ms = 60000\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", limits).file("a.txt", "text");
    let server = launch(&workspace, &database).served();
    let read = || server.ask(&call(1, "files_read", json!({ "path": "a.txt" })));
    wait_until("the server uses the database", || read()["result"]["isError"] == false);
    database.stop();
    wait_until("calls are refused", || {
        read().to_string().contains("the database of the fleet does not answer")
    });
    let other = server.ask(&call(2, "files_tree", json!({})));
    assert_eq!(other["result"]["isError"], false, "{other}");
}

#[test]
fn a_worker_and_a_server_without_jobs_are_refused_without_a_database() {
    let workspace = TempWorkspace::new();
    let started = [
        ServerLaunchOptions::over(&workspace).worker(),
        ServerLaunchOptions::over(&workspace).serve_with_flags(&[
            "--no-jobs",
            "--listen",
            "127.0.0.1:0",
        ]),
    ];
    for server in started {
        assert_eq!(server.wait_for_exit().code(), Some(2));
        wait_until("the reason is logged", || server.log().contains("fleet.url"));
    }
}

#[test]
fn the_status_of_a_fleet_lists_its_servers_jobs_and_different_settings() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
    let front = front(&workspace, &database);
    let start = || launch(&workspace, &database);
    let _workers = [start().worker(), start().set("tools_deny", "git.*").worker()];
    let id = front.start_job("work-wait", json!({ "name": "one" }));
    wait_for_starts(&workspace, "one", 1);
    let found = wait_for("all servers are listed", || {
        let found = status(&workspace, &database);
        (found["servers"].as_array().unwrap().len() == 3).then_some(found)
    });
    assert_eq!([&found["schema"], &found["waiting"], &found["running"]], [4, 0, 1]);
    let servers = found["servers"].as_array().unwrap();
    let list = |name: &str| -> Vec<&Value> { servers.iter().map(|it| &it[name]).collect() };
    let mut kinds = list("kind");
    kinds.sort_by_key(|kind| kind.to_string());
    assert_eq!(kinds, ["front", "worker", "worker"]);
    assert!(list("state").iter().all(|state| **state == "alive"), "{found}");
    let differing: Vec<_> = list("differs").into_iter().filter(|it| **it != json!([])).collect();
    assert_eq!(differing, [&json!(["policy"])], "{found}");
    let (code, text) = fleet(&workspace, &database, &["status"]);
    assert!(code == Some(1) && text.contains("differ: policy"), "{text}");
    let_continue(&workspace);
    wait_for_state(&front, &id, "succeeded");
}

#[test]
fn a_drained_fleet_begins_no_jobs_and_lets_running_ones_end() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
    let server = launch(&workspace, &database).served();
    let running = server.start_job("work-wait", json!({ "name": "running" }));
    wait_for_starts(&workspace, "running", 1);
    let (code, text) = std::thread::scope(|scope| {
        let draining = scope.spawn(|| fleet(&workspace, &database, &["drain", "--all"]));
        wait_until("the server drains", || server.log().contains("this server is draining"));
        let_continue(&workspace);
        draining.join().unwrap()
    });
    assert!(code == Some(0) && text.contains("draining 1 server\n"), "{text}");
    wait_for_state(&server, &running, "succeeded");
    assert_eq!(status(&workspace, &database)["servers"][0]["state"], "draining");
    let next = server.start_job("work-again", json!({ "name": "next" }));
    assert_eq!(server.job(&next)["status"], "queued");
    let _worker = launch(&workspace, &database).worker();
    wait_for_state(&server, &next, "succeeded");
    let (code, text) = fleet(&workspace, &database, &["drain", "nowhere"]);
    assert!(code == Some(2) && text.contains("no server with the name `nowhere`"), "{text}");
}

#[test]
fn a_server_moves_to_the_standby_that_replaces_its_database_and_keeps_its_jobs() {
    let mut primary = Database::start();
    let standby = primary.start_standby();
    primary.wait_until_replicated();
    primary.wait_for_standby(true);
    let workspace = TempWorkspace::with_commands();
    // The standby is tried first.
    let url = standby.url_with(&primary);
    let server = launch(&workspace, &primary).set("fleet_url", url).served();
    let first = server.start_job("work-quick", json!({ "name": "first" }));
    wait_for_state(&server, &first, "succeeded");
    primary.stop();
    standby.promote();
    let second = wait_long_for(TAKEOVER, "a job is accepted", || {
        let start = json!({ "tool": "work_quick", "arguments": { "name": "second" } });
        let answer = server.ask(&call(1, "jobs_start", start));
        (answer["result"]["isError"] == false)
            .then(|| structured(&answer)["job_id"].as_str().unwrap().to_owned())
    });
    for id in [&first, &second] {
        wait_for_state(&server, id, "succeeded");
    }
}

#[test]
fn the_tables_are_created_once_and_then_up_to_date() {
    let database = Database::start();
    let workspace = TempWorkspace::new();
    let migrate = || fleet(&workspace, &database, &["migrate"]);
    let (code, text) = fleet(&workspace, &database, &["status"]);
    assert!(code == Some(2) && text.contains("has no tables of toolgate yet"), "{text}");
    assert_eq!(migrate(), (Some(0), "created the tables (job schema 4)\n".to_owned()));
    assert_eq!(migrate(), (Some(0), "the tables are up to date (job schema 4)\n".to_owned()));
    let (code, text) = fleet(&workspace, &database, &["status"]);
    assert!(code == Some(0) && text.contains("no server of this workspace"), "{text}");
}
