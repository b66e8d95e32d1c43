//! Tests of time limits, concurrency and cancellation of workstation calls.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{WorkstationClient, error_parts, over_all};
use super::repositories::repository;
use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpRequest, at_once, notification,
};

#[test]
fn s2_07_22_43_a_call_times_out_after_thirty_seconds_and_its_program_is_killed() {
    at_once([over_stdio as fn(), over_http], |check| check());

    fn over_stdio() {
        let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()));
        let (call, marker) = start_sleep(&mut client);
        let started = Instant::now();
        client.stream().send(&call);
        marker.wait_until_running();
        // Requests in the meantime are answered.
        while started.elapsed() < Duration::from_secs(28) {
            thread::sleep(Duration::from_secs(2));
            let ping = client.request("ping", Value::Null);
            assert_eq!(client.stream().ask(&ping)["result"], json!({}));
        }
        let answer = client.stream().answer(call["id"].clone());
        check_timed_out(&client, &answer, started, &marker);
    }

    fn over_http() {
        let mut client = WorkstationClient::http(ServerLaunchOptions::over(&TempWorkspace::new()));
        let (call, marker) = start_sleep(&mut client);
        let started = Instant::now();
        let mut connection = client.connect();
        connection.post(&TestHttpRequest::bytes(call.to_string().as_bytes()).to("/workstation"));
        marker.wait_until_running();
        // Requests in the meantime are answered.
        while started.elapsed() < Duration::from_secs(28) {
            thread::sleep(Duration::from_secs(2));
            assert_eq!(client.ask("ping", Value::Null)["result"], json!({}));
        }
        let response = connection.response();
        assert_eq!(response.status, 200, "{response:?}");
        check_timed_out(&client, &response.json(), started, &marker);
    }
}

/// Starts a call of a program that sleeps longer than the time limit. Returns the request, and the
/// marker that finds the program.
fn start_sleep(client: &mut WorkstationClient) -> (Value, ProcessMarker) {
    let marker = ProcessMarker::new();
    let command = format!("sleep {}", marker.0);
    let params = json!({ "name": "ci/run", "arguments": { "command": command } });
    (client.request("tools/call", params), marker)
}

/// Checks that the call that began at `started` timed out after thirty seconds, and that its
/// program has ended.
#[track_caller]
fn check_timed_out(
    client: &WorkstationClient,
    answer: &Value,
    started: Instant,
    marker: &ProcessMarker,
) {
    let took = started.elapsed();
    let (code, message, data) = error_parts(answer);
    assert_eq!((code, message.as_str()), (-32000, "Tool execution timeout"), "{data}");
    assert!(took >= Duration::from_secs(29) && took <= Duration::from_secs(31), "{took:?}");
    marker.wait_until_gone();
    assert_eq!(client.server().outcomes(1), ["timed_out"]);
}

#[test]
fn s2_22_the_program_of_a_cancelled_call_is_killed() {
    let workspace = TempWorkspace::new();
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    let marker = ProcessMarker::new();
    let arguments = json!({ "command": "sleep", "args": [marker.0] });
    let call = client.request("tools/call", json!({ "name": "exec/run", "arguments": arguments }));
    client.stream().send(&call);
    marker.wait_until_running();
    client.tell(&notification("notifications/cancelled", json!({ "requestId": call["id"] })));
    marker.wait_until_gone();
    // It is not answered; the next request is.
    let ping = client.request("ping", Value::Null);
    assert_eq!(client.exchange(&ping)["result"], json!({}));
    assert_eq!(client.server().outcomes(1), ["canceled"]);

    // Over HTTP a client cancels by disconnecting.
    let client = WorkstationClient::http(ServerLaunchOptions::over(&workspace));
    let marker = ProcessMarker::new();
    let arguments = json!({ "command": "sleep", "args": [marker.0] });
    let params = json!({ "name": "exec/run", "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let mut connection = client.connect();
    connection.post(&TestHttpRequest::bytes(call.to_string().as_bytes()).to("/workstation"));
    marker.wait_until_running();
    connection.close();
    marker.wait_until_gone();
}

#[test]
fn s2_21_34_sixteen_calls_run_at_once_without_delaying_each_other() {
    let workspace = TempWorkspace::new();
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    let started = Instant::now();
    let calls: Vec<Value> = (0..16)
        .map(|_| {
            let arguments = json!({ "command": "sleep 1" });
            client.request("tools/call", json!({ "name": "ci/run", "arguments": arguments }))
        })
        .collect();
    for call in &calls {
        client.stream().send(call);
    }
    // A read sent after all of them is answered first.
    let params = json!({ "name": "filesystem/read", "arguments": { "path": "README.md" } });
    let read = client.request("tools/call", params);
    client.stream().send(&read);
    assert_eq!(client.stream().receive()["id"], read["id"]);
    for call in calls.iter().rev() {
        let answer = client.stream().answer(call["id"].clone());
        assert_eq!(answer["result"]["content"], "Exit Code: 0\n", "{answer}");
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// Runs `work` `count` times and returns the 95th percentile of its duration.
fn p95(count: usize, mut work: impl FnMut()) -> Duration {
    let mut all: Vec<Duration> = (0..count)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    all.sort_unstable();
    all[count * 95 / 100]
}

#[test]
fn s2_32_33_discovery_and_calls_meet_the_contracts_time_limits() {
    let workspace = repository(3).file("new.txt", "");
    over_all(&workspace, |client| {
        // A thousand requests over the four transports.
        let discovery = p95(250, || {
            assert!(client.ask("tools/list", Value::Null)["result"].is_object());
        });
        assert!(discovery < Duration::from_millis(100), "{discovery:?}");
        let read = p95(100, || {
            client.content("filesystem/read", json!({ "path": "README.md" }));
        });
        let status = p95(20, || {
            let arguments = json!({ "repositoryPath": "." });
            assert!(client.content("git/status", arguments).contains("?? new.txt"));
        });
        let most = Duration::from_secs(5);
        assert!(read < most && status < most, "{read:?} {status:?}");
    });
}
