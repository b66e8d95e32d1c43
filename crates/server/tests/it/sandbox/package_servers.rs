//! Tests of the examples in the network guide, with the real programs: MCP servers that `npx` and
//! `uvx` download from a local registry, and an MCP server for a PostgreSQL database.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use super::hosts::{FETCHING_SERVER, RELAY, forwarding_workspace};
use super::*;
use crate::search_engines::server::PostgresServerProcess;
use crate::support::path;

/// Running package registry on this machine. Dropping this value kills the registry.
struct TestPackageRegistry {
    process: Child,
    port: u16,
}

impl TestPackageRegistry {
    fn start() -> Self {
        let script = checkout().join("tests/registry/packages.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).arg(FETCHING_SERVER).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        // The registry would stop if nobody read its lines.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { process, port }
    }
}

impl Drop for TestPackageRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn servers_that_npx_and_uvx_download_reach_their_registry_and_api_and_no_other_host() {
    let Some(workspace) = forwarding_workspace() else { return };
    let uv = checkout().join(".tools/uv/bin").canonicalize();
    let uv = uv.expect("uv is missing: run `cargo xtask setup`");
    let registry = TestPackageRegistry::start();
    let port = registry.port;
    let urls =
        format!("\"http://api.localhost:{port}/api\", \"http://other.localhost:{port}/api\"");
    let settings = format!(
        "[upstream.notes]\ncommand = [\"npx\", \"-y\", \"example-notes-mcp\", {urls}]\n\
         sandbox = \"workspace\"\nhosts = [\"@npm\", \"api.localhost:{port}\"]\n\
         [upstream.weather]\ncommand = [\"uvx\", \"example-weather-mcp\", {urls}]\n\
         sandbox = \"workspace\"\n\
         hosts = [\"@pypi\", \"files.localhost:{port}\", \"api.localhost:{port}\"]\n"
    );
    workspace.put("toolgate.toml", settings);
    let index =
        format!("[[index]]\nurl = \"http://one.localhost:{port}/simple\"\ndefault = true\n");
    let home = TempWorkspace::new()
        .file(".npmrc", format!("registry=http://one.localhost:{port}/\n"))
        .file(".config/uv/uv.toml", index);
    let search = [uv.into_os_string(), path()].join(&OsString::from(":"));
    let launch = ServerLaunchOptions::over(&workspace).env("HOME", home.root()).env("PATH", search);
    let mut client = TestMcpClient::stdio(launch, MODERN);
    client.tools();
    for tool in ["notes_fetch", "weather_fetch"] {
        let answer = client.call(tool, json!({}));
        let content = &answer["result"]["content"];
        assert_eq!(content[0]["text"], "200 403", "{answer}");
        let refused = content[1]["text"].as_str().unwrap_or_default();
        assert!(refused.contains(&format!("refused host other.localhost:{port} ")), "{answer}");
    }
}

/// Forwards connections from a local port to the Unix socket `socket`, until the test process ends.
/// Returns the port.
fn serve_socket_on_port(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = UnixStream::connect(&socket).unwrap();
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || send_to_database(from, to));
            thread::spawn(move || send_to_client(server, client));
        }
    });
    port
}

fn send_to_database(mut client: TcpStream, mut database: UnixStream) {
    let _ = copy(&mut client, &mut database);
    let _ = database.shutdown(Shutdown::Write);
}

fn send_to_client(mut database: UnixStream, mut client: TcpStream) {
    let _ = copy(&mut database, &mut client);
    let _ = client.shutdown(Shutdown::Write);
}

#[test]
fn a_database_server_asks_postgresql_through_a_relay_in_its_own_network() {
    let Some(workspace) = forwarding_workspace() else { return };
    let database = PostgresServerProcess::start();
    let port = serve_socket_on_port(database.socket());
    let installed = checkout().join(".tools/postgres").canonicalize().unwrap();
    let psql = PostgresServerProcess::psql().canonicalize().unwrap();
    workspace.put("relay.py", RELAY);
    workspace.put("server.py", FETCHING_SERVER);
    // The relay listens on another port than a rule for this machine names.
    let line = format!(
        "/usr/bin/python3 relay.py 5433 localhost:{port} & exec /usr/bin/python3 server.py \
         postgres://postgres@127.0.0.1:5433/postgres"
    );
    let settings = format!(
        "[sandbox]\nread = [\"{}\"]\n[upstream.orders]\n\
         command = [\"sh\", \"-c\", \"{line}\"]\ncwd = \".\"\nsandbox = \"workspace\"\n\
         hosts = [\"localhost:{port}\"]\nenv = {{ PSQL = \"{}\" }}\n",
        installed.display(),
        psql.display()
    );
    workspace.put("toolgate.toml", settings);
    let launch =
        ServerLaunchOptions::over(&workspace).env("XDG_CACHE_HOME", workspace.path(".cache"));
    let mut client = TestMcpClient::stdio(launch, MODERN);
    client.tools();
    let answer = client.call("orders_fetch", json!({}));
    assert_eq!(answer["result"]["content"][0]["text"], "42", "{answer}");
}
