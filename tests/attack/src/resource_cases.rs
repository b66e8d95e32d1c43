//! Attack cases about memory and time: input that costs its sender little and the server much.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::thread::spawn;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackCallResult, CallResults, call};
use super::client::{AttackClient, connect, start_and_connect};
use super::dialects::AttackDialect;
use super::hostile_files::{
    FULL_BUFFER, SLOW_PATTERN, TOO_LONG_WORD, UPSTREAM, heredoc_text, tools_with_hidden_texts,
    wide_schema, write_all_hostile_files, write_branching_schemas, write_hostile_schemas,
};
use super::http::{AttackWebSocket, client_frame};
use super::oracle::summary;
use super::server::AttackedServer;

/// The longest time that a call of a normal caller may take during an attack.
const OTHER_CALL_MAX: Duration = Duration::from_secs(2);
/// Size of each unfinished message, in bytes.
const UNFINISHED_BYTES: usize = 24 << 20;
/// Number of unfinished messages that are sent.
const UNFINISHED_MESSAGES: usize = 48;
/// Number of messages with many JSON values that are sent at once.
const MANY_VALUES_MESSAGES: usize = 24;
/// The longest time from the start of a server to its first answer, on a busy machine.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(15);

/// Prepares the files and settings of an attack case about memory and time.
pub(super) fn prepare(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    match attempt.case.id.as_str() {
        "M43" => fs::write(attempt.folders.ws.join("long.txt"), "q".repeat(600_000))?,
        "M45" => {
            add_upstream(attempt, "wide", &wide_schema(), None)?;
        }
        "M46" => write_hostile_schemas(&attempt.folders.ws)?,
        "M47" | "M48" => {
            let text = json!({ "type": "string", "pattern": SLOW_PATTERN });
            let slow = json!({ "type": "object", "properties": { "text": text } });
            let free = json!({ "type": "object" });
            // The upstream's own answer is the second way to the same work.
            let (input, output) =
                if attempt.case.id == "M48" { (&free, Some(&slow)) } else { (&slow, None) };
            add_upstream(attempt, "slow", input, output)?;
            attempt.launch.set("SERVER_DRAIN_MS", "1000");
        }
        "M49" => {
            let names: Vec<_> = (0..14).map(|at| format!("name{at}")).collect();
            let list = json!({ "type": "array", "items": { "required": names } });
            let schema = json!({ "type": "object", "properties": { "list": list } });
            add_upstream(attempt, "many", &schema, None)?;
        }
        "M50" => write_branching_schemas(&attempt.folders.ws)?,
        "M51" => {
            let ws = &attempt.folders.ws;
            fs::write(ws.join("bad.rb"), heredoc_text("okapi", TOO_LONG_WORD))?;
            fs::write(ws.join("full.rb"), heredoc_text("tapir", FULL_BUFFER))?;
            fs::write(ws.join("good.rb"), "def zebra\n  1\nend\n")?;
        }
        "M62" => write_all_hostile_files(&attempt.folders.ws)?,
        "M58" => add_upstream_tools(attempt, &tools_with_hidden_texts())?,
        _ => {}
    }
    Ok(())
}

/// Performs an attack case about memory and time against a running server.
pub(super) fn perform(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    match attempt.case.id.as_str() {
        "M43" => {
            let edit = json!({ "old": "q", "new": "w".repeat(600_000), "replace_all": true });
            let input = json!({ "path": "long.txt", "edits": [edit], "dry_run": true });
            Ok(vec![call(client, "files.edit", &input)?])
        }
        "M44" => send_unfinished_messages(attempt, server, client),
        "M45" => start_with_remembered_tools(attempt, client),
        "M46" => Ok(vec![call(client, "files.read", &json!({ "path": "ok.txt" }))?]),
        "M47" | "M48" => call_slow_tool(attempt, server, client),
        "M49" => {
            wait_for_tool(client, "evil_many")?;
            let input = json!({ "list": vec![json!({}); 600_000] });
            Ok(vec![call(client, "evil.many", &input)?])
        }
        "M51" => search_crashing_texts(attempt, server, client),
        "M58" => list_hidden_texts(attempt, server, client),
        "M62" => start_among_hostile_files(attempt),
        "M70" => send_many_values_at_once(attempt, server, client),
        // M50
        _ => {
            let mut results = Vec::new();
            for schema in ["wide", "nested"] {
                let input = json!({ "asset": { "a": { "b": {} } }, "schema": schema });
                let result = call(client, "assets.validate_asset", &input)?;
                let raw = String::from_utf8_lossy(&result.response.raw).into_owned();
                ensure!(raw.contains("subschemas"), "{schema}: {}", summary(&result.response));
                results.push(result);
            }
            Ok(results)
        }
    }
}

/// Adds to the settings an upstream called `evil` with one tool. The tool has the name `name` and
/// the schemas `input` and `output`.
fn add_upstream(
    attempt: &mut AttackAttempt,
    name: &str,
    input: &Value,
    output: Option<&Value>,
) -> anyhow::Result<()> {
    let mut tool = json!({ "name": name, "description": "A tool.", "inputSchema": input });
    if let Some(output) = output {
        tool["outputSchema"] = output.clone();
    }
    add_upstream_tools(attempt, &[tool])
}

/// Adds to the settings an upstream called `evil` that lists `tools`.
fn add_upstream_tools(attempt: &mut AttackAttempt, tools: &[Value]) -> anyhow::Result<()> {
    let script = attempt.folders.ws.join("evil.py");
    let list = attempt.folders.ws.join("tools.json");
    fs::write(&script, UPSTREAM)?;
    fs::write(&list, json!(tools).to_string())?;
    let command = json!(["python3", script, list]);
    attempt.launch.config = format!("[upstream.evil]\ncommand = {command}\n");
    Ok(())
}

/// Waits until the server lists the tool `name`.
fn wait_for_tool(client: &mut AttackClient, name: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if client.tools()?.iter().any(|tool| tool["name"] == name) {
            return Ok(());
        }
    }
    anyhow::bail!("the harness: the upstream's tool {name} is not listed")
}

/// Attack case M44: sends the starts of long WebSocket messages on many connections, and ends none
/// of them.
fn send_unfinished_messages(
    attempt: &mut AttackAttempt,
    server: &AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let addr = server.addr.context("no address")?;
    let mut frame = client_frame(1, &vec![b' '; UNFINISHED_BYTES]);
    frame.pop();
    let mut sockets = Vec::new();
    for _ in 0..UNFINISHED_MESSAGES {
        let path = AttackDialect::Mira.websocket_path();
        let socket = AttackWebSocket::open(addr, path, Duration::from_secs(10))?;
        let mut writer: TcpStream = socket.writer()?;
        writer.set_write_timeout(Some(Duration::from_secs(2)))?;
        // The server may close the connection instead of reading the message.
        let _ = writer.write_all(&frame);
        sockets.push(socket);
    }
    check_other_call(attempt, client);
    Ok(vec![AttackCallResult { is_judged: true, ..AttackCallResult::default() }])
}

/// Attack case M70: sends many lists of short values at once. Parsed, each list takes several times
/// the memory of its text.
fn send_many_values_at_once(
    attempt: &mut AttackAttempt,
    server: &AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let addr = server.addr.context("no address")?;
    let input = json!({ "base": "VALUES", "new": [] });
    let mut request = client.call_request("assets.diff_assets", &input)?.http;
    let body = String::from_utf8_lossy(&request.body).into_owned();
    let values = format!("[{}0]", "[],".repeat(900_000));
    request.body = body.replace("\"VALUES\"", &values).into_bytes();
    let bytes = request.bytes(addr);
    let mut streams = Vec::new();
    for _ in 0..MANY_VALUES_MESSAGES {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        // The server may refuse the message before it has read all of it.
        _ = stream.write_all(&bytes);
        streams.push(stream);
    }
    check_other_call(attempt, client);
    drop(streams);
    Ok(vec![AttackCallResult { is_judged: true, ..AttackCallResult::default() }])
}

/// Attack case M45: starts a second server, which reads the remembered tools of the upstream from
/// the cache.
fn start_with_remembered_tools(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    client.tools()?;
    check_other_call(attempt, client);
    let started = Instant::now();
    let (mut second, mut other) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    other.ping()?;
    let elapsed = started.elapsed();
    if elapsed > Duration::from_secs(5) {
        attempt.failures.push(format!("the next server answers its first call after {elapsed:?}"));
    }
    let (_, peak_kib) = second.memory_kib();
    if peak_kib > 400 << 10 {
        attempt.failures.push(format!("the next server takes {} MiB", peak_kib >> 10));
    }
    attempt.stop(&mut second, &mut other);
    Ok(vec![AttackCallResult { is_judged: true, ..AttackCallResult::default() }])
}

/// Attack case M62: starts a second server in a folder with all hostile files, and makes its first
/// call.
fn start_among_hostile_files(attempt: &mut AttackAttempt) -> CallResults {
    let started = Instant::now();
    let (mut second, mut other) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let result = call(&mut other, "files.read", &json!({ "path": "ok.txt" }))?;
    let elapsed = started.elapsed();
    attempt.notes.push(format!("first answer after {elapsed:?}"));
    if elapsed > FIRST_ANSWER_MAX {
        attempt.failures.push(format!("the first answer came after {elapsed:?}"));
    }
    attempt.stop(&mut second, &mut other);
    Ok(vec![result])
}

/// Attack cases M47 and M48: makes slow calls on more connections than the server has threads,
/// makes a normal call meanwhile, and stops the server before the slow calls end.
fn call_slow_tool(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    wait_for_tool(client, "evil_slow")?;
    let addr = server.addr.context("no address")?;
    let route = attempt.route;
    let callers: Vec<_> = (0..12)
        .map(|_| {
            spawn(move || {
                let mut client = connect(addr, route).ok()?;
                client.call("evil.slow", &json!({ "text": "x".repeat(700_000) })).ok()
            })
        })
        .collect();
    for _ in 0..20 {
        check_other_call(attempt, client);
    }
    let refused = callers.into_iter().filter_map(|caller| caller.join().ok().flatten());
    let accepted = refused.filter(|response| !response.is_error).count();
    if accepted > 0 {
        attempt.failures.push(format!("{accepted} calls were accepted without a match"));
    }
    let last = spawn(move || {
        let mut client = connect(addr, route).ok()?;
        client.call("evil.slow", &json!({ "text": "yx".repeat(700_000) })).ok()
    });
    check_other_call(attempt, client);
    let started = Instant::now();
    attempt.stop(server, client);
    let elapsed = started.elapsed();
    if elapsed > Duration::from_secs(3) {
        attempt.failures.push(format!("the server exits {elapsed:?} after the signal"));
    }
    let _ = last.join();
    attempt.may_exit = true;
    Ok(vec![AttackCallResult { is_judged: true, ..AttackCallResult::default() }])
}

/// Attack case M51: searches files that crash a grammar, stores a document that crashes a grammar,
/// and starts a second server, which reads the same files.
fn search_crashing_texts(
    attempt: &mut AttackAttempt,
    server: &AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let mut results = find_beside_crashes(attempt, client)?;
    let documents = json!([{ "id": "b.rb", "text": heredoc_text("okapi", TOO_LONG_WORD) }]);
    let input = json!({ "namespace": "notes", "documents": documents });
    results.push(call(client, "search.upsert", &input)?);
    check_other_call(attempt, client);
    let (mut second, mut other) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    results.extend(find_beside_crashes(attempt, &mut other)?);
    attempt.stop(&mut second, &mut other);
    let log = String::from_utf8_lossy(&server.log()).into_owned();
    if log.matches("the parser of `bad.rb` crashed").count() != 1 {
        attempt.failures.push(format!("the log does not report the crash once: {log:.400}"));
    }
    Ok(results)
}

/// Checks in attack case M51 that the definitions in all files are found, including those beside
/// crashes.
fn find_beside_crashes(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let mut results = Vec::new();
    for (name, path) in [("okapi", "bad.rb"), ("tapir", "full.rb"), ("zebra", "good.rb")] {
        let result = call(client, "search.names", &json!({ "name": name }))?;
        let raw = String::from_utf8_lossy(&result.response.raw).into_owned();
        if !raw.contains(path) {
            attempt.failures.push(format!("`{name}` is not found: {raw:.200}"));
        }
        results.push(result);
    }
    Ok(results)
}

/// Attack case M58: lists the tools of an upstream with hidden texts. The log must name each tool
/// that is left out.
fn list_hidden_texts(
    attempt: &mut AttackAttempt,
    server: &AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    wait_for_tool(client, "evil_plain")?;
    let listed = client.tools()?;
    let log = String::from_utf8_lossy(&server.log()).into_owned();
    for name in ["tags", "terminal", "titled", "schema", "long"] {
        if listed.iter().any(|tool| tool["name"] == format!("evil_{name}")) {
            attempt.failures.push(format!("the tool `{name}` is listed"));
        }
        if !log.contains(&format!("the tool `{name}` of the upstream `evil` is not listed")) {
            attempt.failures.push(format!("the log does not report `{name}`: {log:.400}"));
        }
    }
    Ok(vec![AttackCallResult { is_judged: true, ..AttackCallResult::default() }])
}

/// Makes the cheapest call as a normal caller, and records a failure if the call takes too long.
fn check_other_call(attempt: &mut AttackAttempt, client: &mut AttackClient) {
    match client.ping() {
        Ok(elapsed) if elapsed <= OTHER_CALL_MAX => {}
        Ok(elapsed) => attempt.failures.push(format!("another call took {elapsed:?}")),
        Err(err) => attempt.failures.push(format!("another call failed: {err:#}")),
    }
}
