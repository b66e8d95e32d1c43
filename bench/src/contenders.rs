//! Those that are measured in turn: toolgate, the floors, the servers of others.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;

use crate::child::{Child, Server, listening, start_server};
use crate::http::Headers;
use crate::question::Question;
use crate::{Run, lines, program, text};

pub(crate) const OURS: &str = "toolgate";
pub(crate) const FLOOR: &str = "floor";
pub(crate) const RMCP: &str = "rmcp";
/// `@modelcontextprotocol/server-everything`, by the TypeScript SDK.
const EVERYTHING: &str = "server-everything";
/// `@modelcontextprotocol/server-filesystem`.
const FILESYSTEM: &str = "server-filesystem";
const RUST_FILESYSTEM: &str = "rust-mcp-filesystem";
const MCP: &str = "mcp (Python)";
pub(crate) const FASTMCP: &str = "FastMCP";

/// One that answers over its standard streams, in a session.
pub(crate) struct Piped {
    pub(crate) name: &'static str,
    pub(crate) child: Child,
    pub(crate) question: Question,
}

impl Piped {
    /// One that is started so and asked that.
    pub(crate) fn start(
        name: &'static str,
        program: &Path,
        args: &[&str],
        question: Question,
    ) -> anyhow::Result<Self> {
        let started = || {
            let mut child = Child::stdio(program, args)?;
            lines::initialize(&mut child)?;
            anyhow::Ok(Self { name, child, question })
        };
        started().with_context(|| format!("{name}: {}", program.display()))
    }
}

/// One that answers over HTTP.
pub(crate) struct Served {
    pub(crate) name: &'static str,
    pub(crate) headers: Headers,
    pub(crate) question: Question,
    _server: Server,
}

/// Those that say back `hello` over their standard streams.
pub(crate) fn echoes(run: &Run) -> anyhow::Result<Vec<Piped>> {
    let floor = program("floor")?;
    let all = vec![
        Piped::start(FLOOR, &floor, &["canned"], echo("echo"))?,
        Piped::start(OURS, &program("example-echo")?, &["stdio"], echo("example_echo"))?,
    ];
    run.beside(all, || {
        let [node, everything] = node("server-everything")?;
        let python = python()?;
        let mcp = script("echo_mcp.py")?;
        let fastmcp = script("echo_fastmcp.py")?;
        Ok(vec![
            Piped::start("tokio lines", &floor, &["lines"], echo("echo"))?,
            Piped::start(RMCP, &rmcp()?, &["stdio"], echo("echo"))?,
            Piped::start(EVERYTHING, &node, &[&text(&everything), "stdio"], everything_echo())?,
            Piped::start(MCP, &python, &[&mcp, "stdio"], echo("echo"))?,
            Piped::start(FASTMCP, &python, &[&fastmcp, "stdio"], echo("echo"))?,
        ])
    })
}

/// Those that read a file of `folder`.
pub(crate) fn readers(
    run: &Run,
    folder: &Path,
    name: &str,
    answer: &str,
) -> anyhow::Result<Vec<Piped>> {
    let inside = text(folder);
    let file = text(&folder.join(name));
    let ours =
        Question::call("files_read", &json!({ "path": name, "max_bytes": 16 << 20 }), answer);
    let theirs = Question::call("read_text_file", &json!({ "path": file }), answer);
    let all = vec![
        Piped::start(FLOOR, &program("floor")?, &["stdio", &file], ours.clone())?,
        Piped::start(OURS, &program("toolgate")?, &["stdio", &inside], ours)?,
    ];
    run.beside(all, || filesystems(&inside, &theirs))
}

/// Those that list `folder`.
pub(crate) fn listers(run: &Run, folder: &Path, answer: &str) -> anyhow::Result<Vec<Piped>> {
    let inside = text(folder);
    let ours = Question::call("files_list", &json!({ "limit": 2000 }), answer);
    let theirs = Question::call("list_directory_with_sizes", &json!({ "path": inside }), answer);
    let all = vec![
        Piped::start(FLOOR, &program("floor")?, &["list", &inside], ours.clone())?,
        Piped::start(OURS, &program("toolgate")?, &["stdio", &inside], ours)?,
    ];
    run.beside(all, || filesystems(&inside, &theirs))
}

/// Others' servers of files, which serve the folder `inside` and are asked that.
fn filesystems(inside: &str, question: &Question) -> anyhow::Result<Vec<Piped>> {
    let [node, filesystem] = node("server-filesystem")?;
    let rust = tools("rust-mcp-filesystem/bin/rust-mcp-filesystem")?;
    Ok(vec![
        Piped::start(RUST_FILESYSTEM, &rust, &[inside], question.clone())?,
        Piped::start(FILESYSTEM, &node, &[&text(&filesystem), inside], question.clone())?,
    ])
}

/// Those that say back `hello` over HTTP to whoever has opened no session.
pub(crate) fn stateless_echoes(run: &Run) -> anyhow::Result<Vec<Served>> {
    let all = vec![Served::floor()?, Served::modern(OURS, ours_http()?, "example_echo")];
    run.beside(all, || {
        Ok(vec![
            Served::plain(RMCP, start_server(&rmcp()?, &["http"])?, "echo"),
            Served::modern("rmcp, 2026-07-28", start_server(&rmcp()?, &["http"])?, "echo"),
            Served::plain(MCP, python_server("echo_mcp.py")?, "echo"),
            Served::plain(FASTMCP, python_server("echo_fastmcp.py")?, "echo"),
        ])
    })
}

/// Those that say back `hello` over HTTP in a session.
pub(crate) fn session_echoes(run: &Run) -> anyhow::Result<Vec<Served>> {
    let ours = Served::in_session(OURS, ours_http()?, echo("example_echo"))?;
    run.beside(vec![Served::floor()?, ours], || {
        Ok(vec![
            Served::in_session("rmcp", start_server(&rmcp()?, &["sessions"])?, echo("echo"))?,
            Served::in_session(EVERYTHING, everything_http()?, everything_echo())?,
        ])
    })
}

impl Served {
    /// axum with a canned answer.
    pub(crate) fn floor() -> anyhow::Result<Self> {
        Ok(Self::plain(FLOOR, start_server(&program("floor")?, &["http"])?, "echo"))
    }

    /// One that is asked without a session in a revision that had them.
    fn plain(name: &'static str, server: Server, tool: &str) -> Self {
        let headers = Headers::of(&server.address);
        Self { name, headers, question: echo(tool), _server: server }
    }

    /// One that is asked in the revision that has none.
    pub(crate) fn modern(name: &'static str, server: Server, tool: &str) -> Self {
        let headers = Headers::stateless(&server.address, tool);
        let question = Question::stateless(tool, &json!({ "text": "hello" }), "hello");
        Self { name, headers, question, _server: server }
    }

    /// One that is asked in a session.
    fn in_session(name: &'static str, server: Server, question: Question) -> anyhow::Result<Self> {
        let headers = Headers::session(&server.address).context(name)?;
        Ok(Self { name, headers, question, _server: server })
    }
}

/// toolgate with a tool that says back what it is told.
pub(crate) fn ours_http() -> anyhow::Result<Server> {
    start_server(&program("example-echo")?, &["http", "127.0.0.1:0"])
}

pub(crate) fn echo(tool: &str) -> Question {
    Question::call(tool, &json!({ "text": "hello" }), "hello")
}

fn everything_echo() -> Question {
    Question::call("echo", &json!({ "message": "hello" }), "hello")
}

fn everything_http() -> anyhow::Result<Server> {
    let [node, everything] = node("server-everything")?;
    // It listens where it is told to, and cannot be told to look for a place.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let program = format!("PORT={port}");
    let args = [&program, &text(&node), &text(&everything), "streamableHttp"];
    let child = Child::quiet(Path::new("/usr/bin/env"), &args)?;
    listening(child, format!("127.0.0.1:{port}"))
}

fn python_server(name: &str) -> anyhow::Result<Server> {
    start_server(&python()?, &[&script(name)?, "http"])
}

fn rmcp() -> anyhow::Result<PathBuf> {
    tools("rmcp/bin/rmcp-echo")
}

pub(crate) fn python() -> anyhow::Result<PathBuf> {
    tools("peers/bin/python")
}

/// Node and one of MCP's own servers.
fn node(server: &str) -> anyhow::Result<[PathBuf; 2]> {
    let server = format!("servers/node_modules/@modelcontextprotocol/{server}/dist/index.js");
    Ok([tools("node/node_modules/.bin/node")?, tools(&server)?])
}

/// Something that setup installs.
pub(crate) fn tools(name: &str) -> anyhow::Result<PathBuf> {
    let path = checkout()?.join(".tools").join(name);
    if !path.exists() {
        bail!("{} is missing; run `cargo xtask bench`", path.display());
    }
    Ok(path)
}

pub(crate) fn script(name: &str) -> anyhow::Result<String> {
    Ok(text(&checkout()?.join("bench/peers").join(name)))
}

fn checkout() -> anyhow::Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no checkout")?.to_owned())
}
