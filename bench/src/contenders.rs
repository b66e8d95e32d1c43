//! Starts the servers that are measured in turn: toolgate, the floors (minimal programs), and
//! servers of other projects.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;

use crate::child::{BenchServerProcess, PipedProcess, start_server, wait_until_listening};
use crate::http::BenchRequestHeaders;
use crate::question::BenchRequestTemplate;
use crate::{BenchRunOptions, lines, program, text};

pub(crate) const OURS: &str = "toolgate";
pub(crate) const FLOOR: &str = "floor";
pub(crate) const RMCP: &str = "rmcp";
/// An MCP library in Rust. Over HTTP it answers only in sessions.
const TURBOMCP: &str = "turbomcp";
/// The npm package `@modelcontextprotocol/server-everything`, an MCP server in TypeScript.
const EVERYTHING: &str = "server-everything";
/// The npm package `@modelcontextprotocol/server-filesystem`, to which toolgate is compared.
pub(crate) const FILESYSTEM: &str = "server-filesystem";
pub(crate) const RUST_FILESYSTEM: &str = "rust-mcp-filesystem";
const MCP: &str = "mcp (Python)";
pub(crate) const FASTMCP: &str = "FastMCP";

/// Running server that the benchmark calls over standard streams in a session.
pub(crate) struct BenchmarkedStdioServer {
    pub(crate) name: &'static str,
    pub(crate) child: PipedProcess,
    pub(crate) question: BenchRequestTemplate,
}

impl BenchmarkedStdioServer {
    /// Starts the MCP server `program`, and opens a session with it over standard streams.
    pub(crate) fn start(
        name: &'static str,
        program: &Path,
        args: &[&str],
        question: BenchRequestTemplate,
    ) -> anyhow::Result<Self> {
        let start = || {
            let mut child = PipedProcess::stdio(program, args)?;
            lines::initialize(&mut child)?;
            anyhow::Ok(Self { name, child, question })
        };
        start().with_context(|| format!("{name}: {}", program.display()))
    }
}

/// Running server that the benchmark calls over HTTP.
pub(crate) struct BenchmarkedHttpServer {
    pub(crate) name: &'static str,
    pub(crate) headers: BenchRequestHeaders,
    pub(crate) question: BenchRequestTemplate,
    pub(crate) server: BenchServerProcess,
}

/// Starts toolgate and the servers to compare with. All echo `hello` over their standard streams.
pub(crate) fn echoes(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchmarkedStdioServer>> {
    let floor = program("floor")?;
    let all = vec![
        BenchmarkedStdioServer::start(FLOOR, &floor, &["canned"], echo("echo"))?,
        BenchmarkedStdioServer::start(
            OURS,
            &program("example-echo")?,
            &["stdio"],
            echo("example_echo"),
        )?,
    ];
    run.with_others(all, || {
        let [node, everything] = node("server-everything")?;
        let python = python()?;
        let mcp = script("echo_mcp.py")?;
        let fastmcp = script("echo_fastmcp.py")?;
        Ok(vec![
            BenchmarkedStdioServer::start("tokio lines", &floor, &["lines"], echo("echo"))?,
            BenchmarkedStdioServer::start(RMCP, &rmcp()?, &["stdio"], echo("echo"))?,
            BenchmarkedStdioServer::start(TURBOMCP, &turbomcp()?, &["stdio"], echo("echo"))?,
            BenchmarkedStdioServer::start(
                EVERYTHING,
                &node,
                &[&text(&everything), "stdio"],
                everything_echo(),
            )?,
            BenchmarkedStdioServer::start(MCP, &python, &[&mcp, "stdio"], echo("echo"))?,
            BenchmarkedStdioServer::start(FASTMCP, &python, &[&fastmcp, "stdio"], echo("echo"))?,
        ])
    })
}

/// Starts toolgate and the servers to compare with, which read the file `name` of `folder`. The
/// file must contain `answer`.
pub(crate) fn readers(
    run: &BenchRunOptions,
    folder: &Path,
    name: &str,
    answer: &str,
) -> anyhow::Result<Vec<BenchmarkedStdioServer>> {
    let workspace = text(folder);
    let file = text(&folder.join(name));
    let ours = BenchRequestTemplate::call(
        "files_read",
        &json!({ "path": name, "max_bytes": 10 << 20 }),
        answer,
    );
    let theirs = BenchRequestTemplate::call("read_text_file", &json!({ "path": file }), answer);
    let all = vec![
        BenchmarkedStdioServer::start(FLOOR, &program("floor")?, &["stdio", &file], ours.clone())?,
        BenchmarkedStdioServer::start(OURS, &program("toolgate")?, &["stdio", &workspace], ours)?,
    ];
    run.with_others(all, || filesystems(&workspace, &theirs))
}

/// Starts toolgate and the servers to compare with, which list `folder`. The list must contain
/// `answer`.
pub(crate) fn listers(
    run: &BenchRunOptions,
    folder: &Path,
    answer: &str,
) -> anyhow::Result<Vec<BenchmarkedStdioServer>> {
    let workspace = text(folder);
    let ours = BenchRequestTemplate::call("files_list", &json!({ "limit": 2000 }), answer);
    let theirs = BenchRequestTemplate::call(
        "list_directory_with_sizes",
        &json!({ "path": workspace }),
        answer,
    );
    let all = vec![
        BenchmarkedStdioServer::start(
            FLOOR,
            &program("floor")?,
            &["list", &workspace],
            ours.clone(),
        )?,
        BenchmarkedStdioServer::start(OURS, &program("toolgate")?, &["stdio", &workspace], ours)?,
    ];
    run.with_others(all, || filesystems(&workspace, &theirs))
}

/// Starts the file servers of other projects in the folder `workspace`. The benchmark will send
/// them `question`.
fn filesystems(
    workspace: &str,
    question: &BenchRequestTemplate,
) -> anyhow::Result<Vec<BenchmarkedStdioServer>> {
    let [node, filesystem] = node("server-filesystem")?;
    let rust = tools("rust-mcp-filesystem/bin/rust-mcp-filesystem")?;
    Ok(vec![
        BenchmarkedStdioServer::start(RUST_FILESYSTEM, &rust, &[workspace], question.clone())?,
        BenchmarkedStdioServer::start(
            FILESYSTEM,
            &node,
            &[&text(&filesystem), workspace],
            question.clone(),
        )?,
    ])
}

/// Starts toolgate and the servers to compare with, which echo `hello` over HTTP without a session.
pub(crate) fn stateless_echoes(
    run: &BenchRunOptions,
) -> anyhow::Result<Vec<BenchmarkedHttpServer>> {
    let all = vec![
        BenchmarkedHttpServer::floor()?,
        BenchmarkedHttpServer::stateless(OURS, ours_http()?, "example_echo"),
    ];
    run.with_others(all, || {
        Ok(vec![
            BenchmarkedHttpServer::plain(RMCP, start_server(&rmcp()?, &["http"])?, "echo"),
            BenchmarkedHttpServer::stateless(
                "rmcp, 2026-07-28",
                start_server(&rmcp()?, &["http"])?,
                "echo",
            ),
            BenchmarkedHttpServer::plain(MCP, python_server("echo_mcp.py")?, "echo"),
            BenchmarkedHttpServer::plain(FASTMCP, python_server("echo_fastmcp.py")?, "echo"),
        ])
    })
}

/// Starts toolgate and the servers to compare with, which echo `hello` over HTTP in a session.
pub(crate) fn session_echoes(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchmarkedHttpServer>> {
    let ours = BenchmarkedHttpServer::in_session(OURS, ours_http()?, echo("example_echo"))?;
    run.with_others(vec![BenchmarkedHttpServer::floor()?, ours], || {
        Ok(vec![
            BenchmarkedHttpServer::in_session(
                "rmcp",
                start_server(&rmcp()?, &["sessions"])?,
                echo("echo"),
            )?,
            BenchmarkedHttpServer::in_session(
                TURBOMCP,
                start_server(&turbomcp()?, &["http"])?,
                echo("echo"),
            )?,
            BenchmarkedHttpServer::in_session(EVERYTHING, everything_http()?, everything_echo())?,
        ])
    })
}

impl BenchmarkedHttpServer {
    /// Starts a minimal axum server with a fixed answer, as the lower bound of latency over HTTP.
    pub(crate) fn floor() -> anyhow::Result<Self> {
        Ok(Self::plain(FLOOR, start_server(&program("floor")?, &["http"])?, "echo"))
    }

    /// Returns a server whose MCP revision has sessions, but which the benchmark calls without one.
    fn plain(name: &'static str, server: BenchServerProcess, tool: &str) -> Self {
        let headers = BenchRequestHeaders::new(&server.address);
        Self { name, headers, question: echo(tool), server }
    }

    /// Returns a server that is called in MCP revision 2026-07-28, which has no sessions.
    pub(crate) fn stateless(name: &'static str, server: BenchServerProcess, tool: &str) -> Self {
        let headers = BenchRequestHeaders::stateless(&server.address, tool);
        let question = BenchRequestTemplate::stateless(tool, &json!({ "text": "hello" }), "hello");
        Self { name, headers, question, server }
    }

    /// Opens a session with `server` over HTTP.
    fn in_session(
        name: &'static str,
        server: BenchServerProcess,
        question: BenchRequestTemplate,
    ) -> anyhow::Result<Self> {
        let headers = BenchRequestHeaders::session(&server.address).context(name)?;
        Ok(Self { name, headers, question, server })
    }
}

/// Starts toolgate over HTTP with one tool, which returns its input.
pub(crate) fn ours_http() -> anyhow::Result<BenchServerProcess> {
    start_server(&program("example-echo")?, &["http", "127.0.0.1:0"])
}

/// Returns a request that calls `tool` with the text `hello`, and expects `hello` in the answer.
pub(crate) fn echo(tool: &str) -> BenchRequestTemplate {
    BenchRequestTemplate::call(tool, &json!({ "text": "hello" }), "hello")
}

fn everything_echo() -> BenchRequestTemplate {
    BenchRequestTemplate::call("echo", &json!({ "message": "hello" }), "hello")
}

fn everything_http() -> anyhow::Result<BenchServerProcess> {
    let [node, everything] = node("server-everything")?;
    // It cannot choose a free port itself.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let port_variable = format!("PORT={port}");
    let args = [&port_variable, &text(&node), &text(&everything), "streamableHttp"];
    let child = PipedProcess::quiet(Path::new("/usr/bin/env"), &args)?;
    wait_until_listening(child, format!("127.0.0.1:{port}"))
}

fn python_server(name: &str) -> anyhow::Result<BenchServerProcess> {
    start_server(&python()?, &[&script(name)?, "http"])
}

fn rmcp() -> anyhow::Result<PathBuf> {
    tools("rmcp/bin/rmcp-echo")
}

fn turbomcp() -> anyhow::Result<PathBuf> {
    tools("turbomcp/bin/turbomcp-echo")
}

pub(crate) fn python() -> anyhow::Result<PathBuf> {
    tools("peers/bin/python")
}

/// Returns the paths of Node.js and of the start script of `server`, an npm package of the MCP
/// project.
fn node(server: &str) -> anyhow::Result<[PathBuf; 2]> {
    let server = format!("servers/node_modules/@modelcontextprotocol/{server}/dist/index.js");
    Ok([tools("node/node_modules/.bin/node")?, tools(&server)?])
}

/// Returns the path of the file `name` in the folder `.tools` of the repository, or an error if
/// `cargo xtask bench` did not install it.
pub(crate) fn tools(name: &str) -> anyhow::Result<PathBuf> {
    let path = checkout()?.join(".tools").join(name);
    if !path.exists() {
        bail!("{} is missing; run `cargo xtask bench`", path.display());
    }
    Ok(path)
}

/// Returns the path of the script `name` in the folder `bench/peers`.
pub(crate) fn script(name: &str) -> anyhow::Result<String> {
    Ok(text(&checkout()?.join("bench/peers").join(name)))
}

fn checkout() -> anyhow::Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no checkout")?.to_owned())
}
