//! Where programs of upstreams are found, and where they start.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{names, stdio, text, with_odd};
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

/// A workspace with an upstream that runs `program`, and with one that nobody may run yet.
fn named(program: &str, settings: &str) -> Workspace {
    let settings = format!("[upstream.sh]\ncommand = [{program:?}]\n{settings}\n");
    Workspace::new().file("tools/server", SERVER).file("toolgate.toml", settings)
}

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

#[test]
fn a_program_that_is_named_by_a_path_and_cannot_run_is_told_by_its_place_and_what_is_wrong() {
    for (program, why) in [
        ("./tools/sever", "there is no program"),
        ("./tools", "is no file"),
        ("./tools/server", "may not be run; `chmod +x` lets it"),
    ] {
        let workspace = named(program, "");
        let mut client = stdio(&workspace);
        names(&mut client);
        let log = client.server().log();
        let at = workspace.path(program.trim_start_matches("./"));
        let at = at.file_name().unwrap().to_str().unwrap();
        assert!(log.contains(why) && log.contains(at), "{program}: {log}");
    }
}

#[test]
fn settings_that_name_no_tool_of_an_upstream_are_told_of() {
    let workspace = with_odd("tools = [\"echo\", \"ecko\"]\nwithout = [\"shoot\", \"e*x\"]\n");
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"odd_echo".to_owned()));
    let log = client.server().log();
    for said in ["`tools` of the upstream `odd` names \"ecko\"", "names \"shoot\"", "names \"e*x\""]
    {
        assert!(log.contains(said), "{said}: {log}");
    }
    assert!(!log.contains("names \"echo\""), "{log}");
}
