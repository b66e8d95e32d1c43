//! Tests of policy rules for upstreams, and of the redaction of their results.

use std::process::Command;

use serde_json::{Value, json};

use super::{launch, names, stdio, text, with_odds};
use crate::support::{MODERN, TempWorkspace, TestMcpClient, binary, path, wait_until};

/// Returns a workspace with policy `rules` and the upstream `odd`, which has the environment
/// variables `env` and the settings `more`.
fn with_rules(env: &str, more: &str, rules: &str) -> TempWorkspace {
    let workspace = with_odds(&[("odd", env, more)]);
    let settings = workspace.read("toolgate.toml");
    workspace.file("toolgate.toml", format!("{rules}\n{settings}"))
}

fn deny(of: &str) -> String {
    format!("[[policy.rules]]\nname = \"none\"\neffect = \"deny\"\n{of}\n")
}

fn uris(client: &mut TestMcpClient) -> Vec<String> {
    let listed = client.ask("resources/list", json!({}));
    let all = listed["result"]["resources"].as_array().unwrap();
    all.iter().map(|it| it["uri"].as_str().unwrap().to_owned()).collect()
}

fn is_refused(answer: &Value) -> bool {
    answer["error"].is_object() || answer["result"]["isError"] == true
}

#[test]
fn a_rule_that_names_an_upstream_by_tag_or_name_applies_to_all_it_has() {
    for (more, of) in [
        ("", "when = \"'odd' in tool.tags\""),
        ("", "when = \"'upstream' in tool.tags\""),
        ("", "tools = [\"odd.*\"]"),
        ("prefix = \"other\"", "tools = [\"odd.*\"]"),
        ("prefix = \"other\"", "tools = [\"other.*\"]"),
    ] {
        let workspace = with_rules("ODD_RESOURCES = \"odd://1\", ", more, &deny(of));
        let mut client = stdio(&workspace);
        let listed = names(&mut client);
        let is_upstream_tool =
            |name: &&String| name.starts_with("odd_") || name.starts_with("other_");
        assert_eq!(listed.iter().find(is_upstream_tool), None, "{more} {of}");
        for tool in ["odd_pid", "other_pid"] {
            assert!(is_refused(&client.call(tool, json!({}))), "{more} {of}");
        }
        assert!(!uris(&mut client).contains(&"odd://1".to_owned()), "{more} {of}");
        let read = client.ask("resources/read", json!({ "uri": "odd://1" }));
        assert!(is_refused(&read), "{more} {of}: {read}");
    }
}

#[test]
fn a_rule_that_matches_no_tool_is_logged_once_all_upstreams_have_listed() {
    let workspace = with_rules("", "", &deny("tools = [\"odd.ecko\"]"));
    let mut client = stdio(&workspace);
    names(&mut client);
    wait_until("it is logged", || client.server().log().contains("odd.ecko"));
    let log = client.server().log();
    assert!(log.contains("odd.echo"), "it suggests a tool: {log}");
}

#[test]
fn an_empty_list_in_a_rule_is_refused() {
    for of in ["callers = []", "roles = []", "tools = []", "effects = []"] {
        let workspace = with_rules("", "", &deny(of));
        let mut command = Command::new(binary());
        command.arg("check-config").current_dir(workspace.root()).env_clear();
        let result = command.env("PATH", path()).env("HOME", workspace.root()).output().unwrap();
        assert_ne!(result.status.code(), Some(0), "{result:?}");
        let stderr = String::from_utf8_lossy(&result.stderr);
        assert!(stderr.contains("the list is empty"), "{of}: {stderr}");
    }
}

#[test]
fn private_values_of_an_upstream_are_redacted_from_its_errors_and_the_log() {
    let workspace = with_rules("ODD_MUMBLES = \"${ODD_WORD}\", ", "", "[log]\nlevel = \"debug\"");
    let launch = launch(&workspace).env("ODD_WORD", "abcd-QWERTY-0987");
    let mut client = TestMcpClient::stdio(launch, MODERN);
    let refused = client.call("odd_mumble", json!({}));
    assert!(is_refused(&refused), "{refused}");
    assert!(!refused.to_string().contains("QWERTY"), "{refused}");
    assert!(!client.server().log().contains("QWERTY"), "{}", client.server().log());
}

#[test]
fn a_caller_with_upstream_tools_only_can_read_their_stored_results() {
    let workspace = with_rules("", "", "[tools]\nallow = [\"odd.*\"]");
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
fn an_upstream_that_declares_unsupported_lists_still_has_its_tools() {
    let workspace = with_rules("ODD_CLAIMS = \"1\", ", "", "");
    let mut client = stdio(&workspace);
    assert_eq!(text(&client.call("odd_shout", json!({}))), "still here");
    let log = client.server().log();
    assert!(log.contains("refused `prompts/list`"), "{log}");
}

#[test]
fn metadata_of_an_upstream_is_passed_on_unchanged() {
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
    let sent_meta = json!({
        "view": { "at": [1] }, "io.modelcontextprotocol/serverInfo": { "name": "x", "version": "1" },
    });
    let answer = client.call("odd_say", json!({ "content": [], "_meta": sent_meta }));
    let meta = &answer["result"]["_meta"];
    assert_eq!(meta["view"], json!({ "at": [1] }), "{answer}");
    assert_eq!(meta["io.modelcontextprotocol/serverInfo"]["name"], "toolgate", "{answer}");
}

#[test]
fn a_client_before_2025_06_18_gets_no_metadata_except_in_results() {
    let workspace = with_odds(&[("odd", "ODD_RESOURCES = \"odd://1\",", "")]);
    let mut client = TestMcpClient::stdio(launch(&workspace), "2025-03-26");
    let tools = client.tools();
    assert!(tools.iter().any(|tool| tool["name"] == "odd_say"));
    assert!(tools.iter().all(|tool| tool.get("_meta").is_none()), "{tools:?}");
    for (method, params) in
        [("resources/list", json!({})), ("resources/read", json!({ "uri": "odd://1" }))]
    {
        let answer = client.ask(method, params).to_string();
        assert!(answer.contains("odd://1") && !answer.contains("_meta"), "{answer}");
    }
    // A result may have metadata since the first revision.
    let answer = client.call("odd_say", json!({ "content": [], "_meta": { "view": 1 } }));
    assert_eq!(answer["result"]["_meta"], json!({ "view": 1 }), "{answer}");
}

#[test]
fn metadata_of_a_task_result_is_kept_and_redacted() {
    let workspace = with_rules("", "", "[secrets]\nvalues_from = [\"OWN_TOKEN\"]\n");
    let launch = launch(&workspace).env("OWN_TOKEN", "hunter2-and-more");
    let mut client = TestMcpClient::stdio(launch, "2025-11-25");
    client.tools();
    let meta = json!({
        "view": "hunter2-and-more",
        "of hunter2-and-more": 1,
        "io.modelcontextprotocol/related-task": { "taskId": "another" },
    });
    let arguments = json!({ "content": [], "_meta": meta });
    let params = json!({ "name": "odd_say", "arguments": arguments, "task": {} });
    let created = client.ask("tools/call", params);
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
fn tools_with_names_outside_ascii_are_served() {
    let workspace = with_odds(&[("odd", "ODD_TOOLS = \"天気 地図\",", "")]);
    let mut client = stdio(&workspace);
    let names = names(&mut client);
    let upstream_tools = names.iter().filter(|name| name.starts_with("odd___"));
    let answers: Vec<_> =
        upstream_tools.map(|name| text(&client.call(name, json!({}))).to_owned()).collect();
    assert!(
        answers.len() == 2 && answers.iter().all(|name| "天気 地図".contains(name)),
        "{answers:?}"
    );
}

#[test]
fn the_open_world_hint_of_an_upstream_tool_is_passed_on() {
    let mut client = stdio(&with_rules("", "", ""));
    let tools = client.tools();
    let reaches = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        tool["annotations"]["openWorldHint"] != false
    };
    assert_eq!([reaches("odd_shout"), reaches("odd_echo")], [false, true]);
    assert_eq!([reaches("files_read"), reaches("exec_run")], [false, true]);
}
