//! What upstreams say of how they are used well.

use std::fs;

use serde_json::json;

use super::pins::{ends, pins};
use super::{launch, names, stdio, with_odds};
use crate::support::{Client, MODERN, Post, Workspace, keys_of, modern};

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

/// What is told where the upstream `odd` says `said` in one line.
fn as_told(said: &str) -> String {
    format!("\n\nThe server `odd` says of its tools, whose names begin with `odd_` here:\n> {said}")
}

/// Writes the configuration with `from` in it as `to`.
fn rewritten(workspace: &Workspace, from: &str, to: &str) {
    let settings = workspace.read("toolgate.toml");
    assert!(settings.contains(from), "{settings}");
    fs::write(workspace.path("toolgate.toml"), settings.replace(from, to)).unwrap();
}

#[test]
fn clients_are_told_the_instructions_of_an_upstream_after_our_own_once_it_was_asked() {
    let workspace = saying(FIRST, "");
    for told in told(&workspace) {
        assert!(told.starts_with("Tools over one workspace folder.") && !told.contains(FIRST));
    }
    names(&mut stdio(&workspace));
    for told in told(&workspace) {
        assert!(told.starts_with("Tools over one workspace folder."), "{told}");
        assert!(told.ends_with(&as_told(FIRST)), "{told}");
    }
}

#[test]
fn a_server_tells_them_as_soon_as_it_knows_them() {
    let workspace = saying(FIRST, "");
    let mut client = stdio(&workspace);
    assert!(!discovered(&mut client).contains(FIRST));
    names(&mut client);
    assert!(discovered(&mut client).ends_with(&as_told(FIRST)));
}

#[test]
fn nobody_is_told_instructions_that_are_switched_off_or_empty_or_of_no_tool() {
    for (says, more) in [(FIRST, "instructions = false\n"), (" \n ", ""), (FIRST, "tools = []\n")] {
        let workspace = saying(says, more);
        names(&mut stdio(&workspace));
        for told in told(&workspace) {
            assert!(!told.contains("odd"), "{more}: {told}");
        }
    }
}

#[test]
fn who_is_shown_no_tool_of_an_upstream_is_told_nothing_of_it() {
    let workspace = saying(FIRST, "");
    let rule = "[[policy.rules]]\nname = \"none\"\neffect = \"deny\"\ntools = [\"odd.*\"]\n\
                callers = [\"bob\"]\n";
    let settings = workspace.read("toolgate.toml");
    let settings = format!("{}{rule}{settings}", keys_of(&["ada", "bob"]));
    fs::write(workspace.path("toolgate.toml"), settings).unwrap();
    let served = launch(&workspace).served();
    let asks = |key: &str, method: &str| {
        let post = Post::mcp(&modern(1, method, json!({})));
        let answer = served.send(&post.with("authorization", &format!("Bearer {key}"))).message();
        answer["result"].clone()
    };
    assert!(asks("ada-key", "tools/list").to_string().contains("odd_echo"));
    assert!(!asks("bob-key", "tools/list").to_string().contains("odd_echo"));
    let told = |key| asks(key, "server/discover")["instructions"].as_str().unwrap().to_owned();
    assert!(told("ada-key").ends_with(&as_told(FIRST)), "{}", told("ada-key"));
    assert!(!told("bob-key").contains("odd"), "{}", told("bob-key"));
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
        let (_, theirs) = told.split_once("`odd_` here:\n").unwrap();
        assert!(theirs.len() < 4200 && theirs.ends_with("é […]"), "{theirs}");
        assert!(!theirs.contains("hunter2"), "{theirs}");
    }
}

#[test]
fn instructions_that_turn_are_not_told_until_somebody_has_agreed_to_them() {
    let workspace = saying(FIRST, "");
    ends(&pins(&workspace, &["accept"]), 0);
    ends(&pins(&workspace, &["diff"]), 0);
    names(&mut stdio(&workspace));
    for told in told(&workspace) {
        assert!(told.ends_with(&as_told(FIRST)), "{told}");
    }
    rewritten(&workspace, "all others", "nothing");
    let shown = ends(&pins(&workspace, &["diff"]), 1);
    let lines = "    - Call `echo` before all others.\n    + Call `echo` before nothing.\n";
    assert_eq!(shown, format!("odd: instruction-like\n  instructions\n{lines}\n"));
    let mut client = stdio(&workspace);
    names(&mut client);
    assert!(!discovered(&mut client).contains("Call `echo`"));
    let log = client.server().log();
    assert!(log.contains("the instructions of the upstream `odd` are not as they were"), "{log}");
    // The server that runs tells them from then on.
    ends(&pins(&workspace, &["accept"]), 0);
    assert!(discovered(&mut client).ends_with(&as_told("Call `echo` before nothing.")));
    ends(&pins(&workspace, &["diff"]), 0);
}

#[test]
fn a_server_that_told_them_stops_where_others_were_agreed_to_or_that_is_not_known() {
    let workspace = saying("Call `echo` last.", "");
    ends(&pins(&workspace, &["accept"]), 0);
    let others = fs::read(workspace.path("toolgate.lock")).unwrap();
    fs::remove_file(workspace.path("toolgate.lock")).unwrap();
    rewritten(&workspace, "Call `echo` last.", FIRST);
    let mut client = stdio(&workspace);
    names(&mut client);
    assert!(discovered(&mut client).ends_with(&as_told(FIRST)));
    fs::write(workspace.path("toolgate.lock"), others).unwrap();
    assert!(!discovered(&mut client).contains("Call `echo`"));
    ends(&pins(&workspace, &["accept"]), 0);
    assert!(discovered(&mut client).ends_with(&as_told(FIRST)));
    fs::write(workspace.path("toolgate.lock"), "what").unwrap();
    assert!(!discovered(&mut client).contains("Call `echo`"));
}

#[test]
fn whether_instructions_are_told_is_no_difference_of_what_was_agreed_to() {
    let workspace = saying(FIRST, "");
    ends(&pins(&workspace, &["accept"]), 0);
    rewritten(&workspace, "[upstream.odd]", "[upstream.odd]\ninstructions = false");
    ends(&pins(&workspace, &["diff"]), 0);
}
