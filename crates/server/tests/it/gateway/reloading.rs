//! Upstreams that come, change and go while a server runs, and rules over what their tools answer.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{launch, names, stdio, text, with_odd};
use crate::support::{Client, MODERN, Wire, Workspace, binary, is_alive, path, wait_until};

/// Has the file of `workspace` say `settings`, as an editor writes it.
fn says(workspace: &Workspace, settings: &str) {
    fs::write(workspace.path("next.toml"), settings).unwrap();
    fs::rename(workspace.path("next.toml"), workspace.path("toolgate.toml")).unwrap();
}

fn pid(client: &mut Client) -> u32 {
    text(&client.call("odd_pid", json!({}))).parse().unwrap()
}

#[test]
fn an_upstream_that_is_added_is_served_and_one_that_is_taken_away_is_not() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let settings = workspace.read("toolgate.toml");
    let more = settings.replace("[upstream.odd]", "[upstream.more]");
    says(&workspace, &format!("{settings}{more}"));
    wait_until("it is listed", || names(&mut client).contains(&"more_echo".to_owned()));
    let echo = json!({ "message": "hello" });
    assert_eq!(text(&client.call("more_echo", echo.clone())), "hello");
    // Who is as before goes on as before.
    assert_eq!(pid(&mut client), first);
    says(&workspace, &more);
    wait_until("it is listed no more", || !names(&mut client).contains(&"odd_echo".to_owned()));
    wait_until("its program is ended", || !is_alive(first));
    assert_eq!(text(&client.call("more_echo", echo)), "hello");
    let log = client.server().log();
    assert!(log.contains("the upstream `more` is new"), "{log}");
    assert!(log.contains("the upstream `odd` is not served any more"), "{log}");
}

#[test]
fn a_call_in_flight_is_answered_though_its_upstream_is_another_meanwhile() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let request = client.request("tools/call", json!({ "name": "odd_wait", "arguments": {} }));
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    wait_until("it is called", || workspace.read("odd.log").contains("call wait"));
    let settings = workspace.read("toolgate.toml");
    says(&workspace, &format!("{settings}answer_bytes = 30000\n"));
    wait_until("another is called", || pid(&mut client) != first);
    assert!(is_alive(first));
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let answer = stdio.receive();
    assert_eq!(answer["id"], request["id"]);
    assert_eq!(text(&answer), "waited");
    wait_until("its program is ended", || !is_alive(first));
}

#[test]
fn an_upstream_that_was_replaced_offers_nothing_any_more_while_it_ends_its_calls() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let request = client.request("tools/call", json!({ "name": "odd_late", "arguments": {} }));
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    wait_until("it is called", || workspace.read("odd.log").contains("call late"));
    let settings = workspace.read("toolgate.toml");
    says(&workspace, &format!("{settings}without = [\"echo\"]\n"));
    wait_until("it is left out", || {
        client.server().log().contains("the upstream `odd` is another")
    });
    // Now the old one says that it has others.
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let answer = std::iter::repeat_with(|| stdio.receive()).find(|it| it["id"] == request["id"]);
    assert_eq!(text(&answer.unwrap()), "late");
    let names = names(&mut client);
    assert!(names.contains(&"odd_shout".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_echo".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_grown".to_owned()), "{names:?}");
}

#[test]
fn a_file_that_cannot_be_read_or_meant_leaves_the_upstreams_as_they_were() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let settings = workspace.read("toolgate.toml");
    for odd in ["[upstream.odd\n", "[upstream.odd]\ncommand = []\n", "[upstream.Odd]\nurl=\"a\"\n"]
    {
        says(&workspace, odd);
        wait_until("it is told", || client.server().log().contains("stay as they were"));
        assert_eq!(pid(&mut client), first);
    }
    says(&workspace, &format!("{settings}[log]\nlevel = \"info\"\n"));
    wait_until("it is told", || client.server().log().contains("holds from the next start"));
    assert_eq!(pid(&mut client), first);
}

#[test]
fn an_upstream_that_comes_with_a_rule_which_may_guard_it_is_not_served_before_the_rule_holds() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let first = pid(&mut client);
    let settings = workspace.read("toolgate.toml");
    let more = settings.replace("[upstream.odd]", "[upstream.more]");
    let rule = "[[policy.rules]]\nname = \"none\"\neffect = \"deny\"\ntools = [\"more.*\"]\n";
    let other = settings.replace("[upstream.odd]", "[upstream.odd]\nprefix = \"other\"");
    says(&workspace, &format!("{other}{more}{rule}"));
    wait_until("it is told", || client.server().log().contains("holds from the next start"));
    let listed = names(&mut client);
    assert!(!listed.iter().any(|name| name.starts_with("more_")), "{listed:?}");
    assert_eq!(pid(&mut client), first, "it is as it was");
    // What is not served any more is not, whatever else is said.
    says(&workspace, rule);
    wait_until("it is ended", || !is_alive(first));
    assert!(!names(&mut client).contains(&"odd_echo".to_owned()));
    says(&workspace, &format!("{settings}{more}"));
    wait_until("it is served", || names(&mut client).contains(&"more_echo".to_owned()));
}

#[test]
fn a_link_or_a_pipe_in_the_place_of_a_configuration_is_told_of_and_holds_nobody_up() {
    let workspace = Workspace::new();
    let other = with_odd("");
    let state = TempDir::new().unwrap();
    let mut client = Client::stdio(launch(&workspace).remembering(&state), MODERN);
    names(&mut client);
    let at = workspace.path("toolgate.toml");
    std::os::unix::fs::symlink(other.path("toolgate.toml"), &at).unwrap();
    wait_until("it is told", || client.server().log().contains("it is a link"));
    assert!(!names(&mut client).contains(&"odd_echo".to_owned()));
    fs::remove_file(&at).unwrap();
    assert!(Command::new("mkfifo").arg(&at).status().unwrap().success());
    wait_until("it is told", || client.server().log().contains("is no file"));
    assert!(names(&mut client).contains(&"files_read".to_owned()));
}

#[test]
fn a_program_begins_where_nobody_writes_and_is_none_that_lies_in_the_workspace_by_its_name() {
    let workspace = with_odd("");
    let settings = workspace.read("toolgate.toml");
    let (python, rest) = settings.split_once("command = [").unwrap();
    let at = |file: &str| workspace.path(file).display().to_string();
    let says = |file: &str, more: &str| {
        let run = format!("pwd > {}; ls -A >> {0}; exec \\\"$@\\\"", at(file));
        let one = python.replace("odd", &file.replace('.', "_"));
        format!("{one}command = [\"sh\", \"-c\", \"{run}\", \"sh\", {rest}{more}\n")
    };
    let planted = "[upstream.planted]\ncommand = [\"planted-server\"]\n";
    let all = format!("{}{}{planted}", says("alone.txt", ""), says("here.txt", "cwd = \".\""));
    let bin = workspace.path("bin");
    fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\ntouch {}\n", at("ran.txt"));
    fs::write(bin.join("planted-server"), script).unwrap();
    let run = Command::new("chmod").arg("755").arg(bin.join("planted-server")).status();
    assert!(run.unwrap().success());
    let workspace = workspace.file("toolgate.toml", all);
    let found = format!("{}:{}", bin.display(), path().into_string().unwrap());
    let mut client = Client::stdio(launch(&workspace).env("PATH", found), MODERN);
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
fn a_server_without_a_configuration_takes_over_one_that_appears() {
    let workspace = Workspace::new();
    let other = with_odd("");
    // Named, so that nobody has to vouch for it.
    let file = workspace.path("toolgate.toml");
    fs::write(&file, "").unwrap();
    let mut client = Client::stdio(launch(&workspace), MODERN);
    assert!(!names(&mut client).iter().any(|name| name.starts_with("odd_")));
    says(&workspace, &other.read("toolgate.toml"));
    wait_until("it is listed", || names(&mut client).contains(&"odd_echo".to_owned()));
    assert!(names(&mut client).contains(&"results_read".to_owned()));
}

#[test]
fn a_configuration_that_appears_is_taken_over_once_somebody_has_vouched_for_it() {
    let workspace = Workspace::new();
    let other = with_odd("");
    let state = TempDir::new().unwrap();
    let mut client = Client::stdio(launch(&workspace).remembering(&state), MODERN);
    names(&mut client);
    says(&workspace, &other.read("toolgate.toml"));
    wait_until("it is told", || client.server().log().contains("nobody has vouched for"));
    assert!(!names(&mut client).contains(&"odd_echo".to_owned()));
    let mut trust = Command::new(binary());
    trust.arg("trust").current_dir(workspace.root()).env_clear().env("PATH", path());
    trust.env("XDG_STATE_HOME", state.path()).env("HOME", workspace.root());
    assert!(trust.output().unwrap().status.success());
    wait_until("it is listed", || names(&mut client).contains(&"odd_echo".to_owned()));
}

#[test]
fn what_breaks_its_schema_is_refused_told_or_let_by_as_rules_say() {
    let rule =
        |check: &str| format!("[[validation.rules]]\ntools = \"odd.sh*\"\noutput = \"{check}\"\n");
    let asked = |more: &str| -> (Value, Client) {
        let workspace = with_odd(more);
        let mut client = stdio(&workspace);
        (client.call("odd_shaped", json!({})), client)
    };
    let is_told = |client: &Client| client.server().log().contains("odd.shaped");
    let (refused, client) = asked("");
    assert!(refused.to_string().contains("/count"), "{refused}");
    wait_until("it is told", || is_told(&client));
    let (served, client) = asked(&rule("shadow"));
    assert_eq!(served["result"]["structuredContent"]["count"], "two", "{served}");
    wait_until("it is told", || is_told(&client));
    let (served, client) = asked(&rule("off"));
    assert_eq!(served["result"]["structuredContent"]["count"], "two", "{served}");
    assert!(!is_told(&client), "{}", client.server().log());
}
