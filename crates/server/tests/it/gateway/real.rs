//! Tests with real MCP servers as upstreams, each from its own package.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};

use super::{checkout, launch, names, stdio, text};
use crate::support::{TempWorkspace, TestMcpClient, binary, path, trust_config, wait_until};

pub(super) fn tool(path: &str) -> String {
    checkout().join(".tools").join(path).display().to_string()
}

pub(super) fn node() -> String {
    tool("node/node_modules/.bin/node")
}

fn package(name: &str) -> String {
    tool(&format!("servers/node_modules/@modelcontextprotocol/{name}/dist/index.js"))
}

/// Returns a workspace with the configuration `settings`.
fn with(settings: &str) -> TempWorkspace {
    TempWorkspace::new().file("toolgate.toml", settings)
}

/// Running MCP server of another project. Dropping this value kills the server.
pub(super) struct RealUpstreamServer(pub(super) Child);

impl RealUpstreamServer {
    /// Starts `command` and waits for a line with `ready` on its standard error. Returns the
    /// process and this line.
    pub(super) fn start_job(command: &mut Command, ready: &str) -> (Self, String) {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let this = Self(child);
        let line = lines.find(|line| line.contains(ready)).expect("a line that it is ready");
        thread::spawn(move || lines.for_each(drop));
        (this, line)
    }
}

impl Drop for RealUpstreamServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a server listens at `url`, because servers announce their URL before they listen.
pub(super) fn wait_until_listening(url: &str) {
    let place = url.split('/').nth(2).unwrap().to_owned();
    wait_until("it listens", || TcpStream::connect(&place).is_ok());
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns a workspace that is a Git repository with one commit.
fn repository() -> TempWorkspace {
    let workspace = TempWorkspace::new();
    for args in [
        &["init", "-q", "-b", "main"][..],
        &["add", "README.md"],
        &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "A first one"],
    ] {
        let result = Command::new("git").args(args).current_dir(workspace.root()).output().unwrap();
        assert!(result.status.success(), "{result:?}");
    }
    workspace
}

#[track_caller]
fn check_answer(client: &mut TestMcpClient, tool: &str, arguments: Value, with: &str) {
    assert!(names(client).contains(&tool.to_owned()), "{:?}", names(client));
    let answer = client.call(tool, arguments);
    assert!(answer["result"]["isError"] != true, "{answer}");
    assert!(text(&answer).contains(with), "{answer}");
}

#[test]
fn a_file_server_reads_allowed_files_and_refuses_others() {
    let workspace = TempWorkspace::new();
    let node = node();
    let server = package("server-filesystem");
    let folder = workspace.path(".");
    let settings = format!("[upstream.fs]\ncommand = [{node:?}, {server:?}, {folder:?}]\n");
    let workspace = workspace.file("toolgate.toml", settings);
    let mut client = stdio(&workspace);
    let path = workspace.path("README.md");
    check_answer(&mut client, "fs_read_text_file", json!({ "path": path }), "# A workspace");
    let refused = client.call("fs_read_text_file", json!({ "path": "/etc/passwd" }));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(text(&refused).contains("Access denied"), "{refused}");
}

/// Returns a workspace with the MCP project's `server-everything` as the upstream `every`.
fn everything() -> TempWorkspace {
    let command = [node(), package("server-everything"), "stdio".to_owned()];
    with(&format!("[upstream.every]\ncommand = {command:?}\n"))
}

#[test]
fn resources_and_completions_of_an_upstream_work_before_any_list() {
    let read = json!({ "uri": "demo://resource/dynamic/text/3" });
    let answer = stdio(&everything()).ask("resources/read", read);
    let text = answer["result"]["contents"][0]["text"].as_str();
    assert!(text.is_some_and(|text| text.contains("Resource 3")), "{answer}");
    let reference =
        json!({ "type": "ref/resource", "uri": "demo://resource/dynamic/text/{resourceId}" });
    let params = json!({ "ref": reference, "argument": { "name": "resourceId", "value": "7" } });
    let answer = stdio(&everything()).ask("completion/complete", params);
    assert_eq!(answer["result"]["completion"]["values"], json!(["7"]), "{answer}");
    let nothing = stdio(&everything()).ask("resources/read", json!({ "uri": "demo:/nothing" }));
    assert!(nothing["error"]["message"].as_str().unwrap().contains("no resource is at"));
}

#[test]
fn the_command_line_prints_all_texts_of_a_result_and_mentions_the_rest() {
    let workspace = everything();
    let call = |tool: &str, arguments: Value| {
        let mut command = Command::new(binary());
        command.args(["call", tool, &arguments.to_string()]).current_dir(workspace.root());
        command.env_clear().env("PATH", path()).env("HOME", workspace.path(".home"));
        trust_config(&mut command, workspace.root());
        let result = command.output().unwrap();
        assert!(result.status.success(), "{result:?}");
        [result.stdout, result.stderr].map(|output| String::from_utf8(output).unwrap())
    };
    let [stdout, _] = call("every_get-annotated-message", json!({ "messageType": "error" }));
    assert_eq!(stdout, "Error: Operation failed\n");
    let [stdout, stderr] = call("every_get-tiny-image", json!({}));
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
    assert!(stderr.contains("not shown: (image/png, "), "{stderr}");
    let [_, stderr] = call("every_get-resource-links", json!({ "count": 2 }));
    assert!(stderr.contains("link: demo://resource/"), "{stderr}");
}

#[test]
fn an_upstream_keeps_its_state_between_calls() {
    let node = node();
    let server = package("server-memory");
    let workspace = TempWorkspace::new();
    let memory = workspace.path("memory.jsonl");
    let workspace = workspace.file(
        "toolgate.toml",
        format!(
            "[upstream.memory]\ncommand = [{node:?}, {server:?}]\n\
             env = {{ MEMORY_FILE_PATH = {memory:?} }}\n"
        ),
    );
    let mut first = TestMcpClient::http(launch(&workspace), "2025-06-18");
    let ada = json!({ "entities": [
        { "name": "Ada", "entityType": "person", "observations": ["wrote programs"] },
    ] });
    check_answer(&mut first, "memory_create_entities", ada, "Ada");
    check_answer(&mut first, "memory_search_nodes", json!({ "query": "programs" }), "Ada");
}

#[test]
fn a_python_git_server_works_as_an_upstream() {
    let workspace = repository();
    let server = tool("upstreams/bin/mcp-server-git");
    let folder = workspace.path(".");
    let settings = format!("[upstream.git]\ncommand = [{server:?}, \"-r\", {folder:?}]\n");
    let workspace = workspace.file("toolgate.toml", settings);
    let mut client = stdio(&workspace);
    check_answer(&mut client, "git_git_log", json!({ "repo_path": folder }), "A first one");
}

#[test]
fn a_fastmcp_server_works_over_http() {
    let script = checkout().join("bench/peers/echo_fastmcp.py");
    let python = tool("upstreams/bin/python");
    let (_server, line) =
        RealUpstreamServer::start_job(Command::new(python).arg(script).arg("http"), "serving at ");
    let url = line.rsplit(' ').next().unwrap();
    wait_until_listening(url);
    let workspace = with(&format!("[upstream.fast]\nurl = {url:?}\n"));
    let mut client = stdio(&workspace);
    check_answer(&mut client, "fast_echo", json!({ "text": "hello" }), "hello");
}

#[test]
fn a_server_by_the_current_typescript_sdk_works_over_stdio() {
    let script = checkout().join("tests/upstreams/typescript.mjs");
    let command = [node(), script.display().to_string(), tool("servers")];
    let workspace = with(&format!("[upstream.ts]\ncommand = {command:?}\n"));
    let mut client = stdio(&workspace);
    check_answer(&mut client, "ts_shout", json!({ "text": "hello" }), "HELLO");
    let refused = client.call("ts_shout", json!({}));
    assert!(refused.to_string().contains("text"), "{refused}");
}

#[test]
fn servers_over_sse_and_over_streamable_http_with_sessions_work() {
    for (transport, path, setting) in
        [("sse", "sse", "transport = \"sse\""), ("streamableHttp", "mcp", "")]
    {
        let port = free_port();
        let mut command = Command::new(node());
        command.arg(package("server-everything")).arg(transport).env("PORT", port.to_string());
        let (_server, _) = RealUpstreamServer::start_job(&mut command, &port.to_string());
        let url = format!("http://127.0.0.1:{port}/{path}");
        wait_until_listening(&url);
        let workspace = with(&format!("[upstream.every]\nurl = {url:?}\n{setting}\n"));
        let mut client = stdio(&workspace);
        check_answer(&mut client, "every_get-sum", json!({ "a": 2, "b": 40 }), "42");
        check_answer(&mut client, "every_echo", json!({ "message": "hello" }), "hello");
        let discovered = client.ask("server/discover", json!({}));
        let instructions = discovered["result"]["instructions"].as_str().unwrap();
        assert!(
            instructions.contains("of the server `every`")
                && instructions.contains("> # Everything Server")
        );
    }
}

#[test]
fn a_restarted_session_server_gets_a_new_session() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let begin = || {
        let mut command = Command::new(node());
        command.arg(package("server-everything")).arg("streamableHttp");
        let (server, _) =
            RealUpstreamServer::start_job(command.env("PORT", port.to_string()), &port.to_string());
        wait_until_listening(&url);
        server
    };
    let first = begin();
    let workspace = with(&format!("[upstream.every]\nurl = {url:?}\n"));
    let mut client = stdio(&workspace);
    check_answer(&mut client, "every_get-sum", json!({ "a": 2, "b": 40 }), "42");
    drop(first);
    let _second = begin();
    check_answer(&mut client, "every_get-sum", json!({ "a": 3, "b": 40 }), "43");
}

#[test]
fn a_server_works_over_a_websocket() {
    let repository = repository();
    let mut command = Command::new(tool("upstreams/bin/python"));
    command.arg(checkout().join("tests/upstreams/over_websocket.py"));
    command.arg(tool("upstreams/bin/mcp-server-git"));
    let (_server, line) = RealUpstreamServer::start_job(&mut command, "serving at ");
    let url = line.rsplit(' ').next().unwrap();
    let workspace = with(&format!("[upstream.git]\nurl = {url:?}\ntransport = \"websocket\"\n"));
    let mut client = stdio(&workspace);
    let path = json!({ "repo_path": repository.path(".") });
    check_answer(&mut client, "git_git_log", path, "A first one");
}
