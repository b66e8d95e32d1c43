//! Tests that lines are answered in order, and that a signal lets the request in flight finish.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{at_once, wait_until};

use super::adapter::{SynestheticAdapterOptions, SynestheticAdapterProcess, fixture, line};
use super::backend::AssetBackendProcess;

fn populate(id: impl Into<Value>) -> String {
    let asset = json!({ "name": "Low hum", "frequency": 1, "schema": "tone" });
    line(id, "populate_backend", json!({ "asset": asset, "validate_first": false }))
}

/// Returns an adapter with a backend that takes `delay` seconds.
fn slow(delay: f64) -> (SynestheticAdapterProcess, AssetBackendProcess) {
    let behaviour = json!({ "status": 201, "body": r#"{"id":"late"}"#, "delay": delay });
    let backend = AssetBackendProcess::with_behaviour(behaviour);
    let adapter =
        SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", backend.url()).ready();
    (adapter, backend)
}

#[track_caller]
fn ids(frames: &[String]) -> Vec<Value> {
    let id = |frame: &String| serde_json::from_str::<Value>(frame).unwrap()["id"].clone();
    frames.iter().map(id).collect()
}

#[test]
fn s0_27_a_hundred_lines_are_answered_in_order_behind_a_slow_one() {
    let (mut adapter, mut backend) = slow(1.0);
    let mut lines = vec![populate(0)];
    let mut wanted = vec![json!(0)];
    for id in 1..100 {
        // Some are run, some are answered without running, some are refused, and some are too long.
        let (line, answer_id) = match id % 6 {
            0 => (line(id, "list_examples", json!({})), json!(id)),
            1 => (line(id, "explode", json!({})), json!(id)),
            2 => ("[]".to_owned(), Value::Null),
            3 => (line(id, "get_schema", json!({ "name": "tone" })), json!(id)),
            4 => ("x".repeat((1 << 20) + 1), Value::Null),
            _ => (line(id, "diff_assets", json!({ "base": id, "new": 0 })), json!(id)),
        };
        lines.push(line);
        wanted.push(answer_id);
    }
    lines.push(populate(100));
    wanted.push(json!(100));
    let started = Instant::now();
    adapter.write((lines.join("\n") + "\n").as_bytes());
    let frames: Vec<_> = wanted.iter().map(|_| adapter.receive()).collect();
    assert!(started.elapsed() >= Duration::from_secs(2), "the backend was not slow");
    assert_eq!(ids(&frames), wanted);
    assert_eq!(backend.requests().len(), 2);
}

#[test]
fn s0_27_a_request_starts_only_after_the_previous_one_is_answered() {
    let (mut adapter, mut backend) = slow(0.7);
    adapter.send(&populate(1));
    adapter.send(&populate(2));
    adapter.receive();
    adapter.receive();
    let arrivals: Vec<_> = backend.requests().iter().map(|it| it["at"].as_f64().unwrap()).collect();
    let [first, second] = arrivals[..] else { panic!("{arrivals:?}") };
    assert!(second - first >= 0.7, "both ran at once: {arrivals:?}");
}

#[test]
fn s0_31_76_after_a_signal_the_request_in_flight_finishes_and_no_other_starts() {
    at_once([Signal::INT, Signal::TERM], |signal| {
        let (mut adapter, mut backend) = slow(2.0);
        adapter.send(&populate("in flight"));
        adapter.send(&populate("queued"));
        adapter.send(&line("queued too", "list_schemas", json!({})));
        let mut requests = Vec::new();
        wait_until("the backend has the asset", || {
            requests.extend(backend.requests());
            !requests.is_empty()
        });
        adapter.signal(signal);
        let frames = adapter.read_rest();
        let wanted = format!(
            r#"{{"jsonrpc":"2.0","id":"in flight","result":{{"ok":true,"asset_id":"late","backend_url":"{}/synesthetic-assets/"}}}}"#,
            backend.url()
        );
        let in_flight = frames.first().expect("the request in flight finishes");
        assert!(
            in_flight.starts_with(&wanted[..wanted.find("backend_url").unwrap()]),
            "{in_flight}"
        );
        assert_eq!(ids(&frames), ["in flight"]);
        assert_eq!(adapter.wait_for_exit().code(), Some(0), "{signal:?}");
        assert_eq!(backend.requests().len(), 0, "a queued request was started");
        assert!(adapter.log().contains("mcp:shutdown mode=stdio"), "{}", adapter.log());
        assert!(!adapter.ready_file.as_ref().unwrap().exists());
    });
}

#[test]
fn s0_76_a_signal_stops_an_idle_adapter_with_exit_code_zero() {
    at_once([Signal::INT, Signal::TERM], |signal| {
        // The signal handlers are installed before the adapter is ready.
        let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
        adapter.signal(signal);
        assert_eq!(adapter.wait_for_exit().code(), Some(0), "{signal:?}");
        assert_eq!(adapter.read_rest(), [] as [&str; 0]);
    });
}

#[test]
fn s0_73_lines_sent_before_the_input_ended_are_answered_even_if_slow() {
    let (mut adapter, _backend) = slow(3.0);
    adapter.send(&populate(1));
    adapter.send(&line(2, "list_schemas", json!({})));
    adapter.close_input();
    let frames = adapter.read_rest();
    assert_eq!(ids(&frames), [1, 2]);
    assert!(frames[0].contains(r#""ok":true,"asset_id":"late""#), "{}", frames[0]);
    assert_eq!(adapter.wait_for_exit().code(), Some(0));
}
