//! Tests of shutdown: in order at the first signal, at once at the second, and without leftover
//! processes.

mod killed;

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{
    NOTHING, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpRequest, call, descendants,
    is_alive, legacy, modern, notification, refusal, sleeps, structured, wait_until,
    wait_until_closed, waits_for_go,
};

const SIGNALS: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

#[test]
fn a_signal_lets_the_call_in_flight_finish_over_http() {
    for signal in SIGNALS {
        let workspace = TempWorkspace::new();
        let served = ServerLaunchOptions::over(&workspace).served();
        let marker = ProcessMarker::new();
        let mut connection = served.connect();
        connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", waits_for_go(&marker))));
        marker.wait_until_running();
        served.signal(signal);
        wait_until_closed(served.addr);
        assert!(served.is_running());
        workspace.put("go", "");
        assert_eq!(structured(&connection.response().message())["stdout"], "began\nwent\n");
        assert_eq!(served.wait_for_exit().code(), Some(0), "{signal:?}");
        assert!(marker.pids().is_empty());
        assert_eq!(served.outcomes(1), ["ok"]);
    }
}

#[test]
fn a_signal_lets_a_stream_in_flight_finish() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let session = served.session("2025-11-25");
    let params = json!({ "name": "exec_run", "arguments": waits_for_go(&ProcessMarker::new()) });
    let mut connection = served.connect();
    connection.post(
        &TestHttpRequest::mcp(&legacy(1, "tools/call", params)).with("mcp-session-id", &session),
    );
    assert!(connection.head().is_stream());
    wait_until("the program runs", || workspace.path("began").exists());
    served.signal(Signal::TERM);
    wait_until_closed(served.addr);
    workspace.put("go", "");
    assert_eq!(structured(&connection.event().unwrap())["stdout"], "began\nwent\n");
    assert_eq!(connection.event(), None);
    assert_eq!(served.wait_for_exit().code(), Some(0));
}

#[test]
fn a_signal_lets_a_call_finish_whose_client_has_disconnected() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let session = served.session("2025-11-25");
    let marker = ProcessMarker::new();
    let params = json!({ "name": "exec_run", "arguments": waits_for_go(&marker) });
    let mut connection = served.connect();
    connection.post(
        &TestHttpRequest::mcp(&legacy(1, "tools/call", params)).with("mcp-session-id", &session),
    );
    marker.wait_until_running();
    connection.close();
    served.signal(Signal::TERM);
    wait_until_closed(served.addr);
    workspace.put("go", "");
    assert_eq!(served.wait_for_exit().code(), Some(0));
    assert!(workspace.path("went").exists());
    assert_eq!(served.outcomes(1), ["ok"]);
}

#[test]
fn a_signal_lets_the_call_in_flight_finish_over_stdio() {
    for signal in SIGNALS {
        let workspace = TempWorkspace::new();
        let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
        let marker = ProcessMarker::new();
        stdio.send(&call(1, "exec_run", waits_for_go(&marker)));
        marker.wait_until_running();
        stdio.signal(signal);
        wait_until("the signal is logged", || stdio.log().contains("waits for calls in flight"));
        workspace.put("go", "");
        assert_eq!(structured(&stdio.answer(1))["stdout"], "began\nwent\n");
        assert_eq!(stdio.wait_for_exit().code(), Some(0), "{signal:?}");
        assert!(marker.pids().is_empty());
    }
}

#[test]
fn a_call_that_does_not_finish_in_time_is_stopped_and_answered_over_stdio() {
    let mut stdio =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_drain_ms", 200).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", sleeps(&marker)));
    marker.wait_until_running();
    stdio.signal(Signal::TERM);
    let message = refusal(&stdio.answer(1));
    assert!(message.contains("the server is stopping"), "{message}");
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert!(marker.pids().is_empty());
    assert_eq!(stdio.outcomes(1), ["canceled"]);
}

#[test]
fn a_call_that_does_not_finish_in_time_is_stopped_and_answered_over_http() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_drain_ms", 200).served();
    let marker = ProcessMarker::new();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", sleeps(&marker))));
    marker.wait_until_running();
    served.signal(Signal::TERM);
    let message = refusal(&connection.response().message());
    assert!(message.contains("the server is stopping"), "{message}");
    assert_eq!(served.wait_for_exit().code(), Some(0));
    assert!(marker.pids().is_empty());
    assert_eq!(served.outcomes(1), ["canceled"]);
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let marker = ProcessMarker::new();
    let stdio = {
        let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
        stdio.send(&call(1, "exec_run", sleeps(&marker)));
        stdio
    };
    marker.wait_until_running();
    stdio.signal(Signal::INT);
    wait_until("the first signal is logged", || stdio.log().contains("waits for calls in flight"));
    stdio.signal(Signal::INT);
    assert_eq!(stdio.wait_for_exit().code(), Some(130));
    marker.wait_until_gone();

    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", sleeps(&marker))));
    marker.wait_until_running();
    served.signal(Signal::TERM);
    wait_until_closed(served.addr);
    served.signal(Signal::TERM);
    assert_eq!(served.wait_for_exit().code(), Some(130));
    marker.wait_until_gone();
}

#[test]
fn idle_connections_do_not_delay_the_end() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let mut used = served.connect();
    used.post(&TestHttpRequest::mcp(&modern(1, "tools/list", json!({}))));
    assert_eq!(used.response().status, 200);
    let _used_and_fresh = (used, served.connect());
    let started = Instant::now();
    served.signal(Signal::TERM);
    assert_eq!(served.wait_for_exit().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn a_request_over_a_connection_that_was_just_opened_is_answered_after_the_signal() {
    for _ in 0..20 {
        let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
        let opened = Instant::now();
        let mut connection = served.connect();
        served.signal(Signal::TERM);
        wait_until_closed(served.addr);
        // Longer than the server waits for a late request over a connection that was used before.
        sleep(Duration::from_millis(300));
        let request = TestHttpRequest::mcp(&modern(1, "tools/list", json!({})));
        connection.try_write(&request.to_bytes(served.addr));
        // A busy machine may send the request too late: then only another try shows it.
        if opened.elapsed() < Duration::from_millis(900) {
            let answer = String::from_utf8(connection.read_until_closed()).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert_eq!(served.wait_for_exit().code(), Some(0));
            return;
        }
    }
    panic!("no request was sent in time");
}

#[test]
fn a_late_request_over_an_idle_connection_is_answered_and_the_connection_closes() {
    for _ in 0..20 {
        let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
        let mut connection = served.connect();
        let request = TestHttpRequest::mcp(&modern(1, "tools/list", json!({})));
        connection.post(&request);
        let first = connection.response();
        assert_eq!((first.head.status, first.head.header("connection")), (200, None));
        let signaled = Instant::now();
        served.signal(Signal::TERM);
        wait_until_closed(served.addr);
        connection.try_write(&request.to_bytes(served.addr));
        // A busy machine may send the request too late: then only another try shows it.
        if signaled.elapsed() < Duration::from_millis(90) {
            let answer = String::from_utf8(connection.read_until_closed()).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
            assert_eq!(served.wait_for_exit().code(), Some(0));
            return;
        }
    }
    panic!("no request was sent in time");
}

#[test]
fn requests_before_the_end_of_input_are_answered() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    for id in 0..100 {
        stdio.send(&call(id, "files_read", json!({ "path": "README.md" })));
    }
    stdio.close_input();
    let mut ids: Vec<_> =
        stdio.read_rest().iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert_eq!(stdio.records().len(), 100);
}

#[test]
fn the_end_of_input_stops_long_calls_and_answers_them() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", sleeps(&marker)));
    marker.wait_until_running();
    stdio.send(&call(2, "files_read", json!({ "path": "README.md" })));
    let started = Instant::now();
    stdio.close_input();
    let answers = stdio.read_rest();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(marker.pids().is_empty());
    let ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [2, 1], "{answers:?}");
    assert!(refusal(&answers[1]).contains("closed the connection"), "{answers:?}");
    assert_eq!(stdio.outcomes(2), ["ok", "canceled"]);
}

#[test]
fn a_killed_server_leaves_no_program_running() {
    let workspace = TempWorkspace::new();
    for nth in 0..2 {
        let marker = ProcessMarker::new();
        let ask = call(1, "exec_run", sleeps(&marker));
        if nth == 0 {
            let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
            stdio.send(&ask);
            let program = marker.wait_until_running();
            assert!(descendants(stdio.pid).contains(&program));
            stdio.signal(Signal::KILL);
            stdio.wait_for_exit();
        } else {
            let served = ServerLaunchOptions::over(&workspace).served();
            let mut connection = served.connect();
            connection.post(&TestHttpRequest::mcp(&ask));
            let program = marker.wait_until_running();
            assert!(is_alive(program));
            served.signal(Signal::KILL);
            served.wait_for_exit();
        }
        marker.wait_until_gone();
    }
}

#[test]
fn a_client_that_closes_its_output_ends_the_server() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", sleeps(&marker)));
    marker.wait_until_running();
    stdio.close_output();
    stdio.send(&call(2, "files_read", json!({ "path": "README.md" })));
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert!(marker.pids().is_empty());
}

#[test]
fn a_client_that_closes_input_and_output_ends_the_server() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", sleeps(&marker)));
    marker.wait_until_running();
    stdio.close_output();
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert!(marker.pids().is_empty());
}

#[test]
fn standard_output_has_only_messages() {
    let mut stdio =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("log_level", "trace").stdio();
    // The client checks that each line is a message.
    stdio.send(&notification("notifications/unheard-of", json!({})));
    let printf = json!({ "command": "printf", "args": ["on stdout"] });
    assert_eq!(structured(&stdio.ask(&call(1, "exec_run", printf)))["stdout"], "on stdout");
    stdio.ask(&call(2, "files_read", json!({ "path": "none" })));
    stdio.signal(Signal::TERM);
    assert_eq!(stdio.read_rest(), NOTHING);
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
}

#[test]
fn a_client_that_does_not_read_does_not_keep_the_server_from_ending() {
    for how in ["input", "signal"] {
        let workspace = TempWorkspace::new().file("page.txt", "a line of text\n".repeat(4000));
        let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
        for id in 0..40 {
            stdio.send(&call(id, "files_read", json!({ "path": "page.txt" })));
        }
        let started = Instant::now();
        match how {
            "input" => stdio.close_input(),
            _ => stdio.signal(Signal::TERM),
        }
        if how == "signal" {
            // The first signal lets calls in flight finish; the second does not wait.
            stdio.signal(Signal::TERM);
        }
        stdio.wait_for_exit();
        assert!(started.elapsed() < Duration::from_secs(10), "{how}: {:?}", started.elapsed());
    }
}

#[test]
fn nohup_is_honoured() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).through(&["nohup"]).served();
    served.signal(Signal::HUP);
    let list = TestHttpRequest::mcp(&modern(1, "tools/list", json!({})));
    assert_eq!(served.send(&list).status, 200);
    served.signal(Signal::TERM);
    assert_eq!(served.wait_for_exit().code(), Some(0));
}
