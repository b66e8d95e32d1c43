//! What upstreams say of how they are used well.

use std::fs;

use serde_json::json;

use super::pins::{ends, pins};
use super::{launch, names, stdio, with_odds};
use crate::support::{Client, MODERN, Workspace, wait_until};

const FIRST: &str = "Call `echo` before all others.";

/// An upstream that says so of itself, and what is set of it beside.
fn saying(instructions: &str, more: &str) -> Workspace {
    let says = format!("ODD_INSTRUCTS = {instructions:?}, ");
    with_odds(&[("odd", says.as_str(), more)])
}

/// What a client is told when it begins, over either transport and in either era.
fn told(workspace: &Workspace) -> Vec<String> {
    let told = |revision| {
        [Client::stdio, Client::http].map(|begin: fn(_, _) -> Client| {
            let mut client = begin(launch(workspace), revision);
            match revision {
                MODERN => discovered(&mut client),
                _ => client.opened["result"]["instructions"].as_str().unwrap().to_owned(),
            }
        })
    };
    [told("2025-06-18"), told(MODERN)].concat()
}

/// What `client` of 2026-07-28 is told whenever it asks.
fn discovered(client: &mut Client) -> String {
    let answer = client.ask("server/discover", json!({}));
    answer["result"]["instructions"].as_str().unwrap().to_owned()
}

#[test]
fn clients_are_told_the_instructions_of_an_upstream_after_our_own_once_it_was_asked() {
    let workspace = saying(FIRST, "");
    for told in told(&workspace) {
        assert!(told.starts_with("Tools over one workspace folder.") && !told.contains(FIRST));
    }
    names(&mut stdio(&workspace));
    let theirs = "\n\nThe tools of the server `odd` are served here, too. It says of them:\n";
    for told in told(&workspace) {
        assert!(told.starts_with("Tools over one workspace folder."), "{told}");
        assert!(told.ends_with(&format!("{theirs}{FIRST}")), "{told}");
    }
}

#[test]
fn a_server_tells_them_as_soon_as_it_knows_them() {
    let workspace = saying(FIRST, "");
    let mut client = stdio(&workspace);
    assert!(!discovered(&mut client).contains(FIRST));
    names(&mut client);
    assert!(discovered(&mut client).ends_with(FIRST));
}

#[test]
fn nobody_is_told_instructions_that_are_switched_off_or_empty() {
    for (says, more) in [(FIRST, "instructions = false\n"), (" \n ", "")] {
        let workspace = saying(says, more);
        names(&mut stdio(&workspace));
        for told in told(&workspace) {
            assert!(!told.contains("odd"), "{told}");
        }
    }
}

#[test]
fn instructions_without_end_are_cut_and_secrets_are_not_in_them() {
    let workspace = saying(&format!("hunter2hunter2 {}end", "é".repeat(4000)), "");
    fs::write(workspace.path("held"), "hunter2hunter2\n").unwrap();
    let settings = workspace.read("toolgate.toml");
    let settings = format!("{settings}[secrets]\nfiles = [{:?}]\n", workspace.path("held"));
    fs::write(workspace.path("toolgate.toml"), settings).unwrap();
    names(&mut stdio(&workspace));
    for told in told(&workspace) {
        let (_, theirs) = told.split_once("says of them:\n").unwrap();
        assert!(theirs.len() < 4200 && theirs.ends_with("é […]"), "{theirs}");
        assert!(!theirs.contains("hunter2hunter2"), "{theirs}");
    }
}

#[test]
fn instructions_that_turn_are_told_as_somebody_agreed_to_them() {
    let workspace = saying(FIRST, "");
    ends(&pins(&workspace, &["accept"]), 0);
    ends(&pins(&workspace, &["diff"]), 0);
    // Known from what was agreed to, before anybody has asked it.
    for told in told(&workspace) {
        assert!(told.ends_with(FIRST), "{told}");
    }
    let settings = workspace.read("toolgate.toml");
    fs::write(workspace.path("toolgate.toml"), settings.replace("all others", "nothing")).unwrap();
    let shown = ends(&pins(&workspace, &["diff"]), 1);
    let lines = "    - Call `echo` before all others.\n    + Call `echo` before nothing.\n";
    assert_eq!(shown, format!("odd: instruction-like\n  instructions\n{lines}\n"));
    let mut client = stdio(&workspace);
    names(&mut client);
    assert!(discovered(&mut client).ends_with(FIRST));
    let log = client.server().log();
    assert!(log.contains("the instructions of the upstream `odd` are not as they were"), "{log}");
    ends(&pins(&workspace, &["accept"]), 0);
    ends(&pins(&workspace, &["diff"]), 0);
    let mut client = stdio(&workspace);
    wait_until("they are told as they are", || {
        discovered(&mut client).ends_with("Call `echo` before nothing.")
    });
}
