//! Tests of assets that are sent to a backend.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ServerLaunchOptions, TempWorkspace, TestHttpRequest, at_once, initialize};

use super::adapter::{SynestheticAdapterOptions, SynestheticAdapterProcess, fixture, line};
use super::backend::{AssetBackendProcess, unreachable_url};

const NONE: [Value; 0] = [];

fn tone() -> Value {
    json!({ "$schemaRef": "jsonschema/tone.schema.json", "name": "Low hum", "frequency": 110.5, "volume": 1.0 })
}

fn with_backend(backend: &AssetBackendProcess) -> SynestheticAdapterOptions {
    SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", backend.url())
}

fn populate(adapter: &mut SynestheticAdapterProcess, asset: Value) -> Value {
    adapter.call("populate_backend", json!({ "asset": asset }))
}

#[test]
fn s0_16_62_populate_is_unsupported_without_a_backend_url() {
    let disabled = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":false,"reason":"unsupported","detail":"backend disabled"}}"#;
    for start in [
        SynestheticAdapterOptions::at(&fixture()),
        SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", ""),
    ] {
        let mut adapter = start.ready();
        adapter.send(&line(1, "populate_backend", json!({ "asset": tone() })));
        assert_eq!(adapter.receive(), disabled);
    }
    let mut backend = AssetBackendProcess::start();
    assert_eq!(populate(&mut with_backend(&backend).ready(), tone())["ok"], true);
    assert_eq!(backend.requests().len(), 1);
}

#[test]
fn s0_06_an_invalid_asset_is_sent_only_if_validate_first_is_false() {
    let mut backend = AssetBackendProcess::start();
    let mut adapter = with_backend(&backend).ready();
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
        let result = adapter.call("populate_backend", params.clone());
        assert_eq!(result["ok"], false, "{params}");
        assert_eq!(result["reason"], "validation_failed", "{params}: {result}");
        assert!(result["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{result}");
    }
    assert_eq!(backend.requests(), NONE);
    let result = adapter.call("populate_backend", json!({ "asset": bad, "validate_first": false }));
    assert_eq!(result["ok"], true, "{result}");
    assert_eq!(backend.requests().len(), 1);
    // The errors are those of `validate_asset`.
    let validation =
        adapter.call("validate_asset", json!({ "asset": { "name": "" }, "schema": "tone" }));
    let strict = json!({ "$schemaRef": "tone.schema.json", "name": "" });
    assert_eq!(populate(&mut adapter, strict)["errors"], validation["errors"]);
    assert_eq!(backend.requests(), NONE);
}

#[test]
fn s0_43_63_an_asset_is_posted_unchanged_and_its_backend_id_is_returned() {
    let mut backend = AssetBackendProcess::start();
    let mut adapter = with_backend(&backend).ready();
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
        let result = populate(&mut adapter, tone());
        let keys: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["ok", "asset_id", "backend_url"], "{result}");
        assert_eq!((&result["ok"], &result["asset_id"]), (&json!(true), &json!(id)), "{body}");
        let url = result["backend_url"].as_str().unwrap();
        assert!(url.starts_with(&backend.url()), "{url}");
        let requests = backend.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(
            (&requests[0]["method"], &requests[0]["path"]),
            (&json!("POST"), &json!("/synesthetic-assets/"))
        );
        assert!(requests[0]["type"].as_str().unwrap().starts_with("application/json"));
        let sent: Value = serde_json::from_str(requests[0]["body"].as_str().unwrap()).unwrap();
        assert_eq!(sent.to_string(), tone().to_string());
    }
}

#[test]
fn s0_19_63_the_assets_path_is_configurable() {
    let mut backend = AssetBackendProcess::start();
    for (path, wanted) in [
        ("custom", "/custom"),
        ("/custom", "/custom"),
        ("/a/b/", "/a/b/"),
        ("", "/synesthetic-assets/"),
    ] {
        let mut adapter = with_backend(&backend).env("SYN_BACKEND_ASSETS_PATH", path).ready();
        assert_eq!(populate(&mut adapter, tone())["ok"], true);
        assert_eq!(backend.requests()[0]["path"], wanted, "{path}");
    }
    // A slash at the end of the address is not doubled.
    let start =
        SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", backend.url() + "/");
    assert_eq!(populate(&mut start.ready(), tone())["ok"], true);
    assert_eq!(backend.requests()[0]["path"], "/synesthetic-assets/");
}

#[test]
fn s0_18_55_66_a_backend_error_is_returned_and_not_retried() {
    let mut backend = AssetBackendProcess::start();
    let mut adapter = with_backend(&backend).ready();
    backend.behave(json!({ "status": 500, "body": "internal error" }));
    adapter.send(&line(1, "populate_backend", json!({ "asset": tone() })));
    let wanted = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":false,"reason":"backend_error","status":500,"detail":"internal error"}}"#;
    assert_eq!(adapter.receive(), wanted);
    assert_eq!(backend.requests().len(), 1);
    for (status, body, headers) in [
        (404, "no such path", json!({})),
        (422, r#"{"error":"no"}"#, json!({})),
        (503, "", json!({ "retry-after": "0" })),
        // Redirects are not followed.
        (302, "elsewhere", json!({ "location": "/elsewhere" })),
        (307, "elsewhere", json!({ "location": backend.url() })),
    ] {
        backend.behave(json!({ "status": status, "body": body, "headers": headers }));
        let result = populate(&mut adapter, tone());
        let wanted =
            json!({ "ok": false, "reason": "backend_error", "status": status, "detail": body });
        assert_eq!(result, wanted);
        assert_eq!(backend.requests().len(), 1, "{status}");
    }
}

#[test]
fn s0_17_18_66_a_backend_request_times_out_after_five_seconds_without_a_retry() {
    let mut backend = AssetBackendProcess::with_behaviour(
        json!({ "status": 201, "body": r#"{"id":"late"}"#, "delay": 7 }),
    );
    let mut adapter = with_backend(&backend).ready();
    let started = Instant::now();
    let result = populate(&mut adapter, tone());
    let took = started.elapsed();
    assert_eq!(result, unreachable());
    assert!((Duration::from_secs(5)..Duration::from_secs(6)).contains(&took), "{took:?}");
    assert_eq!(backend.requests().len(), 1);
    // A slow answer within the limit is awaited.
    backend.behave(json!({ "status": 201, "body": r#"{"id":"in time"}"#, "delay": 2 }));
    assert_eq!(populate(&mut adapter, tone())["asset_id"], "in time");
    assert_eq!(backend.requests().len(), 1);
}

#[test]
fn an_unusable_backend_url_fails_populate_and_nothing_else() {
    for url in ["localhost:9000", "ftp://assets.example", "https://"] {
        let mut adapter =
            SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", url).ready();
        assert_eq!(adapter.call("list_schemas", json!({}))["ok"], true, "{url}");
        let result = populate(&mut adapter, tone());
        let known = ["ok", "reason", "status"].map(|name| result[name].clone());
        assert_eq!(known, [json!(false), json!("backend_error"), json!(503)], "{result}");
        let detail = result["detail"].as_str().unwrap();
        assert!(detail.starts_with("the backend's URL is unusable: it "), "{detail}");
        let log = adapter.log();
        assert!(log.contains("SYN_BACKEND_URL") && log.contains(url), "{log}");
    }
}

#[test]
fn a_missing_folder_of_assets_fails_only_a_server_for_synesthetic() {
    let workspace = TempWorkspace::new();
    let launch =
        || ServerLaunchOptions::over(&workspace).env("SYN_SCHEMAS_DIR", workspace.path("missing"));
    let served = launch().served();
    assert_eq!(served.send(&TestHttpRequest::mcp(&initialize(0, "2025-06-18"))).status, 200);
    let log = served.log();
    assert!(log.contains("no assets are served") && log.contains("missing"), "{log}");
}

fn unreachable() -> Value {
    json!({ "ok": false, "reason": "backend_error", "status": 503, "detail": "network_unreachable" })
}

#[test]
fn s0_18_57_an_unreachable_backend_is_reported_as_network_unreachable() {
    let mut backend = AssetBackendProcess::with_behaviour(json!({ "reset": true }));
    let addresses = [unreachable_url(), "http://nothing.invalid".to_owned(), backend.url()];
    at_once(addresses, |address| {
        let mut adapter =
            SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", &address).ready();
        adapter.send(&line(1, "populate_backend", json!({ "asset": tone() })));
        let wanted = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":false,"reason":"backend_error","status":503,"detail":"network_unreachable"}}"#;
        assert_eq!(adapter.receive(), wanted, "{address}");
    });
    assert_eq!(backend.requests().len(), 1, "a reset connection is not retried");
    // Proxy variables of the environment are ignored.
    let with_proxy = with_backend(&backend)
        .env("HTTP_PROXY", unreachable_url())
        .env("http_proxy", unreachable_url());
    backend.behave(json!({ "status": 201, "body": r#"{"id":"direct"}"# }));
    assert_eq!(populate(&mut with_proxy.ready(), tone())["asset_id"], "direct");
}
