//! Tests of upstreams: real MCP servers, and one that misbehaves.

mod as_jobs;
mod by_rmcp;
mod clashes;
mod credentials;
mod doctor;
mod hanging;
mod guarded;
mod importing;
mod long_answers;
mod oauth;
mod pins;
mod instructions;
mod starting;
mod tool_search;
mod real;
mod reloading;
mod sharing;
mod skills;
mod visits;

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, checkout,
    converse, is_alive, notification, peak_memory_kib, wait_for, wait_until,
};

/// Returns a workspace with the upstream `odd`, whose settings include `more`.
pub(crate) fn with_odd(more: &str) -> TempWorkspace {
    with_odds(&[("odd", "", more)])
}

/// Returns a workspace with upstreams, each given as name, environment variables and more settings.
pub(crate) fn with_odds(all: &[(&str, &str, &str)]) -> TempWorkspace {
    let workspace = TempWorkspace::new();
    let python = checkout().join(".tools/python/bin/python");
    let script = checkout().join("tests/upstreams/odd.py");
    let settings = all.iter().map(|(name, env, more)| {
        let log = workspace.path(&format!("{name}.log"));
        format!(
            "[upstream.{name}]\ncommand = [{python:?}, {script:?}]\n\
             env = {{ {env}ODD_LOG = {log:?} }}\n{more}\n"
        )
    });
    let settings: String = settings.collect();
    let logs = all.iter().map(|(name, ..)| format!("{name}.log"));
    logs.fold(workspace, |workspace, log| workspace.file(&log, "")).file("toolgate.toml", settings)
}

fn stdio(workspace: &TempWorkspace) -> TestMcpClient {
    TestMcpClient::stdio(launch(workspace), MODERN)
}

pub(crate) fn launch(workspace: &TempWorkspace) -> ServerLaunchOptions {
    ServerLaunchOptions::over(workspace).env("XDG_CACHE_HOME", workspace.path(".cache"))
}

/// Returns the first text in the result of a call.
#[track_caller]
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn names(client: &mut TestMcpClient) -> Vec<String> {
    let tools = client.tools();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tools_of_an_upstream_are_listed_and_called_next_to_our_own() {
    let node = checkout().join(".tools/node/node_modules/.bin/node");
    let server = checkout()
        .join(".tools/servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let settings = format!("[upstream.every]\ncommand = [{node:?}, {server:?}, \"stdio\"]\n");
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    for mut client in [stdio(&workspace), TestMcpClient::http(launch(&workspace), "2025-06-18")] {
        let names = names(&mut client);
        assert!(names.contains(&"files_read".to_owned()), "{names:?}");
        assert!(names.contains(&"every_get-sum".to_owned()), "{names:?}");
        let sum = client.call("every_get-sum", json!({ "a": 2, "b": 40 }));
        assert!(text(&sum).contains("42"), "{sum}");
        let refused = client.call("every_get-sum", json!({ "a": "two" }));
        assert!(refused.to_string().contains("/a"), "{refused}");
        let listed = client.ask("resources/list", json!({}));
        let uri = listed["result"]["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find_map(|it| it["uri"].as_str().filter(|uri| uri.starts_with("demo://")))
            .unwrap_or_else(|| panic!("{listed}"))
            .to_owned();
        let read = client.ask("resources/read", json!({ "uri": uri }));
        assert!(read["result"]["contents"][0]["uri"] == json!(uri), "{read}");
        let prompt = client.ask("prompts/get", json!({ "name": "every_simple-prompt" }));
        assert!(prompt["result"]["messages"][0]["content"]["text"].is_string(), "{prompt}");
    }
}

#[test]
fn stray_output_and_unusual_answers_of_an_upstream_are_tolerated() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    assert_eq!(text(&client.call("odd_shout", json!({}))), "still here");
    assert_eq!(text(&client.call("odd_twice", json!({}))), "first");
    assert_eq!(text(&client.call("odd_foreign", json!({}))), "mine");
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "hello" }))), "hello");
    assert_eq!(text(&client.call("odd_flood", json!({}))), "flooded");
}

#[test]
fn an_upstream_that_asks_for_roots_gets_the_configured_ones_or_the_clients() {
    let workspace = with_odd("roots = [\"/srv/notes/\"]");
    let folders = json!({ "roots": [{ "uri": "file:///srv/notes", "name": "/srv/notes" }] });
    for mut client in [stdio(&workspace), TestMcpClient::http(launch(&workspace), "2025-06-18")] {
        let answer = client.call("odd_where", json!({}));
        assert_eq!(serde_json::from_str::<Value>(text(&answer)).unwrap(), folders);
    }
    let mut client = stdio(&with_odd(""));
    let refused = client.call("odd_where", json!({}));
    assert!(refused.to_string().contains("folders"), "{refused}");
    // The client's own roots are sent only if none are configured.
    let own_roots = json!({ "roots": [{ "uri": "file:///etc", "name": "etc" }] });
    for (workspace, question_count, expected) in
        [(&workspace, 0, &folders), (&with_odd(""), 1, &own_roots)]
    {
        let capabilities = json!({ "roots": {} });
        let mut client = TestMcpClient::open(
            TestClientTransport::Http(launch(workspace).served()),
            "2025-06-18",
            capabilities,
        );
        let params = json!({ "name": "odd_where", "arguments": {} });
        let answers = |_: &Value| own_roots.clone();
        let (answer, requests) = converse(&mut client, "tools/call", params, answers);
        assert_eq!(serde_json::from_str::<Value>(text(&answer)).unwrap(), *expected);
        assert_eq!(requests.len(), question_count, "{requests:?}");
    }
}

#[test]
fn log_lines_of_an_upstream_reach_the_client_unchanged() {
    let workspace = with_odd("");
    let mut client = TestMcpClient::stdio(launch(&workspace), "2025-06-18");
    client.ask("logging/setLevel", json!({ "level": "info" }));
    let request = client.request("tools/call", json!({ "name": "odd_tell", "arguments": {} }));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    // The first call may cause a notification of changed tools.
    let mut messages = std::iter::from_fn(|| Some(stdio.receive()));
    let message =
        messages.find(|message| message["method"] != "notifications/tools/list_changed").unwrap();
    assert_eq!(message["method"], "notifications/message");
    let expected =
        json!({ "level": "warning", "logger": "parts", "data": { "left": [3, "of 7"] } });
    assert_eq!(message["params"], expected);
    assert_eq!(text(&stdio.receive()), "told");
}

#[test]
fn the_log_level_of_an_upstream_is_only_ever_lowered() {
    let workspace = with_odd("");
    let mut client = TestMcpClient::stdio(launch(&workspace), "2025-06-18");
    for level in ["warning", "debug", "info", "debug"] {
        client.ask("logging/setLevel", json!({ "level": level }));
        client.call("odd_echo", json!({ "message": level }));
    }
    let log = workspace.read("odd.log");
    let levels: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("level ")).collect();
    assert_eq!(levels, ["info", "debug"]);
}

#[test]
fn an_answer_of_a_gibibyte_takes_no_memory_and_fails_its_own_call_only() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "first" }))), "first");
    let before = peak_memory_kib(client.server().pid);
    let long = client.call("odd_gibibyte", json!({}));
    assert!(long.to_string().contains("longer than 16777216 bytes"), "{long}");
    let more = peak_memory_kib(client.server().pid).saturating_sub(before);
    assert!(more < 96 << 10, "{more} KiB more");
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "on" }))), "on");
}

#[test]
fn tools_with_remote_schemas_or_ambiguous_names_are_left_out_and_logged() {
    let workspace = with_odd("");
    let served = launch(&workspace).served();
    let mut client = TestMcpClient::open(TestClientTransport::Http(served), MODERN, json!({}));
    let names = names(&mut client);
    assert!(!names.contains(&"odd_a-b".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_a_b".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_networked".to_owned()), "{names:?}");
    let log = client.server().log();
    assert!(log.contains("odd.networked"), "{log}");
    assert!(log.contains("odd.a_b") && log.contains("odd.a-b"), "{log}");
}

#[test]
fn a_tool_with_an_unusual_name_can_be_listed_called_and_run_as_a_job() {
    let workspace = with_odd("");
    let mut client = TestMcpClient::http(launch(&workspace), "2025-11-25");
    let mut all = Vec::new();
    let mut params = json!({});
    loop {
        let page = client.ask("tools/list", params.clone());
        let tools = page["result"]["tools"].as_array().unwrap_or_else(|| panic!("{page}"));
        all.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["result"].get("nextCursor") else { break };
        params = json!({ "cursor": cursor });
    }
    assert!(all.contains(&"odd_get-Sum".to_owned()) && all.contains(&"odd_where".to_owned()));
    assert_eq!(text(&client.call("odd_get-Sum", json!({}))), "3");
    let started = client.call("jobs_start", json!({ "tool": "odd_get-Sum" }));
    let get = json!({ "job_id": started["result"]["structuredContent"]["job_id"] });
    wait_until("the job has ended", || {
        client.call("jobs_get", get.clone()).to_string().contains("succeeded")
    });
    let listed = client.call("jobs_list", json!({}));
    assert!(listed.to_string().contains("odd_get_Sum succeeded"), "{listed}");
}

#[test]
fn a_pattern_must_match_a_tool_or_a_possible_tool_of_an_upstream() {
    let start = |tools: &str| {
        let settings = format!("[tools]\nallow = [{tools}]\n");
        let workspace = with_odd("");
        let before = workspace.read("toolgate.toml");
        fs::write(workspace.path("toolgate.toml"), format!("{settings}{before}")).unwrap();
        let mut command = std::process::Command::new(crate::support::binary());
        command.arg("check-config").current_dir(workspace.root()).env_clear();
        command.env("PATH", crate::support::path()).env("HOME", workspace.path(".home"));
        crate::support::trust_config(&mut command, workspace.root());
        command.output().unwrap()
    };
    let valid = start(r#""files.*", "odd.*", "results.read", "odd.resources""#);
    assert!(valid.status.success(), "{valid:?}");
    let misspelled = start(r#""files.*", "ood.*""#);
    let stderr = String::from_utf8_lossy(&misspelled.stderr).into_owned();
    assert!(!misspelled.status.success() && stderr.contains("`ood.*` matches no tool"), "{stderr}");
    assert!(stderr.contains("(line 2 of "), "{stderr}");
}

#[test]
fn a_schema_is_validated_by_its_own_draft() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let pair = |pair: Value| json!({ "pair": pair });
    assert_eq!(text(&client.call("odd_pair", pair(json!([1, "a"])))), r#"{"pair": [1, "a"]}"#);
    for invalid in [json!(["a", 1]), json!([1, "a", 2])] {
        let refused = client.call("odd_pair", pair(invalid));
        assert!(text(&refused).contains("/pair"), "{refused}");
    }
    assert_eq!(workspace.read("odd.log").matches("call pair").count(), 1);
}

#[test]
fn a_structured_result_without_text_reaches_clients_of_every_revision_as_text() {
    let workspace = with_odd("");
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN] {
        let mut client = TestMcpClient::stdio(launch(&workspace), revision);
        for value in [json!({ "rows": [] }), json!([{ "a": 1 }]), json!("words"), json!(7)] {
            for content in [json!([]), json!(null), json!([{ "type": "text", "text": "" }])] {
                let result = json!({ "content": content, "structuredContent": value });
                let answer = client.call("odd_say", result);
                assert_eq!(text(&answer), value.to_string(), "{revision}: {answer}");
                let structured = &answer["result"]["structuredContent"];
                let is_sent = revision == MODERN || (revision > "2025-06" && value.is_object());
                assert_eq!(*structured == value, is_sent, "{revision}: {answer}");
            }
        }
    }
}

#[test]
fn a_result_without_the_promised_structured_content_is_refused() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let content = json!([{ "type": "text", "text": "nothing" }]);
    let refused = client.call("odd_promise", json!({ "content": content }));
    assert!(text(&refused).contains("no structured content"), "{refused}");
    let failed = client.call("odd_promise", json!({ "content": content, "isError": true }));
    assert_eq!(text(&failed), "nothing");
}

#[test]
fn a_schema_that_is_too_expensive_is_left_out_and_a_recursive_one_is_not() {
    let workspace = with_odd("");
    let served = launch(&workspace).served();
    let mut client = TestMcpClient::open(TestClientTransport::Http(served), MODERN, json!({}));
    let names = names(&mut client);
    assert!(!names.contains(&"odd_doubling".to_owned()), "{names:?}");
    let log = client.server().log();
    assert!(log.contains("odd.doubling") && log.contains("200000 subschemas"), "{log}");
    let deep = |end: Value| (0..60).fold(end, |deep, _| json!({ "a": deep }));
    assert_eq!(text(&client.call("odd_looping", deep(json!({})))), "looped");
    let refused = client.call("odd_looping", deep(json!(1)));
    assert!(text(&refused).contains("too recursive"), "{refused}");
}

#[test]
fn a_call_during_which_the_upstream_dies_is_not_repeated_and_later_calls_work() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let died = client.call("odd_die", json!({}));
    assert!(died.to_string().contains("was not repeated"), "{died}");
    let read = client.call("files_read", json!({ "path": "README.md" }));
    assert!(text(&read).starts_with("# A workspace"), "{read}");
    wait_until("it is back", || {
        let answer = client.call("odd_echo", json!({ "message": "back" }));
        answer["result"]["content"][0]["text"] == "back"
    });
    let calls = workspace.read("odd.log");
    assert_eq!(calls.matches("call die").count(), 1, "{calls}");
}

#[test]
fn an_exit_of_an_upstream_is_noticed_even_if_a_child_holds_its_pipes() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let left = client.call("odd_leave", json!({}));
    assert!(left.to_string().contains("keeps its output open"), "{left}");
    let log = workspace.read("odd.log");
    let child = log.lines().find_map(|line| line.strip_prefix("left ")?.parse().ok()).unwrap();
    wait_until("the child is stopped", || !is_alive(child));
    wait_until("it is back", || {
        let answer = client.call("odd_echo", json!({ "message": "back" }));
        answer["result"]["content"][0]["text"] == "back"
    });
}

#[test]
fn a_call_without_an_answer_ends_at_its_deadline_and_is_cancelled_upstream() {
    let workspace = with_odd("deadline_ms = 300");
    let mut client = stdio(&workspace);
    let late = client.call("odd_never", json!({}));
    assert!(late.to_string().contains("300 ms"), "{late}");
    wait_until("the cancellation arrives", || workspace.read("odd.log").contains("cancelled "));
}

#[test]
fn a_cancellation_by_the_client_reaches_the_upstream() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    client.call("odd_echo", json!({ "message": "begin" }));
    let request = client.request("tools/call", json!({ "name": "odd_never", "arguments": {} }));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    wait_until("it is called", || workspace.read("odd.log").contains("call never"));
    stdio.send(&notification("notifications/cancelled", json!({ "requestId": request["id"] })));
    wait_until("the cancellation arrives", || workspace.read("odd.log").contains("cancelled "));
}

#[test]
fn an_upstream_that_ignores_signals_ends_with_the_server_and_so_do_its_children() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let pid = |answer: &Value| text(answer).parse::<u32>().unwrap();
    let own = pid(&client.call("odd_pid", json!({})));
    let child = pid(&client.call("odd_children", json!({})));
    assert!(is_alive(own) && is_alive(child));
    drop(client);
    wait_until("both are gone", || !is_alive(own) && !is_alive(child));
}

#[test]
fn upstreams_end_when_the_server_is_killed() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let own = text(&client.call("odd_pid", json!({}))).parse::<u32>().unwrap();
    let server = Pid::from_raw(client.server().pid.cast_signed()).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    wait_until("it is gone", || !is_alive(own));
}

#[test]
fn tools_that_appear_are_listed_without_a_restart() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    assert!(!names(&mut client).contains(&"odd_grown".to_owned()));
    client.call("odd_grow", json!({}));
    wait_until("it is listed", || names(&mut client).contains(&"odd_grown".to_owned()));
    assert_eq!(text(&client.call("odd_grown", json!({}))), "new");
}

#[test]
fn the_last_listing_is_used_before_the_upstream_starts() {
    let workspace = with_odd("");
    names(&mut stdio(&workspace));
    wait_until("it is remembered", || {
        fs::read_dir(workspace.path(".cache/toolgate/upstreams"))
            .is_ok_and(|mut it| it.next().is_some())
    });
    fs::write(workspace.path("odd.log"), "").unwrap();
    let settings = workspace.read("toolgate.toml");
    let mut client = stdio(&workspace);
    assert!(names(&mut client).contains(&"odd_echo".to_owned()));
    assert!(crate::support::descendants(client.server().pid).is_empty(), "{settings}");
}

#[test]
fn an_old_listing_is_used_and_refreshed_without_a_call() {
    let workspace = with_odd("");
    names(&mut stdio(&workspace));
    let first = |folder: &Path| Some(fs::read_dir(folder).ok()?.next()?.ok()?.path());
    let cache = workspace.path(".cache/toolgate/upstreams");
    let stored = wait_for("it is remembered", || first(&first(&cache)?));
    let before = SystemTime::now() - Duration::from_secs(2 * 3600);
    fs::File::open(&stored).unwrap().set_modified(before).unwrap();
    fs::write(workspace.path("odd.log.says"), "Says it back anew.").unwrap();
    fs::write(workspace.path("odd.log"), "").unwrap();
    let mut client = stdio(&workspace);
    let description = |client: &mut TestMcpClient| {
        let tools = client.tools();
        let echo = tools.iter().find(|tool| tool["name"] == "odd_echo").unwrap();
        echo["description"].as_str().unwrap().to_owned()
    };
    assert_eq!(description(&mut client), "Says it back.");
    wait_until("the new listing is used", || description(&mut client) == "Says it back anew.");
    assert!(!workspace.read("odd.log").contains("call"));
    let started = fs::metadata(&stored).unwrap().modified().unwrap();
    assert!(started > before + Duration::from_secs(3600), "the new listing is stored");
}

#[test]
fn an_unavailable_upstream_affects_only_its_own_tools() {
    let settings = "[upstream.gone]\ncommand = [\"no-such-program\"]\n\
                    [upstream.deaf]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = launch(&workspace).served();
    let mut client = TestMcpClient::open(TestClientTransport::Http(served), MODERN, json!({}));
    assert!(names(&mut client).contains(&"files_read".to_owned()));
    let log = client.server().log();
    assert!(log.contains("`gone`") && log.contains("no-such-program"), "{log}");
    assert!(log.contains("`deaf`"), "{log}");
}

#[test]
fn a_private_address_is_refused_unless_it_is_allowed() {
    let settings = "[upstream.inner]\nurl = \"http://169.254.169.254/latest\"\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = launch(&workspace).served();
    let mut client = TestMcpClient::open(TestClientTransport::Http(served), MODERN, json!({}));
    names(&mut client);
    assert!(client.server().log().contains("private_network"), "{}", client.server().log());
}

#[test]
fn prompts_of_an_upstream_are_served_if_our_own_are_disabled() {
    let example = crate::support::binary().with_file_name("example-everything");
    let settings = format!(
        "[prompts]\nfolder = \"off\"\n[upstream.every]\ncommand = [{example:?}, \"stdio\"]\n"
    );
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let mut client = stdio(&workspace);
    let listed = client.ask("prompts/list", json!({}));
    let named = |one: &Value| one["name"] == "every_test_simple_prompt";
    assert!(listed["result"]["prompts"].as_array().unwrap().iter().any(named), "{listed}");
}

#[test]
fn questions_of_an_upstream_reach_a_client_that_repeats_the_call() {
    let example = crate::support::binary().with_file_name("example-everything");
    for revision in ["2025-11-25", "2026-07-28"] {
        let settings = format!(
            "[upstream.every]\ncommand = [{example:?}, \"stdio\"]\nrevision = {revision:?}\n"
        );
        let workspace = TempWorkspace::new().file("toolgate.toml", settings);
        let wire = TestClientTransport::Stdio(launch(&workspace).stdio());
        let capabilities = json!({ "elicitation": { "form": {} } });
        let mut client = TestMcpClient::open(wire, MODERN, capabilities);
        let (tool, arguments) = match revision {
            MODERN => ("every_test_input_required_result_elicitation", json!({})),
            _ => ("every_test_elicitation", json!({ "message": "who?" })),
        };
        let reply = client.call(tool, arguments.clone());
        let result = &reply["result"];
        assert_eq!(result["resultType"], "input_required", "{reply}");
        let (key, question) = result["inputRequests"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(question["method"], "elicitation/create");
        let content = match revision {
            MODERN => json!({ "name": "Ada" }),
            _ => json!({ "username": "ada", "email": "ada@example.com" }),
        };
        let answer = client.ask(
            "tools/call",
            json!({
                "name": tool, "arguments": arguments,
                "requestState": result["requestState"],
                "inputResponses": { key: { "action": "accept", "content": content } },
            }),
        );
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        assert!(answer.to_string().to_lowercase().contains("ada"), "{answer}");
    }
}
