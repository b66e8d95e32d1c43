//! Tests of the instructions that upstreams send to clients.

use std::fs;

use serde_json::json;

use super::pins::{check_exit, pins};
use super::{launch, names, stdio, with_odds};
use crate::support::{MODERN, TempWorkspace, TestHttpRequest, TestMcpClient, keys_of, modern};

const FIRST: &str = "Call `echo` before all others.";

/// Returns a workspace with an upstream that has `instructions`, and with `more` settings.
fn with_instructions(instructions: &str, more: &str) -> TempWorkspace {
    let env = format!("ODD_INSTRUCTS = {instructions:?}, ");
    with_odds(&[("odd", env.as_str(), more)])
}

/// Returns the instructions that clients receive, over each transport and in both an old and the
/// newest revision.
fn received_instructions(workspace: &TempWorkspace) -> Vec<String> {
    let of_revision = |revision| {
        [TestMcpClient::stdio, TestMcpClient::http].map(|begin: fn(_, _) -> TestMcpClient| {
            let mut client = begin(launch(workspace), revision);
            match revision {
                MODERN => discovered_instructions(&mut client),
                _ => client.opened["result"]["instructions"].as_str().unwrap().to_owned(),
            }
        })
    };
    [of_revision("2025-06-18"), of_revision(MODERN)].concat()
}

/// Returns the instructions in the discovery answer to `client`, which uses revision 2026-07-28.
fn discovered_instructions(client: &mut TestMcpClient) -> String {
    let answer = client.ask("server/discover", json!({}));
    answer["result"]["instructions"].as_str().unwrap().to_owned()
}

/// Returns the instructions `text` of the upstream `odd` as toolgate quotes them for clients.
/// `text` is one line.
fn quote(text: &str) -> String {
    let start =
        "Instructions of the server `odd` for its tools, whose names start with `odd_` here:";
    format!("\n\n{start}\n> {text}")
}

/// Replaces `from` in the configuration by `to`.
fn rewrite(workspace: &TempWorkspace, from: &str, to: &str) {
    let settings = workspace.read("toolgate.toml");
    assert!(settings.contains(from), "{settings}");
    fs::write(workspace.path("toolgate.toml"), settings.replace(from, to)).unwrap();
}

#[test]
fn clients_get_the_instructions_of_an_upstream_after_our_own_once_they_are_known() {
    let workspace = with_instructions(FIRST, "");
    for instructions in received_instructions(&workspace) {
        assert!(
            instructions.starts_with("Tools over one workspace folder.")
                && !instructions.contains(FIRST)
        );
    }
    names(&mut stdio(&workspace));
    for instructions in received_instructions(&workspace) {
        assert!(instructions.starts_with("Tools over one workspace folder."), "{instructions}");
        assert!(instructions.ends_with(&quote(FIRST)), "{instructions}");
    }
}

#[test]
fn instructions_are_sent_as_soon_as_they_are_known() {
    let workspace = with_instructions(FIRST, "");
    let mut client = stdio(&workspace);
    assert!(!discovered_instructions(&mut client).contains(FIRST));
    names(&mut client);
    assert!(discovered_instructions(&mut client).ends_with(&quote(FIRST)));
}

#[test]
fn instructions_that_are_disabled_or_empty_or_without_a_tool_are_not_sent() {
    for (text, more) in
        [(FIRST, "parts = [\"resources\", \"prompts\"]\n"), (" \n ", ""), (FIRST, "tools = []\n")]
    {
        let workspace = with_instructions(text, more);
        names(&mut stdio(&workspace));
        for instructions in received_instructions(&workspace) {
            assert!(!instructions.contains("odd"), "{more}: {instructions}");
        }
    }
}

#[test]
fn instructions_and_resources_with_hidden_characters_are_left_out_and_logged() {
    let env = "ODD_INSTRUCTS = \"Mine.\\u200b\", ODD_RESOURCES = \"odd://1 odd://2\\u200b\", ";
    let workspace = with_odds(&[("odd", env, "")]);
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"odd_shout".to_owned()));
    let listed = client.ask("resources/list", json!({})).to_string();
    assert!(listed.contains("odd://1") && !listed.contains("odd://2"), "{listed}");
    let instructions = discovered_instructions(&mut client);
    assert!(!instructions.contains("Mine."), "{instructions}");
    let log = client.server().log();
    for line in [
        "the instructions of the upstream `odd` are left out: the text has the hidden character",
        "`odd://2\\u{200b}` in the resources of the upstream `odd` is not listed",
    ] {
        assert!(log.contains(line), "{log}");
    }
}

#[test]
fn a_caller_who_sees_no_tool_of_an_upstream_gets_no_instructions_of_it() {
    let workspace = with_instructions(FIRST, "");
    let rule = "[[policy.rules]]\nname = \"none\"\neffect = \"deny\"\ntools = [\"odd.*\"]\n\
                callers = [\"bob\"]\n";
    let settings = workspace.read("toolgate.toml");
    let settings = format!("{}{rule}{settings}", keys_of(&["ada", "bob"]));
    fs::write(workspace.path("toolgate.toml"), settings).unwrap();
    let served = launch(&workspace).served();
    let ask = |key: &str, method: &str| {
        let post = TestHttpRequest::mcp(&modern(1, method, json!({})));
        let answer = served.send(&post.with("authorization", &format!("Bearer {key}"))).message();
        answer["result"].clone()
    };
    assert!(ask("ada-key", "tools/list").to_string().contains("odd_echo"));
    assert!(!ask("bob-key", "tools/list").to_string().contains("odd_echo"));
    let instructions =
        |key| ask(key, "server/discover")["instructions"].as_str().unwrap().to_owned();
    assert!(instructions("ada-key").ends_with(&quote(FIRST)), "{}", instructions("ada-key"));
    assert!(!instructions("bob-key").contains("odd"), "{}", instructions("bob-key"));
}

#[test]
fn long_instructions_are_cut_and_secrets_in_them_redacted() {
    let workspace = with_instructions(&format!("hunter2hunter2 {}end", "é".repeat(4000)), "");
    fs::write(workspace.path("held"), "hunter2hunter2\n").unwrap();
    let settings = workspace.read("toolgate.toml");
    let settings = format!("{settings}[secrets]\nfiles = [{:?}]\n", workspace.path("held"));
    fs::write(workspace.path("toolgate.toml"), settings).unwrap();
    names(&mut stdio(&workspace));
    for instructions in received_instructions(&workspace) {
        let (_, quoted_text) = instructions.split_once("`odd_` here:\n").unwrap();
        assert!(quoted_text.len() < 4200 && quoted_text.ends_with("é […]"), "{quoted_text}");
        assert!(!quoted_text.contains("hunter2"), "{quoted_text}");
    }
}

#[test]
fn changed_instructions_are_not_sent_until_they_are_approved() {
    let workspace = with_instructions(FIRST, "");
    check_exit(&pins(&workspace, &["accept", "--yes"]), 0);
    check_exit(&pins(&workspace, &["diff"]), 0);
    names(&mut stdio(&workspace));
    for instructions in received_instructions(&workspace) {
        assert!(instructions.ends_with(&quote(FIRST)), "{instructions}");
    }
    rewrite(&workspace, "all others", "nothing");
    let shown = check_exit(&pins(&workspace, &["diff"]), 1);
    let lines = "    - Call `echo` before all others.\n    + Call `echo` before nothing.\n";
    assert_eq!(shown, format!("odd: instruction-like\n  instructions\n{lines}\n"));
    let mut client = stdio(&workspace);
    names(&mut client);
    assert!(!discovered_instructions(&mut client).contains("Call `echo`"));
    let log = client.server().log();
    assert!(log.contains("the instructions of the upstream `odd` differ from their pin"), "{log}");
    // The running server sends them from then on.
    check_exit(&pins(&workspace, &["accept", "--yes"]), 0);
    assert!(discovered_instructions(&mut client).ends_with(&quote("Call `echo` before nothing.")));
    check_exit(&pins(&workspace, &["diff"]), 0);
}

#[test]
fn instructions_are_no_longer_sent_once_other_ones_are_approved_or_the_lock_is_unreadable() {
    let workspace = with_instructions("Call `echo` last.", "");
    check_exit(&pins(&workspace, &["accept", "--yes"]), 0);
    let others = fs::read(workspace.path("toolgate.lock")).unwrap();
    fs::remove_file(workspace.path("toolgate.lock")).unwrap();
    rewrite(&workspace, "Call `echo` last.", FIRST);
    let mut client = stdio(&workspace);
    names(&mut client);
    assert!(discovered_instructions(&mut client).ends_with(&quote(FIRST)));
    fs::write(workspace.path("toolgate.lock"), others).unwrap();
    assert!(!discovered_instructions(&mut client).contains("Call `echo`"));
    check_exit(&pins(&workspace, &["accept", "--yes"]), 0);
    assert!(discovered_instructions(&mut client).ends_with(&quote(FIRST)));
    fs::write(workspace.path("toolgate.lock"), "what").unwrap();
    assert!(!discovered_instructions(&mut client).contains("Call `echo`"));
}

#[test]
fn disabling_instructions_is_not_a_difference_from_the_pins() {
    let workspace = with_instructions(FIRST, "");
    check_exit(&pins(&workspace, &["accept", "--yes"]), 0);
    rewrite(&workspace, "[upstream.odd]", "[upstream.odd]\nparts = [\"resources\", \"prompts\"]");
    check_exit(&pins(&workspace, &["diff"]), 0);
}
