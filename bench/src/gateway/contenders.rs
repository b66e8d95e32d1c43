//! The gateways, each before a server of its own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use tempfile::TempDir;

use crate::child::{Child, Server, listening, start_server};
use crate::contenders::{FASTMCP, FLOOR, OURS, Piped, echo, python, script, tools};
use crate::files::UNLIMITED;
use crate::http::{Connection, Headers, runtime};
use crate::question::Question;
use crate::{Run, program, text};

const SUPERGATEWAY: &str = "supergateway";
const NPM: &str = "mcp-proxy (npm)";
const PYPI: &str = "mcp-proxy (PyPI)";
const CONTEXTFORGE: &str = "ContextForge";
/// Those whose server is behind pipes.
pub(super) const PIPED_PEERS: [&str; 4] = [SUPERGATEWAY, NPM, PYPI, FASTMCP];

/// How long one may take to be ready: ContextForge makes itself a database first.
const READY: Duration = Duration::from_secs(90);

/// A gateway in whose session it is asked.
pub(super) struct Gateway {
    pub(super) name: &'static str,
    pub(super) headers: Headers,
    pub(super) question: Question,
    pub(super) server: Server,
    /// What it is before, where that is a server of its own.
    _behind: Option<Server>,
    _folder: Option<TempDir>,
}

/// The server behind, asked over its pipes.
pub(super) fn direct_pipes() -> anyhow::Result<Piped> {
    Piped::start(FLOOR, &program("floor")?, &["mcp"], echo("echo"))
}

/// The server behind, asked over HTTP.
pub(super) fn direct_http() -> anyhow::Result<Gateway> {
    Gateway::of(FLOOR, behind_http()?, "echo")
}

/// toolgate first.
pub(super) fn before_pipes(run: &Run) -> anyhow::Result<Vec<Gateway>> {
    run.beside(vec![ours()?], || {
        let behind = text(&program("floor")?);
        let fastmcp = [&*script("fastmcp_proxy.py")?, "stdio", &behind, "mcp"];
        Ok(vec![
            supergateway(&behind)?,
            npm(&behind)?,
            pypi(&behind)?,
            Gateway::of(FASTMCP, start_server(&python()?, &fastmcp)?, "echo")?,
        ])
    })
}

/// toolgate first.
pub(super) fn before_http(run: &Run) -> anyhow::Result<Vec<Gateway>> {
    let url = |behind: &Server| format!("http://{}/mcp", behind.address);
    let first = behind_http()?;
    let ours = toolgate(&format!("url = \"{}\"", url(&first)))?.before(first);
    run.beside(vec![ours], || {
        let second = behind_http()?;
        let third = behind_http()?;
        let words = [&*script("fastmcp_proxy.py")?, "http", &url(&second)];
        let fastmcp = Gateway::of(FASTMCP, start_server(&python()?, &words)?, "echo")?;
        let contextforge = contextforge(&url(&third))?;
        Ok(vec![fastmcp.before(second), contextforge.before(third)])
    })
}

impl Gateway {
    fn of(name: &'static str, server: Server, tool: &str) -> anyhow::Result<Self> {
        let headers = Headers::session(&server.address).context(name)?;
        let question = echo(tool);
        Ok(Self { name, headers, question, server, _behind: None, _folder: None })
    }

    fn before(self, behind: Server) -> Self {
        Self { _behind: Some(behind), ..self }
    }

    fn within(self, folder: TempDir) -> Self {
        Self { _folder: Some(folder), ..self }
    }
}

/// The server behind, over HTTP.
fn behind_http() -> anyhow::Result<Server> {
    start_server(&program("floor")?, &["mcp-http"])
}

/// toolgate before the server over pipes.
pub(super) fn ours() -> anyhow::Result<Gateway> {
    toolgate(&format!("command = [\"{}\", \"mcp\"]", text(&program("floor")?)))
}

/// toolgate before what `at` says.
fn toolgate(at: &str) -> anyhow::Result<Gateway> {
    let folder = tempfile::tempdir()?;
    let settings = format!("{UNLIMITED}[upstream.it]\n{at}\nprefix = \"\"\n");
    fs::write(folder.path().join("toolgate.toml"), settings)?;
    let words = ["serve", &text(folder.path()), "--listen", "127.0.0.1:0"];
    let server = start_server(&program("toolgate")?, &words)?;
    Ok(Gateway::of(OURS, server, "echo")?.within(folder))
}

fn supergateway(behind: &str) -> anyhow::Result<Gateway> {
    let module = "gateways/node_modules/supergateway/dist/index.js";
    let (port, at) = place()?;
    let behind = format!("'{behind}' mcp");
    let ways = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"];
    let words = [&[&*text(&tools(module)?), "--stdio", &behind, "--port", &port], &ways[..]];
    let child = Child::quiet(&node()?, &words.concat())?;
    Gateway::of(SUPERGATEWAY, listening(child, at)?, "echo")
}

fn npm(behind: &str) -> anyhow::Result<Gateway> {
    let module = text(&tools("gateways/node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs")?);
    let (port, at) = place()?;
    // Its store of events makes each call take twice as long.
    let ways = ["--server", "stream", "--no-eventStore", "--", behind, "mcp"];
    let words = [&[&*module, "--host", "127.0.0.1", "--port", &port], &ways[..]];
    Gateway::of(NPM, listening(Child::quiet(&node()?, &words.concat())?, at)?, "echo")
}

fn pypi(behind: &str) -> anyhow::Result<Gateway> {
    let (port, at) = place()?;
    let words = ["--host", "127.0.0.1", "--port", &port, "--log-level", "ERROR", "--"];
    let words = [&words[..], &[behind, "mcp"]].concat();
    let child = Child::quiet(&tools("gateways-python/bin/mcp-proxy")?, &words)?;
    Gateway::of(PYPI, listening(child, at)?, "echo")
}

/// ContextForge with nobody to sign in, which is told of what is behind it once it runs.
fn contextforge(behind: &str) -> anyhow::Result<Gateway> {
    let folder = tempfile::tempdir()?;
    let (port, at) = place()?;
    let home = text(folder.path());
    let program = text(&tools("gateways-python/bin/mcpgateway")?);
    let database = format!("DATABASE_URL=sqlite:///{home}/mcp.db");
    let words = [
        // It reads settings that lie where it starts.
        &["-C", &home, &database][..],
        &["JWT_SECRET_KEY=only-of-the-benchmark-0123456789abcdef", "AUTH_REQUIRED=false"],
        &["ALLOW_UNAUTHENTICATED_ADMIN=true", "SSRF_ALLOW_LOCALHOST=true"],
        &["RATE_LIMITING_ENABLED=false", "USE_STATEFUL_SESSIONS=true"],
        &["DB_METRICS_RECORDING_ENABLED=false", &program],
        &["--host", "127.0.0.1", "--port", &port, "--no-access-log"],
    ];
    let child = Child::quiet(Path::new("/usr/bin/env"), &words.concat())?;
    let server = listening(child, at)?;
    let upstream = json!({
        "name": "it",
        "url": behind,
        "transport": "STREAMABLEHTTP",
        "visibility": "public",
    });
    let begun = Instant::now();
    while let Err(why) = posted(&server.address, "/gateways", &upstream.to_string()) {
        ensure!(begun.elapsed() < READY, "{CONTEXTFORGE}: {why:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(Gateway::of(CONTEXTFORGE, server, "it-echo")?.within(folder))
}

/// Posts `body` to `path`, and sees that it is taken.
fn posted(address: &str, path: &str, body: &str) -> anyhow::Result<()> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    runtime()?.block_on(async {
        let mut connection = Connection::open(address).await?;
        connection.send(request.as_bytes()).await?;
        // Anything but a 200 is refused there.
        connection.answer().await?;
        Ok(())
    })
}

/// A port that nobody has, and where that is: they cannot be told to look for one.
fn place() -> anyhow::Result<(String, String)> {
    let at = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok((at.port().to_string(), at.to_string()))
}

fn node() -> anyhow::Result<PathBuf> {
    tools("node/node_modules/.bin/node")
}
