//! Runs the chaos program for a short time, as tests. `cargo xtask chaos` starts longer runs.
#![allow(clippy::disallowed_methods, reason = "a test, which starts a test program")]

use std::process::Command;

#[test]
fn no_job_is_lost_or_runs_twice_when_the_server_is_killed() {
    run_chaos(&["--kills", "5"]);
}

#[test]
fn callers_of_a_gateway_notice_no_kill_of_other_clients_and_upstreams() {
    run_chaos(&["--gateway", "--minutes", "0.3"]);
}

#[test]
fn no_job_of_a_fleet_is_lost_or_runs_twice_when_workers_and_the_database_die() {
    run_chaos(&["--fleet", "--part", "kills", "--minutes", "0.33"]);
}

#[test]
fn no_job_of_a_fleet_runs_twice_and_none_is_lost_unduly_when_the_database_fails_over() {
    run_chaos(&["--fleet", "--part", "failover", "--minutes", "0.4"]);
}

#[test]
fn no_job_of_a_fleet_is_lost_or_runs_twice_when_servers_lose_the_database_for_a_moment() {
    run_chaos(&["--fleet", "--part", "partition", "--minutes", "0.25"]);
}

#[test]
fn no_job_of_a_fleet_is_lost_or_runs_twice_when_clocks_are_ten_minutes_off() {
    run_chaos(&["--fleet", "--part", "clocks", "--minutes", "0.2"]);
}

#[test]
fn no_client_of_a_fleet_notices_restarts_behind_a_load_balancer() {
    run_chaos(&["--fleet", "--part", "restarts", "--minutes", "0.1"]);
}

#[test]
fn a_plain_call_to_a_server_of_a_fleet_sends_no_statement_to_the_database() {
    run_chaos(&["--fleet", "--part", "figures"]);
}

fn run_chaos(arguments: &[&str]) {
    let mut chaos = Command::new(env!("CARGO_BIN_EXE_toolgate-chaos"));
    let status = chaos.args(arguments).status().expect("the program starts");
    assert!(status.success(), "toolgate-chaos {}: {status}", arguments.join(" "));
}
