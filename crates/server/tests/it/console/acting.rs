//! Tests of actions at the web console: each is a call with an audit record.

use std::process::Command;

use serde_json::{Value, json};

use crate::console::{ConsoleClient, command_line, form};
use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpRequest,
    TestMcpClient, binary, checkout, keys_of, path, wait_until,
};

#[test]
fn a_tool_is_called_by_its_form_as_the_person() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let person = ConsoleClient::with_link(&served);
    let page = person.page("/console/tools/files.read");
    assert!(page.contains("name=\"arg.path\""), "{page}");
    let result = person.post("/console/tools/files.read/call", &[("arg.path", "README.md")]);
    assert_eq!(result.status, 200);
    assert!(result.text().contains("It is small."), "{}", result.text());
    let failed = person.post("/console/tools/files.read/call", &[("arg.path", "missing.md")]);
    assert!(failed.text().contains("not_found"), "{}", failed.text());
    let wrong = person.post("/console/tools/files.read/call", &[("arg.limit", "[")]);
    assert!([200, 400].contains(&wrong.status), "{wrong:?}");
    served.outcomes(2);
    let record = &served.records()[0];
    assert_eq!(record["tool"], "files.read");
    assert_eq!((&record["caller"], &record["dialect"]), (&json!("local"), &json!("console")));
    assert_eq!(person.post("/console/tools/no.such/call", &[]).status, 404);
    assert_eq!(person.post("/console/no/such", &[]).status, 404);
}

#[test]
fn a_job_of_another_caller_is_cancelled_and_the_record_names_the_person() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let marker = ProcessMarker::new();
    let body = json!({ "tool": "tell-steps", "arguments": { "name": marker.0, "code": "0" } });
    let post = TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/jobs").malformed();
    let id = served.send(&post).json()["job_id"].as_str().unwrap().to_owned();
    marker.wait_until_running();
    let person = ConsoleClient::with_link(&served);
    assert!(person.page("/console/jobs").contains(&id));
    wait_until("the output is shown", || {
        person.page(&format!("/console/jobs/{id}")).contains("began")
    });
    let done = person.post(&format!("/console/jobs/{id}/cancel"), &[]);
    assert_eq!(done.status, 303, "{done:?}");
    assert!(person.page(&format!("/console/jobs/{id}")).contains("canceled"));
    let is_action = |record: &Value| record["tool"] == "console.cancel_job";
    wait_until("the action is recorded", || served.records().iter().any(is_action));
    let action = served.records().into_iter().find(|record| is_action(record)).unwrap();
    assert_eq!((&action["caller"], &action["subject"]), (&json!("local"), &json!(id)));
    let again = person.post(&format!("/console/jobs/{id}/cancel"), &[]);
    assert_eq!(again.status, 409, "{again:?}");
}

#[test]
fn a_confirmation_of_a_connected_client_is_answered_at_the_console() {
    let write = json!({ "path": "new.txt", "content": "<script>" });
    let call = json!({ "name": "files_write", "arguments": write });
    let through = json!({ "name": "tools_call", "arguments": call });
    for (choice, is_allowed, params) in
        [("allow", true, &call), ("refuse", false, &call), ("allow", true, &through)]
    {
        let workspace = TempWorkspace::new();
        let launch = ServerLaunchOptions::over(&workspace).set("tools_confirm", "files.write");
        let served = launch.set("discovery_mode", "on").served();
        let wire = TestClientTransport::Http(served);
        let mut client = TestMcpClient::open(wire, "2025-11-25", json!({ "elicitation": {} }));
        let message = client.request("tools/call", params.clone());
        let post = client.post(&message);
        let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
        let mut connection = served.connect();
        connection.post(&post);
        connection.head();
        while connection.event().expect("a question")["method"] != "elicitation/create" {}

        let person = ConsoleClient::with_link(served);
        let page = person.page("/");
        for part in ["Calls that wait for a person", "files_write", "new.txt", ">Allow<"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<script>"), "{page}");
        let number = page.split("/console/questions/").nth(1).expect("a form");
        let action = format!("/console/questions/{}", number.split('"').next().unwrap());
        assert_eq!(person.post(&action, &[("choice", "perhaps")]).status, 400);
        let done = person.post(&action, &[("choice", choice)]);
        assert_eq!(done.status, 303, "{done:?}");
        let mut is_withdrawn = false;
        let answer = loop {
            let event = connection.event().expect("the answer");
            if event["id"] == message["id"] {
                break event;
            }
            is_withdrawn |= event["method"] == "notifications/cancelled";
        };
        assert!(is_withdrawn, "the client still shows the question");
        assert_eq!(answer["result"]["isError"] == false, is_allowed, "{answer}");
        assert_eq!(workspace.path("new.txt").exists(), is_allowed);
        assert!(!person.page("/").contains("Calls that wait"));
        assert_eq!(person.post(&action, &[("choice", "allow")]).status, 409);
        let is_action = |record: &Value| record["tool"] == "console.answer_call";
        wait_until("the action is recorded", || served.records().iter().any(is_action));
        let action = served.records().into_iter().find(|record| is_action(record)).unwrap();
        assert_eq!(
            (&action["caller"], &action["subject"]),
            (&json!("local"), &json!("files_write"))
        );
    }
}

#[test]
fn an_upstream_is_reconnected_by_command() {
    let settings = "[upstream.far]\nurl = \"http://127.0.0.1:1/mcp\"\nprivate_network = true\n";
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", settings)).served();
    let failed = command_line(&served, &["--reconnect", "far"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(why.contains("Reconnecting `far` failed: the upstream `far` is unavailable"), "{why}");
    wait_until("the action is recorded", || {
        served.records().iter().any(|record| record["tool"] == "console.restart_upstream")
    });
    let wrong = command_line(&served, &["--reconnect", "near"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(why.contains("no upstream is named `near`"), "{why}");
    let none = command_line(&served, &["--waiting"]).output().unwrap();
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    let gone = command_line(&served, &["--allow", "7"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

#[test]
fn a_reconnection_is_reported_with_the_tools_or_the_cause_of_its_failure() {
    let workspace = TempWorkspace::new();
    let program = [".tools/python/bin/python", "tests/upstreams/odd.py"];
    let program = program.map(|part| checkout().join(part));
    let log = workspace.path("odd.log");
    let settings = format!(
        "[upstream.odd]\ncommand = {program:?}\nenv = {{ ODD_LOG = {log:?} }}\n\
         [upstream.far]\nurl = \"http://127.0.0.1:1/mcp\"\nprivate_network = true\n"
    );
    let workspace = workspace.file("odd.log", "").file("toolgate.toml", settings);
    let served = ServerLaunchOptions::over(&workspace).served();
    let person = ConsoleClient::with_link(&served);
    for (name, outcome) in [
        ("odd", "The upstream `odd` is connected again. Its tools: "),
        ("far", "Reconnecting `far` failed: the upstream `far` is unavailable: "),
    ] {
        let done = person.post(&format!("/console/upstreams/{name}/restart"), &[]);
        assert_eq!(done.status, 303, "{done:?}");
        let page = done.header("location").expect("a page").to_owned();
        assert_eq!(page, format!("/console/upstreams?reconnected={name}"));
        wait_until("the outcome is shown", || person.page(&page).contains(outcome));
    }
    let done = command_line(&served, &["--reconnect", "odd"]).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && text.contains("`odd` is connected again"), "{done:?}");
}

#[test]
fn a_one_time_token_is_not_sent_to_another_machine() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for action in [&["--waiting"][..], &["--no-browser"]] {
        for url in ["http://192.0.2.1:9", "http://127.0.0.1.example.com", "https://example.com"] {
            let mut command = Command::new(binary());
            command.arg("console").args(["--url", url]).args(action);
            command.current_dir(served.root()).env_clear().env("PATH", path());
            let refused = command.env("HOME", served.home()).output().unwrap();
            let why = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
            assert!(why.contains("--url names another machine"), "{why}");
        }
    }
}

#[test]
fn a_rule_can_refuse_an_action() {
    let keys = keys_of(&["ada"]).replace("name = \"ada\"", "roles = [\"admin\"]\nname = \"ada\"");
    let rule = "[[policy.rules]]\nname = \"no-restarts\"\neffect = \"deny\"\n\
                tools = [\"console.restart_upstream\"]\n\
                [upstream.far]\nurl = \"http://127.0.0.1:1/mcp\"\nprivate_network = true\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", format!("{keys}{rule}"));
    let served = ServerLaunchOptions::over(&workspace).served();
    let person = ConsoleClient::with_key(&served, "ada-key");
    let refused = person.post("/console/upstreams/far/restart", &[]);
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text().contains("not allowed by policy"), "{}", refused.text());
    wait_until("the refusal is recorded", || {
        served.records().iter().any(|record| record["rule"] == "no-restarts")
    });
}

#[test]
fn a_form_of_any_other_media_type_is_refused() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let request = form("/console/sign-in", &[("token", "x")]).with("content-type", "text/plain");
    assert_eq!(served.send(&request).status, 415);
    let rpc = form("/mcp", &[("token", "x")]);
    assert_eq!(served.send(&rpc).status, 415, "only the console takes forms");
}
