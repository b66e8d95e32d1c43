//! Tests of policy rules with a running server.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, MODERN, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestMcpClient,
    binary, over_both, path, refusal, request, structured,
};

const RULES: &str = r#"
[[policy.rules]]
name = "no-infra"
effect = "deny"
tools = ["files.*"]
effects = ["adds", "changes"]
when = 'has(input.path) && under(input.path, "infra")'
message = "infra is changed by its team"

[[policy.rules]]
name = "no-shell"
effect = "deny"
tools = ["exec.run"]

[[policy.rules]]
name = "small"
effect = "deny"
tools = ["files.write"]
when = 'input.content.size() > input.limit'
"#;

fn workspace() -> TempWorkspace {
    TempWorkspace::new().file("toolgate.toml", RULES).file("infra/main.tf", "x")
}

/// Creates an API key for the caller `name`. Returns the key, and the settings that make it valid.
pub(super) fn key(name: &str) -> (String, String) {
    let made = Command::new(binary()).args(["key", name]).env("PATH", path()).output().unwrap();
    let message = String::from_utf8(made.stderr).unwrap();
    let (_, key) = message.trim_end().rsplit_once(": ").unwrap();
    (key.to_owned(), String::from_utf8(made.stdout).unwrap())
}

pub(super) fn call_with_key(
    served: &HttpServerProcess,
    key: &str,
    tool: &str,
    arguments: Value,
) -> Value {
    let params = json!({ "name": tool, "arguments": arguments });
    served
        .send(
            &TestHttpRequest::mcp(&request(MODERN, 1, "tools/call", params)).with("X-API-Key", key),
        )
        .message()
}

#[test]
fn a_path_rule_applies_to_every_spelling_and_the_record_names_it() {
    let workspace = workspace();
    let absolute = workspace.path("infra/new").display().to_string();
    over_both(&workspace, |client| {
        let spelled = ["infra/new", "./infra/new", "infra//new", "a/../infra/new", &absolute];
        for path in spelled {
            let answer = client.call("files_mkdir", json!({ "path": path }));
            assert!(refusal(&answer).contains("infra is changed by its team"), "{path}: {answer}");
            assert!(!workspace.path("infra/new").exists(), "{path}");
        }
        client.call("files_read", json!({ "path": "infra/main.tf" }));
        client.call("files_mkdir", json!({ "path": "infrared" }));
        let outcomes = client.server().outcomes(spelled.len() + 2);
        assert_eq!(&outcomes[spelled.len()..], ["ok", "ok"]);
        assert!(outcomes[..spelled.len()].iter().all(|it| it == "not_allowed"), "{outcomes:?}");
        let records = client.server().records();
        assert!(records[..spelled.len()].iter().all(|it| it["rule"] == "no-infra"), "{records:?}");
    });
}

#[test]
fn a_path_rule_applies_to_declared_commands_and_to_parent_folders() {
    let declared = r#"
[command."show.it"]
about = "Shows a file."
program = "cat"
effects = "reads"
argv = ["{file}", "{text?}"]
[command."show.it".args]
file = "path!"
text = "string"

[[policy.rules]]
name = "typed"
effect = "deny"
tools = ["show.it", "docs.load.fetch"]
when = """has(input.file) && input.file.startsWith("infra/") ||
    has(input.metadataPath) && input.metadataPath.startsWith("infra/") ||
    has(input.text) && under(input.text, "infra")"""

[[policy.rules]]
name = "around"
effect = "deny"
tools = ["files.delete"]
when = 'touches(input.path, "infra")'
"#;
    let workspace = workspace().file("toolgate.toml", declared).file("other/a", "a");
    let absolute = workspace.path("infra/main.tf").display().to_string();
    let own = workspace.root().display().to_string();
    over_both(&workspace, |client| {
        for path in ["infra/main.tf", "./infra/main.tf", "x/../infra/main.tf", &absolute] {
            for input in [json!({ "file": path }), json!({ "file": "other/a", "text": path })] {
                let shown = client.call("show_it", input);
                assert!(refusal(&shown).contains("not allowed"), "{path}: {shown}");
            }
            let input = json!({ "path": "README.md", "metadataPath": path });
            assert!(
                refusal(&client.call("docs_load_fetch", input)).contains("not allowed"),
                "{path}"
            );
        }
        for path in ["infra", ".", "infra/main.tf", &own, "other/.."] {
            let input = json!({ "path": path, "recursive": true });
            assert!(refusal(&client.call("files_delete", input)).contains("not allowed"), "{path}");
        }
        assert!(workspace.path("infra/main.tf").exists());
        assert_eq!(
            structured(&client.call("show_it", json!({ "file": "other/a" })))["stdout"],
            "a"
        );
    });
}

#[test]
fn a_tool_that_a_rule_denies_for_every_input_is_unknown_in_lists_calls_and_jobs() {
    over_both(&workspace(), |client| {
        let listed = client.ask("tools/list", json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap().iter();
        let names: Vec<_> = tools.map(|tool| tool["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"files_read") && !names.contains(&"exec_run"), "{names:?}");
        let denied = client.call("exec_run", json!({ "command": "true" }));
        let never = client.call("exec_nun", json!({ "command": "true" }));
        let error = |answer: &Value, name: &str| answer["error"].to_string().replace(name, "it");
        assert_eq!(error(&denied, "exec_run"), error(&never, "exec_nun"));
        // Only the operator learns that a rule hides the tool.
        client.server().outcomes(2);
        let records = client.server().records();
        assert_eq!(records[0]["decision"], "deny", "{records:?}");
        assert!(records[0]["rule"].is_string(), "{records:?}");
        assert_eq!(records[1]["decision"], Value::Null, "{records:?}");
        let job = json!({ "tool": "exec_run", "arguments": { "command": "true" } });
        let answer = client.call("jobs_start", job);
        assert!(refusal(&answer).contains("no tool is named `exec_run`"), "{answer}");
        let jobs = client.call("jobs_list", json!({}));
        assert_eq!(jobs["result"]["structuredContent"]["jobs"], json!([]), "{jobs}");
        // `ci_run` is ruled as `exec_run`.
        assert!(!names.contains(&"ci_run"), "{names:?}");
    });
}

#[test]
fn a_rule_that_cannot_be_evaluated_denies_the_call_without_the_cause() {
    let workspace = workspace();
    over_both(&workspace, |client| {
        let write = json!({ "path": "new.txt", "content": "x" });
        let answer = client.call("files_write", write);
        let message = refusal(&answer);
        assert!(!message.contains("limit") && !workspace.path("new.txt").exists(), "{message}");
        client.server().outcomes(1);
        assert_eq!(client.server().records()[0]["rule"], "small (failed)");
    });
}

#[test]
fn rules_distinguish_callers_and_roles() {
    let ((ada, ada_lines), (bob, bob_lines)) = (key("ada"), key("bob"));
    let rules = "[[policy.rules]]\nname = \"builders\"\neffect = \"allow\"\nroles = [\"builder\"]\n\
                 tools = [\"exec.run\"]\n\n[[policy.rules]]\nname = \"rest\"\neffect = \"deny\"\n\
                 callers = [\"*\"]\ntools = [\"exec.run\"]\n\n[[policy.rules]]\nname = \"bob-reads\"\n\
                 effect = \"deny\"\ncallers = [\"bob\"]\neffects = [\"changes\"]\n";
    let ada_lines = format!("{}\nroles = [\"builder\"]\n", ada_lines.trim_end());
    let config = format!("{rules}\n{ada_lines}\n{bob_lines}");
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", config)).served();
    let run = json!({ "command": "true" });
    assert_eq!(call_with_key(&served, &ada, "exec_run", run.clone())["result"]["isError"], false);
    assert!(call_with_key(&served, &bob, "exec_run", run)["error"].is_object());
    let write = |path: &str| json!({ "path": path, "content": "x" });
    assert_eq!(call_with_key(&served, &ada, "files_write", write("a"))["result"]["isError"], false);
    assert!(call_with_key(&served, &bob, "files_write", write("b"))["error"].is_object());
}

#[test]
fn a_call_that_needs_confirmation_is_refused_if_nobody_can_be_asked() {
    let rules = "[[policy.rules]]\nname = \"ask\"\neffect = \"confirm\"\ntools = [\"files.delete\"]\n\
                 when = 'input.path.endsWith(\".md\")'\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", rules).file("a.txt", "");
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    let answer = client.call("files_delete", json!({ "path": "README.md" }));
    assert!(refusal(&answer).contains("confirmed by a person"), "{answer}");
    assert!(workspace.path("README.md").exists());
    client.call("files_delete", json!({ "path": "a.txt" }));
    assert!(!workspace.path("a.txt").exists());
}
