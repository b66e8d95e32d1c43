//! Rules over what upstreams have, and what of them is nobody's to read.

use std::process::Command;

use serde_json::{Value, json};

use super::{launch, names, stdio, text, with_odds};
use crate::support::{Client, MODERN, Workspace, binary, path, wait_until};

/// A workspace with the upstream `odd`, which has `env` and `more`, and with `rules`.
fn ruled(env: &str, more: &str, rules: &str) -> Workspace {
    let workspace = with_odds(&[("odd", env, more)]);
    let settings = workspace.read("toolgate.toml");
    workspace.file("toolgate.toml", format!("{rules}\n{settings}"))
}

fn deny(of: &str) -> String {
    format!("[[policy.rules]]\nname = \"none\"\neffect = \"deny\"\n{of}\n")
}

fn uris(client: &mut Client) -> Vec<String> {
    let listed = client.ask("resources/list", json!({}));
    let all = listed["result"]["resources"].as_array().unwrap();
    all.iter().map(|it| it["uri"].as_str().unwrap().to_owned()).collect()
}

fn is_refused(answer: &Value) -> bool {
    answer["error"].is_object() || answer["result"]["isError"] == true
}

#[test]
fn a_rule_that_names_an_upstream_by_its_tag_or_its_name_holds_for_all_that_it_has() {
    for (more, of) in [
        ("", "tags = [\"odd\"]"),
        ("", "tags = [\"upstream\"]"),
        ("", "tools = [\"odd.*\"]"),
        ("prefix = \"other\"", "tools = [\"odd.*\"]"),
        ("prefix = \"other\"", "tools = [\"other.*\"]"),
    ] {
        let workspace = ruled("ODD_RESOURCES = \"odd://1\", ", more, &deny(of));
        let mut client = stdio(&workspace);
        let listed = names(&mut client);
        let theirs = |name: &&String| name.starts_with("odd_") || name.starts_with("other_");
        assert_eq!(listed.iter().find(theirs), None, "{more} {of}");
        for tool in ["odd_pid", "other_pid"] {
            assert!(is_refused(&client.call(tool, json!({}))), "{more} {of}");
        }
        assert!(!uris(&mut client).contains(&"odd://1".to_owned()), "{more} {of}");
        let read = client.ask("resources/read", json!({ "uri": "odd://1" }));
        assert!(is_refused(&read), "{more} {of}: {read}");
    }
}

#[test]
fn a_rule_that_is_about_no_tool_once_all_have_said_what_they_have_is_told_of() {
    let workspace = ruled("", "", &deny("tools = [\"odd.ecko\"]"));
    let mut client = stdio(&workspace);
    names(&mut client);
    wait_until("it is told", || client.server().log().contains("odd.ecko"));
    let log = client.server().log();
    assert!(log.contains("odd.echo"), "it says what may be meant: {log}");
}

#[test]
fn a_list_of_nothing_in_a_rule_is_refused() {
    for of in ["callers = []", "roles = []", "tools = []", "tags = []", "effects = []"] {
        let workspace = ruled("", "", &deny(of));
        let mut command = Command::new(binary());
        command.arg("check-config").current_dir(workspace.root()).env_clear();
        let ran = command.env("PATH", path()).env("HOME", workspace.root()).output().unwrap();
        assert_ne!(ran.status.code(), Some(0), "{ran:?}");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(said.contains("it is empty"), "{of}: {said}");
    }
}

#[test]
fn what_an_upstream_alone_is_told_is_taken_out_of_its_refusals_and_of_the_log() {
    let workspace = ruled("ODD_MUMBLES = \"${ODD_WORD}\", ", "", "[log]\nlevel = \"debug\"");
    let launch = launch(&workspace).env("ODD_WORD", "abcd-QWERTY-0987");
    let mut client = Client::stdio(launch, MODERN);
    let refused = client.call("odd_mumble", json!({}));
    assert!(is_refused(&refused), "{refused}");
    assert!(!refused.to_string().contains("QWERTY"), "{refused}");
    assert!(!client.server().log().contains("QWERTY"), "{}", client.server().log());
}

#[test]
fn whoever_may_call_the_tools_of_upstreams_alone_reads_on_in_their_long_answers() {
    let workspace = ruled("", "answer_bytes = 20000", "[tools]\nallow = [\"odd.*\"]");
    let mut client = stdio(&workspace);
    let listed = names(&mut client);
    assert!(!listed.contains(&"files_read".to_owned()), "{listed:?}");
    let long = client.call("odd_huge", json!({}));
    let link =
        long["result"]["content"].as_array().unwrap().iter().find_map(|it| it["uri"].as_str());
    let uri = link.unwrap_or_else(|| panic!("{long}")).to_owned();
    let read = client.call("results_read", json!({ "id": uri }));
    assert!(!is_refused(&read), "{read}");
}

#[test]
fn a_server_that_says_that_it_has_what_it_knows_nothing_of_has_its_tools_all_the_same() {
    let workspace = ruled("ODD_CLAIMS = \"1\", ", "", "");
    let mut client = stdio(&workspace);
    assert_eq!(text(&client.call("odd_shout", json!({}))), "still here");
    let log = client.server().log();
    assert!(log.contains("refuses `prompts/list`"), "{log}");
}

#[test]
fn what_another_server_says_for_whoever_shows_it_is_handed_on_as_it_is() {
    let workspace = with_odds(&[("odd", "ODD_RESOURCES = \"odd://1\",", "")]);
    let mut client = stdio(&workspace);
    let tools = client.tools();
    let say = tools.iter().find(|tool| tool["name"] == "odd_say").unwrap();
    assert_eq!(say["_meta"], json!({ "ui": { "resourceUri": "ui://say/page" } }));
    assert!(tools.iter().all(|tool| tool["name"] == "odd_say" || tool.get("_meta").is_none()));
    let listed = client.ask("resources/list", json!({}));
    let resources = listed["result"]["resources"].as_array().unwrap();
    let odd = resources.iter().find(|one| one["uri"] == "odd://1").unwrap();
    assert_eq!(odd["_meta"], json!({ "place": 0 }));
    let read = client.ask("resources/read", json!({ "uri": "odd://1" }));
    assert_eq!(read["result"]["contents"][0]["_meta"], json!({ "within": "odd://1" }));
    let said = json!({
        "view": { "at": [1] }, "io.modelcontextprotocol/serverInfo": { "name": "x", "version": "1" },
    });
    let answer = client.call("odd_say", json!({ "content": [], "_meta": said }));
    let meta = &answer["result"]["_meta"];
    assert_eq!(meta["view"], json!({ "at": [1] }), "{answer}");
    assert_eq!(meta["io.modelcontextprotocol/serverInfo"]["name"], "toolgate", "{answer}");
}

#[test]
fn a_client_of_before_2025_06_18_is_told_nothing_that_its_revision_has_no_place_for() {
    let workspace = with_odds(&[("odd", "ODD_RESOURCES = \"odd://1\",", "")]);
    let mut client = Client::stdio(launch(&workspace), "2025-03-26");
    let tools = client.tools();
    assert!(tools.iter().any(|tool| tool["name"] == "odd_say"));
    assert!(tools.iter().all(|tool| tool.get("_meta").is_none()), "{tools:?}");
    for (method, params) in
        [("resources/list", json!({})), ("resources/read", json!({ "uri": "odd://1" }))]
    {
        let answer = client.ask(method, params).to_string();
        assert!(answer.contains("odd://1") && !answer.contains("_meta"), "{answer}");
    }
    // A result has had one from the first revision on.
    let answer = client.call("odd_say", json!({ "content": [], "_meta": { "view": 1 } }));
    assert_eq!(answer["result"]["_meta"], json!({ "view": 1 }), "{answer}");
}

#[test]
fn what_a_result_says_for_whoever_shows_it_is_there_once_it_was_a_task_and_has_no_secret() {
    let workspace = ruled("", "", "[secrets]\nvalues_from = [\"OWN_TOKEN\"]\n");
    let launch = launch(&workspace).env("OWN_TOKEN", "hunter2-and-more");
    let mut client = Client::stdio(launch, "2025-11-25");
    client.tools();
    let meta = json!({
        "view": "hunter2-and-more",
        "of hunter2-and-more": 1,
        "io.modelcontextprotocol/related-task": { "taskId": "another" },
    });
    let arguments = json!({ "content": [], "_meta": meta });
    let asked = json!({ "name": "odd_say", "arguments": arguments, "task": {} });
    let created = client.ask("tools/call", asked);
    let id = &created["result"]["task"]["taskId"];
    assert!(id.is_string(), "{created}");
    let result = client.ask("tasks/result", json!({ "taskId": id }));
    let expected = json!({
        "view": "[redacted]",
        "of [redacted]": 1,
        "io.modelcontextprotocol/related-task": { "taskId": id },
    });
    assert_eq!(result["result"]["_meta"], expected, "{result}");
}

#[test]
fn tools_whose_names_have_no_letters_that_ids_have_are_served() {
    let workspace = with_odds(&[("odd", "ODD_TOOLS = \"天気 地図\",", "")]);
    let mut client = stdio(&workspace);
    let names = names(&mut client);
    let odd = names.iter().filter(|name| name.starts_with("odd___"));
    let said: Vec<_> = odd.map(|name| text(&client.call(name, json!({}))).to_owned()).collect();
    assert!(said.len() == 2 && said.iter().all(|name| "天気 地図".contains(name)), "{said:?}");
}

#[test]
fn what_a_tool_of_another_server_says_of_the_world_beyond_is_said_of_it_here() {
    let mut client = stdio(&ruled("", "", ""));
    let tools = client.tools();
    let reaches = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        tool["annotations"]["openWorldHint"].clone()
    };
    assert_eq!([reaches("odd_shout"), reaches("odd_echo")], [json!(false), json!(true)]);
    assert_eq!([reaches("files_read"), reaches("exec_run")], [json!(false), json!(true)]);
}
