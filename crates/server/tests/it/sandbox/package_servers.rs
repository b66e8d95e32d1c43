//! Tests of the examples in the guide to the network: MCP servers that `npx` and `uvx` download, from
//! a registry on this machine.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::hosts::{FETCHING_SERVER, forwarding_workspace};
use super::*;
use crate::support::path;

/// A running registry of packages on this machine, which is killed on drop.
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
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
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
