//! Where programs of upstreams are found, and where they start.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{names, stdio, text};
use crate::support::Workspace;

/// A server whose one tool says where it is, how much is there, and whether it can write that.
const SERVER: &str = r#"#!/bin/sh
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/p')
    [ -n "$id" ] || continue
    printf '{"jsonrpc":"2.0","id":%s,' "$id"
    case $line in
    *'"initialize"'*) printf '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' ;;
    *'"tools/list"'*) printf '"result":{"tools":[{"name":"where","inputSchema":{"type":"object"}}]}}\n' ;;
    *'"tools/call"'*) printf '"result":{"content":[{"type":"text","text":"%s %s"}]}}\n' "$(pwd)" "$(ls -A | wc -l)" ;;
    *) printf '"error":{"code":-32601,"message":"unknown"}}\n' ;;
    esac
done
"#;

/// Where the program of an upstream says that it is, with `settings`.
fn started(settings: &str) -> (Workspace, String) {
    let settings = format!("[upstream.sh]\ncommand = [\"./tools/server\"]\n{settings}\n");
    let workspace = Workspace::new().file("tools/server", SERVER).file("toolgate.toml", settings);
    let program = workspace.path("tools/server");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"sh_where".to_owned()), "{}", client.server().log());
    let said = text(&client.call("sh_where", json!({}))).to_owned();
    (workspace, said)
}

#[test]
fn a_program_of_the_workspace_starts_in_an_empty_folder_in_the_sandbox_and_out_of_it() {
    for sandbox in ["off", "read-only", "workspace", "network"] {
        let (workspace, said) = started(&format!("sandbox = {sandbox:?}"));
        let (at, count) = said.split_once(' ').unwrap();
        assert_eq!(count, "0", "{sandbox}: {said}");
        assert!(!at.starts_with(workspace.root().to_str().unwrap()), "{sandbox}: {said}");
    }
}

#[test]
fn a_program_is_found_from_the_folder_that_is_served_wherever_it_starts() {
    for sandbox in ["off", "workspace"] {
        let (workspace, said) = started(&format!("cwd = \"tools\"\nsandbox = {sandbox:?}"));
        let tools = workspace.path("tools").canonicalize().unwrap();
        assert_eq!(said, format!("{} 1", tools.display()), "{sandbox}");
    }
}
