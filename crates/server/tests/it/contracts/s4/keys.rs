//! Tests of API keys: which requests need one, where clients send it, and how requests without one
//! are refused.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    COMMANDS, HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest,
    TestHttpResponse, WebSocketEnd, binary, initialize, path, wait_until,
};

const KEY: &str = "devkey";

/// Starts a server that accepts the API key [`KEY`].
fn start_with_key(workspace: &TempWorkspace) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace).env("ZYRA_API_KEY", KEY).served()
}

fn rpc(method: &str) -> TestHttpRequest {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
    TestHttpRequest::bytes(message.to_string().as_bytes()).to("/v1/mcp").without("accept")
}

/// Returns a request to each of Zyra's HTTP endpoints, about the job `id`.
fn endpoints(id: &str) -> Vec<TestHttpRequest> {
    let jobs = ["", "/download", "/manifest"].map(|what| format!("/v1/jobs/{id}{what}"));
    let events = [format!("/v1/mcp/progress/{id}"), format!("/mcp/progress/{id}")];
    let gets = jobs.into_iter().chain(events).chain([format!("/jobs/{id}"), "/mcp".to_owned()]);
    let mut endpoints: Vec<TestHttpRequest> =
        gets.map(|target| TestHttpRequest::bare("GET", &target)).collect();
    endpoints.extend(["GET", "OPTIONS"].map(|method| TestHttpRequest::bare(method, "/v1/mcp")));
    endpoints.extend([rpc("statusReport"), rpc("tools/list")]);
    endpoints
}

#[track_caller]
fn assert_unauthorized(response: &TestHttpResponse) {
    assert_eq!(response.status, 401, "{response:?}");
    assert_eq!(response.json(), json!({ "detail": "Unauthorized: invalid API key" }));
}

#[test]
fn s4_15_51_every_endpoint_needs_the_key_except_health() {
    let workspace = TempWorkspace::with_commands();
    let served = start_with_key(&workspace);
    let params = json!({ "name": "draw-one", "mode": "async" });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let start = TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/mcp");
    let accepted = served.send(&start.with("X-API-Key", KEY)).json();
    let id = accepted["result"]["job_id"].as_str().unwrap().to_owned();
    let progress =
        TestHttpRequest::bare("GET", &format!("/v1/mcp/progress/{id}")).with("X-API-Key", KEY);
    assert_eq!(served.send(&progress).events().last().unwrap()["status"], "succeeded");
    for (nth, endpoint) in endpoints(&id).into_iter().enumerate() {
        assert_unauthorized(&served.send(&endpoint));
        // One address may not send more wrong keys within a minute.
        if nth < 9 {
            assert_unauthorized(&served.send(&endpoint.clone().with("X-API-Key", "wrong")));
        }
        for name in ["X-API-Key", "x-api-key"] {
            assert_eq!(served.send(&endpoint.clone().with(name, KEY)).status, 200, "{endpoint:?}");
        }
        let bearer = endpoint.with("Authorization", &format!("Bearer {KEY}"));
        assert_eq!(served.send(&bearer).status, 200);
    }
    for health in ["/health", "/v1/health"] {
        assert_eq!(served.get(health).json()["status"], "ok", "{health}");
    }
    assert_eq!(served.get("/healthz").status, 200);
}

#[test]
fn s4_15_every_endpoint_is_open_without_a_configured_key() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).env("ZYRA_API_KEY", "").served();
    let id = served.start_job("draw-one", json!({}));
    served.job_in("succeeded", &id);
    for endpoint in endpoints(&id) {
        assert_eq!(served.send(&endpoint).status, 200, "{endpoint:?}");
        assert_eq!(
            served.send(&endpoint.clone().with("X-API-Key", "any")).status,
            200,
            "{endpoint:?}"
        );
    }
    served.socket("/v1/ws/mcp?api_key=any").close();
}

#[test]
fn s4_16_the_key_is_read_from_the_header_named_in_the_environment() {
    for (variable, key) in [
        ("API_KEY_HEADER", "ZYRA_API_KEY"),
        ("ZYRA_API_KEY_HEADER", "ZYRA_API_KEY"),
        ("DATAVIZHUB_API_KEY_HEADER", "DATAVIZHUB_API_KEY"),
    ] {
        let launch = ServerLaunchOptions::over(&TempWorkspace::new()).env(variable, "X-Custom");
        let served = launch.env(key, KEY).served();
        assert_eq!(served.send(&rpc("statusReport").with("X-Custom", KEY)).status, 200);
        assert_eq!(served.send(&rpc("statusReport").with("X-API-Key", KEY)).status, 200);
        assert_unauthorized(&served.send(&rpc("statusReport").with("X-Custom", "wrong")));
        assert_unauthorized(&served.send(&rpc("statusReport").with("X-Other", KEY)));
    }
    let unnamed = start_with_key(&TempWorkspace::new());
    assert_unauthorized(&unnamed.send(&rpc("statusReport").with("X-Custom", KEY)));
    // The older variable is ignored if the newer one is set.
    let both = ServerLaunchOptions::over(&TempWorkspace::new()).env("DATAVIZHUB_API_KEY", "old");
    let both = both.env("ZYRA_API_KEY", KEY).served();
    assert_unauthorized(&both.send(&rpc("statusReport").with("X-API-Key", "old")));
    assert_eq!(both.send(&rpc("statusReport").with("X-API-Key", KEY)).status, 200);
}

/// Opens a WebSocket at `target`. Returns the messages that arrive, and how the WebSocket ends.
fn socket_messages(served: &HttpServerProcess, target: &str) -> (Vec<Value>, WebSocketEnd) {
    served.socket(target).read_rest()
}

#[test]
fn s4_33_a_socket_needs_the_key_in_its_query() {
    let workspace = TempWorkspace::with_commands();
    let served = start_with_key(&workspace);
    for target in ["/v1/ws/mcp", "/ws/mcp", "/ws/jobs/abc", "/v1/ws/jobs/abc?stream=stdout"] {
        assert_eq!(served.refused_socket(target), 403, "{target}");
        let with = if target.contains('?') { "&" } else { "?" };
        let (messages, ended) = socket_messages(&served, &format!("{target}{with}api_key=wrong"));
        assert_eq!(messages, [json!({ "error": "Unauthorized" })], "{target}");
        assert_eq!(ended, WebSocketEnd::Closed(1008), "{target}");
    }
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "statusReport" });
    for target in ["/v1/ws/mcp", "/ws/mcp"] {
        let mut socket = served.socket(&format!("{target}?api_key={KEY}"));
        assert_eq!(socket.ask(&message)["result"]["status"], "ok");
        socket.close();
    }
    let (messages, ended) = socket_messages(&served, &format!("/ws/jobs/abc?api_key={KEY}"));
    assert!(messages[0]["error"].as_str().unwrap().contains("no job"), "{messages:?}");
    assert_eq!(ended, WebSocketEnd::Closed(1000));
    // Only sockets accept a key in the query, which ends up in logs and histories.
    assert_unauthorized(&served.get(&format!("/v1/mcp?api_key={KEY}")));
}

#[test]
fn a_wrong_key_is_answered_late_and_repeated_guesses_get_429() {
    let served = start_with_key(&TempWorkspace::new());
    let guess = rpc("statusReport").with("X-API-Key", "wrong");
    for nth in 1..=12 {
        let started = Instant::now();
        let refused = served.send(&guess);
        assert!(started.elapsed() >= Duration::from_millis(100), "{:?}", started.elapsed());
        if nth < 10 {
            assert_unauthorized(&refused);
        } else {
            assert_eq!(refused.status, 429, "{nth}: {refused:?}");
            assert_eq!(refused.header("retry-after"), Some("60"));
        }
    }
    // A correct key from the same address is still accepted.
    let started = Instant::now();
    assert_eq!(served.send(&rpc("statusReport").with("X-API-Key", KEY)).status, 200);
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    // A request without a key is not a guess.
    assert_unauthorized(&served.send(&rpc("statusReport")));
    let log = served.log();
    assert!(log.contains("127.0.0.1 sent 10 invalid credentials"), "{log}");
    assert!(!log.contains(KEY) && !log.contains("wrong\""), "{log}");
}

#[test]
fn a_caller_is_named_by_its_key_and_sees_only_its_own_jobs_and_sessions() {
    let workspace = TempWorkspace::new();
    let digest = |key: &str| {
        let made = Command::new("python3")
            .args([
                "-c",
                "import sys, hashlib; print(hashlib.sha256(sys.argv[1].encode()).hexdigest())",
                key,
            ])
            .output();
        String::from_utf8(made.unwrap().stdout).unwrap().trim().to_owned()
    };
    let table = |name: &str, key: &str| {
        format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{}\"\n", digest(key))
    };
    let keys = [("ann", "ann-1"), ("ann", "ann-2"), ("bob", "bob-1")];
    let config: String = keys.map(|(name, key)| table(name, key)).concat();
    workspace.put("toolgate.toml", config + COMMANDS);
    let served = ServerLaunchOptions::over(&workspace).set("server_http_sse", true).served();
    let call = |key: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let post = TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/mcp");
        served.send(&post.with("X-API-Key", key)).json()["result"].clone()
    };
    let job = call("ann-1", json!({ "name": "draw-one", "mode": "async" }));
    let job = format!("/jobs/{}", job["job_id"].as_str().unwrap());
    let status =
        |key: &str| served.send(&TestHttpRequest::bare("GET", &job).with("X-API-Key", key)).status;
    assert_eq!((status("ann-1"), status("ann-2"), status("bob-1")), (200, 200, 404));
    call("bob-1", json!({ "name": "files-exists", "arguments": { "path": "README.md" } }));
    wait_until("both calls are on record", || served.records().len() >= 2);
    let callers: Vec<_> = served.records().iter().map(|record| record["caller"].clone()).collect();
    assert!(callers.contains(&json!("ann")) && callers.contains(&json!("bob")), "{callers:?}");

    let open = TestHttpRequest::mcp(&initialize(0, "2025-06-18"));
    let opened = served.send(&open.with("Authorization", "bearer ann-1"));
    let session = opened.header("mcp-session-id").unwrap();
    let ping = TestHttpRequest::mcp(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }));
    let ping = ping.with("mcp-session-id", session);
    let ping = |key: &str| served.send(&ping.clone().with("X-API-Key", key)).status;
    assert_eq!((ping("ann-2"), ping("bob-1")), (200, 404));

    let mut stream = served.connect();
    let open = TestHttpRequest::bare("GET", "/sse").with("accept", "text/event-stream");
    stream.post(&open.with("X-API-Key", "ann-1"));
    assert_eq!(stream.head().status, 200);
    let first = String::from_utf8(stream.chunk().unwrap()).unwrap();
    let endpoint = first.strip_prefix("event: endpoint\ndata: ").unwrap().trim_end();
    let post_status = |key: &str| {
        let post = TestHttpRequest::mcp(&initialize(0, "2024-11-05")).to(endpoint);
        served.send(&post.with("X-API-Key", key)).status
    };
    assert_eq!((post_status("bob-1"), post_status("ann-2")), (404, 202));
}

#[test]
fn mcp_gets_a_challenge_without_a_key_and_a_preflight_needs_none() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).env("ZYRA_API_KEY", KEY);
    let served = launch.set("server_allowed_origins", "https://app.example").served();
    let initialize = TestHttpRequest::mcp(&initialize(0, "2025-06-18"));
    for (key, challenge) in [(None, "Bearer"), (Some("wrong"), "Bearer error=\"invalid_token\"")] {
        let post = initialize.clone();
        let refused = served.send(&key.map_or(post.clone(), |key| post.with("X-API-Key", key)));
        assert_eq!(refused.status, 401, "{refused:?}");
        assert_eq!(refused.header("www-authenticate"), Some(challenge));
    }
    assert_eq!(served.send(&initialize.with("X-API-Key", KEY)).status, 200);
    let options = TestHttpRequest::bare("OPTIONS", "/v1/mcp").with("origin", "https://app.example");
    let preflight = options.clone().with("access-control-request-method", "POST");
    let preflight = preflight.with("access-control-request-headers", "x-api-key,content-type");
    let allowed = served.send(&preflight);
    assert_eq!(allowed.status, 204, "{allowed:?}");
    assert_eq!(allowed.header("access-control-allow-headers"), Some("x-api-key,content-type"));
    // Without the preflight headers it is discovery.
    assert_unauthorized(&served.send(&options));
}

#[test]
fn the_call_command_reads_its_key_from_the_environment() {
    let workspace = TempWorkspace::new();
    let served = start_with_key(&workspace);
    let call = |variables: &[(&str, &str)], more: &[&str]| {
        let url = served.url();
        let args = ["call", "files_exists", "{\"path\":\"README.md\"}", "--url", &url, "--json"];
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", path()).env("HOME", served.home());
        let done = command.args(args).args(more).envs(variables.iter().copied()).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(call(&[("TOOLGATE_KEY", KEY)], &[]).0, Some(0));
    assert_eq!(call(&[("MINE", KEY), ("TOOLGATE_KEY", "no")], &["--key-env", "MINE"]).0, Some(0));
    for (variables, more, fragment) in [
        (&[][..], &[][..], "needs a credential; set the variable TOOLGATE_KEY"),
        (&[("TOOLGATE_KEY", "hunter2")], &[], "refused the credential in TOOLGATE_KEY"),
        (&[], &["--key-env", "MINE"], "the variable MINE of --key-env is not set"),
    ] {
        let (code, err) = call(variables, more);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(fragment) && !err.contains("hunter2"), "{err}");
    }
}

#[test]
fn a_generated_key_works_once_its_lines_are_in_the_settings() {
    let output = Command::new(binary()).args(["key", "ci"]).output();
    let output = output.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let (_, key) = stderr.trim_end().rsplit_once(": ").unwrap();
    assert!(key.len() > 64 && key.starts_with("toolgate_"), "{stderr}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(!lines.contains(key), "{lines}");
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", lines)).served();
    assert_eq!(served.send(&rpc("statusReport").with("X-API-Key", key)).status, 200);
    assert_unauthorized(&served.send(&rpc("statusReport")));
}

#[test]
fn each_dialect_refuses_a_missing_key_in_its_own_form() {
    let served = start_with_key(&TempWorkspace::new());
    for (path, status, pointer, expected) in [
        ("/mcp", 401, "/error/code", json!(-32600)),
        ("/v1/mcp", 401, "/detail", json!("Unauthorized: invalid API key")),
        ("/rpc", 200, "/error/code", json!(1002)),
        ("/workstation", 401, "/error/code", json!(-32603)),
        ("/synesthetic", 401, "/result/ok", json!(false)),
        ("/mcp/tool/files.read", 401, "/error/code", json!("UNAUTHORIZED")),
    ] {
        let message = json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/list" });
        let post = TestHttpRequest::bytes(message.to_string().as_bytes()).to(path);
        let refused = served.send(&post);
        assert_eq!(refused.status, status, "{path}: {refused:?}");
        let body = refused.json();
        assert_eq!(body.pointer(pointer), Some(&expected), "{path}: {body}");
        // If the answer has an id, it is that of the request or null.
        assert!(matches!(body.get("id"), None | Some(Value::Null)) || body["id"] == 9, "{body}");
        let known = served.send(&post.with("X-API-Key", KEY));
        let answer = (known.status, known.json().pointer(pointer).cloned());
        assert_ne!(answer, (status, Some(expected)), "{path}: {known:?}");
    }
}
