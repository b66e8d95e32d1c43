//! The MCP gateways that are measured. Each has an upstream process of its own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use tempfile::TempDir;

use crate::child::{BenchServerProcess, PipedProcess, start_server, wait_until_listening};
use crate::contenders::{
    BenchmarkedStdioServer, FASTMCP, FLOOR, OURS, echo, python, script, tools,
};
use crate::files::UNLIMITED;
use crate::http::{BenchHttpConnection, BenchRequestHeaders, runtime};
use crate::question::BenchRequestTemplate;
use crate::{BenchRunOptions, program, text};

const SUPERGATEWAY: &str = "supergateway";
const NPM: &str = "mcp-proxy (npm)";
const PYPI: &str = "mcp-proxy (PyPI)";
const CONTEXTFORGE: &str = "ContextForge";
/// Names of the gateways that are measured with an upstream over pipes.
pub(super) const PIPED_PEERS: [&str; 4] = [SUPERGATEWAY, NPM, PYPI, FASTMCP];

/// The longest time until a gateway is ready. The gateway ContextForge creates a database first.
const READY_TIMEOUT: Duration = Duration::from_secs(90);

/// Running gateway with an open session.
pub(super) struct BenchmarkedGateway {
    pub(super) name: &'static str,
    pub(super) headers: BenchRequestHeaders,
    pub(super) question: BenchRequestTemplate,
    pub(super) server: BenchServerProcess,
    /// The upstream process, if the gateway does not start the upstream itself.
    _upstream: Option<BenchServerProcess>,
    _folder: Option<TempDir>,
}

/// Starts the upstream without a gateway, to call it directly over pipes.
pub(super) fn direct_pipes() -> anyhow::Result<BenchmarkedStdioServer> {
    BenchmarkedStdioServer::start(FLOOR, &program("floor")?, &["mcp"], echo("echo"))
}

/// Starts the upstream without a gateway, to call it directly over HTTP.
pub(super) fn direct_http() -> anyhow::Result<BenchmarkedGateway> {
    BenchmarkedGateway::new(FLOOR, start_upstream_http()?, "echo")
}

/// Starts the gateways that reach their upstream over pipes, toolgate first.
pub(super) fn gateways_to_pipes(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchmarkedGateway>> {
    run.with_others(vec![ours()?], || {
        let upstream = text(&program("floor")?);
        let fastmcp = [&*script("fastmcp_proxy.py")?, "stdio", &upstream, "mcp"];
        Ok(vec![
            supergateway(&upstream)?,
            npm(&upstream)?,
            pypi(&upstream)?,
            BenchmarkedGateway::new(FASTMCP, start_server(&python()?, &fastmcp)?, "echo")?,
        ])
    })
}

/// Starts the gateways that reach their upstream over HTTP, toolgate first.
pub(super) fn gateways_to_http(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchmarkedGateway>> {
    let url = |upstream: &BenchServerProcess| format!("http://{}/mcp", upstream.address);
    let first = start_upstream_http()?;
    let ours = toolgate(&format!("url = \"{}\"", url(&first)))?.with_upstream(first);
    run.with_others(vec![ours], || {
        let second = start_upstream_http()?;
        let third = start_upstream_http()?;
        let args = [&*script("fastmcp_proxy.py")?, "http", &url(&second)];
        let fastmcp = BenchmarkedGateway::new(FASTMCP, start_server(&python()?, &args)?, "echo")?;
        let contextforge = contextforge(&url(&third))?;
        Ok(vec![fastmcp.with_upstream(second), contextforge.with_upstream(third)])
    })
}

impl BenchmarkedGateway {
    /// Opens a session with the gateway `server`, whose tool `tool` the benchmark will call.
    fn new(name: &'static str, server: BenchServerProcess, tool: &str) -> anyhow::Result<Self> {
        let headers = BenchRequestHeaders::session(&server.address).context(name)?;
        let question = echo(tool);
        Ok(Self { name, headers, question, server, _upstream: None, _folder: None })
    }

    fn with_upstream(self, upstream: BenchServerProcess) -> Self {
        Self { _upstream: Some(upstream), ..self }
    }

    fn with_folder(self, folder: TempDir) -> Self {
        Self { _folder: Some(folder), ..self }
    }
}

/// Starts the upstream of the gateway benchmark, a minimal MCP server, over HTTP.
fn start_upstream_http() -> anyhow::Result<BenchServerProcess> {
    start_server(&program("floor")?, &["mcp-http"])
}

/// Starts toolgate in front of an upstream over pipes.
pub(super) fn ours() -> anyhow::Result<BenchmarkedGateway> {
    toolgate(&format!("command = [\"{}\", \"mcp\"]", text(&program("floor")?)))
}

/// Starts toolgate in front of an upstream. `address` is the line of the settings that says how to
/// reach the upstream.
fn toolgate(address: &str) -> anyhow::Result<BenchmarkedGateway> {
    let folder = tempfile::tempdir()?;
    let settings = format!("{UNLIMITED}[upstream.it]\n{address}\nprefix = \"\"\n");
    fs::write(folder.path().join("toolgate.toml"), settings)?;
    let args = ["serve", &text(folder.path()), "--listen", "127.0.0.1:0"];
    let server = start_server(&program("toolgate")?, &args)?;
    Ok(BenchmarkedGateway::new(OURS, server, "echo")?.with_folder(folder))
}

fn supergateway(upstream: &str) -> anyhow::Result<BenchmarkedGateway> {
    let module = "gateways/node_modules/supergateway/dist/index.js";
    let (port, address) = free_port()?;
    let upstream = format!("'{upstream}' mcp");
    let options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"];
    let args = [&[&*text(&tools(module)?), "--stdio", &upstream, "--port", &port], &options[..]];
    let child = PipedProcess::quiet(&node()?, &args.concat())?;
    BenchmarkedGateway::new(SUPERGATEWAY, wait_until_listening(child, address)?, "echo")
}

fn npm(upstream: &str) -> anyhow::Result<BenchmarkedGateway> {
    let module = text(&tools("gateways/node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs")?);
    let (port, address) = free_port()?;
    // With its store of events, each call takes twice as long.
    let options = ["--server", "stream", "--no-eventStore", "--", upstream, "mcp"];
    let args = [&[&*module, "--host", "127.0.0.1", "--port", &port], &options[..]];
    BenchmarkedGateway::new(
        NPM,
        wait_until_listening(PipedProcess::quiet(&node()?, &args.concat())?, address)?,
        "echo",
    )
}

fn pypi(upstream: &str) -> anyhow::Result<BenchmarkedGateway> {
    let (port, address) = free_port()?;
    let args = ["--host", "127.0.0.1", "--port", &port, "--log-level", "ERROR", "--"];
    let args = [&args[..], &[upstream, "mcp"]].concat();
    let child = PipedProcess::quiet(&tools("gateways-python/bin/mcp-proxy")?, &args)?;
    BenchmarkedGateway::new(PYPI, wait_until_listening(child, address)?, "echo")
}

/// Starts ContextForge without authentication, and then registers the server at `upstream` with it.
fn contextforge(upstream: &str) -> anyhow::Result<BenchmarkedGateway> {
    let folder = tempfile::tempdir()?;
    let (port, address) = free_port()?;
    let home = text(folder.path());
    let program = text(&tools("gateways-python/bin/mcpgateway")?);
    let database = format!("DATABASE_URL=sqlite:///{home}/mcp.db");
    let args = [
        // It reads settings from its working folder.
        &["-C", &home, &database][..],
        &["JWT_SECRET_KEY=only-of-the-benchmark-0123456789abcdef", "AUTH_REQUIRED=false"],
        &["ALLOW_UNAUTHENTICATED_ADMIN=true", "SSRF_ALLOW_LOCALHOST=true"],
        &["RATE_LIMITING_ENABLED=false", "USE_STATEFUL_SESSIONS=true"],
        &["DB_METRICS_RECORDING_ENABLED=false", &program],
        &["--host", "127.0.0.1", "--port", &port, "--no-access-log"],
    ];
    let child = PipedProcess::quiet(Path::new("/usr/bin/env"), &args.concat())?;
    let server = wait_until_listening(child, address)?;
    let upstream = json!({
        "name": "it",
        "url": upstream,
        "transport": "STREAMABLEHTTP",
        "visibility": "public",
    });
    let started = Instant::now();
    while let Err(err) = post(&server.address, "/gateways", &upstream.to_string()) {
        ensure!(started.elapsed() < READY_TIMEOUT, "{CONTEXTFORGE}: {err:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(BenchmarkedGateway::new(CONTEXTFORGE, server, "it-echo")?.with_folder(folder))
}

/// Posts `body` to `path` at `address`, and fails unless the HTTP status is a success.
fn post(address: &str, path: &str, body: &str) -> anyhow::Result<()> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    runtime()?.block_on(async {
        let mut connection = BenchHttpConnection::open(address).await?;
        connection.send(request.as_bytes()).await?;
        // `read_response` fails unless the status is a success.
        connection.read_response().await?;
        Ok(())
    })
}

/// Returns a free port and its address, for gateways that cannot choose a free port themselves.
fn free_port() -> anyhow::Result<(String, String)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok((address.port().to_string(), address.to_string()))
}

fn node() -> anyhow::Result<PathBuf> {
    tools("node/node_modules/.bin/node")
}
