//! Tests of guessed API keys: how many the server checks, and what unauthenticated requests leave
//! behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestHttpResponse,
    at_once, wait_until,
};

const KEY: &str = "devkey";
/// Number of bytes that are sent of a request body that never completes.
const PARTIAL_BODY_BYTES: usize = 100;

fn start_with_key() -> HttpServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).env("ZYRA_API_KEY", KEY).served()
}

fn status_request() -> TestHttpRequest {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "statusReport" });
    TestHttpRequest::bytes(message.to_string().as_bytes()).to("/v1/mcp").without("accept")
}

/// Sends ten requests with wrong API keys.
#[track_caller]
fn send_wrong_keys(served: &HttpServerProcess) {
    at_once(0..10, |nth| {
        served.send(&status_request().with("X-API-Key", &format!("wrong{nth}")));
    });
    let log = served.log();
    assert!(log.contains("127.0.0.1 sent 10 invalid credentials"), "{log}");
}

#[test]
fn a_request_counts_as_one_guess_however_many_keys_it_sends() {
    let served = start_with_key();
    for name in ["X-API-Key", "Authorization"] {
        let value = |key: &str| match name {
            "Authorization" => format!("Bearer {key}"),
            _ => key.to_owned(),
        };
        let many = (0..45).fold(status_request(), |post, nth| {
            post.with_additional(name, &value(&format!("no{nth}")))
        });
        let many = many.with_additional(name, &value(KEY));
        assert_eq!(served.send(&many).status, 401, "{name}");
        // A correct key first makes no difference.
        let first =
            status_request().with_additional(name, &value(KEY)).with_additional(name, &value("no"));
        assert_eq!(served.send(&first).status, 401, "{name}");
    }
    assert!(
        !served.log().contains("invalid credentials"),
        "they were four guesses: {}",
        served.log()
    );
    // With keys in both headers, `X-API-Key` counts.
    let both = |first: &str, then: &str| {
        let post = status_request()
            .with("X-API-Key", first)
            .with("Authorization", &format!("Bearer {then}"));
        served.send(&post).status
    };
    assert_eq!((both(KEY, "no"), both("no", KEY)), (200, 401));
}

#[test]
fn a_valid_key_is_always_accepted_from_an_address_that_guesses_without_pause() {
    let served = start_with_key();
    send_wrong_keys(&served);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guessing = scope.spawn(|| {
            let mut connection = served.connect();
            let mut refused = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let wrong = format!("wrong{}", refused.len());
                connection.post(&status_request().with("X-API-Key", &wrong));
                refused.push(connection.response().status);
            }
            refused
        });
        let started = Instant::now();
        let mut calls = 0;
        while started.elapsed() < Duration::from_secs(1) {
            let started = Instant::now();
            let status = served.send(&status_request().with("X-API-Key", KEY)).status;
            assert_eq!(status, 200, "call {calls}");
            assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
            calls += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        let refused = guessing.join().unwrap();
        assert!(calls > 10 && refused.len() > 2, "{calls}, {refused:?}");
        assert!(refused.iter().all(|status| *status == 429), "{refused:?}");
    });
}

#[test]
fn clients_of_a_trusted_proxy_are_counted_by_the_address_that_it_names() {
    let launch = ServerLaunchOptions::over(&TempWorkspace::new()).env("ZYRA_API_KEY", KEY);
    let served = launch.set("server_trusted_proxies", "127.0.0.0/8,10.0.0.0/8").served();
    let status = |client: &str, key: &str| {
        let post = status_request().with("X-Forwarded-For", client).with("X-API-Key", key);
        served.send(&post).status
    };
    // A client may invent earlier addresses.
    let statuses = std::sync::Mutex::new(Vec::new());
    at_once(0..10, |nth| {
        let refused = status(&format!("203.0.113.{nth}, 192.0.2.1, 10.0.0.7"), "wrong");
        statuses.lock().unwrap().push(refused);
    });
    let statuses = statuses.into_inner().unwrap();
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 1, "{statuses:?}");
    assert_eq!((status("192.0.2.1", "wrong"), status("192.0.2.1", KEY)), (429, 200));
    assert_eq!((status("192.0.2.2", "wrong"), status("unknown", "wrong")), (401, 401));
    let log = served.log();
    assert!(log.contains("192.0.2.1 sent 10 invalid credentials"), "{log}");
}

/// Returns requests to the envelope's endpoints.
fn envelope_requests() -> [TestHttpRequest; 3] {
    let call = TestHttpRequest::bytes(b"{\"arguments\":{}}")
        .to("/mcp/tool/mcp.tool:files.list")
        .without("accept");
    [call.clone(), call.to("/mcp/tool/none"), TestHttpRequest::bare("GET", "/mcp/discover")]
}

#[track_caller]
fn check_refused(response: &TestHttpResponse, status: u16, code: &str) {
    assert_eq!(response.status, status, "{response:?}");
    let envelope = response.json();
    assert_eq!((&envelope["ok"], &envelope["error"]["code"]), (&json!(false), &json!(code)));
    assert_eq!(envelope["meta"]["requestId"].as_str().unwrap().len(), 36, "{envelope}");
}

#[test]
fn unauthenticated_requests_leave_no_record_and_no_logged_envelope() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).env("ZYRA_API_KEY", KEY);
    let served = launch.arg("--log-dir").arg(workspace.path("runs")).served();
    for post in envelope_requests() {
        check_refused(&served.send(&post), 401, "UNAUTHORIZED");
        check_refused(&served.send(&post.clone().with("X-API-Key", "wrong")), 401, "UNAUTHORIZED");
        // The same for a body that is not read.
        let unfit = post.with("content-type", "text/plain");
        check_refused(&served.send(&unfit), 401, "UNAUTHORIZED");
    }
    send_wrong_keys(&served);
    let throttled = envelope_requests()[0].clone().with("X-API-Key", "wrong");
    check_refused(&served.send(&throttled), 500, "INTERNAL_ERROR");
    let called = served.send(&envelope_requests()[0].clone().with("X-API-Key", KEY));
    assert_eq!(called.status, 200, "{called:?}");
    // Records are written in order, so one of an earlier request would come first.
    wait_until("the call is on record", || !served.records().is_empty());
    let callers: Vec<_> = served.records().iter().map(|one| one["caller"].clone()).collect();
    assert_eq!(callers, [json!("zyra")]);
    let log = workspace.path("runs/mcp_server/envelope_validation.latest.jsonl");
    let logged = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("the call is in the log", || logged().ends_with('\n'));
    let lines: Vec<Value> =
        logged().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["requestId"], called.json()["meta"]["requestId"]);
}

#[test]
fn an_unreadable_body_without_a_key_is_refused_as_unauthorized() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new())
        .env("ZYRA_API_KEY", KEY)
        .set("limits_message_bytes", 4096);
    let served = served.served();
    let unfit = TestHttpRequest::bytes(b"{}").with("content-type", "text/plain");
    let large = TestHttpRequest::bytes(&[b' '; 5000]);
    for (post, status) in [(unfit, 415), (large, 413)] {
        let started = Instant::now();
        assert_eq!(served.send(&post).status, 401, "{post:?}");
        assert!(started.elapsed() >= Duration::from_millis(100), "{:?}", started.elapsed());
        assert_eq!(served.send(&post.with("X-API-Key", KEY)).status, status);
    }
}

#[test]
fn unauthenticated_bodies_take_no_room_from_authenticated_ones() {
    let mib = 1 << 20;
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).env("ZYRA_API_KEY", KEY);
    let served = served.set("limits_message_bytes", mib).served();
    // There is room for eight of the largest bodies.
    let start = |length: usize, key: &str| {
        let head =
            status_request().with("content-length", &length.to_string()).with("X-API-Key", key);
        let mut connection = served.connect();
        let bytes = head.to_bytes(served.addr);
        let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        connection.write(&bytes[..body]);
        connection.write(&[b' '; PARTIAL_BODY_BYTES]);
        connection
    };
    let mut open: Vec<_> = (0..9).map(|_| start(mib, "")).collect();
    let waiting: Vec<_> = (0..40).map(|_| start(60_000, "")).collect();
    // Unauthenticated requests with large bodies are refused before the body.
    for connection in &mut open {
        assert_eq!(connection.head().status, 401);
    }
    let known: Vec<_> = (0..7).map(|_| start(mib, KEY)).collect();
    let started = Instant::now();
    assert_eq!(served.send(&status_request().with("X-API-Key", KEY)).status, 200);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    drop((waiting, known));
}
