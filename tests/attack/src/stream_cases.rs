//! Attack cases about messages: deep nesting, duplicate keys, order, unread answers and roots.

use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackCallResult, CallResults, call};
use super::client::AttackClient;
use super::dialects::{AttackDialect, AttackResponse};
use super::http::AttackHttpRequest;
use super::perform::wait_until;
use super::program_cases::has_descendant;
use super::server::{AllocatedMemorySampler, AttackedServer, write_all};

/// Number of levels of the nested JSON that is sent.
const DEPTH: usize = 1_000_000;
/// Number of requests that a client sends without reading an answer.
const UNREAD_REQUESTS: usize = 10_000;

/// Attack case I04: sends deeply nested JSON, alone and in the parameters of a message.
pub(super) fn send_deep_json(client: &mut AttackClient) -> CallResults {
    let unclosed = "[".repeat(DEPTH);
    let closed = format!("{unclosed}{}", "]".repeat(DEPTH));
    let request = client.codec.ping_request();
    let params =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{closed}}}");
    let objects = format!("{}1{}", "{\"a\":".repeat(DEPTH / 5), "}".repeat(DEPTH / 5));
    for body in [unclosed, closed, params, objects] {
        if client.is_stream() {
            client.write(format!("{body}\n").as_bytes())?;
        } else {
            let request =
                AttackHttpRequest { method: "POST".into(), ..with_body(&request.http, &body) };
            let answer = client.post(&request)?;
            ensure!(answer.status < 500, "status {}", answer.status);
        }
    }
    Ok(Vec::new())
}

fn with_body(request: &AttackHttpRequest, body: &str) -> AttackHttpRequest {
    AttackHttpRequest { body: body.as_bytes().to_vec(), ..request.clone() }
}

/// Attack case I05: sends messages with two values for one key. Parsers differ in the value that
/// they use.
pub(super) fn send_duplicate_keys(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    let (name, input) = client
        .codec
        .to_wire("files.write", &json!({ "path": "made.txt", "content": "x", "overwrite": true }))
        .unwrap_or_else(|| ("list_schemas".to_owned(), json!({})));
    let request = client.codec.call_request(&name, &input);
    let body = String::from_utf8_lossy(&request.http.body).into_owned();
    // One value is harmless and the other one is not, in both orders.
    let mut bodies = vec![
        body.replacen('{', "{\"method\":\"ping\",", 1),
        format!(
            "{},\"method\":\"ping\"}}",
            body.trim_end_matches('}').to_owned() + inner_closing_braces(&body)
        ),
        body.replace("\"path\":", "\"path\":\"ok.txt\",\"path\":"),
        body.replace("\"path\":", "\"p\\u0061th\":\"ok.txt\",\"path\":"),
    ];
    if attempt.route.dialect == AttackDialect::Envelope && !client.is_stream() {
        bodies = vec![
            body.replacen('{', "{\"arguments\":{\"path\":\"ok.txt\",\"content\":\"\"},", 1),
            body.replace("\"path\":", "\"path\":\"ok.txt\",\"path\":"),
        ];
    }
    bodies.retain(|other| *other != body);
    let mut results = Vec::new();
    for duplicated in bodies {
        let response = if client.is_stream() {
            client.write(format!("{duplicated}\n").as_bytes())?;
            let message = client.next_message(Duration::from_secs(10))?.context("no answer")?;
            AttackResponse {
                raw: message.to_string().into_bytes(),
                ..client.codec.decode(&message)
            }
        } else {
            let answer = client.post(&with_body(&request.http, &duplicated))?;
            client.decode_http(&answer)
        };
        // The code of the envelope for an invalid message: INVALID_INPUT over HTTP, with -32602 on
        // a stream.
        let code = match response.code.as_str() {
            "INVALID_INPUT" => {
                let message: Value = serde_json::from_slice(&response.raw).unwrap_or_default();
                let code = message["error"]["code"].to_string();
                if code == "-32602" || !code.starts_with('-') { "-32600".to_owned() } else { code }
            }
            other => other.to_owned(),
        };
        let response = AttackResponse { code, ..response };
        results.push(AttackCallResult { response, is_judged: true, ..AttackCallResult::default() });
    }
    if attempt.folders.ws.join("made.txt").exists() {
        attempt.failures.push("the server used the second of two values".to_owned());
    }
    Ok(results)
}

/// Returns the closing braces at the end of `body`, without the last brace.
fn inner_closing_braces(body: &str) -> &'static str {
    match body.len() - body.trim_end_matches('}').len() {
        0 | 1 => "",
        2 => "}",
        3 => "}}",
        _ => "}}}",
    }
}

/// Attack case I10: makes the cheapest call several times while a slow call runs. The shortest
/// duration counts.
pub(super) fn ping_during_slow_call(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let seconds = "10.5717";
    let input = json!({ "command": "sleep", "args": [seconds] });
    let request = client.call_request("exec.run", &input)?;
    client.send(&request)?;
    wait_until(Duration::from_secs(10), || has_descendant(server.pid(), seconds));
    let mut best = Duration::MAX;
    for _ in 0..5 {
        best = best.min(client.ping()?);
        // These dialects have no ping but a list, and this call is cheaper.
        if matches!(attempt.route.dialect, AttackDialect::Mcp2026 | AttackDialect::Envelope) {
            let started = Instant::now();
            client.call("files.exists", &json!({ "path": "ok.txt" }))?;
            best = best.min(started.elapsed());
        }
    }
    attempt.notes.push(format!("{best:?}"));
    Ok(vec![AttackCallResult { elapsed: best, is_judged: true, ..AttackCallResult::default() }])
}

/// Attack case I13: sends many requests and reads no answer.
pub(super) fn send_without_reading(attempt: &mut AttackAttempt) -> CallResults {
    attempt.may_exit = true;
    let flag = attempt.route.dialect.flag();
    let (mut server, mut input, output) = attempt.launch.stdio(&attempt.folders, flag)?;
    let memory = AllocatedMemorySampler::start(&server);
    let mut codec = attempt.route.codec();
    let mut lines = Vec::new();
    for (request, _) in codec.handshake() {
        lines.extend(request.http.body);
        lines.push(b'\n');
    }
    for _ in 0..UNREAD_REQUESTS {
        // The list of all tools is a long answer.
        let request = codec.list_request(None).unwrap_or_else(|| codec.ping_request());
        lines.extend(request.http.body);
        lines.push(b'\n');
    }
    let writer = spawn(move || {
        _ = write_all(&mut input, &lines);
    });
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) && server.is_running() {
        sleep(Duration::from_millis(50));
    }
    if !server.is_running() {
        attempt.failures.push("the server has exited".to_owned());
    }
    attempt.memory_growth_mib = memory.growth_mib();
    attempt.notes.push(format!("grew by {} MiB", attempt.memory_growth_mib));
    server.kill();
    drop(output);
    _ = writer.join();
    attempt.received.extend(server.log());
    Ok(Vec::new())
}

/// Attack case F48: acts as a client whose only root is `/etc`.
pub(super) fn send_foreign_roots(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" });
    client.write(format!("{changed}\n").as_bytes())?;
    answer_roots_requests(client)?;
    let mut results = Vec::new();
    for path in ["/etc/passwd", "passwd"] {
        let mut result = call(client, "files.read", &json!({ "path": path }))?;
        result.is_judged = path.starts_with('/');
        if !result.response.is_error {
            attempt.failures.push(format!("{path} was read"));
        }
        answer_roots_requests(client)?;
        results.push(result);
    }
    Ok(results)
}

/// Answers every request of the server for roots with `/etc`, until the server sends nothing for a
/// moment.
fn answer_roots_requests(client: &mut AttackClient) -> anyhow::Result<()> {
    while let Some(message) = client.next_message(Duration::from_millis(200))? {
        if message["method"] == "roots/list" {
            let roots = json!([{ "uri": "file:///etc", "name": "etc" }]);
            let answer =
                json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "roots": roots } });
            client.write(format!("{answer}\n").as_bytes())?;
        }
    }
    Ok(())
}
