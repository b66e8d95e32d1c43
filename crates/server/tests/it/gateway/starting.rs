//! Tests of where toolgate looks up upstream programs, and of the folder in which they start.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::{checkout, launch, names, stdio, text, with_odd};
use crate::support::{MODERN, TempWorkspace, TestHttpRequest, TestMcpClient, call};

/// Shell script of an MCP server whose only tool returns its working folder and the number of
/// entries in it.
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

/// Returns a workspace with an upstream that runs `program`, and a file that is not executable.
fn with_program(program: &str, settings: &str) -> TempWorkspace {
    let settings = format!("[upstream.sh]\ncommand = [{program:?}]\n{settings}\n");
    TempWorkspace::new().file("tools/server", SERVER).file("toolgate.toml", settings)
}

/// Returns a workspace with an upstream that runs the program [`SERVER`].
fn with_server(settings: &str) -> TempWorkspace {
    let workspace = with_program("./tools/server", settings);
    let program = workspace.path("tools/server");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    workspace
}

/// Starts an upstream with `settings`. Returns the working folder and the number of its entries, as
/// the upstream reports them.
fn start_upstream(settings: &str) -> (TempWorkspace, String) {
    let workspace = with_server(settings);
    let report = report_of(&mut stdio(&workspace));
    (workspace, report)
}

/// Returns the report of the upstream of `client`: its working folder and the number of entries.
fn report_of(client: &mut TestMcpClient) -> String {
    assert!(names(client).contains(&"sh_where".to_owned()), "{}", client.server().log());
    text(&client.call("sh_where", json!({}))).to_owned()
}

#[test]
fn a_working_folder_is_deleted_by_a_later_server_after_its_own_was_killed() {
    let temp = TempDir::new().unwrap();
    let workspace = with_server("");
    let start = || {
        let options = launch(&workspace).env("TMPDIR", temp.path());
        let mut client = TestMcpClient::stdio(options, MODERN);
        let report = report_of(&mut client);
        let folder = PathBuf::from(report.split_once(' ').unwrap().0);
        assert!(folder.starts_with(temp.path()), "{report}");
        // A folder of this minute is not deleted, because its server may not have locked it yet.
        let old = SystemTime::now() - Duration::from_secs(3600);
        File::open(&folder).unwrap().set_modified(old).unwrap();
        (client, folder)
    };
    let (killed, leftover) = start();
    killed.server().signal(Signal::KILL);
    killed.server().wait_for_exit();
    assert!(leftover.exists());
    let (_second, in_use) = start();
    assert!(!leftover.exists() && in_use.exists());
    let _third = start();
    assert!(in_use.exists());
}

#[test]
fn a_program_of_the_workspace_starts_in_an_empty_folder_with_and_without_a_sandbox() {
    for sandbox in ["off", "read-only", "workspace", "network"] {
        let (workspace, report) = start_upstream(&format!("sandbox = {sandbox:?}"));
        let (at, count) = report.split_once(' ').unwrap();
        assert_eq!(count, "0", "{sandbox}: {report}");
        assert!(!at.starts_with(workspace.root().to_str().unwrap()), "{sandbox}: {report}");
    }
}

#[test]
fn a_program_path_is_relative_to_the_workspace_wherever_it_starts() {
    for sandbox in ["off", "workspace"] {
        let (workspace, report) =
            start_upstream(&format!("cwd = \"tools\"\nsandbox = {sandbox:?}"));
        let tools = workspace.path("tools").canonicalize().unwrap();
        assert_eq!(report, format!("{} 1", tools.display()), "{sandbox}");
    }
}

#[test]
fn a_program_path_that_cannot_run_is_logged_with_the_reason() {
    for (program, why) in [
        ("./tools/sever", "does not exist"),
        ("./tools", "is not a file"),
        ("./tools/server", "is not executable; run `chmod +x"),
    ] {
        let workspace = with_program(program, "");
        let mut client = stdio(&workspace);
        names(&mut client);
        let log = client.server().log();
        let at = workspace.path(program.trim_start_matches("./"));
        let at = at.file_name().unwrap().to_str().unwrap();
        assert!(log.contains(why) && log.contains(at), "{program}: {log}");
    }
}

#[test]
fn tool_patterns_that_match_nothing_are_logged() {
    let workspace = with_odd("tools = [\"echo\", \"!shoot\", \"ecko\", \"!e*x\"]\n");
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"odd_echo".to_owned()));
    let log = client.server().log();
    for expected in ["`tools` of the upstream `odd` has \"ecko\"", "has \"!shoot\"", "has \"!e*x\""]
    {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    assert!(!log.contains("has \"echo\""), "{log}");
}

/// Upstream that only supports revision 2026-07-28, takes 4 seconds to start, and begins its output
/// with a byte order mark.
const SLOW: &str = r#"
import json, sys, time
time.sleep(4)
sys.stdout.write("\ufeff")
def result(method):
    found = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "capabilities": {"tools": {}}}
    if method == "server/discover":
        return {**found, "supportedVersions": ["2026-07-28"]}
    if method == "tools/list":
        return {**found, "tools": [{"name": "hi", "inputSchema": {"type": "object", "required": None}}]}
    return {**found, "content": None, "structuredContent": ["hi"]}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        answer["error"] = {"code": -32601, "message": "unknown"}
    else:
        answer["result"] = result(request["method"])
    print(json.dumps(answer), flush=True)
"#;

#[test]
fn a_slow_server_of_the_newest_revision_alone_is_served() {
    let python = checkout().join(".tools/python/bin/python");
    let workspace = TempWorkspace::new().file("slow.py", SLOW);
    let script = workspace.path("slow.py");
    let settings = format!("[upstream.slow]\ncommand = [{python:?}, {script:?}]\n");
    let workspace = workspace.file("toolgate.toml", settings);
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"slow_hi".to_owned()), "{}", client.server().log());
    assert_eq!(text(&client.call("slow_hi", json!({}))), "[\"hi\"]");
    let log = client.server().log();
    assert!(log.contains("schema of `hi` of the upstream `slow` was repaired"), "{log}");
}

#[test]
fn a_call_of_a_tool_of_an_unavailable_upstream_is_explained_in_every_dialect() {
    let settings = "[upstream.gone]\ncommand = [\"no-such-program-here\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let check = |refused: &str| {
        for part in [
            "its upstream `gone` is unavailable since 20",
            "no program `no-such-program-here`",
            "`toolgate doctor upstreams gone`",
        ] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    };
    for mut client in [stdio(&workspace), TestMcpClient::http(launch(&workspace), "2025-06-18")] {
        check(&client.call("gone_read", json!({})).to_string());
    }
    let served = launch(&workspace).served();
    check(&served.ask(&call(1, "gone_read", json!({}))).to_string());
    let body = json!({ "tool": "gone.read", "arguments": {} });
    let post = TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/jobs").malformed();
    let refused = served.send(&post);
    assert_eq!(refused.status, 404, "{refused:?}");
    check(&refused.text());
}

#[test]
fn an_unavailable_upstream_is_not_mentioned_to_a_caller_that_may_not_see_its_tools() {
    let settings = "[upstream.gone]\ncommand = [\"no-such-program-here\"]\n\
                    [[policy.rules]]\nname = \"no-gone\"\neffect = \"deny\"\ntools = [\"gone.*\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let mut client = stdio(&workspace);
    let refused = client.call("gone_read", json!({})).to_string();
    assert!(refused.contains("no tool is named `gone_read`"), "{refused}");
    assert!(!refused.contains("unavailable"), "{refused}");
}
