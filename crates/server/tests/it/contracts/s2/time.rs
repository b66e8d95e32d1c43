//! How long a call may take, what goes on beside it, and how it is called off.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::desk::{Desk, over_all, refused};
use super::repositories::repository;
use crate::support::{Launch, Marker, Post, Workspace, at_once, notification};

#[test]
fn s2_07_22_43_a_call_ends_at_thirty_seconds_and_its_program_with_it() {
    at_once([over_stdio as fn(), over_http], |check| check());

    fn over_stdio() {
        let mut desk = Desk::stdio(Launch::over(&Workspace::new()));
        let (call, marker) = sleeping(&mut desk);
        let begun = Instant::now();
        desk.stream().send(&call);
        marker.started();
        // What is asked meanwhile is answered.
        while begun.elapsed() < Duration::from_secs(28) {
            thread::sleep(Duration::from_secs(2));
            let ping = desk.request("ping", Value::Null);
            assert_eq!(desk.stream().ask(&ping)["result"], json!({}));
        }
        let answer = desk.stream().answer(call["id"].clone());
        timed_out(&desk, &answer, begun, &marker);
    }

    fn over_http() {
        let mut desk = Desk::http(Launch::over(&Workspace::new()));
        let (call, marker) = sleeping(&mut desk);
        let begun = Instant::now();
        let mut connection = desk.connect();
        connection.post(&Post::bytes(call.to_string().as_bytes()).to("/workstation"));
        marker.started();
        // Who calls meanwhile is answered.
        while begun.elapsed() < Duration::from_secs(28) {
            thread::sleep(Duration::from_secs(2));
            assert_eq!(desk.ask("ping", Value::Null)["result"], json!({}));
        }
        let response = connection.response();
        assert_eq!(response.status, 200, "{response:?}");
        timed_out(&desk, &response.json(), begun, &marker);
    }
}

/// A call that sleeps longer than it may, and by what its program is known.
fn sleeping(desk: &mut Desk) -> (Value, Marker) {
    let marker = Marker::new();
    let command = format!("sleep {}", marker.0);
    let params = json!({ "name": "ci/run", "arguments": { "command": command } });
    (desk.request("tools/call", params), marker)
}

/// Checks that what began at `begun` was ended in its thirtieth second, with its program.
#[track_caller]
fn timed_out(desk: &Desk, answer: &Value, begun: Instant, marker: &Marker) {
    let took = begun.elapsed();
    let (code, words, data) = refused(answer);
    assert_eq!((code, words.as_str()), (-32000, "Tool execution timeout"), "{data}");
    assert!(took >= Duration::from_secs(29) && took <= Duration::from_secs(31), "{took:?}");
    marker.gone();
    assert_eq!(desk.server().outcomes(1), ["timed_out"]);
}

#[test]
fn s2_22_a_call_that_is_cancelled_ends_its_program() {
    let workspace = Workspace::new();
    let mut desk = Desk::stdio(Launch::over(&workspace));
    let marker = Marker::new();
    let arguments = json!({ "command": "sleep", "args": [marker.0] });
    let call = desk.request("tools/call", json!({ "name": "exec/run", "arguments": arguments }));
    desk.stream().send(&call);
    marker.started();
    desk.tell(&notification("notifications/cancelled", json!({ "requestId": call["id"] })));
    marker.gone();
    // It is not answered; what comes next is.
    let ping = desk.request("ping", Value::Null);
    assert_eq!(desk.exchange(&ping)["result"], json!({}));
    assert_eq!(desk.server().outcomes(1), ["canceled"]);

    // Over HTTP a client that leaves cancels.
    let desk = Desk::http(Launch::over(&workspace));
    let marker = Marker::new();
    let arguments = json!({ "command": "sleep", "args": [marker.0] });
    let params = json!({ "name": "exec/run", "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let mut connection = desk.connect();
    connection.post(&Post::bytes(call.to_string().as_bytes()).to("/workstation"));
    marker.started();
    connection.close();
    marker.gone();
}

#[test]
fn s2_21_34_sixteen_calls_go_on_at_once_and_none_keeps_another_waiting() {
    let workspace = Workspace::new();
    let mut desk = Desk::stdio(Launch::over(&workspace));
    let begun = Instant::now();
    let calls: Vec<Value> = (0..16)
        .map(|_| {
            let arguments = json!({ "command": "sleep 1" });
            desk.request("tools/call", json!({ "name": "ci/run", "arguments": arguments }))
        })
        .collect();
    for call in &calls {
        desk.stream().send(call);
    }
    // A read that comes after all of them is answered before any.
    let params = json!({ "name": "filesystem/read", "arguments": { "path": "README.md" } });
    let read = desk.request("tools/call", params);
    desk.stream().send(&read);
    assert_eq!(desk.stream().receive()["id"], read["id"]);
    for call in calls.iter().rev() {
        let answer = desk.stream().answer(call["id"].clone());
        assert_eq!(answer["result"]["content"], "Exit Code: 0\n", "{answer}");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// The time that 95 of 100 stay under.
fn p95(count: usize, mut work: impl FnMut()) -> Duration {
    let mut all: Vec<Duration> = (0..count)
        .map(|_| {
            let begun = Instant::now();
            work();
            begun.elapsed()
        })
        .collect();
    all.sort_unstable();
    all[count * 95 / 100]
}

#[test]
fn s2_32_33_discovery_and_calls_take_less_than_the_contract_gives_them() {
    let workspace = repository(3).file("new.txt", "");
    over_all(&workspace, |desk| {
        // A thousand over the four ways.
        let discovery = p95(250, || {
            assert!(desk.ask("tools/list", Value::Null)["result"].is_object());
        });
        assert!(discovery < Duration::from_millis(100), "{discovery:?}");
        let read = p95(100, || {
            desk.content("filesystem/read", json!({ "path": "README.md" }));
        });
        let status = p95(20, || {
            let arguments = json!({ "repositoryPath": "." });
            assert!(desk.content("git/status", arguments).contains("?? new.txt"));
        });
        let most = Duration::from_secs(5);
        assert!(read < most && status < most, "{read:?} {status:?}");
    });
}
