//! Requests that no client should send, and callers who are not who they say.

use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::client::{Client, join, join_with};
use super::http::{Answer, Request, exchange};
use super::play::{Came, Play, call};
use super::running::id_in;
use super::server::{Server, sh};
use super::spoken::{Dialect, Said};

const PATIENCE: Duration = Duration::from_secs(15);
/// How many connections say nothing, or listen and read nothing.
const IDLE: usize = 1100;

pub(super) fn perform(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    let addr = server.addr.context("no address")?;
    let request = client.spoken.ping().request;
    let mut all = Vec::new();
    match play.case.id.as_str() {
        "H01" => {
            let mut foreign = vec![
                request.clone().with("Host", "evil.example:8080"),
                request.clone().with("Host", &format!("evil.example:{}", addr.port())),
                request.with("Host", &addr.to_string()).with("Origin", "http://evil.example"),
            ];
            foreign.push(Request { method: "OPTIONS".into(), ..foreign[0].clone() });
            let socket = upgrade(play.way.dialect.socket()).with("Host", "evil.example:8080");
            foreign.push(socket);
            for request in foreign {
                all.push(status(&request.send(addr, PATIENCE)?));
            }
        }
        "H04" => {
            for request in hosts(&request, addr.port()) {
                all.push(status(&request.send(addr, PATIENCE)?));
            }
            let twice = doubled_host(&request, addr)?;
            all.push(status(&twice));
        }
        "H09" => {
            let sessions = ["00000000-0000-0000-0000-000000000000", "1", "client-chosen", "../x"];
            for id in sessions {
                all.push(status(&request.clone().with("Mcp-Session-Id", id).send(addr, PATIENCE)?));
            }
        }
        "H10" => {
            // The client has a session: one without must not get it.
            let mut without = request.clone();
            without.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("mcp-session-id"));
            ensure!(without.headers.len() < request.headers.len(), "there is no session");
            all.push(status(&without.send(addr, PATIENCE)?));
        }
        "H15" => {
            for encoding in ["gzip", "deflate", "br", "zstd"] {
                let mut bomb = Request { method: "POST".into(), ..request.clone() };
                bomb = bomb
                    .with("Content-Encoding", encoding)
                    .with("Content-Type", "application/json");
                bomb.body = gzipped(&play.stage.base)?;
                all.push(status(&bomb.send(addr, PATIENCE)?));
            }
        }
        "H16" => idle(play, addr, client)?,
        "H17" => {
            for (label, bytes) in smuggled(&request, addr) {
                let answer = exchange(addr, &bytes, PATIENCE)
                    .with_context(|| format!("{label} is not answered"))?;
                let mut came = status(&answer);
                came.said.text = format!("{label}: {}", came.said.text);
                let again = answer.raw.windows(9).filter(|nine| nine == b"HTTP/1.1 ").count();
                if again > 1 {
                    play.wrong.push(format!("{label}: {again} answers to one request"));
                }
                all.push(came);
            }
        }
        "H18" => {
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
                let get = Request {
                    method: "GET".into(),
                    path: path.into(),
                    headers: Vec::new(),
                    body: Vec::new(),
                };
                let answer = get.send(addr, PATIENCE)?;
                if answer.status < 400 || answer.raw.windows(5).any(|five| five == b"root:") {
                    play.wrong.push(format!("{path}: status {}", answer.status));
                }
                play.heard.extend(&answer.raw);
            }
        }
        _ => {
            // H22
            // Where the body says it too, both say the same.
            let mut both = request.clone().with("MCP-Protocol-Version", "1999-01-01");
            let body = String::from_utf8_lossy(&both.body).replace("2026-07-28", "1999-01-01");
            both.body = body.into_bytes();
            let answer = both.send(addr, PATIENCE)?;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            if !text.contains("supported") || !text.contains("20") {
                play.wrong.push(format!("it does not say which there are: {text:.200}"));
            }
            all.push(status(&answer));
            for version in
                ["1999-01-01", "latest", "", "2026-07-28, 2025-11-25", "2026-07-28\u{7f}"]
            {
                let answer =
                    request.clone().with("MCP-Protocol-Version", version).send(addr, PATIENCE)?;
                all.push(status(&answer));
            }
        }
    }
    Ok(all)
}

fn status(answer: &Answer) -> Came {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let said = Said {
        error: answer.status >= 400,
        status: answer.status,
        text,
        raw: answer.raw.clone(),
        ..Said::default()
    };
    Came { said, judged: true, ..Came::default() }
}

fn upgrade(path: &str) -> Request {
    let request =
        Request { method: "GET".into(), path: path.into(), headers: Vec::new(), body: Vec::new() };
    request
        .with("Connection", "Upgrade")
        .with("Upgrade", "websocket")
        .with("Sec-WebSocket-Version", "13")
        .with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// Every other way to write where this is, none of which was allowed.
fn hosts(request: &Request, port: u16) -> Vec<Request> {
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
    let mut all: Vec<Request> =
        names.iter().map(|name| request.clone().with("Host", name)).collect();
    // The whole address in the request's first line counts more than `Host`.
    let path = format!("http://evil.example:{port}{}", request.path);
    all.push(Request { path, ..request.clone() });
    all
}

fn doubled_host(request: &Request, addr: std::net::SocketAddr) -> anyhow::Result<Answer> {
    let mut twice = request.clone();
    twice.headers.push(("Host".into(), addr.to_string()));
    twice.headers.push(("Host".into(), "evil.example".into()));
    twice.send(addr, PATIENCE)
}

/// Zeros that are small on the way.
fn gzipped(folder: &std::path::Path) -> anyhow::Result<Vec<u8>> {
    sh(folder, "head -c 100000000 /dev/zero | gzip -9 > bomb.gz")?;
    Ok(std::fs::read(folder.join("bomb.gz"))?)
}

/// Requests whose end, or whose headers, two readers may take differently.
fn smuggled(request: &Request, addr: std::net::SocketAddr) -> Vec<(&'static str, Vec<u8>)> {
    let body = if request.body.is_empty() {
        "{}".to_owned()
    } else {
        String::from_utf8_lossy(&request.body).into_owned()
    };
    let path = &request.path;
    let own: String =
        request.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let line = format!("POST {path} HTTP/1.1\r\n");
    let head = format!("{line}Host: {addr}\r\n{own}Connection: close\r\n");
    let length = format!("Content-Length: {}\r\n", body.len());
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let te = "Transfer-Encoding: chunked\r\n";
    let mut all = vec![
        ("Content-Length, then chunked", format!("{head}Content-Length: 5\r\n{te}\r\n{chunked}")),
        ("chunked, then Content-Length", format!("{head}{te}Content-Length: 5\r\n\r\n{chunked}")),
        ("two lengths", format!("{head}{length}Content-Length: 3\r\n\r\n{body}")),
        ("two ways of transfer", format!("{head}{te}Transfer-Encoding: identity\r\n\r\n{chunked}")),
        ("chunked twice", format!("{head}Transfer-Encoding: chunked, chunked\r\n\r\n{chunked}")),
        (
            "a blank before the colon",
            format!("{head}Content-Length : {}\r\n\r\n{body}", body.len()),
        ),
        ("a folded header", format!("{head}{length}X-A: a\r\n b\r\n\r\n{body}")),
        ("NUL in a header", format!("{head}{length}X-A: a\0b\r\n\r\n{body}")),
        ("a lone CR in a header", format!("{head}{length}X-A: a\rb\r\n\r\n{body}")),
        ("line feeds alone", format!("{head}{length}\r\n{body}").replace("\r\n", "\n")),
        ("one line feed alone", format!("{head}{length}X-A: a\nX-B: b\r\n\r\n{body}")),
        ("a signed length", format!("{head}Content-Length: +{}\r\n\r\n{body}", body.len())),
        ("a chunk without a size", format!("{head}{te}\r\nxyz\r\n{body}\r\n0\r\n\r\n")),
    ];
    if request.path == "/mcp" && own.contains("Mcp-Method") {
        let without = |name: &str| -> String {
            let others = request.headers.iter().filter(|(own, _)| !own.eq_ignore_ascii_case(name));
            others.map(|(name, value)| format!("{name}: {value}\r\n")).collect()
        };
        let head = |own: &str| format!("{line}Host: {addr}\r\n{own}Connection: close\r\n{length}");
        let other = without("mcp-method");
        all.push((
            "another method in the header",
            format!("{}Mcp-Method: tools/call\r\n\r\n{body}", head(&other)),
        ));
        all.push((
            "the method twice",
            format!("{}mcp-method: tools/call\r\n\r\n{body}", head(&own)),
        ));
        all.push((
            "the version twice",
            format!("{}mcp-protocol-version: 2025-11-25\r\n\r\n{body}", head(&own)),
        ));
    }
    all.into_iter().map(|(label, text)| (label, text.into_bytes())).collect()
}

/// H16: silent connections, and streams that nobody reads, beside somebody who wants an answer.
fn idle(play: &mut Play, addr: std::net::SocketAddr, client: &mut Client) -> anyhow::Result<()> {
    for (label, first) in [
        ("silent connections", String::new()),
        ("half a head", "GET /mcp HTTP/1.1\r\nHost: ".to_owned()),
        (
            "streams",
            format!(
                "GET /v1/ws/mcp HTTP/1.1\r\nHost: {addr}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ),
        ),
    ] {
        let mut streams = Vec::new();
        for _ in 0..IDLE {
            let Ok(mut stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(5)) else {
                break;
            };
            _ = stream.write_all(first.as_bytes());
            streams.push(stream);
        }
        let took = client.ping();
        if !matches!(took, Ok(took) if took < Duration::from_secs(5)) {
            let took = took.map_or_else(|err| format!("{err:#}"), |took| format!("{took:?}"));
            play.wrong.push(format!("beside {} {label}: {took}", streams.len()));
        }
        drop(streams);
    }
    Ok(())
}

/// Two keys, made by the binary itself: their lines, and the keys.
fn keys(play: &Play) -> anyhow::Result<(String, [String; 2])> {
    let mut lines = String::new();
    let mut keys = Vec::new();
    for name in ["ada", "bob"] {
        let output = std::process::Command::new(&play.binary)
            .args(["key", name])
            .env("HOME", &play.stage.home)
            .stdin(Stdio::null())
            .output()?;
        lines += &String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let key = stderr.split_whitespace().find(|word| word.starts_with("toolgate_"));
        keys.push(key.context("no key")?.to_owned());
    }
    let [one, other]: [String; 2] = keys.try_into().ok().context("two keys")?;
    Ok((lines, [one, other]))
}

fn bearer(key: &str) -> Vec<(String, String)> {
    vec![("Authorization".to_owned(), format!("Bearer {key}"))]
}

/// J01: what another caller can do with a job's id.
pub(super) fn foreign_job(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let (lines, [ada, bob]) = keys(play)?;
    play.launch.config = lines;
    let mut server = play.launch.serve(&play.stage)?;
    let addr = server.addr.context("no address")?;
    let mut hers = join_with(addr, play.way, bearer(&ada))?;
    let start = json!({ "tool": "exec.run", "arguments": { "command": "echo", "args": ["hers"] } });
    let id = id_in(&hers.call("jobs.start", &start)?)?;
    let mut own = call(&mut hers, "jobs.get", &json!({ "job_id": id, "wait_ms": 5000 }))?;
    ensure!(!own.said.error, "she does not get it herself: {}", own.said.text);
    own.judged = false;
    let mut his = join_with(addr, play.way, bearer(&bob))?;
    let mut all = vec![own];
    for tool in ["jobs.get", "jobs.output", "jobs.cancel"] {
        let came = call(&mut his, tool, &json!({ "job_id": id }))?;
        let mut unknown = call(&mut his, tool, &json!({ "job_id": "0".repeat(32) }))?;
        unknown.judged = false;
        let plain = |said: &Said, id: &str| said.text.replace(id, "ID");
        if plain(&came.said, &id) != plain(&unknown.said, &"0".repeat(32)) {
            play.wrong.push(format!("{tool} tells that it is there: {}", came.said.text));
        }
        all.push(came);
        all.push(unknown);
    }
    let listed = his.call("jobs.list", &json!({}))?;
    if String::from_utf8_lossy(&listed.raw).contains(&id) {
        play.wrong.push("it is listed for another".to_owned());
    }
    if play.way.dialect == Dialect::Zyra {
        for path in ["", "/manifest", "/download"] {
            let get = Request {
                method: "GET".into(),
                path: format!("/v1/jobs/{id}{path}"),
                headers: Vec::new(),
                body: Vec::new(),
            };
            let answer = his.post(&get)?;
            if answer.status != 404 {
                play.wrong.push(format!("/v1/jobs/ID{path} is {} for another", answer.status));
            }
        }
    }
    play.heard.append(&mut hers.heard);
    play.after(&mut server, &mut his);
    super::oracle::with_records(play, &mut all);
    Ok(all)
}

/// H12: a session ended by another, and one that has ended.
pub(super) fn ended_sessions(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let (lines, [ada, bob]) = keys(play)?;
    play.launch.config = lines;
    let mut server = play.launch.serve(&play.stage)?;
    let addr = server.addr.context("no address")?;
    let mut hers = join_with(addr, play.way, bearer(&ada))?;
    let mut request = hers.spoken.ping().request;
    request.headers.extend(bearer(&bob));
    let delete = Request { method: "DELETE".into(), body: Vec::new(), ..request.clone() };
    let mut all =
        vec![status(&delete.send(addr, PATIENCE)?), status(&request.send(addr, PATIENCE)?)];
    ensure!(hers.ping().is_ok(), "her session is gone");
    let mut own = hers.spoken.ping().request;
    own.headers.extend(bearer(&ada));
    let end = Request { method: "DELETE".into(), body: Vec::new(), ..own.clone() };
    let ended = end.send(addr, PATIENCE)?;
    ensure!(ended.status < 300, "she cannot end it: {}", ended.status);
    all.push(status(&own.send(addr, PATIENCE)?));
    all.push(status(&end.send(addr, PATIENCE)?));
    let mut again = join_with(addr, play.way, bearer(&ada))?;
    play.after(&mut server, &mut again);
    Ok(all)
}

/// H07: addresses that others reach, without anything that says who they are.
pub(super) fn bound_elsewhere(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let mut found = Ok(());
    for listen in ["0.0.0.0:0", "[::]:0", "0.0.0.0:8080"] {
        let mut command = play.launch.command(&play.stage, &["serve", "--listen", listen])?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut child = child;
        let ended = super::cases::until(
            Duration::from_secs(5),
            || matches!(child.try_wait(), Ok(Some(status)) if !status.success()),
        );
        if !ended {
            found = Err(format!("it serves at {listen}"));
        }
        _ = child.kill();
        _ = child.wait();
    }
    // By itself it is on loopback, and is reached there.
    let mut server = play.launch.serve(&play.stage)?;
    let addr = server.addr.context("no address")?;
    if !addr.ip().is_loopback() {
        found = Err(format!("by itself it is at {addr}"));
    }
    let mut client = join(addr, play.way)?;
    play.after(&mut server, &mut client);
    play.show("bind:127.0.0.1", found);
    Ok(Vec::new())
}

/// H20, H21: tokens for others, and an issuer that says where to go.
pub(super) fn tokens(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let (lines, [ada, _]) = keys(play)?;
    play.launch.config = lines;
    let mut server = play.launch.serve(&play.stage)?;
    let addr = server.addr.context("no address")?;
    let mut good = join_with(addr, play.way, bearer(&ada))?;
    ensure!(good.ping().is_ok(), "the right key is refused");
    let request = good.spoken.ping().request;
    let mut all = Vec::new();
    // {"alg":"none"} and {"aud":"other"}, signed by nobody, and one that looks signed.
    for token in [
        "eyJhbGciOiJub25lIn0.eyJhdWQiOiJvdGhlciJ9.",
        "eyJhbGciOiJIUzI1NiJ9.eyJhdWQiOiJvdGhlciJ9.AAAA",
        "toolgate_0000000000000000000000000000000000000000000000000000000000000000",
    ] {
        let mut came = status(
            &request
                .clone()
                .with("Authorization", &format!("Bearer {token}"))
                .send(addr, PATIENCE)?,
        );
        came.judged = play.case.id == "H21";
        if !came.said.error {
            play.wrong.push("it was taken".to_owned());
        }
        all.push(came);
    }
    // H20: whatever an issuer's metadata says is followed by nobody, and no program is run for it.
    play.after(&mut server, &mut good);
    Ok(all)
}
