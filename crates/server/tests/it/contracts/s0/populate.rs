//! Assets sent to a backend.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::at_once;

use super::adapter::{Adapter, Start, fixture, line};
use super::backend::{Backend, nowhere};

const NONE: [Value; 0] = [];

fn tone() -> Value {
    json!({ "$schemaRef": "jsonschema/tone.schema.json", "name": "Low hum", "frequency": 110.5, "volume": 1.0 })
}

fn before(backend: &Backend) -> Start {
    Start::at(&fixture()).env("SYN_BACKEND_URL", backend.url())
}

fn populate(adapter: &mut Adapter, asset: Value) -> Value {
    adapter.call("populate_backend", json!({ "asset": asset }))
}

#[test]
fn s0_16_62_without_an_address_there_is_no_backend() {
    let disabled = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":false,"reason":"unsupported","detail":"backend disabled"}}"#;
    for start in [Start::at(&fixture()), Start::at(&fixture()).env("SYN_BACKEND_URL", "")] {
        let mut adapter = start.ready();
        adapter.send(&line(1, "populate_backend", json!({ "asset": tone() })));
        assert_eq!(adapter.receive(), disabled);
    }
    let mut backend = Backend::start();
    assert_eq!(populate(&mut before(&backend).ready(), tone())["ok"], true);
    assert_eq!(backend.came().len(), 1);
}

#[test]
fn s0_06_what_is_invalid_is_not_sent_unless_it_is_asked_for_as_it_is() {
    let mut backend = Backend::start();
    let mut adapter = before(&backend).ready();
    let bad = json!({ "schema": "tone", "name": "" });
    for params in [
        json!({ "asset": bad }),
        json!({ "asset": bad, "validate_first": true }),
        json!({ "asset": bad, "validate_first": null }),
        json!({ "asset": { "schema": "nothing" } }),
        json!({ "asset": [] }),
        json!({ "asset": null }),
        json!({}),
    ] {
        let told = adapter.call("populate_backend", params.clone());
        assert_eq!(told["ok"], false, "{params}");
        assert_eq!(told["reason"], "validation_failed", "{params}: {told}");
        assert!(told["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{told}");
    }
    assert_eq!(backend.came(), NONE);
    let told = adapter.call("populate_backend", json!({ "asset": bad, "validate_first": false }));
    assert_eq!(told["ok"], true, "{told}");
    assert_eq!(backend.came().len(), 1);
    // The same as `validate_asset` says.
    let judged =
        adapter.call("validate_asset", json!({ "asset": { "name": "" }, "schema": "tone" }));
    let strict = json!({ "$schemaRef": "tone.schema.json", "name": "" });
    assert_eq!(populate(&mut adapter, strict)["errors"], judged["errors"]);
    assert_eq!(backend.came(), NONE);
}

#[test]
fn s0_43_63_an_asset_is_posted_as_it_is_and_its_name_there_is_told() {
    let mut backend = Backend::start();
    let mut adapter = before(&backend).ready();
    for (status, body, id) in [
        (201, r#"{"id":"xyz"}"#, "xyz"),
        (200, r#"{"id":42}"#, "42"),
        (202, r#"{"name":"x"}"#, ""),
        (200, r#"{"id":null}"#, ""),
        (200, "[1]", ""),
        (201, "created", ""),
        (204, "", ""),
    ] {
        backend.behave(json!({ "status": status, "body": body }));
        let told = populate(&mut adapter, tone());
        let keys: Vec<_> = told.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["ok", "asset_id", "backend_url"], "{told}");
        assert_eq!((&told["ok"], &told["asset_id"]), (&json!(true), &json!(id)), "{body}");
        let url = told["backend_url"].as_str().unwrap();
        assert!(url.starts_with(&backend.url()), "{url}");
        let came = backend.came();
        assert_eq!(came.len(), 1);
        assert_eq!(
            (&came[0]["method"], &came[0]["path"]),
            (&json!("POST"), &json!("/synesthetic-assets/"))
        );
        assert!(came[0]["type"].as_str().unwrap().starts_with("application/json"));
        let sent: Value = serde_json::from_str(came[0]["body"].as_str().unwrap()).unwrap();
        assert_eq!(sent.to_string(), tone().to_string());
    }
}

#[test]
fn s0_19_63_the_path_can_be_another() {
    let mut backend = Backend::start();
    for (path, wanted) in [
        ("custom", "/custom"),
        ("/custom", "/custom"),
        ("/a/b/", "/a/b/"),
        ("", "/synesthetic-assets/"),
    ] {
        let mut adapter = before(&backend).env("SYN_BACKEND_ASSETS_PATH", path).ready();
        assert_eq!(populate(&mut adapter, tone())["ok"], true);
        assert_eq!(backend.came()[0]["path"], wanted, "{path}");
    }
    // A slash at the end of the address is not doubled.
    let start = Start::at(&fixture()).env("SYN_BACKEND_URL", backend.url() + "/");
    assert_eq!(populate(&mut start.ready(), tone())["ok"], true);
    assert_eq!(backend.came()[0]["path"], "/synesthetic-assets/");
}

#[test]
fn s0_18_55_66_what_the_backend_refuses_is_told_and_not_tried_again() {
    let mut backend = Backend::start();
    let mut adapter = before(&backend).ready();
    backend.behave(json!({ "status": 500, "body": "internal error" }));
    adapter.send(&line(1, "populate_backend", json!({ "asset": tone() })));
    let wanted = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":false,"reason":"backend_error","status":500,"detail":"internal error"}}"#;
    assert_eq!(adapter.receive(), wanted);
    assert_eq!(backend.came().len(), 1);
    for (status, body, headers) in [
        (404, "no such path", json!({})),
        (422, r#"{"error":"no"}"#, json!({})),
        (503, "", json!({ "retry-after": "0" })),
        // Where it leads is not gone to.
        (302, "elsewhere", json!({ "location": "/elsewhere" })),
        (307, "elsewhere", json!({ "location": backend.url() })),
    ] {
        backend.behave(json!({ "status": status, "body": body, "headers": headers }));
        let told = populate(&mut adapter, tone());
        let wanted =
            json!({ "ok": false, "reason": "backend_error", "status": status, "detail": body });
        assert_eq!(told, wanted);
        assert_eq!(backend.came().len(), 1, "{status}");
    }
}

#[test]
fn s0_17_18_66_a_backend_has_five_seconds_and_one_try() {
    let mut backend =
        Backend::that(json!({ "status": 201, "body": r#"{"id":"late"}"#, "delay": 7 }));
    let mut adapter = before(&backend).ready();
    let begun = Instant::now();
    let told = populate(&mut adapter, tone());
    let took = begun.elapsed();
    assert_eq!(told, unreachable());
    assert!((Duration::from_secs(5)..Duration::from_secs(6)).contains(&took), "{took:?}");
    assert_eq!(backend.came().len(), 1);
    // One that is in time is waited for.
    backend.behave(json!({ "status": 201, "body": r#"{"id":"in time"}"#, "delay": 2 }));
    assert_eq!(populate(&mut adapter, tone())["asset_id"], "in time");
    assert_eq!(backend.came().len(), 1);
}

fn unreachable() -> Value {
    json!({ "ok": false, "reason": "backend_error", "status": 503, "detail": "network_unreachable" })
}

#[test]
fn s0_18_57_a_backend_that_is_not_reached_is_told_in_these_words() {
    let mut backend = Backend::that(json!({ "reset": true }));
    let addresses = [nowhere(), "http://nothing.invalid".to_owned(), backend.url()];
    at_once(addresses, |address| {
        let mut adapter = Start::at(&fixture()).env("SYN_BACKEND_URL", &address).ready();
        adapter.send(&line(1, "populate_backend", json!({ "asset": tone() })));
        let wanted = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":false,"reason":"backend_error","status":503,"detail":"network_unreachable"}}"#;
        assert_eq!(adapter.receive(), wanted, "{address}");
    });
    assert_eq!(backend.came().len(), 1, "a reset is not tried again");
    // A proxy of the environment's is not asked in its place.
    let away = before(&backend).env("HTTP_PROXY", nowhere()).env("http_proxy", nowhere());
    backend.behave(json!({ "status": 201, "body": r#"{"id":"direct"}"# }));
    assert_eq!(populate(&mut away.ready(), tone())["asset_id"], "direct");
}
