//! `toolgate import servers`: what clients of MCP have in their files, served here.

use std::fs;
use std::process::{Command, Output};

use serde_json::json;

use super::{checkout, launch, text};
use crate::support::{Client, MODERN, Workspace, binary, path};

/// `toolgate import servers WORDS` in `workspace`, whose user is at home in `.home`.
fn import(workspace: &Workspace, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["import", "servers"]).args(words).current_dir(workspace.root()).env_clear();
    command.env("PATH", path()).env("HOME", workspace.path(".home"));
    command.output().unwrap()
}

/// A workspace whose user has the upstream `odd` in Cursor, with a secret, and another in VS Code.
fn used() -> Workspace {
    let workspace = Workspace::new();
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
fn servers_of_clients_are_taken_over_without_their_secrets_and_served() {
    let workspace = used();
    let printed = import(&workspace, &[]);
    let said = String::from_utf8(printed.stderr).unwrap();
    let toml = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.status.success(), "{said}");
    assert!(!workspace.path("toolgate.toml").exists());
    assert!(toml.contains("[upstream.odd]") && toml.contains("docs_here"), "{toml}");
    assert!(said.contains("`ODD_TOKEN`"), "{said}");
    assert!(!(toml + &said).contains("hunter2"));

    assert!(import(&workspace, &["cursor", "--to", "toolgate.toml"]).status.success());
    let written = workspace.read("toolgate.toml");
    assert!(!written.contains("hunter2") && !written.contains("docs_here"), "{written}");
    let launch = launch(&workspace).env("ODD_TOKEN", "of the server's own");
    let mut client = Client::stdio(launch, MODERN);
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "hello" }))), "hello");

    // Once more takes nothing twice.
    let again = import(&workspace, &["cursor", "--to", "toolgate.toml"]);
    let said = String::from_utf8(again.stderr).unwrap();
    let twice = workspace.read("toolgate.toml");
    assert_eq!(twice.matches("hunter2").count(), 0);
    toml::from_str::<toml::Table>(&twice).unwrap_or_else(|err| panic!("{err}: {twice}\n{said}"));
}

#[test]
fn a_client_that_is_misspelled_and_a_file_that_is_none_are_told() {
    let workspace = used();
    let odd = import(&workspace, &["cursr"]);
    let said = String::from_utf8(odd.stderr).unwrap();
    assert!(!odd.status.success() && said.contains("cursor"), "{said}");
    fs::write(workspace.path("broken.json"), "{ \"mcpServers\": ").unwrap();
    let odd = import(&workspace, &["broken.json"]);
    let said = String::from_utf8(odd.stderr).unwrap();
    assert!(!odd.status.success() && said.contains("broken.json"), "{said}");
}
