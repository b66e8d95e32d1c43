//! Tests of the address and instructions that `toolgate serve` prints at start.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use super::run;
use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest, binary, keys_of, path,
    wait_for, wait_until,
};

/// Returns the text that `toolgate serve` prints to a terminal at start, with the settings in
/// toolgate.toml.
fn banner(workspace: &TempWorkspace) -> String {
    let home = TempDir::with_prefix("toolgate-home-").unwrap();
    let line = format!("{} serve --config toolgate.toml --listen 127.0.0.1:0", binary().display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(workspace.root()).env_clear();
    command.env("PATH", path()).env("HOME", home.path()).env("TERM", "xterm");
    command.env("TOOLGATE_AUDIT_TO", "off").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut printed = Vec::new();
    while !String::from_utf8_lossy(&printed).contains("ctrl-c stops it.") {
        let mut piece = [0; 4096];
        let read = out.read(&mut piece).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&printed));
        printed.extend_from_slice(&piece[..read]);
    }
    // The server stops when its terminal closes.
    child.kill().unwrap();
    child.wait().unwrap();
    String::from_utf8(printed).unwrap().replace("\r\n", "\n")
}

#[test]
fn a_terminal_shows_the_absolute_settings_path_and_the_state_of_each_upstream() {
    let settings = "[upstream.far]\nurl = \"http://127.0.0.1:1/mcp\"\n\
                    [upstream.off]\ncommand = [\"false\"]\nenabled = false\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let banner = banner(&workspace);
    let file = workspace.root().canonicalize().unwrap().join("toolgate.toml");
    assert!(banner.contains(&format!("  config     {}\n", file.display())), "{banner}");
    assert!(banner.contains("  upstreams  far ("), "{banner}");
    assert!(banner.contains(", off (disabled)\n"), "{banner}");
    let claude = banner.lines().find(|line| line.contains("claude mcp add")).unwrap();
    assert!(claude.ends_with("/mcp"), "no header without keys: {banner}");
}

#[test]
fn a_terminal_shows_all_addresses_before_the_way_to_stop() {
    let settings = "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"mira\"\n";
    let banner = banner(&TempWorkspace::new().file("toolgate.toml", settings));
    let (before, _) = banner.split_once("ctrl-c stops it.").unwrap();
    assert!(before.contains("serving mira alone at http://127.0.0.1:"), "{banner}");
}

#[test]
fn a_port_in_use_of_a_dialect_is_refused_with_the_way_to_find_the_program() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let settings = format!("[[listen]]\naddr = \"{addr}\"\ndialect = \"mira\"\n");
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let args = ["serve", "--config", "toolgate.toml", "--listen", "127.0.0.1:0"];
    let done = run(workspace.root(), &args);
    assert_eq!(done.code, 2, "{done:?}");
    for part in [&*format!("{addr} is in use"), "`ss -ltnp`", "in the [[listen]] of mira"] {
        assert!(done.err.contains(part), "{done:?}");
    }
    assert!(!done.err.contains(":0`"), "{done:?}");
}

#[test]
fn the_connect_lines_send_the_key_if_callers_need_one() {
    let workspace = TempWorkspace::new().file("toolgate.toml", keys_of(&["ada"]));
    let banner = banner(&workspace);
    let claude = banner.lines().find(|line| line.contains("claude mcp add")).unwrap();
    let header = " --header \"Authorization: Bearer $TOOLGATE_KEY\"";
    assert!(claude.ends_with(&format!("/mcp{header}")), "{banner}");
    let headers = "\"headers\":{\"Authorization\":\"Bearer ${env:TOOLGATE_KEY}\"}";
    assert_eq!(banner.matches(headers).count(), 2, "{banner}");
}

#[test]
fn without_mcp_the_address_has_no_mcp_url() {
    let launch =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_dialects", "zyra,mira");
    let server = launch.serve_with_flags(&["--listen", "127.0.0.1:0"]);
    wait_until("the address is printed", || server.log().contains(" at http://127.0.0.1:"));
    let log = server.log();
    assert!(log.contains("(dialects: ") && log.contains("zyra"), "{log}");
    assert!(!log.contains("/mcp\n"), "{log}");
}

#[test]
fn without_shared_dialects_only_dedicated_listeners_are_opened() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let shared = taken.local_addr().unwrap();
    let settings = format!(
        "[server]\nlisten = \"{shared}\"\ndialects = []\n\
         [[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"mira\"\n"
    );
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let server = ServerLaunchOptions::over(&workspace).serve_with_flags(&[]);
    let addr: SocketAddr = wait_for("the address is printed", || {
        assert!(server.is_running(), "{}", server.log());
        let log = server.log();
        let (_, rest) = log.split_once("serving mira alone at http://")?;
        rest.split_once("/\n")?.0.parse().ok()
    });
    let list =
        json!({ "jsonrpc": "2.0", "method": "tools/list", "params": { "limit": 1 }, "id": 1 });
    let mut connection = TestHttpConnection::to(addr);
    connection.post(&TestHttpRequest::bytes(list.to_string().as_bytes()).to("/"));
    assert_eq!(connection.response().json()["result"]["tools"].as_array().unwrap().len(), 1);
    assert!(!server.log().contains(&shared.to_string()), "{}", server.log());
}
