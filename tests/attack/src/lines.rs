//! What comes on a line and is no call: depth, doubled keys, silence, roots.

use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::client::Client;
use super::http::Request;
use super::play::{Came, Play, call};
use super::server::Server;
use super::spoken::{Dialect, Said};

/// How much deeper than anybody means.
const DEEP: usize = 1_000_000;

pub(super) fn perform(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    match play.case.id.as_str() {
        "I04" => deep(client),
        "I05" => doubled(play, client),
        _ => beside_a_slow_one(play, server, client),
    }
}

/// I04: brackets without end, alone and where a message has room for any value.
fn deep(client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let open = "[".repeat(DEEP);
    let whole = format!("{open}{}", "]".repeat(DEEP));
    let asked = client.spoken.ping();
    let within =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{whole}}}");
    let braces = format!("{}1{}", "{\"a\":".repeat(DEEP / 5), "}".repeat(DEEP / 5));
    for body in [open, whole, within, braces] {
        if client.is_line() {
            client.write(format!("{body}\n").as_bytes())?;
        } else {
            let request = Request { method: "POST".into(), ..with_body(&asked.request, &body) };
            let answer = client.post(&request)?;
            anyhow::ensure!(answer.status < 500, "status {}", answer.status);
        }
    }
    Ok(Vec::new())
}

fn with_body(request: &Request, body: &str) -> Request {
    Request { body: body.as_bytes().to_vec(), ..request.clone() }
}

/// I05: two values for one key, of which another reader may take the other.
fn doubled(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let (spelled, input) = client
        .spoken
        .spell("files.write", &json!({ "path": "made.txt", "content": "x", "overwrite": true }))
        .unwrap_or_else(|| ("list_schemas".to_owned(), json!({})));
    let harmless = client.spoken.ping();
    let asked = client.spoken.call(&spelled, &input);
    let body = String::from_utf8_lossy(&asked.request.body).into_owned();
    // The first word is harmless, the second is not, and the other way round.
    let mut bodies = vec![
        body.replacen('{', "{\"method\":\"ping\",", 1),
        format!("{},\"method\":\"ping\"}}", body.trim_end_matches('}').to_owned() + closing(&body)),
        body.replace("\"path\":", "\"path\":\"ok.txt\",\"path\":"),
        body.replace("\"path\":", "\"p\\u0061th\":\"ok.txt\",\"path\":"),
    ];
    if play.way.dialect == Dialect::Envelope && !client.is_line() {
        bodies = vec![
            body.replacen('{', "{\"arguments\":{\"path\":\"ok.txt\",\"content\":\"\"},", 1),
            body.replace("\"path\":", "\"path\":\"ok.txt\",\"path\":"),
        ];
    }
    bodies.retain(|other| *other != body);
    let mut all = Vec::new();
    for doubled in bodies {
        let said = if client.is_line() {
            client.write(format!("{doubled}\n").as_bytes())?;
            let message = client.next(Duration::from_secs(10))?.context("no answer")?;
            Said { raw: message.to_string().into_bytes(), ..client.spoken.decode(&message) }
        } else {
            let answer = client.post(&with_body(&asked.request, &doubled))?;
            client.said(&answer)
        };
        // The envelope has its own words for what is no message.
        let code = match said.code.as_str() {
            "INVALID_INPUT" => {
                let message: Value = serde_json::from_slice(&said.raw).unwrap_or_default();
                let code = message["error"]["code"].to_string();
                // INVALID_INPUT over HTTP, -32602 on a line, is its word for what is no message.
                if code == "-32602" || !code.starts_with('-') { "-32600".to_owned() } else { code }
            }
            other => other.to_owned(),
        };
        all.push(Came { said: Said { code, ..said }, judged: true, ..Came::default() });
    }
    if play.stage.ws.join("made.txt").exists() {
        play.wrong.push("the second of two was done".to_owned());
    }
    _ = harmless;
    Ok(all)
}

/// The brackets that a body ends with, but for the last.
fn closing(body: &str) -> &'static str {
    match body.len() - body.trim_end_matches('}').len() {
        0 | 1 => "",
        2 => "}",
        3 => "}}",
        _ => "}}}",
    }
}

/// I10: the cheapest call while a slow one runs.
fn beside_a_slow_one(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    let word = "10.5717";
    let asked = client.calling("exec.run", &json!({ "command": "sleep", "args": [word] }))?;
    client.send(&asked)?;
    super::cases::until(Duration::from_secs(10), || super::running::runs(server, word));
    let mut best = Duration::MAX;
    for _ in 0..5 {
        best = best.min(client.ping()?);
        // Where there is no ping, the cheapest question is a list; this is cheaper.
        if matches!(play.way.dialect, Dialect::Mcp2026 | Dialect::Envelope) {
            let begun = Instant::now();
            client.call("files.exists", &json!({ "path": "ok.txt" }))?;
            best = best.min(begun.elapsed());
        }
    }
    play.notes.push(format!("{best:?}"));
    Ok(vec![Came { took: best, judged: true, ..Came::default() }])
}

/// I13: ten thousand requests from a client that reads nothing.
pub(super) fn unread(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    play.may_die = true;
    let (mut server, input, output) = play.launch.stdio(&play.stage, play.way.dialect.flag())?;
    let (before, _) = server.memory();
    let mut spoken = play.way.spoken();
    let mut lines = Vec::new();
    for (asked, _) in spoken.opening() {
        lines.extend(asked.request.body);
        lines.push(b'\n');
    }
    for _ in 0..10_000 {
        // What is answered with much: the list of all tools, where there is one.
        let asked = spoken.list(None).unwrap_or_else(|| spoken.ping());
        lines.extend(asked.request.body);
        lines.push(b'\n');
    }
    let writer = spawn(move || {
        let mut input = input;
        _ = super::server::put(&mut input, &lines);
    });
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) && server.is_running() {
        sleep(Duration::from_millis(50));
    }
    if !server.is_running() {
        play.wrong.push("the server is gone".to_owned());
    }
    let (_, most) = server.memory();
    play.grown_mb = most.saturating_sub(before) / 1024;
    play.notes.push(format!("grew by {} MiB", play.grown_mb));
    server.kill();
    drop(output);
    _ = writer.join();
    play.heard.extend(server.log());
    Ok(Vec::new())
}

/// F48: a client that says its folder is /etc.
pub(super) fn roots(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" });
    client.write(format!("{changed}\n").as_bytes())?;
    answer_roots(client)?;
    let mut all = Vec::new();
    for path in ["/etc/passwd", "passwd"] {
        let mut came = call(client, "files.read", &json!({ "path": path }))?;
        came.judged = path.starts_with('/');
        if !came.said.error {
            play.wrong.push(format!("{path} was read"));
        }
        answer_roots(client)?;
        all.push(came);
    }
    Ok(all)
}

/// Answers what the server asks with /etc.
fn answer_roots(client: &mut Client) -> anyhow::Result<()> {
    while let Some(message) = client.next(Duration::from_millis(200))? {
        if message["method"] == "roots/list" {
            let roots = json!([{ "uri": "file:///etc", "name": "etc" }]);
            let answer =
                json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "roots": roots } });
            client.write(format!("{answer}\n").as_bytes())?;
        }
    }
    Ok(())
}
