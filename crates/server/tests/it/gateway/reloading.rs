//! Tests of upstreams that are added, changed and removed while a server runs, and of the
//! validation of their results.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{checkout, launch, names, stdio, text, with_odd};
use crate::support::{
    MODERN, TempWorkspace, TestClientTransport, TestMcpClient, binary, is_alive, path, wait_until,
};

/// Replaces the configuration of `workspace` by `settings`, as an editor does.
fn write_settings(workspace: &TempWorkspace, settings: &str) {
    fs::write(workspace.path("next.toml"), settings).unwrap();
    fs::rename(workspace.path("next.toml"), workspace.path("toolgate.toml")).unwrap();
}

fn pid(client: &mut TestMcpClient) -> u32 {
    text(&client.call("odd_pid", json!({}))).parse().unwrap()
}

#[test]
fn an_added_upstream_is_served_and_a_removed_one_is_not() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let settings = workspace.read("toolgate.toml");
    let more = settings.replace("[upstream.odd]", "[upstream.more]");
    write_settings(&workspace, &format!("{settings}{more}"));
    wait_until("it is listed", || names(&mut client).contains(&"more_echo".to_owned()));
    let echo = json!({ "message": "hello" });
    assert_eq!(text(&client.call("more_echo", echo.clone())), "hello");
    // An unchanged upstream keeps running.
    assert_eq!(pid(&mut client), first);
    write_settings(&workspace, &more);
    wait_until("it is listed no more", || !names(&mut client).contains(&"odd_echo".to_owned()));
    wait_until("its program is ended", || !is_alive(first));
    assert_eq!(text(&client.call("more_echo", echo)), "hello");
    let log = client.server().log();
    assert!(log.contains("the upstream `more` is new"), "{log}");
    assert!(log.contains("the upstream `odd` was removed"), "{log}");
}

#[test]
fn an_added_upstream_that_does_not_start_is_logged_without_a_request() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    names(&mut client);
    let settings = workspace.read("toolgate.toml");
    let gone = "[upstream.gone]\ncommand = [\"no-such-program-here\"]\n";
    write_settings(&workspace, &format!("{settings}{gone}"));
    wait_until("the failure is logged", || {
        client.server().log().contains("the upstream `gone` is unavailable: ")
    });
}

#[test]
fn a_call_in_flight_finishes_after_its_upstream_was_replaced() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let request = client.request("tools/call", json!({ "name": "odd_wait", "arguments": {} }));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    wait_until("it is called", || workspace.read("odd.log").contains("call wait"));
    let settings = workspace.read("toolgate.toml");
    write_settings(&workspace, &format!("{settings}start_ms = 40000\n"));
    wait_until("another is called", || pid(&mut client) != first);
    assert!(is_alive(first));
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let answer = stdio.receive();
    assert_eq!(answer["id"], request["id"]);
    assert_eq!(text(&answer), "waited");
    wait_until("its program is ended", || !is_alive(first));
}

/// Replaces an upstream by one with the variables `env`, and calls `odd_echo` before the new
/// upstream has listed its tools. Returns the answer.
fn echo_before_listing(env: &str) -> Value {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    names(&mut client);
    let settings = workspace.read("toolgate.toml");
    let late = format!("env = {{ ODD_LATE = \"1\", {env}");
    write_settings(&workspace, &settings.replace("env = { ", &late));
    wait_until("its tools are asked for", || {
        workspace.read("odd.log").contains("asked what it has")
    });
    let params = json!({ "name": "odd_echo", "arguments": { "message": "hello" } });
    let request = client.request("tools/call", params);
    let params = json!({ "name": "files_exists", "arguments": { "path": "toolgate.toml" } });
    let next = client.request("tools/call", params);
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    // The server reads requests in order, so it has read the first one when it answers this one.
    stdio.send(&next);
    stdio.answer(next["id"].clone());
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    stdio.answer(request["id"].clone())
}

#[test]
fn a_tool_that_is_called_before_its_new_upstream_is_listed_runs_unless_it_changed() {
    assert_eq!(text(&echo_before_listing("")), "hello");
    let refused = echo_before_listing("ODD_SAYS = \"Something else.\", ").to_string();
    assert!(refused.contains("changed with the settings: list the tools again"), "{refused}");
}

#[test]
fn the_tools_of_a_replaced_upstream_go_when_the_new_one_fails() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"odd_echo".to_owned()));
    write_settings(&workspace, "[upstream.odd]\ncommand = [\"no-such-program-here\"]\n");
    wait_until("its tools are gone", || !names(&mut client).contains(&"odd_echo".to_owned()));
    let refused = client.call("odd_echo", json!({ "message": "hello" })).to_string();
    assert!(refused.contains("its upstream `odd` is unavailable since "), "{refused}");
}

#[test]
fn a_replaced_upstream_no_longer_changes_the_catalog() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let request = client.request("tools/call", json!({ "name": "odd_late", "arguments": {} }));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    wait_until("it is called", || workspace.read("odd.log").contains("call late"));
    let settings = workspace.read("toolgate.toml");
    write_settings(&workspace, &format!("{settings}tools = [\"!echo\"]\n"));
    wait_until("it is left out", || {
        client.server().log().contains("the upstream `odd` has new settings")
    });
    // Now the replaced upstream announces changed tools.
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let answer = std::iter::repeat_with(|| stdio.receive()).find(|it| it["id"] == request["id"]);
    assert_eq!(text(&answer.unwrap()), "late");
    let names = names(&mut client);
    assert!(names.contains(&"odd_shout".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_echo".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_grown".to_owned()), "{names:?}");
}

#[test]
fn an_invalid_configuration_leaves_the_upstreams_unchanged() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let settings = workspace.read("toolgate.toml");
    for invalid in
        ["[upstream.odd\n", "[upstream.odd]\ncommand = []\n", "[upstream.Odd]\nurl=\"a\"\n"]
    {
        write_settings(&workspace, invalid);
        wait_until("it is logged", || client.server().log().contains("the settings are unchanged"));
        assert_eq!(pid(&mut client), first);
    }
    write_settings(&workspace, &format!("{settings}[jobs]\nto = \"off\"\n"));
    wait_until("it is logged", || client.server().log().contains("need a restart: jobs.to"));
    assert_eq!(pid(&mut client), first);
}

#[test]
fn an_upstream_and_the_rule_for_its_tools_apply_together_at_once() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let settings = workspace.read("toolgate.toml");
    let more = settings.replace("[upstream.odd]", "[upstream.more]");
    let rule = "[[policy.rules]]\nname = \"quiet\"\neffect = \"deny\"\ntools = [\"more.sh*\"]\n";
    // The list is asked for without pause, so that it would show a tool without its rule.
    write_settings(&workspace, &format!("{settings}{more}{rule}"));
    wait_until("it is served", || {
        let listed = names(&mut client);
        assert!(!listed.contains(&"more_shout".to_owned()), "{listed:?}");
        listed.contains(&"more_echo".to_owned())
    });
    assert_eq!(pid(&mut client), first, "an unchanged upstream keeps running");
    // The same for a new name and a new rule of an upstream.
    let other = settings.replace("[upstream.odd]", "[upstream.odd]\nprefix = \"other\"");
    let rule = rule.replace("more.sh*", "other.echo");
    write_settings(&workspace, &format!("{other}{rule}"));
    wait_until("it has its new name", || {
        let listed = names(&mut client);
        assert!(!listed.contains(&"other_echo".to_owned()), "{listed:?}");
        listed.contains(&"other_shout".to_owned())
    });
    wait_until("its first program ends", || !is_alive(first));
    assert!(is_alive(client.server().pid));
    write_settings(&workspace, &format!("{settings}{more}"));
    wait_until("it is served without a rule", || {
        names(&mut client).contains(&"more_shout".to_owned())
    });
}

#[test]
fn a_changed_sandbox_starts_the_programs_of_upstreams_again() {
    // The program and its interpreter are in the checkout.
    let readable = checkout();
    let workspace = with_odd(&format!("sandbox = \"workspace\"\n[sandbox]\nread = [{readable:?}]"));
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"odd_echo".to_owned()));
    let settings = workspace.read("toolgate.toml");
    write_settings(&workspace, &format!("{settings}unix_sockets = true\n"));
    let restarted = "the upstream `odd` starts again";
    wait_until("it starts again", || client.server().log().contains(restarted));
    assert!(names(&mut client).contains(&"odd_echo".to_owned()));
}

#[test]
fn a_symlink_or_fifo_as_configuration_is_logged_and_blocks_nothing() {
    let workspace = TempWorkspace::new();
    let other = with_odd("");
    let state = TempDir::new().unwrap();
    let mut client = TestMcpClient::stdio(launch(&workspace).with_state(&state), MODERN);
    names(&mut client);
    let at = workspace.path("toolgate.toml");
    std::os::unix::fs::symlink(other.path("toolgate.toml"), &at).unwrap();
    wait_until("it is logged", || client.server().log().contains("it is a link"));
    assert!(!names(&mut client).contains(&"odd_echo".to_owned()));
    fs::remove_file(&at).unwrap();
    assert!(Command::new("mkfifo").arg(&at).status().unwrap().success());
    wait_until("it is logged", || client.server().log().contains("is not a regular file"));
    assert!(names(&mut client).contains(&"files_read".to_owned()));
}

#[test]
fn a_program_starts_in_an_empty_folder_and_is_not_looked_up_in_the_workspace() {
    let workspace = with_odd("");
    let settings = workspace.read("toolgate.toml");
    let (python, rest) = settings.split_once("command = [").unwrap();
    let at = |file: &str| workspace.path(file).display().to_string();
    let table = |file: &str, more: &str| {
        let run = format!("pwd > {}; ls -A >> {0}; exec \\\"$@\\\"", at(file));
        let one = python.replace("odd", &file.replace('.', "_"));
        format!("{one}command = [\"sh\", \"-c\", \"{run}\", \"sh\", {rest}{more}\n")
    };
    let planted = "[upstream.planted]\ncommand = [\"planted-server\"]\n";
    let all = format!("{}{}{planted}", table("alone.txt", ""), table("here.txt", "cwd = \".\""));
    let bin = workspace.path("bin");
    fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\ntouch {}\n", at("ran.txt"));
    fs::write(bin.join("planted-server"), script).unwrap();
    let run = Command::new("chmod").arg("755").arg(bin.join("planted-server")).status();
    assert!(run.unwrap().success());
    let workspace = workspace.file("toolgate.toml", all);
    let found = format!("{}:{}", bin.display(), path().into_string().unwrap());
    let mut client = TestMcpClient::stdio(launch(&workspace).env("PATH", found), MODERN);
    assert!(names(&mut client).contains(&"alone_txt_echo".to_owned()));
    let root = workspace.root().canonicalize().unwrap().display().to_string();
    let alone = workspace.read("alone.txt");
    let here = workspace.read("here.txt");
    assert_eq!(alone.lines().count(), 1, "it is empty: {alone}");
    assert!(!alone.contains(&root), "{alone}");
    assert_eq!(here.lines().next(), Some(&*root), "{here}");
    assert!(client.server().log().contains("planted-server"), "{}", client.server().log());
    assert!(!workspace.path("ran.txt").exists());
}

#[test]
fn a_configuration_that_appears_is_applied() {
    let workspace = TempWorkspace::new();
    let other = with_odd("");
    // A configuration that is named needs no trust.
    let file = workspace.path("toolgate.toml");
    fs::write(&file, "").unwrap();
    let mut client = TestMcpClient::stdio(launch(&workspace), MODERN);
    assert!(!names(&mut client).iter().any(|name| name.starts_with("odd_")));
    write_settings(&workspace, &other.read("toolgate.toml"));
    wait_until("it is listed", || names(&mut client).contains(&"odd_echo".to_owned()));
    assert!(names(&mut client).contains(&"results_read".to_owned()));
}

#[test]
fn a_configuration_that_appears_is_applied_once_it_is_trusted() {
    let workspace = TempWorkspace::new();
    let other = with_odd("");
    let state = TempDir::new().unwrap();
    let mut client = TestMcpClient::stdio(launch(&workspace).with_state(&state), MODERN);
    names(&mut client);
    write_settings(&workspace, &other.read("toolgate.toml"));
    wait_until("it is logged", || client.server().log().contains("is not trusted"));
    assert!(!names(&mut client).contains(&"odd_echo".to_owned()));
    let mut trust = Command::new(binary());
    trust.arg("trust").current_dir(workspace.root()).env_clear().env("PATH", path());
    trust.env("XDG_STATE_HOME", state.path()).env("HOME", workspace.root());
    assert!(trust.output().unwrap().status.success());
    wait_until("it is listed", || names(&mut client).contains(&"odd_echo".to_owned()));
}

#[test]
fn a_result_that_violates_its_schema_is_refused_or_only_logged_as_configured() {
    let call = |more: &str| -> (Value, TestMcpClient) {
        let workspace = with_odd(more);
        let mut client = stdio(&workspace);
        (client.call("odd_shaped", json!({})), client)
    };
    let is_logged = |client: &TestMcpClient| client.server().log().contains("odd.shaped");
    let (refused, client) = call("");
    assert!(refused.to_string().contains("/count"), "{refused}");
    wait_until("it is logged", || is_logged(&client));
    let (served, client) = call("[validation]\nshadow = [\"odd.sh*\"]\n");
    assert_eq!(served["result"]["structuredContent"]["count"], "two", "{served}");
    wait_until("it is logged", || is_logged(&client));
}
