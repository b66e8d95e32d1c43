//! Tests of settings that change while a server runs.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestMcpClient, initialize,
    keys_of, refusal, structured, text, wait_until,
};

/// Starts a server with `settings` in the workspace, and returns its client.
fn client(workspace: &TempWorkspace, settings: &str) -> TestMcpClient {
    workspace.put("toolgate.toml", settings);
    TestMcpClient::stdio(ServerLaunchOptions::over(workspace), MODERN)
}

/// Replaces the content of the file `name` by `content`, as an editor does.
fn replace(workspace: &TempWorkspace, name: &str, content: &str) {
    let next = workspace.path(&format!("{name}.next"));
    fs::write(&next, content).unwrap();
    fs::rename(&next, workspace.path(name)).unwrap();
}

fn has_tool(client: &mut TestMcpClient, name: &str) -> bool {
    client.tools().iter().any(|tool| tool["name"] == name)
}

fn read(client: &mut TestMcpClient, path: &str) -> serde_json::Value {
    client.call("files_read", json!({ "path": path }))
}

#[test]
fn a_changed_rule_decides_about_the_next_call_of_a_connected_client() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace, "");
    assert_eq!(structured(&read(&mut client, "README.md"))["content"], TempWorkspace::README);
    let rule = "[[policy.rules]]\nname = \"closed\"\neffect = \"deny\"\ntools = [\"files.read\"]\n\
                when = 'input.path == \"README.md\"'\nmessage = \"closed for now\"\n";
    replace(&workspace, "toolgate.toml", rule);
    wait_until("it is in force", || read(&mut client, "README.md")["result"]["isError"] == true);
    assert!(refusal(&read(&mut client, "README.md")).contains("closed for now"));
    let log = client.server().log();
    assert!(log.contains("active now: policy.rules"), "{log}");
    replace(&workspace, "toolgate.toml", "[tools]\ndeny = [\"files.write\"]\n");
    wait_until("the tool is gone", || !has_tool(&mut client, "files_write"));
    assert_eq!(structured(&read(&mut client, "README.md"))["content"], TempWorkspace::README);
}

#[test]
fn changed_limits_apply_and_unchanged_ones_keep_counting() {
    let workspace = TempWorkspace::new();
    let rate = |calls: u32| {
        format!("[[limits.rate]]\ntools = \"files.read\"\ncalls = {calls}\nin_ms = 3600000\n")
    };
    let mut client = client(&workspace, &rate(2));
    let limited =
        |client: &mut TestMcpClient| read(client, "README.md")["result"]["isError"] == true;
    assert_eq!(
        [limited(&mut client), limited(&mut client), limited(&mut client)],
        [false, false, true]
    );
    replace(&workspace, "toolgate.toml", &format!("{}[git]\nprograms = [\"hooks\"]\n", rate(2)));
    wait_until("it is in force", || client.server().log().contains("active now: git.programs"));
    assert!(limited(&mut client), "another setting gives no more calls");
    replace(&workspace, "toolgate.toml", &rate(5));
    wait_until("it is in force", || {
        client.server().log().contains("active now: git.programs, limits")
    });
    assert!(!limited(&mut client));
}

#[test]
fn declared_commands_are_added_changed_and_removed_with_their_files() {
    let workspace = TempWorkspace::new();
    let command = |name: &str, says: &str| {
        format!(
            "[command.\"say.{name}\"]\nabout = \"Says a word.\"\nprogram = \"echo\"\n\
             argv = [\"{says}\"]\n"
        )
    };
    workspace.put("packs/one.toml", command("one", "first"));
    let packs = "[commands]\npacks = [\"packs\"]\n";
    let mut client = client(&workspace, packs);
    let said = |client: &mut TestMcpClient, name: &str| {
        let answer = client.call(name, json!({}));
        structured(&answer)["stdout"].as_str().unwrap_or_default().trim().to_owned()
    };
    assert_eq!(said(&mut client, "say_one"), "first");
    replace(&workspace, "toolgate.toml", &format!("{packs}{}", command("two", "second")));
    wait_until("the new command is listed", || has_tool(&mut client, "say_two"));
    assert_eq!(said(&mut client, "say_two"), "second");
    replace(&workspace, "packs/one.toml", &command("one", "changed"));
    wait_until("the command has changed", || said(&mut client, "say_one") == "changed");
    // An error in one file leaves everything as it is.
    replace(&workspace, "packs/one.toml", "[command.\"say.one\"]\nprogramm = \"echo\"\n");
    wait_until("it is logged", || client.server().log().contains("the settings are unchanged"));
    let log = client.server().log();
    assert!(log.contains("not even a restriction") && log.contains("one.toml:2:1"), "{log}");
    assert_eq!(said(&mut client, "say_one"), "changed");
    replace(&workspace, "packs/one.toml", &command("three", "third"));
    wait_until("another is listed", || has_tool(&mut client, "say_three"));
    assert!(!has_tool(&mut client, "say_one"));
}

#[test]
fn a_changed_file_of_secrets_is_redacted_from_then_on() {
    let workspace = TempWorkspace::new().file("text.txt", "first-secret second-secret");
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("secrets");
    fs::write(&file, "first-secret\n").unwrap();
    let mut client = client(&workspace, &format!("[secrets]\nfiles = [{file:?}]\n"));
    let content =
        |client: &mut TestMcpClient| structured(&read(client, "text.txt"))["content"].clone();
    assert_eq!(content(&mut client), "[redacted] second-secret");
    fs::write(outside.path().join("next"), "second-secret\n").unwrap();
    fs::rename(outside.path().join("next"), &file).unwrap();
    wait_until("it is redacted", || content(&mut client) == "first-secret [redacted]");
}

#[test]
fn keys_of_the_settings_are_added_and_removed_while_a_server_runs() {
    let workspace = TempWorkspace::new().file("toolgate.toml", "");
    let served = ServerLaunchOptions::over(&workspace).served();
    let status = |key: &str| {
        let post = TestHttpRequest::mcp(&initialize(0, "2025-06-18"));
        served.send(&post.with("X-API-Key", key)).status
    };
    assert_eq!(status("any"), 200, "no credential is needed");
    replace(&workspace, "toolgate.toml", &keys_of(&["ada", "bob"]));
    wait_until("a wrong key is refused", || status("any") == 401);
    assert_eq!((status("ada-key"), status("bob-key")), (200, 200));
    replace(&workspace, "toolgate.toml", &keys_of(&["bob"]));
    wait_until("the removed key is refused", || status("ada-key") == 401);
    assert_eq!(status("bob-key"), 200);
    replace(&workspace, "toolgate.toml", "");
    wait_until("the last key is refused", || status("bob-key") == 401);
    assert_eq!(status(""), 401, "removing all keys does not open the server");
}

#[test]
fn changes_that_need_a_restart_are_named_and_all_others_apply() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace, "");
    assert!(has_tool(&mut client, "files_copy"));
    let settings = "[jobs]\nto = \"off\"\n[server]\nurl = \"https://tools.example/mcp\"\n\
                    [tools]\ndeny = [\"files.copy\"]\n[log]\nlevel = \"debug\"\n";
    replace(&workspace, "toolgate.toml", settings);
    wait_until("the others apply", || !has_tool(&mut client, "files_copy"));
    let applied = "active now: log.level, tools.deny";
    wait_until("they are logged", || client.server().log().contains(applied));
    let expected = "these changes need a restart: jobs.to, server.url";
    wait_until("the names are logged", || client.server().log().contains(expected));
    // Settings of the command line stay in force.
    let workspace = TempWorkspace::new().file("toolgate.toml", "");
    let launch = ServerLaunchOptions::over(&workspace).arg("--read-only");
    let mut client = TestMcpClient::stdio(launch, MODERN);
    assert!(has_tool(&mut client, "files_list"));
    replace(&workspace, "toolgate.toml", "[tools]\ndeny = [\"files.list\"]\n");
    wait_until("it is in force", || !has_tool(&mut client, "files_list"));
    assert!(!has_tool(&mut client, "files_write"));
}

#[test]
fn changed_assets_are_served_with_those_of_new_folders() {
    let schemas = "libs/synesthetic-schemas/jsonschema";
    let workspace = TempWorkspace::new().file(&format!("{schemas}/a.json"), "{}");
    let mut client = client(&workspace, "");
    let names = |client: &mut TestMcpClient| {
        let answer = client.call("assets_list_schemas", json!({}));
        structured(&answer)["schemas"].as_array().unwrap().len()
    };
    assert_eq!(names(&mut client), 1);
    workspace.put(&format!("{schemas}/deep/b.json"), "{}");
    wait_until("the new schema is listed", || names(&mut client) == 2);
    workspace.put(&format!("{schemas}/deep/c.json"), "{}");
    wait_until("the schema in the new folder is listed", || names(&mut client) == 3);
}

#[test]
fn a_changed_sandbox_confines_the_next_program() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace, "");
    let touch = |client: &mut TestMcpClient| {
        let answer = client.call("exec_run", json!({ "command": "touch", "args": ["made"] }));
        answer["result"]["structuredContent"]["exit_code"].clone()
    };
    assert_eq!(touch(&mut client), 0);
    let rule = "[[sandbox.for]]\ntools = \"exec.run\"\nprofile = \"read-only\"\n";
    replace(&workspace, "toolgate.toml", rule);
    wait_until("programs can only read", || touch(&mut client) != 0);
    replace(&workspace, "toolgate.toml", "[exec]\nallow = [\"true\"]\n");
    wait_until("other programs are refused", || {
        let answer = client.call("exec_run", json!({ "command": "touch", "args": ["made"] }));
        answer["result"]["isError"] == true
    });
}

#[test]
fn a_call_in_flight_ends_under_the_settings_that_it_began_with() {
    let workspace = TempWorkspace::with_commands();
    let settings = workspace.read("toolgate.toml");
    let mut client = client(&workspace, &settings);
    let request =
        client.request("tools/call", json!({ "name": "work_wait", "arguments": { "name": "it" } }));
    let crate::support::TestClientTransport::Stdio(stdio) = &mut client.wire else {
        unreachable!()
    };
    stdio.send(&request);
    wait_until("it runs", || workspace.path("ran").exists());
    let denied = format!("{settings}\n[tools]\ndeny = [\"work.wait\"]\n");
    replace(&workspace, "toolgate.toml", &denied);
    wait_until("it is in force", || client.server().log().contains("active now: tools.deny"));
    std::thread::sleep(Duration::from_millis(50));
    workspace.put("go", "");
    let crate::support::TestClientTransport::Stdio(stdio) = &mut client.wire else {
        unreachable!()
    };
    let answer = std::iter::repeat_with(|| stdio.receive()).find(|it| it["id"] == request["id"]);
    assert!(text(&answer.unwrap()).contains("went"));
    assert!(!has_tool(&mut client, "work_wait"));
}
