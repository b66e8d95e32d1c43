//! Other servers behind ours: real ones, and one that does what servers should not do.

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
mod real;
mod reloading;
mod sharing;
mod skills;
mod visits;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    Client, Launch, MODERN, Wire, Workspace, converse, is_alive, notification, peak_memory_kib,
    wait_for, wait_until,
};

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A workspace with the upstream `odd`, with `more` of its settings.
fn with_odd(more: &str) -> Workspace {
    with_odds(&[("odd", "", more)])
}

/// A workspace with such upstreams: their names, variables of theirs, and more of their settings.
fn with_odds(all: &[(&str, &str, &str)]) -> Workspace {
    let workspace = Workspace::new();
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

fn stdio(workspace: &Workspace) -> Client {
    Client::stdio(launch(workspace), MODERN)
}

fn launch(workspace: &Workspace) -> Launch {
    Launch::over(workspace).env("XDG_CACHE_HOME", workspace.path(".cache"))
}

/// The first text that a result shows.
#[track_caller]
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn names(client: &mut Client) -> Vec<String> {
    let tools = client.tools();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tools_of_another_server_are_listed_and_called_beside_our_own() {
    let node = checkout().join(".tools/node/node_modules/.bin/node");
    let server = checkout()
        .join(".tools/servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let settings = format!("[upstream.every]\ncommand = [{node:?}, {server:?}, \"stdio\"]\n");
    let workspace = Workspace::new().file("toolgate.toml", settings);
    for mut client in [stdio(&workspace), Client::http(launch(&workspace), "2025-06-18")] {
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
fn a_server_that_prints_to_its_standard_output_or_answers_oddly_is_understood_all_the_same() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    assert_eq!(text(&client.call("odd_shout", json!({}))), "still here");
    assert_eq!(text(&client.call("odd_twice", json!({}))), "first");
    assert_eq!(text(&client.call("odd_foreign", json!({}))), "mine");
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "hello" }))), "hello");
    assert_eq!(text(&client.call("odd_flood", json!({}))), "flooded");
}

#[test]
fn a_server_that_asks_for_folders_during_a_call_is_told_those_configured_where_the_client_has_none()
{
    let workspace = with_odd("roots = [\"/srv/notes/\"]");
    let folders = json!({ "roots": [{ "uri": "file:///srv/notes", "name": "/srv/notes" }] });
    for mut client in [stdio(&workspace), Client::http(launch(&workspace), "2025-06-18")] {
        let told = client.call("odd_where", json!({}));
        assert_eq!(serde_json::from_str::<Value>(text(&told)).unwrap(), folders);
    }
    let mut client = stdio(&with_odd(""));
    let lacks = client.call("odd_where", json!({}));
    assert!(lacks.to_string().contains("folders"), "{lacks}");
    // A client's own are told where none are configured, and there alone.
    let theirs = json!({ "roots": [{ "uri": "file:///etc", "name": "etc" }] });
    for (workspace, asks, told) in [(&workspace, 0, &folders), (&with_odd(""), 1, &theirs)] {
        let can = json!({ "roots": {} });
        let mut client = Client::open(Wire::Http(launch(workspace).served()), "2025-06-18", can);
        let params = json!({ "name": "odd_where", "arguments": {} });
        let answers = |_: &Value| theirs.clone();
        let (answer, asked) = converse(&mut client, "tools/call", params, answers);
        assert_eq!(serde_json::from_str::<Value>(text(&answer)).unwrap(), *told);
        assert_eq!(asked.len(), asks, "{asked:?}");
    }
}

#[test]
fn an_answer_that_is_too_long_fails_its_own_call_and_no_other() {
    let workspace = with_odd("message_bytes = 1000000");
    let mut client = stdio(&workspace);
    let long = client.call("odd_huge", json!({}));
    assert!(long.to_string().contains("message_bytes"), "{long}");
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "on" }))), "on");
}

#[test]
fn what_a_server_logs_reaches_the_client_as_it_was_said() {
    let workspace = with_odd("");
    let mut client = Client::stdio(launch(&workspace), "2025-06-18");
    client.ask("logging/setLevel", json!({ "level": "info" }));
    let request = client.request("tools/call", json!({ "name": "odd_tell", "arguments": {} }));
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    // The first call may be what its tools are found by.
    let mut heard = std::iter::from_fn(|| Some(stdio.receive()));
    let said = heard.find(|said| said["method"] != "notifications/tools/list_changed").unwrap();
    assert_eq!(said["method"], "notifications/message");
    let expected =
        json!({ "level": "warning", "logger": "parts", "data": { "left": [3, "of 7"] } });
    assert_eq!(said["params"], expected);
    assert_eq!(text(&stdio.receive()), "told");
}

#[test]
fn a_server_is_told_of_the_least_level_that_a_client_wants_once() {
    let workspace = with_odd("");
    let mut client = Client::stdio(launch(&workspace), "2025-06-18");
    for level in ["warning", "debug", "info", "debug"] {
        client.ask("logging/setLevel", json!({ "level": level }));
        client.call("odd_echo", json!({ "message": level }));
    }
    let log = workspace.read("odd.log");
    let levels: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("level ")).collect();
    assert_eq!(levels, ["info", "debug"]);
}

#[test]
fn an_answer_of_a_gibibyte_takes_no_memory_and_nobodys_call_but_its_own() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "first" }))), "first");
    let before = peak_memory_kib(client.server().pid);
    let long = client.call("odd_gibibyte", json!({}));
    assert!(long.to_string().contains("message_bytes"), "{long}");
    let more = peak_memory_kib(client.server().pid).saturating_sub(before);
    assert!(more < 96 << 10, "{more} KiB more");
    assert_eq!(text(&client.call("odd_echo", json!({ "message": "on" }))), "on");
}

#[test]
fn a_schema_that_refers_to_the_network_and_both_of_names_that_are_alike_are_left_out_and_told() {
    let workspace = with_odd("");
    let served = launch(&workspace).served();
    let mut client = Client::open(Wire::Http(served), MODERN, json!({}));
    let names = names(&mut client);
    assert!(!names.contains(&"odd_a-b".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_a_b".to_owned()), "{names:?}");
    assert!(!names.contains(&"odd_networked".to_owned()), "{names:?}");
    let log = client.server().log();
    assert!(log.contains("odd.networked"), "{log}");
    assert!(log.contains("odd.a_b") && log.contains("odd.a-b"), "{log}");
}

#[test]
fn a_tool_that_is_named_as_others_name_theirs_is_paged_called_and_a_job() {
    let workspace = with_odd("");
    let mut client = Client::http(launch(&workspace).set("page_size", "3"), "2025-11-25");
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
fn rules_are_about_tools_there_are_or_may_be_of_upstreams() {
    let start = |tools: &str| {
        let settings = format!("[tools]\nallow = [{tools}]\n");
        let workspace = with_odd("");
        let before = workspace.read("toolgate.toml");
        fs::write(workspace.path("toolgate.toml"), format!("{settings}{before}")).unwrap();
        let mut command = std::process::Command::new(crate::support::binary());
        command.arg("check-config").current_dir(workspace.root()).env_clear();
        command.env("PATH", crate::support::path()).env("HOME", workspace.path(".home"));
        crate::support::vouch(&mut command, workspace.root());
        command.output().unwrap()
    };
    let sound = start(r#""files.*", "odd.*", "results.read", "odd.resources""#);
    assert!(sound.status.success(), "{sound:?}");
    let misspelt = start(r#""files.*", "ood.*""#);
    let said = String::from_utf8_lossy(&misspelt.stderr).into_owned();
    assert!(!misspelt.status.success() && said.contains("`ood.*` matches no tool"), "{said}");
}

#[test]
fn a_schema_is_read_by_the_draft_that_it_says() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let pair = |pair: Value| json!({ "pair": pair });
    assert_eq!(text(&client.call("odd_pair", pair(json!([1, "a"])))), r#"{"pair": [1, "a"]}"#);
    for odd in [json!(["a", 1]), json!([1, "a", 2])] {
        let refused = client.call("odd_pair", pair(odd));
        assert!(text(&refused).contains("/pair"), "{refused}");
    }
    assert_eq!(workspace.read("odd.log").matches("call pair").count(), 1);
}

#[test]
fn an_answer_without_what_its_tool_promises_is_refused() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let said = json!([{ "type": "text", "text": "nothing" }]);
    let refused = client.call("odd_promise", json!({ "content": said }));
    assert!(text(&refused).contains("no structured content"), "{refused}");
    let failed = client.call("odd_promise", json!({ "content": said, "isError": true }));
    assert_eq!(text(&failed), "nothing");
}

#[test]
fn a_schema_that_would_be_looked_at_for_ever_is_left_out_and_one_that_leads_back_to_itself_is_not()
{
    let workspace = with_odd("");
    let served = launch(&workspace).served();
    let mut client = Client::open(Wire::Http(served), MODERN, json!({}));
    let names = names(&mut client);
    assert!(!names.contains(&"odd_doubling".to_owned()), "{names:?}");
    let log = client.server().log();
    assert!(log.contains("odd.doubling") && log.contains("200000 subschemas"), "{log}");
    let deep = |end: Value| (0..60).fold(end, |deep, _| json!({ "a": deep }));
    assert_eq!(text(&client.call("odd_looping", deep(json!({})))), "looped");
    let refused = client.call("odd_looping", deep(json!(1)));
    assert!(text(&refused).contains("leads back to itself"), "{refused}");
}

#[test]
fn a_call_that_a_server_died_in_is_not_made_again_and_others_go_on() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let died = client.call("odd_die", json!({}));
    assert!(died.to_string().contains("not asked again"), "{died}");
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
fn a_server_that_ended_is_missed_though_something_that_it_started_holds_its_pipes() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let left = client.call("odd_leave", json!({}));
    assert!(left.to_string().contains("keeps its output open"), "{left}");
    let log = workspace.read("odd.log");
    let child = log.lines().find_map(|line| line.strip_prefix("left ")?.parse().ok()).unwrap();
    wait_until("what it left is ended", || !is_alive(child));
    wait_until("it is back", || {
        let answer = client.call("odd_echo", json!({ "message": "back" }));
        answer["result"]["content"][0]["text"] == "back"
    });
}

#[test]
fn a_call_that_is_never_answered_ends_at_its_deadline_and_is_cancelled_there() {
    let workspace = with_odd("deadline_ms = 300");
    let mut client = stdio(&workspace);
    let late = client.call("odd_never", json!({}));
    assert!(late.to_string().contains("300 ms"), "{late}");
    wait_until("it hears of it", || workspace.read("odd.log").contains("cancelled "));
}

#[test]
fn a_client_that_cancels_has_the_call_cancelled_there() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    client.call("odd_echo", json!({ "message": "begin" }));
    let request = client.request("tools/call", json!({ "name": "odd_never", "arguments": {} }));
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&request);
    wait_until("it is called", || workspace.read("odd.log").contains("call never"));
    stdio.send(&notification("notifications/cancelled", json!({ "requestId": request["id"] })));
    wait_until("it hears of it", || workspace.read("odd.log").contains("cancelled "));
}

#[test]
fn a_server_that_ignores_being_told_to_end_ends_with_ours_and_so_does_what_it_started() {
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
fn a_server_that_is_killed_takes_its_upstreams_with_it() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    let own = text(&client.call("odd_pid", json!({}))).parse::<u32>().unwrap();
    let server = Pid::from_raw(client.server().pid.cast_signed()).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    wait_until("it is gone", || !is_alive(own));
}

#[test]
fn a_server_that_has_nothing_to_do_is_ended_and_begun_again_when_it_is_called() {
    let workspace = with_odd("idle_ms = 200");
    let mut client = stdio(&workspace);
    let pid =
        |client: &mut Client| text(&client.call("odd_pid", json!({}))).parse::<u32>().unwrap();
    let first = pid(&mut client);
    wait_until("it is ended", || !is_alive(first));
    assert_ne!(pid(&mut client), first);
}

#[test]
fn tools_that_appear_are_listed_without_beginning_anew() {
    let workspace = with_odd("");
    let mut client = stdio(&workspace);
    assert!(!names(&mut client).contains(&"odd_grown".to_owned()));
    client.call("odd_grow", json!({}));
    wait_until("it is listed", || names(&mut client).contains(&"odd_grown".to_owned()));
    assert_eq!(text(&client.call("odd_grown", json!({}))), "new");
}

#[test]
fn what_a_server_listed_last_is_listed_before_it_begins() {
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
fn what_a_server_listed_an_hour_ago_is_listed_and_asked_for_again_though_nobody_calls_it() {
    let workspace = with_odd("");
    names(&mut stdio(&workspace));
    let first = |folder: &Path| Some(fs::read_dir(folder).ok()?.next()?.ok()?.path());
    let remembered = workspace.path(".cache/toolgate/upstreams");
    let kept = wait_for("it is remembered", || first(&first(&remembered)?));
    let before = SystemTime::now() - Duration::from_secs(2 * 3600);
    fs::File::open(&kept).unwrap().set_modified(before).unwrap();
    fs::write(workspace.path("odd.log.says"), "Says it back anew.").unwrap();
    fs::write(workspace.path("odd.log"), "").unwrap();
    let mut client = stdio(&workspace);
    let says = |client: &mut Client| {
        let tools = client.tools();
        let echo = tools.iter().find(|tool| tool["name"] == "odd_echo").unwrap();
        echo["description"].as_str().unwrap().to_owned()
    };
    assert_eq!(says(&mut client), "Says it back.");
    wait_until("it is listed anew", || says(&mut client) == "Says it back anew.");
    assert!(!workspace.read("odd.log").contains("call"));
    let since = fs::metadata(&kept).unwrap().modified().unwrap();
    assert!(since > before + Duration::from_secs(3600), "it is remembered anew");
}

#[test]
fn a_server_that_is_not_there_is_its_tools_trouble_alone() {
    let settings = "[upstream.gone]\ncommand = [\"no-such-program\"]\n\
                    [upstream.deaf]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let workspace = Workspace::new().file("toolgate.toml", settings);
    let served = launch(&workspace).served();
    let mut client = Client::open(Wire::Http(served), MODERN, json!({}));
    assert!(names(&mut client).contains(&"files_read".to_owned()));
    let log = client.server().log();
    assert!(log.contains("`gone`") && log.contains("no-such-program"), "{log}");
    assert!(log.contains("`deaf`"), "{log}");
}

#[test]
fn an_address_in_a_private_network_is_not_reached_unless_it_is_said() {
    let settings = "[upstream.inner]\nurl = \"http://169.254.169.254/latest\"\n";
    let workspace = Workspace::new().file("toolgate.toml", settings);
    let served = launch(&workspace).served();
    let mut client = Client::open(Wire::Http(served), MODERN, json!({}));
    names(&mut client);
    assert!(client.server().log().contains("private_network"), "{}", client.server().log());
}

#[test]
fn prompts_of_an_upstream_are_served_where_there_are_none_of_our_own() {
    let example = crate::support::binary().with_file_name("example-everything");
    let settings = format!(
        "[prompts]\nenabled = false\n[upstream.every]\ncommand = [{example:?}, \"stdio\"]\n"
    );
    let workspace = Workspace::new().file("toolgate.toml", settings);
    let mut client = stdio(&workspace);
    let listed = client.ask("prompts/list", json!({}));
    let named = |one: &Value| one["name"] == "every_test_simple_prompt";
    assert!(listed["result"]["prompts"].as_array().unwrap().iter().any(named), "{listed}");
}

#[test]
fn what_an_upstream_asks_reaches_a_client_that_answers_with_another_request() {
    let example = crate::support::binary().with_file_name("example-everything");
    for revision in ["2025-11-25", "2026-07-28"] {
        let settings = format!(
            "[upstream.every]\ncommand = [{example:?}, \"stdio\"]\nrevision = {revision:?}\n"
        );
        let workspace = Workspace::new().file("toolgate.toml", settings);
        let wire = Wire::Stdio(launch(&workspace).stdio());
        let can = json!({ "elicitation": { "form": {} } });
        let mut client = Client::open(wire, MODERN, can);
        let (tool, arguments) = match revision {
            MODERN => ("every_test_input_required_result_elicitation", json!({})),
            _ => ("every_test_elicitation", json!({ "message": "who?" })),
        };
        let asked = client.call(tool, arguments.clone());
        let result = &asked["result"];
        assert_eq!(result["resultType"], "input_required", "{asked}");
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
