//! Tests of the metrics page, `GET /metrics`.

use std::fs;

use serde_json::json;

use super::exposition::MetricsExposition;
use crate::support::{
    HttpServerProcess, ProcessMarker, REVISIONS, ServerLaunchOptions, TempWorkspace,
    TestHttpRequest, TestHttpResponse, binary, call, job_params, modern, sleeps, wait_until,
};

fn launch() -> ServerLaunchOptions {
    ServerLaunchOptions::over(&TempWorkspace::new()).set("telemetry_metrics", "true")
}

fn page(served: &HttpServerProcess) -> TestHttpResponse {
    served.send(&TestHttpRequest::bare("GET", "/metrics"))
}

#[track_caller]
fn metrics(served: &HttpServerProcess) -> MetricsExposition {
    let page = page(served);
    assert_eq!(page.status, 200, "{page:?}");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(page.header("content-type"), Some(kind));
    MetricsExposition::parse(&page.text())
}

#[test]
fn calls_are_counted_by_tool_dialect_and_outcome_without_input_in_labels() {
    let served = launch().served();
    served.ask(&call(1, "files_exists", json!({ "path": "." })));
    served.ask(&call(2, "files.exists", json!({ "path": "." })));
    served.ask(&call(3, "files_read", json!({ "path": "made-up-path" })));
    for name in ["made_up", "made.up", "also_made_up\"}"] {
        served.ask(&call(4, name, json!({})));
    }
    served.ask(&modern(5, "resources/read", json!({ "uri": "made-up://uri" })));
    served.ask(&modern(6, "prompts/get", json!({ "name": "made_up" })));
    served.ask(&modern(7, "prompts/get", json!({ "name": "bootstrap" })));
    served.ask(&modern(8, "resources/read", json!({ "uri": "audit://tail" })));
    served.rpc("tools/call", json!({ "name": "files-exists", "arguments": { "path": "." } }));
    let text = page(&served).text();
    assert!(!text.contains("made"), "{text}");
    let metrics = MetricsExposition::parse(&text);
    let label = |tool, dialect, outcome| {
        format!("{{tool=\"{tool}\",dialect=\"{dialect}\",outcome=\"{outcome}\"}}")
    };
    let expected = [
        (label("_prompts", "mcp", "not_found"), 1.0),
        (label("_prompts", "mcp", "ok"), 1.0),
        (label("_resources", "mcp", "not_found"), 1.0),
        (label("_unknown", "mcp", "unknown_tool"), 3.0),
        (label("audit.read", "mcp", "ok"), 1.0),
        (label("files.exists", "mcp", "ok"), 2.0),
        (label("files.exists", "zyra", "ok"), 1.0),
        (label("files.read", "mcp", "not_found"), 1.0),
    ];
    assert_eq!(metrics.samples_of("toolgate_calls_total"), expected.into());
    let duration = |suffix, tool| {
        metrics.value(&format!("toolgate_call_duration_seconds_{suffix}{{tool=\"{tool}\"}}"))
    };
    assert_eq!(duration("count", "files.exists"), 3.0);
    assert!((0.0..60.0).contains(&duration("sum", "files.exists")));
    assert_eq!(metrics.value("toolgate_build_info{version=\"0.1.0\"}"), 1.0);
    assert!(metrics.value("toolgate_start_time_seconds") > 1.7e9);
}

#[test]
fn gauges_show_the_current_number_and_the_limit() {
    let served = launch().set("limits_programs", 3).set("server_connections_max", 50).served();
    let idle = metrics(&served);
    assert_eq!(idle.value("toolgate_calls_running{pool=\"programs\"}"), 0.0);
    assert_eq!(idle.value("toolgate_calls_running_max{pool=\"programs\"}"), 3.0);
    assert_eq!(idle.value("toolgate_sessions"), 0.0);
    assert_eq!(idle.value("toolgate_connections_max"), 50.0);
    assert_eq!(idle.value("toolgate_streams_max"), 25.0);
    assert_eq!(idle.value("toolgate_jobs{state=\"running\"}"), 0.0);

    let marker = ProcessMarker::new();
    let waits = json!({ "command": "until [ -e go ]; do sleep 0.02; done", "shell": true, "args": [marker.0] });
    let job = served.result("tools/call", job_params("exec-run", waits));
    assert_eq!(job["status"], "accepted", "{job}");
    served.session(REVISIONS[1]);
    let socket = served.socket("/v1/ws/mcp");
    let mut running = served.connect();
    running.post(&TestHttpRequest::mcp(&call(1, "exec_run", sleeps(&marker))));
    marker.wait_until_running();
    wait_until("both programs run", || {
        metrics(&served).value("toolgate_calls_running{pool=\"programs\"}") == 2.0
    });
    let busy = metrics(&served);
    assert_eq!(busy.value("toolgate_sessions"), 1.0);
    assert_eq!(busy.value("toolgate_streams"), 1.0);
    assert_eq!(busy.value("toolgate_jobs{state=\"running\"}"), 1.0);
    assert!(busy.value("toolgate_connections") >= 3.0);

    fs::write(served.root().join("go"), "").unwrap();
    running.close();
    drop(socket);
    wait_until("the server is idle again", || {
        let idle = metrics(&served);
        idle.value("toolgate_jobs_ended_total{state=\"succeeded\"}") == 1.0
            && idle.value("toolgate_calls_running{pool=\"programs\"}") == 0.0
            && idle.value("toolgate_streams") == 0.0
            && idle.value("toolgate_audit_records_waiting") == 0.0
    });
    let canceled = "toolgate_calls_total{tool=\"exec.run\",dialect=\"mcp\",outcome=\"canceled\"}";
    assert_eq!(metrics(&served).value(canceled), 1.0);
}

#[test]
fn the_page_has_every_metric_of_the_reference() {
    let workspace =
        TempWorkspace::new().file("toolgate.toml", "[upstream.dead]\ncommand = [\"false\"]\n");
    let served = ServerLaunchOptions::over(&workspace).set("telemetry_metrics", "true").served();
    served.ask(&call(1, "files_exists", json!({ "path": "." })));
    let text = page(&served).text();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let reference = fs::read_to_string(path).unwrap();
    let names = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let missing: Vec<_> = names.filter(|name| !text.contains(name)).collect();
    assert!(reference.contains("toolgate_calls_total"));
    assert!(missing.is_empty(), "missing {missing:?} in {text}");
}

#[test]
fn metrics_are_off_by_default_and_need_a_credential() {
    let plain = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    assert_eq!(page(&plain).status, 404);

    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("keys.toml");
    let key = "a-key-for-the-metrics";
    let digest = hex(ring::digest::digest(&ring::digest::SHA256, key.as_bytes()).as_ref());
    fs::write(&config, format!("[[keys]]\nname = \"watch\"\nsha256 = \"{digest}\"\n")).unwrap();
    let served = launch().arg("--config").arg(&config).served();
    let refused = page(&served);
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert!(refused.body.is_empty());
    let get = TestHttpRequest::bare("GET", "/metrics");
    let wrong = get.clone().with("authorization", "Bearer wrong");
    assert_eq!(served.send(&wrong).status, 401);
    let known = get.with("authorization", &format!("Bearer {key}"));
    assert_eq!(served.send(&known).status, 200);
    let post = TestHttpRequest::bytes(b"{}").to("/metrics").with("x-api-key", key);
    assert_eq!(served.send(&post).status, 405);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn metrics_show_whether_each_upstream_is_connected_or_failing() {
    let itself = format!("[upstream.itself]\ncommand = [{:?}, \"stdio\"]\n", binary());
    let settings = format!("{itself}[upstream.dead]\ncommand = [\"false\"]\n");
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let launch =
        ServerLaunchOptions::over(&workspace).env("XDG_CACHE_HOME", workspace.path(".cache"));
    let served = launch.set("telemetry_metrics", "true").served();
    let gauge = |state: &str, upstream: &str| {
        let name = format!("toolgate_upstream_{state}{{upstream=\"{upstream}\"}}");
        metrics(&served).value(&name)
    };
    let state = |upstream| (gauge("connected", upstream), gauge("failing", upstream));
    served.ask(&modern(1, "tools/list", json!({})));
    assert_eq!((state("itself"), state("dead")), ((1.0, 0.0), (0.0, 1.0)));
}
