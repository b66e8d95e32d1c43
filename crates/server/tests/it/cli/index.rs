//! Tests of `toolgate index`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{CliCommandResult, TestCommandLine};
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, binary, path,
    wait_long_for,
};
use crate::toolsets_search::{large, paths, search};

/// Runs `toolgate index` with `args` for `workspace`, with the index in `cache`.
fn index(workspace: &TempWorkspace, cache: &TempDir, args: &[&str]) -> CliCommandResult {
    let args = [&["index"], args].concat();
    TestCommandLine::new(workspace.root(), &args).env("XDG_CACHE_HOME", cache.path()).run()
}

/// Starts `toolgate index` for `workspace`, with the index in `cache`. Waits until it has printed
/// `text`, and returns the process and the unread rest of its standard error.
fn start_index(
    workspace: &TempWorkspace,
    cache: &TempDir,
    home: &TempDir,
    text: &str,
) -> (Child, BufReader<ChildStderr>) {
    let mut command = Command::new(binary());
    command.args(["index"]).current_dir(workspace.root()).env_clear().env("PATH", path());
    command.env("HOME", home.path()).env("XDG_CACHE_HOME", cache.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended before it printed `{text}`");
    }
    (child, stderr)
}

#[test]
fn an_index_is_built_before_the_first_server_and_used_by_it() {
    let workspace = TempWorkspace::new();
    let cache = TempDir::new().unwrap();
    workspace.put("a.rs", "fn feed_okapi() {}\n");
    let fresh = index(&workspace, &cache, &[]);
    assert_eq!(fresh.code, 0, "{fresh:?}");
    assert_eq!(fresh.out, "workspace: ready; 2 files, 2 passages\n");
    workspace.put("b.rs", "fn feed_gnu() {}\n");
    let again = index(&workspace, &cache, &["--json"]);
    assert_eq!(again.code, 0, "{again:?}");
    let status: Value = serde_json::from_str(&again.out).unwrap();
    let status = &status["namespaces"]["workspace"];
    assert_eq!((&status["state"], &status["files"]), (&Value::from("ready"), &Value::from(3)));
    // Without a model there are no vectors to wait for.
    let vectors = index(&workspace, &cache, &["--vectors"]);
    assert_eq!((vectors.code, vectors.out.contains("3 files")), (0, true), "{vectors:?}");
    let mut client =
        TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    let all = search(&mut client, serde_json::json!({ "query": "feed gnu", "top_k": 1 }));
    assert_eq!((paths(&all), &all["index"]["files"]), (vec!["b.rs"], &Value::from(3)));
}

#[test]
fn a_namespace_is_indexed_by_its_name_and_a_missing_one_is_reported() {
    let workspace = TempWorkspace::new();
    let cache = TempDir::new().unwrap();
    let other = TempDir::new().unwrap();
    std::fs::write(other.path().join("lib.rs"), "fn feed_okapi() {}\n").unwrap();
    let folders = format!("std={}, gone=/no/such/folder", other.path().display());
    let index = |args: &[&str]| {
        let args = [&["index"], args].concat();
        let line =
            TestCommandLine::new(workspace.root(), &args).env("XDG_CACHE_HOME", cache.path());
        line.env("TOOLGATE_SEARCH_NAMESPACES", &folders).run()
    };
    let std = index(&["--namespace", "std"]);
    assert_eq!((std.code, std.out.as_str()), (0, "std: ready; 1 file, 1 passage\n"), "{std:?}");
    for (args, code, expected_error) in [
        (&["--namespace", "gone"][..], 1, "the index of `gone` cannot be brought up to date"),
        (&["--namespace", "none"], 1, "unknown namespace `none`"),
        (&["no-such-folder"], 2, "no-such-folder"),
        (&["README.md"], 2, "README.md"),
    ] {
        let done = index(args);
        assert_eq!((done.code, done.out.as_str()), (code, ""), "{args:?}: {done:?}");
        assert!(done.err.contains(expected_error), "{args:?}: {done:?}");
    }
}

#[test]
fn the_command_waits_for_an_index_that_another_server_builds() {
    let workspace = large(1_500);
    let cache = TempDir::new().unwrap();
    let home = TempDir::new().unwrap();
    let mut client =
        TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    let signal = |client: &TestMcpClient, signal: Signal| {
        let TestClientTransport::Stdio(server) = &client.wire else { unreachable!() };
        kill_process(Pid::from_raw(server.pid.try_into().unwrap()).unwrap(), signal).unwrap();
    };
    // The server is paused in the middle of its work.
    let search =
        serde_json::json!({ "name": "search_semantic", "arguments": { "query": "zebra" } });
    let mut message = client.request("tools/call", search);
    message["params"]["_meta"]["progressToken"] = Value::from("p");
    let TestClientTransport::Stdio(server) = &mut client.wire else { unreachable!() };
    server.send(&message);
    assert_eq!(server.receive()["params"]["progressToken"], "p");
    signal(&client, Signal::STOP);
    let (mut child, _stderr) =
        start_index(&workspace, &cache, &home, "another server is building the index");
    signal(&client, Signal::CONT);
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(child.wait().unwrap().success() && out.contains("1501 files"), "{out}");
}

#[test]
fn a_stopped_command_ends_soon_and_the_next_one_continues() {
    let workspace = large(1_500);
    let cache = TempDir::new().unwrap();
    let home = TempDir::new().unwrap();
    let (mut child, mut stderr) = start_index(&workspace, &cache, &home, "files indexed");
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    let stopped = Instant::now();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    let status = child.wait().unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
    assert_eq!(status.code(), Some(1), "{rest}");
    assert!(rest.contains("cancel"), "{rest}");
    let next = index(&workspace, &cache, &[]);
    assert_eq!((next.code, next.out.contains("ready; 1501 files")), (0, true), "{next:?}");
}

#[test]
fn a_terminal_shows_a_progress_bar_that_is_removed_at_the_end() {
    let workspace = large(600);
    let cache = TempDir::new().unwrap();
    let home = TempDir::new().unwrap();
    let line = format!("{} index", binary().display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(workspace.root());
    command.env_clear().env("PATH", path()).env("HOME", home.path()).env("TERM", "xterm");
    command.env("XDG_CACHE_HOME", cache.path()).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = String::new();
    child.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    let done = wait_long_for(Duration::from_secs(5), "it ends", || child.try_wait().unwrap());
    assert!(done.success(), "{shown}");
    let drawn: Vec<_> = shown.split(['\r', '\n']).filter(|it| it.contains("indexed")).collect();
    assert!(drawn.iter().any(|it| it.contains('%')), "{drawn:?}");
    let last = shown.trim_end().lines().last().unwrap();
    assert!(last.contains("workspace: ready; 601 files, "), "{last:?}");
}
