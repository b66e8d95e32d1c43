//! Tests of `toolgate import servers`, which imports MCP servers from the settings of clients.

use std::fs;
use std::process::{Command, Output};

use serde_json::json;

use super::{checkout, launch, text};
use crate::support::{MODERN, TempWorkspace, TestMcpClient, binary, path};

/// Runs `toolgate import servers` with `args` in `workspace`, with the home folder `.home`.
fn import(workspace: &TempWorkspace, args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["import", "servers"]).args(args).current_dir(workspace.root()).env_clear();
    command.env("PATH", path()).env("HOME", workspace.path(".home"));
    command.output().unwrap()
}

/// Returns a workspace whose home has settings of two clients: the server `odd` with a secret in
/// Cursor, and another server in VS Code.
fn with_clients() -> TempWorkspace {
    let workspace = TempWorkspace::new();
    let python = checkout().join(".tools/python/bin/python");
    let script = checkout().join("tests/upstreams/odd.py");
    let env = json!({ "ODD_LOG": workspace.path("odd.log"), "ODD_TOKEN": "hunter2-and-more" });
    let odd = json!({ "command": python, "args": [script], "env": env });
    let cursor = json!({ "mcpServers": { "odd": odd } }).to_string();
    let code = "{\n  // said twice, with a comma too many\n  \"servers\": {\n    \"Docs Here\": \
                { \"type\": \"http\", \"url\": \"http://127.0.0.1:1/mcp\" },\n  },\n}\n";
    workspace.file(".home/.cursor/mcp.json", cursor).file(".vscode/mcp.json", code)
}

#[test]
fn servers_of_clients_are_imported_without_their_secrets_and_served() {
    let workspace = with_clients();
    let printed = import(&workspace, &[]);
    let stderr = String::from_utf8(printed.stderr).unwrap();
    let toml = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.status.success(), "{stderr}");
    assert!(!workspace.path("toolgate.toml").exists());
    assert!(toml.contains("[upstream.odd]") && toml.contains("docs_here"), "{toml}");
    assert!(stderr.contains("`ODD_TOKEN`"), "{stderr}");
    assert!(!(toml + &stderr).contains("hunter2"));

    assert!(import(&workspace, &["cursor", "--to", "toolgate.toml"]).status.success());
    let written = workspace.read("toolgate.toml");
    assert!(!written.contains("hunter2") && !written.contains("docs_here"), "{written}");
    let launch = launch(&workspace).env("ODD_TOKEN", "of the server's own");
    let mut client = TestMcpClient::stdio(launch, MODERN);
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "hello" }))), "hello");

    // A second import adds no duplicates.
    let again = import(&workspace, &["cursor", "--to", "toolgate.toml"]);
    let stderr = String::from_utf8(again.stderr).unwrap();
    let twice = workspace.read("toolgate.toml");
    assert_eq!(twice.matches("hunter2").count(), 0);
    toml::from_str::<toml::Table>(&twice).unwrap_or_else(|err| panic!("{err}: {twice}\n{stderr}"));
}

#[test]
fn filters_switches_and_names_survive_the_import_and_a_broken_file_is_passed_over() {
    let workspace = TempWorkspace::new()
        .file(".home/.codex/config.toml", "[mcp_servers.ctx]\ncommand = 'ctx'\ndisabled_tools = ['rm']\n")
        .file(".home/.codeium/windsurf/mcp_config.json", "{ \"mcpServers\": { \"broken\": ")
        .file(
            ".gemini/settings.json",
            r#"{ "mcp": { "excluded": ["off"] }, "tools": { "exclude": ["x"] }, "mcpServers": {
                "off": { "command": "off" }, "Müll": { "httpUrl": "https://a.example", "trust": true } } }"#,
        )
        .file(".roo/mcp.json", r#"{ "mcpServers": { "Möll": { "command": "m" } } }"#)
        .file(".mcp.json", r#"{ "mcpServers": { "fs": { "command": "fs" } } }"#)
        .file(".claude/settings.json", r#"{ "permissions": { "deny": ["mcp__fs__delete"] } }"#);
    let printed = import(&workspace, &[]);
    let stderr = String::from_utf8(printed.stderr).unwrap();
    assert!(printed.status.success(), "{stderr}");
    let written: toml::Table = String::from_utf8(printed.stdout).unwrap().parse().unwrap();
    let upstream = |name: &str| written["upstream"][name].as_table().unwrap();
    assert_eq!(written["upstream"].as_table().unwrap().len(), 5, "{written}");
    assert_eq!(upstream("ctx")["tools"].as_array().unwrap().len(), 1);
    assert_eq!(upstream("fs")["tools"].as_array().unwrap()[0].as_str(), Some("!delete"));
    assert_eq!(upstream("off")["enabled"].as_bool(), Some(false));
    assert!(
        upstream("m_ufc_ll").contains_key("url") && upstream("m_uf6_ll").contains_key("command")
    );
    for expected in [
        "mcp_config.json is not JSON",
        "`trust` is not imported",
        "`/tools/exclude`",
        "its name was `Müll`",
    ] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    // A broken file that is named does not stop the others either, but the command fails.
    fs::write(workspace.path("broken.json"), "{").unwrap();
    let printed = import(&workspace, &["broken.json", ".roo/mcp.json"]);
    assert!(!printed.status.success());
    assert!(String::from_utf8(printed.stdout).unwrap().contains("[upstream.m_uf6_ll]"));
}

#[test]
fn an_unknown_client_and_an_invalid_file_are_reported() {
    let workspace = with_clients();
    let failed = import(&workspace, &["cursr"]);
    let stderr = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && stderr.contains("cursor"), "{stderr}");
    fs::write(workspace.path("broken.json"), "{ \"mcpServers\": ").unwrap();
    let failed = import(&workspace, &["broken.json"]);
    let stderr = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && stderr.contains("broken.json"), "{stderr}");
}
