//! Attacks of a resource run: input that costs its sender little and the server much. The server
//! may refuse all of them.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread::{scope, sleep};
use std::time::Duration;

use serde_json::{Value, json};
use toolgate_test_support::SeededRng;

use super::super::client::{AttackClient, connect_with};
use super::super::dialects::{AttackDialect, AttackWireRequest};
use super::super::hostile_files::{FULL_BUFFER, TOO_LONG_WORD, heredoc_text};
use super::super::http::{AttackWebSocket, client_frame};
use super::{ROUTE, ResourceRunTally, bearer};

/// Time that an attacker waits for answers before it disconnects.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which an attacker keeps connections open without sending or reading.
const HOLD: Duration = Duration::from_secs(1);

/// Caller that attacks the server, with its key.
pub(super) struct AttackingCaller<'run> {
    pub(super) addr: SocketAddr,
    pub(super) key: &'run str,
}

/// Function that makes one attack. It returns an error if the server refuses or ends a connection.
type ResourceAttackFn = fn(&AttackingCaller<'_>, &mut SeededRng) -> anyhow::Result<()>;

/// Attacks on memory and time, each with the name that a run prints.
const ATTACKS: [(&str, ResourceAttackFn); 19] = [
    ("crashing code", write_crashing_code),
    ("huge edits", edit_hugely),
    ("unfinished WebSocket messages", leave_messages_unfinished),
    ("changing tools", list_changing_tools),
    ("slow patterns in input", |attacker, _| attacker.send_slow_text("evil.slow")),
    ("slow patterns in results", |attacker, _| attacker.send_slow_text("evil.answer")),
    ("many errors", send_many_errors),
    ("branching schemas", validate_branching_schemas),
    ("long diffs", diff_long_lists),
    ("many values", send_many_values),
    ("many values at once", send_many_values_at_once),
    ("deep JSON", send_deep_json),
    ("large bodies", send_large_bodies),
    ("slow senders", send_slowly),
    ("slow readers", read_slowly),
    ("jobs with large input", queue_large_jobs),
    ("expensive searches", search_expensively),
    ("idle connections", open_idle_connections),
    ("abandoned calls", abandon_calls),
];

/// Makes attacks until the run is over. All attackers together make each attack once, and then
/// random ones.
pub(super) fn attack(attacker: &AttackingCaller<'_>, mut rng: SeededRng, tally: &ResourceRunTally) {
    while tally.is_running() {
        let (name, play) = ATTACKS.get(tally.next_attack()).copied().unwrap_or_else(|| {
            let number = rng.between(0, ATTACKS.len() as u64);
            ATTACKS[usize::try_from(number).unwrap_or(0)]
        });
        let has_answer = play(attacker, &mut rng).is_ok();
        tally.add_attack(name, has_answer);
    }
}

impl AttackingCaller<'_> {
    fn connect(&self) -> anyhow::Result<AttackClient> {
        let mut client = connect_with(self.addr, ROUTE, bearer(self.key))?;
        client.timeout = ANSWER_TIMEOUT;
        Ok(client)
    }

    fn call(&self, tool: &str, input: &Value) -> anyhow::Result<()> {
        self.connect()?.call(tool, input)?;
        Ok(())
    }

    /// Calls a tool of the upstream. The schema of its argument has a pattern that is slow to
    /// match.
    fn send_slow_text(&self, tool: &str) -> anyhow::Result<()> {
        self.call(tool, &json!({ "text": "x".repeat(700_000) }))
    }

    /// Opens a connection and writes the first `length` bytes of `bytes`.
    fn write_start(&self, bytes: &[u8], length: usize) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.addr, ANSWER_TIMEOUT)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(&bytes[..length.min(bytes.len())])?;
        Ok(stream)
    }

    /// Returns the bytes of an HTTP request with the key of this attacker.
    fn encode(&self, request: &AttackWireRequest) -> Vec<u8> {
        let mut http = request.http.clone();
        http.headers.extend(bearer(self.key));
        http.bytes(self.addr)
    }
}

fn write_crashing_code(attacker: &AttackingCaller<'_>, rng: &mut SeededRng) -> anyhow::Result<()> {
    let lengths = if rng.chance(50) { TOO_LONG_WORD } else { FULL_BUFFER };
    let code = heredoc_text(&format!("name{}", rng.next_number()), lengths);
    let file = format!("evil-{}.rb", rng.between(0, 20));
    let mut client = attacker.connect()?;
    let write = json!({ "path": file, "content": code, "overwrite": true });
    client.call("files.write", &write)?;
    client.call("search.names", &json!({ "query": "name" }))?;
    let documents = json!([{ "id": file, "text": code }]);
    client.call("search.upsert", &json!({ "namespace": "evil", "documents": documents }))?;
    Ok(())
}

fn edit_hugely(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    let edit = json!({ "old": "q", "new": "w".repeat(600_000), "replace_all": true });
    let input = json!({ "path": "long.txt", "edits": [edit], "dry_run": true });
    attacker.call("files.edit", &input)
}

fn leave_messages_unfinished(
    attacker: &AttackingCaller<'_>,
    rng: &mut SeededRng,
) -> anyhow::Result<()> {
    let path = format!("{}?api_key={}", AttackDialect::Zyra.websocket_path(), attacker.key);
    let length = usize::try_from(rng.between(1 << 20, 28 << 20))?;
    let mut frame = client_frame(1, &vec![b' '; length]);
    frame.pop();
    let mut sockets = Vec::new();
    for _ in 0..12 {
        let socket = AttackWebSocket::open(attacker.addr, &path, ANSWER_TIMEOUT)?;
        let mut writer = socket.writer()?;
        writer.set_write_timeout(Some(HOLD))?;
        // The server may close the connection instead of reading the message.
        _ = writer.write_all(&frame);
        sockets.push(socket);
    }
    sleep(HOLD);
    Ok(())
}

/// Makes the upstream change its list of tools. One schema in the list has many large patterns.
fn list_changing_tools(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    let mut client = attacker.connect()?;
    client.call("evil.turn", &json!({}))?;
    client.tools()?;
    client.call("evil.wide", &json!({ "text": "x" }))?;
    Ok(())
}

fn send_many_errors(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    attacker.call("evil.many", &json!({ "list": vec![json!({}); 300_000] }))
}

fn validate_branching_schemas(
    attacker: &AttackingCaller<'_>,
    rng: &mut SeededRng,
) -> anyhow::Result<()> {
    let schema = if rng.chance(50) { "wide" } else { "nested" };
    let input = json!({ "asset": { "a": { "b": {} } }, "schema": schema });
    attacker.call("assets.validate_asset", &input)
}

fn diff_long_lists(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    let list = |value: u32| (0..100_000).map(|at| json!({ "n": at * value })).collect::<Vec<_>>();
    attacker.call("assets.diff_assets", &json!({ "base": list(1), "new": list(2) }))
}

/// Returns a call whose JSON takes many times the memory of its text once it is parsed.
fn many_values(attacker: &AttackingCaller<'_>) -> anyhow::Result<AttackWireRequest> {
    let mut request =
        attacker.connect()?.call_request("evil.many", &json!({ "list": "VALUES" }))?;
    let body = String::from_utf8_lossy(&request.http.body).into_owned();
    let values = format!("[{}0]", "[],".repeat(900_000));
    request.http.body = body.replace("\"VALUES\"", &values).into_bytes();
    Ok(request)
}

fn send_many_values(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    let request = many_values(attacker)?;
    attacker.connect()?.post(&request.http)?;
    Ok(())
}

fn send_many_values_at_once(
    attacker: &AttackingCaller<'_>,
    _rng: &mut SeededRng,
) -> anyhow::Result<()> {
    let bytes = attacker.encode(&many_values(attacker)?);
    let streams = (0..24).map(|_| attacker.write_start(&bytes, bytes.len()));
    let streams: Vec<_> = streams.collect::<anyhow::Result<_>>()?;
    sleep(HOLD);
    drop(streams);
    Ok(())
}

fn send_deep_json(attacker: &AttackingCaller<'_>, rng: &mut SeededRng) -> anyhow::Result<()> {
    let mut client = attacker.connect()?;
    let mut request = client.codec.ping_request();
    let open = if rng.chance(50) { "[" } else { "{\"a\":" };
    request.http.body = open.repeat(1_000_000).into_bytes();
    client.post(&request.http)?;
    Ok(())
}

fn send_large_bodies(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    let content = "z".repeat(30 << 20);
    let input = json!({ "path": "large.txt", "content": content, "overwrite": true });
    let request = attacker.connect()?.call_request("files.write", &input)?;
    drop((content, input));
    scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| attacker.connect()?.post(&request.http));
        }
    });
    Ok(())
}

/// Sends the first part of large requests, and then nothing.
fn send_slowly(attacker: &AttackingCaller<'_>, rng: &mut SeededRng) -> anyhow::Result<()> {
    let input = json!({ "path": "large.txt", "content": "z".repeat(24 << 20) });
    let request = attacker.connect()?.call_request("files.write", &input)?;
    let bytes = attacker.encode(&request);
    drop((input, request));
    let mut streams = Vec::new();
    for _ in 0..12 {
        let length = usize::try_from(rng.between(1 << 10, 24 << 20))?;
        streams.push(attacker.write_start(&bytes, length)?);
    }
    sleep(HOLD);
    Ok(())
}

/// Requests long answers, and reads none of them.
fn read_slowly(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    let mut client = attacker.connect()?;
    let mut requests = vec![
        client.call_request("files.read", &json!({ "path": "lines.txt" }))?,
        client.call_request("files.search", &json!({ "query": "line", "limit": 10_000 }))?,
    ];
    requests.extend(client.codec.list_request(None));
    let mut streams = Vec::new();
    for request in requests.iter().cycle().take(48) {
        let bytes = attacker.encode(request);
        streams.push(attacker.write_start(&bytes, bytes.len())?);
    }
    sleep(HOLD * 2);
    Ok(())
}

fn queue_large_jobs(attacker: &AttackingCaller<'_>, _rng: &mut SeededRng) -> anyhow::Result<()> {
    let input = json!({ "command": "sleep", "args": ["1"], "stdin": "x".repeat(8 << 20) });
    let job = json!({ "tool": "exec.run", "arguments": input });
    let mut client = attacker.connect()?;
    for _ in 0..12 {
        client.call("jobs.start", &job)?;
    }
    Ok(())
}

fn search_expensively(attacker: &AttackingCaller<'_>, rng: &mut SeededRng) -> anyhow::Result<()> {
    let queries = [r"(\p{L}{1000}){1000}", r"(?s)(.*a){60}b", r"(a|aa|b)*(c|cc)*d{1,900}"];
    let query = queries[usize::try_from(rng.between(0, 3))?];
    let tool = if rng.chance(50) { "files.search" } else { "search.text" };
    attacker.call(tool, &json!({ "query": query }))
}

/// Opens connections that send nothing, or only the start of a request without a key.
fn open_idle_connections(
    attacker: &AttackingCaller<'_>,
    rng: &mut SeededRng,
) -> anyhow::Result<()> {
    let start = if rng.chance(50) { "" } else { "POST /mcp HTTP/1.1\r\nX: " };
    let streams = (0..150).map(|_| attacker.write_start(start.as_bytes(), start.len()));
    let streams: Vec<_> = streams.collect::<anyhow::Result<_>>()?;
    sleep(HOLD);
    drop(streams);
    Ok(())
}

/// Starts slow calls, and disconnects before their answers.
fn abandon_calls(attacker: &AttackingCaller<'_>, rng: &mut SeededRng) -> anyhow::Result<()> {
    let text = "yx".repeat(300_000);
    let request = attacker.connect()?.call_request("evil.slow", &json!({ "text": text }))?;
    let bytes = attacker.encode(&request);
    for _ in 0..16 {
        let stream = attacker.write_start(&bytes, bytes.len())?;
        sleep(rng.duration_between(0, 60));
        drop(stream);
    }
    Ok(())
}
