//! Attack cases about HTTP: malformed and misleading requests, sessions, and callers with a wrong
//! key.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::attempt::{AttackAttempt, AttackCallResult, CallResults, call};
use super::client::{AttackClient, connect, connect_with};
use super::dialects::{AttackDialect, AttackResponse};
use super::http::{AttackHttpRequest, AttackHttpResponse, exchange};
use super::oracle::add_recorded_outcomes;
use super::perform::wait_until;
use super::program_cases::job_id_in;
use super::server::{AttackedServer, sh};

/// Time limit of an HTTP response.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Number of idle connections. It exceeds the number that the server accepts.
const IDLE_CONNECTIONS: usize = 1100;

/// Performs an attack case about HTTP against a running server.
pub(super) fn perform(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let addr = server.addr.context("no address")?;
    let request = client.codec.ping_request().http;
    let requests = match attempt.case.id.as_str() {
        "H01" => foreign_hosts(&request, attempt.route.dialect, addr),
        "H04" => unlisted_hosts(&request, addr),
        "H09" => ["00000000-0000-0000-0000-000000000000", "1", "client-chosen", "../x"]
            .map(|id| request.clone().with_header("Mcp-Session-Id", id))
            .into(),
        "H10" => vec![without_session(&request)?],
        "H15" => compression_bombs(&request, &attempt.folders.base)?,
        "H16" => {
            open_idle_connections(attempt, addr, client);
            Vec::new()
        }
        "H17" => return send_smuggled(attempt, &request, addr),
        "H18" => {
            send_traversals(attempt, addr)?;
            Vec::new()
        }
        // H22
        _ => unknown_versions(attempt, &request, addr)?,
    };
    requests.iter().map(|request| Ok(status_result(&request.send(addr, TIMEOUT)?))).collect()
}

/// Returns a call result that assertions judge by the HTTP status of `answer`.
fn status_result(answer: &AttackHttpResponse) -> AttackCallResult {
    let response = AttackResponse {
        is_error: answer.status >= 400,
        status: answer.status,
        text: String::from_utf8_lossy(&answer.body).into_owned(),
        raw: answer.raw.clone(),
        ..AttackResponse::default()
    };
    AttackCallResult { response, is_judged: true, ..AttackCallResult::default() }
}

/// Returns variants of `request` that name the host or the origin of another site.
fn foreign_hosts(
    request: &AttackHttpRequest,
    dialect: AttackDialect,
    addr: SocketAddr,
) -> Vec<AttackHttpRequest> {
    let foreign = request.clone().with_header("Host", "evil.example:8080");
    let same_port = format!("evil.example:{}", addr.port());
    vec![
        foreign.clone(),
        request.clone().with_header("Host", &same_port),
        request
            .clone()
            .with_header("Host", &addr.to_string())
            .with_header("Origin", "http://evil.example"),
        AttackHttpRequest { method: "OPTIONS".into(), ..foreign },
        AttackHttpRequest::get(dialect.websocket_path())
            .with_header("Connection", "Upgrade")
            .with_header("Upgrade", "websocket")
            .with_header("Sec-WebSocket-Version", "13")
            .with_header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
            .with_header("Host", "evil.example:8080"),
    ]
}

/// Returns variants of `request` that spell the server's host in other ways, none of which is
/// allowed.
fn unlisted_hosts(request: &AttackHttpRequest, addr: SocketAddr) -> Vec<AttackHttpRequest> {
    let port = addr.port();
    let names = [
        "0.0.0.0:8080".to_owned(),
        format!("0.0.0.0:{port}"),
        format!("localhost.:{port}"),
        format!("127.1:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("2130706433:{port}"),
        format!("0x7f000001:{port}"),
        format!("127.0.0.1.:{port}"),
        format!("user@127.0.0.1:{port}"),
        format!("127.0.0.1:{}", port.wrapping_add(1)),
        format!("127.0.0.1:{port}:80"),
        format!("127.0.0.1:{port}.evil.example"),
        format!("evil.example,127.0.0.1:{port}"),
        "127.0.0.2".to_owned(),
    ];
    let mut requests: Vec<AttackHttpRequest> =
        names.iter().map(|name| request.clone().with_header("Host", name)).collect();
    // A URL in the request line takes precedence over `Host`.
    let path = format!("http://evil.example:{port}{}", request.path);
    requests.push(AttackHttpRequest { path, ..request.clone() });
    let mut two_hosts = request.clone();
    two_hosts.headers.push(("Host".into(), addr.to_string()));
    two_hosts.headers.push(("Host".into(), "evil.example".into()));
    requests.push(two_hosts);
    requests
}

/// Returns `request` without its session id.
fn without_session(request: &AttackHttpRequest) -> anyhow::Result<AttackHttpRequest> {
    let mut without = request.clone();
    without.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("mcp-session-id"));
    ensure!(without.headers.len() < request.headers.len(), "there is no session");
    Ok(without)
}

/// Returns variants of `request` with small bodies that decompress to 100 MB.
fn compression_bombs(
    request: &AttackHttpRequest,
    folder: &Path,
) -> anyhow::Result<Vec<AttackHttpRequest>> {
    sh(folder, "head -c 100000000 /dev/zero | gzip -9 > bomb.gz")?;
    let body = std::fs::read(folder.join("bomb.gz"))?;
    let bomb = AttackHttpRequest { method: "POST".into(), body, ..request.clone() };
    let bomb = bomb.with_header("Content-Type", "application/json");
    let encodings = ["gzip", "deflate", "br", "zstd"];
    Ok(encodings.map(|encoding| bomb.clone().with_header("Content-Encoding", encoding)).into())
}

/// Attack case H16: opens idle connections in three different ways, and makes a call while the
/// connections of each are open.
fn open_idle_connections(attempt: &mut AttackAttempt, addr: SocketAddr, client: &mut AttackClient) {
    let upgrade = format!(
        "GET /v1/ws/mcp HTTP/1.1\r\nHost: {addr}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    for (kind, first_bytes) in [
        ("silent connections", ""),
        ("incomplete heads", "GET /mcp HTTP/1.1\r\nHost: "),
        ("WebSockets", upgrade.as_str()),
    ] {
        let mut streams = Vec::new();
        for _ in 0..IDLE_CONNECTIONS {
            let Ok(mut stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(5)) else {
                break;
            };
            _ = stream.write_all(first_bytes.as_bytes());
            streams.push(stream);
        }
        let ping = client.ping();
        if !matches!(ping, Ok(elapsed) if elapsed < Duration::from_secs(5)) {
            let ping = ping.map_or_else(|err| format!("{err:#}"), |elapsed| format!("{elapsed:?}"));
            attempt.failures.push(format!("a call beside {} {kind}: {ping}", streams.len()));
        }
    }
}

/// Attack case H17: sends requests that a proxy and the server may split differently (request
/// smuggling).
fn send_smuggled(
    attempt: &mut AttackAttempt,
    request: &AttackHttpRequest,
    addr: SocketAddr,
) -> CallResults {
    let mut results = Vec::new();
    for (label, bytes) in smuggled_requests(request, addr) {
        let answer =
            exchange(addr, &bytes, TIMEOUT).with_context(|| format!("no answer: {label}"))?;
        let mut result = status_result(&answer);
        result.response.text = format!("{label}: {}", result.response.text);
        let answers = answer.raw.windows(9).filter(|nine| nine == b"HTTP/1.1 ").count();
        if answers > 1 {
            attempt.failures.push(format!("{label}: {answers} answers to one request"));
        }
        results.push(result);
    }
    Ok(results)
}

/// Returns variants of `request` with an ambiguous end or ambiguous headers, each with a label.
fn smuggled_requests(
    request: &AttackHttpRequest,
    addr: SocketAddr,
) -> Vec<(&'static str, Vec<u8>)> {
    let body = if request.body.is_empty() {
        "{}".to_owned()
    } else {
        String::from_utf8_lossy(&request.body).into_owned()
    };
    let headers_without = |name: &str| -> String {
        let others = request.headers.iter().filter(|(other, _)| !other.eq_ignore_ascii_case(name));
        others.map(|(name, value)| format!("{name}: {value}\r\n")).collect()
    };
    let headers = headers_without("");
    let head_with = |headers: &str| {
        let path = &request.path;
        format!("POST {path} HTTP/1.1\r\nHost: {addr}\r\n{headers}Connection: close\r\n")
    };
    let head = head_with(&headers);
    let length = format!("Content-Length: {}\r\n", body.len());
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let te = "Transfer-Encoding: chunked\r\n";
    let mut requests = vec![
        ("Content-Length, then chunked", format!("{head}Content-Length: 5\r\n{te}\r\n{chunked}")),
        ("chunked, then Content-Length", format!("{head}{te}Content-Length: 5\r\n\r\n{chunked}")),
        ("two lengths", format!("{head}{length}Content-Length: 3\r\n\r\n{body}")),
        ("two encodings", format!("{head}{te}Transfer-Encoding: identity\r\n\r\n{chunked}")),
        ("chunked twice", format!("{head}Transfer-Encoding: chunked, chunked\r\n\r\n{chunked}")),
        (
            "a space before the colon",
            format!("{head}Content-Length : {}\r\n\r\n{body}", body.len()),
        ),
        ("a folded header", format!("{head}{length}X-A: a\r\n b\r\n\r\n{body}")),
        ("NUL in a header", format!("{head}{length}X-A: a\0b\r\n\r\n{body}")),
        ("a lone CR in a header", format!("{head}{length}X-A: a\rb\r\n\r\n{body}")),
        ("only line feeds", format!("{head}{length}\r\n{body}").replace("\r\n", "\n")),
        ("one lone line feed", format!("{head}{length}X-A: a\nX-B: b\r\n\r\n{body}")),
        ("a signed length", format!("{head}Content-Length: +{}\r\n\r\n{body}", body.len())),
        ("a chunk without a size", format!("{head}{te}\r\nxyz\r\n{body}\r\n0\r\n\r\n")),
    ];
    if request.path == "/mcp" && headers.contains("Mcp-Method") {
        let without_method = head_with(&headers_without("mcp-method"));
        requests.extend([
            (
                "another method in the header",
                format!("{without_method}{length}Mcp-Method: tools/call\r\n\r\n{body}"),
            ),
            ("two methods", format!("{head}{length}mcp-method: tools/call\r\n\r\n{body}")),
            (
                "two versions",
                format!("{head}{length}mcp-protocol-version: 2025-11-25\r\n\r\n{body}"),
            ),
        ]);
    }
    requests.into_iter().map(|(label, text)| (label, text.into_bytes())).collect()
}

/// Attack case H18: requests paths that lead out of any folder with public files.
fn send_traversals(attempt: &mut AttackAttempt, addr: SocketAddr) -> anyhow::Result<()> {
    for path in [
        "/assets/..%2f..%2fetc/passwd",
        "/../../etc/passwd",
        "//etc/passwd",
        "/mcp/../../../etc/passwd",
        "/mcp/prompt/..%2f..%2fws_evil%2fsecret",
        "/%2e%2e/ws_evil/secret",
        "/jobs/..%2f..%2fsecret/download",
        "/v1/jobs/..%2f..%2fsecret/download",
        "/mcp/tool/..%2f..%2fsecret",
        "/.well-known/../../ws_evil/secret",
    ] {
        let answer = AttackHttpRequest::get(path).send(addr, TIMEOUT)?;
        if answer.status < 400 || answer.raw.windows(5).any(|five| five == b"root:") {
            attempt.failures.push(format!("{path}: status {}", answer.status));
        }
        attempt.received.extend(&answer.raw);
    }
    Ok(())
}

/// Attack case H22: returns requests with unknown MCP versions. Also checks that an error names the
/// known versions.
fn unknown_versions(
    attempt: &mut AttackAttempt,
    request: &AttackHttpRequest,
    addr: SocketAddr,
) -> anyhow::Result<Vec<AttackHttpRequest>> {
    let with_version = |version| request.clone().with_header("MCP-Protocol-Version", version);
    // The body has the same version as the header.
    let body = String::from_utf8_lossy(&request.body).replace("2026-07-28", "1999-01-01");
    let consistent = AttackHttpRequest { body: body.into_bytes(), ..with_version("1999-01-01") };
    let answer = consistent.send(addr, TIMEOUT)?;
    let text = String::from_utf8_lossy(&answer.body);
    if !text.contains("supported") || !text.contains("20") {
        attempt.failures.push(format!("the error does not name the known versions: {text:.200}"));
    }
    let versions = ["1999-01-01", "latest", "", "2026-07-28, 2025-11-25", "2026-07-28\u{7f}"];
    Ok(std::iter::once(consistent).chain(versions.map(with_version)).collect())
}

/// Two API keys that the command `toolgate key` created, for two callers.
struct TestApiKeys {
    /// Settings that contain the digests of both keys.
    config: String,
    ada: String,
    bob: String,
}

impl TestApiKeys {
    fn create(attempt: &AttackAttempt) -> anyhow::Result<Self> {
        let home = &attempt.folders.home;
        let (mut config, ada) = create_key(&attempt.binary, home, "ada")?;
        let (bobs_config, bob) = create_key(&attempt.binary, home, "bob")?;
        config += &bobs_config;
        Ok(Self { config, ada, bob })
    }
}

/// Creates an API key for the caller `name`. Returns the settings with the digest of the key, and
/// the key.
pub(super) fn create_key(
    toolgate: &Path,
    home: &Path,
    name: &str,
) -> anyhow::Result<(String, String)> {
    let mut command = Command::new(toolgate);
    let output = command.args(["key", name]).env("HOME", home).stdin(Stdio::null()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let key = stderr.split_whitespace().find(|word| word.starts_with("toolgate_"));
    let key = key.context("no key")?.to_owned();
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), key))
}

fn bearer(key: &str) -> Vec<(String, String)> {
    vec![("Authorization".to_owned(), format!("Bearer {key}"))]
}

/// Attack case J01: tries to use the job of another caller.
pub(super) fn use_foreign_job(attempt: &mut AttackAttempt) -> CallResults {
    let keys = TestApiKeys::create(attempt)?;
    attempt.launch.config = keys.config;
    let mut server = attempt.launch.serve(&attempt.folders)?;
    let addr = server.addr.context("no address")?;
    let mut ada = connect_with(addr, attempt.route, bearer(&keys.ada))?;
    let start = json!({ "tool": "exec.run", "arguments": { "command": "echo", "args": ["hers"] } });
    let id = job_id_in(&ada.call("jobs.start", &start)?)?;
    let mut own = call(&mut ada, "jobs.get", &json!({ "job_id": id, "wait_ms": 5000 }))?;
    ensure!(!own.response.is_error, "its owner does not get the job: {}", own.response.text);
    own.is_judged = false;
    let mut bob = connect_with(addr, attempt.route, bearer(&keys.bob))?;
    let mut results = vec![own];
    let unknown_id = "0".repeat(32);
    for tool in ["jobs.get", "jobs.output", "jobs.cancel"] {
        let foreign = call(&mut bob, tool, &json!({ "job_id": id }))?;
        let mut unknown = call(&mut bob, tool, &json!({ "job_id": unknown_id }))?;
        unknown.is_judged = false;
        let without_id = |response: &AttackResponse, id: &str| response.text.replace(id, "ID");
        if without_id(&foreign.response, &id) != without_id(&unknown.response, &unknown_id) {
            let text = &foreign.response.text;
            attempt.failures.push(format!("{tool} shows that the job exists: {text}"));
        }
        results.push(foreign);
        results.push(unknown);
    }
    let listed = bob.call("jobs.list", &json!({}))?;
    if String::from_utf8_lossy(&listed.raw).contains(&id) {
        attempt.failures.push("the job is in the list of another caller".to_owned());
    }
    if attempt.route.dialect == AttackDialect::Zyra {
        for path in ["", "/manifest", "/download"] {
            let answer = bob.post(&AttackHttpRequest::get(&format!("/v1/jobs/{id}{path}")))?;
            let status = answer.status;
            if status != 404 {
                attempt.failures.push(format!("/v1/jobs/ID{path} of another caller: {status}"));
            }
        }
    }
    attempt.received.append(&mut ada.received);
    attempt.check_alive_and_stop(&mut server, &mut bob);
    add_recorded_outcomes(attempt, &mut results);
    Ok(results)
}

/// Attack case H12: ends the session of another caller, and uses a session after its end.
pub(super) fn use_ended_sessions(attempt: &mut AttackAttempt) -> CallResults {
    let keys = TestApiKeys::create(attempt)?;
    attempt.launch.config = keys.config;
    let mut server = attempt.launch.serve(&attempt.folders)?;
    let addr = server.addr.context("no address")?;
    let mut ada = connect_with(addr, attempt.route, bearer(&keys.ada))?;
    let delete = |request: &AttackHttpRequest| AttackHttpRequest {
        method: "DELETE".into(),
        body: Vec::new(),
        ..request.clone()
    };
    let mut foreign = ada.codec.ping_request().http;
    foreign.headers.extend(bearer(&keys.bob));
    let mut results = vec![
        status_result(&delete(&foreign).send(addr, TIMEOUT)?),
        status_result(&foreign.send(addr, TIMEOUT)?),
    ];
    ensure!(ada.ping().is_ok(), "another caller ended the session");
    let mut own = ada.codec.ping_request().http;
    own.headers.extend(bearer(&keys.ada));
    let ended = delete(&own).send(addr, TIMEOUT)?;
    ensure!(ended.status < 300, "its owner cannot end the session: {}", ended.status);
    results.push(status_result(&own.send(addr, TIMEOUT)?));
    results.push(status_result(&delete(&own).send(addr, TIMEOUT)?));
    let mut second = connect_with(addr, attempt.route, bearer(&keys.ada))?;
    attempt.check_alive_and_stop(&mut server, &mut second);
    Ok(results)
}

/// Attack case H07: starts the server on public addresses without authentication. The server must
/// refuse to start.
pub(super) fn bind_public_addresses(attempt: &mut AttackAttempt) -> CallResults {
    let mut finding = Ok(());
    for listen in ["0.0.0.0:0", "[::]:0", "0.0.0.0:8080"] {
        let words = ["serve", "--listen", listen];
        let mut command = attempt.launch.command(&attempt.folders, &words)?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let has_failed = wait_until(
            Duration::from_secs(5),
            || matches!(child.try_wait(), Ok(Some(status)) if !status.success()),
        );
        if !has_failed {
            finding = Err(format!("the server listens on {listen}"));
        }
        _ = child.kill();
        _ = child.wait();
    }
    let mut server = attempt.launch.serve(&attempt.folders)?;
    let addr = server.addr.context("no address")?;
    if !addr.ip().is_loopback() {
        finding = Err(format!("by default, the server listens on {addr}"));
    }
    let mut client = connect(addr, attempt.route)?;
    attempt.check_alive_and_stop(&mut server, &mut client);
    attempt.record_finding("bind:127.0.0.1", finding);
    Ok(Vec::new())
}

/// Attack cases H20 and H21: sends OAuth tokens that were not issued for this server.
pub(super) fn send_foreign_tokens(attempt: &mut AttackAttempt) -> CallResults {
    let keys = TestApiKeys::create(attempt)?;
    attempt.launch.config = keys.config;
    let mut server = attempt.launch.serve(&attempt.folders)?;
    let addr = server.addr.context("no address")?;
    let mut client = connect_with(addr, attempt.route, bearer(&keys.ada))?;
    ensure!(client.ping().is_ok(), "a valid key is refused");
    let request = client.codec.ping_request().http;
    let mut results = Vec::new();
    // {"alg":"none"} and {"alg":"HS256"} with {"aud":"other"}, and an unknown key.
    for token in [
        "eyJhbGciOiJub25lIn0.eyJhdWQiOiJvdGhlciJ9.",
        "eyJhbGciOiJIUzI1NiJ9.eyJhdWQiOiJvdGhlciJ9.AAAA",
        "toolgate_0000000000000000000000000000000000000000000000000000000000000000",
    ] {
        let request = request.clone().with_header("Authorization", &format!("Bearer {token}"));
        let mut result = status_result(&request.send(addr, TIMEOUT)?);
        result.is_judged = attempt.case.id == "H21";
        if !result.response.is_error {
            attempt.failures.push(format!("the token {token} is accepted"));
        }
        results.push(result);
    }
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(results)
}
