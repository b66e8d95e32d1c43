//! Tests that configured secrets are redacted from everything that the server sends or logs.

use serde_json::{Value, json};

use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both_tuned, structured, wait_for,
    wait_until,
};

/// Secret that the settings read from an environment variable. The next constant is a secret in a
/// file.
const NAMED: &str = "hunter2-of-a-variable";
const IN_FILE: &str = "hunter2 with \"quotes\" in a file";

fn workspace() -> TempWorkspace {
    let text = format!("first {NAMED}\nthen {IN_FILE}\n");
    TempWorkspace::new().file("s.txt", text).file(&format!("{NAMED}.txt"), "named so")
}

/// Configures both secrets: one in an environment variable, and one in a file outside the
/// workspace.
fn with_secrets(launch: ServerLaunchOptions, secrets: &tempfile::TempDir) -> ServerLaunchOptions {
    let file = secrets.path().join("secrets");
    std::fs::write(&file, format!("{IN_FILE}\n")).unwrap();
    let launch = launch.set("secrets_values_from", "DEPLOY").env("DEPLOY", NAMED);
    launch.set("secrets_files", file.display()).set("log_level", "debug")
}

#[track_caller]
fn check_clean(what: &str, text: &str) {
    let quoted = json!(IN_FILE).to_string();
    for secret in [NAMED, IN_FILE, quoted.trim_matches('"')] {
        assert!(!text.contains(secret), "{what} contains {secret}: {text}");
    }
}

#[track_caller]
fn check_redacted(what: &str, answer: &Value) {
    let text = answer.to_string();
    check_clean(what, &text);
    assert!(text.contains("[redacted]"), "{what} has no redacted text: {text}");
}

#[test]
fn a_configured_secret_is_in_no_result_refusal_record_or_log() {
    let secrets = tempfile::tempdir().unwrap();
    over_both_tuned(
        &workspace(),
        |launch| with_secrets(launch, &secrets),
        |client| {
            let answer = client.call("files_read", json!({ "path": "s.txt" }));
            check_redacted("a file", &answer);
            let expected = "first [redacted]\nthen [redacted]\n";
            assert_eq!(structured(&answer)["content"], expected);
            check_redacted("a list", &client.call("files_list", json!({ "path": "." })));
            let found = json!({ "text": "hunter2", "path": "." });
            check_redacted("a search", &client.call("files_search", found));
            check_redacted(
                "a program",
                &client.call("exec_run", json!({ "command": "cat", "args": ["s.txt"] })),
            );
            let none = json!({ "path": format!("{NAMED}/none") });
            check_redacted("a refusal", &client.call("files_read", none));
            let uri = format!("file://{}", client.server().root().join("s.txt").display());
            check_redacted("a resource", &client.ask("resources/read", json!({ "uri": uri })));
            client.call(NAMED, json!({}));
            client.server().outcomes(7);
            check_clean("a record", &Value::from(client.server().records()).to_string());
            check_clean("the log", &client.server().log());
        },
    );
}

#[test]
fn a_configured_secret_is_in_no_list_and_in_no_number() {
    const PIN: &str = "90817263544";
    let prompt = format!("---\ndescription: for {NAMED}\n---\nSay it.\n");
    let skill = format!("---\nname: a\ndescription: by {NAMED}\n---\nDo it.\n");
    let workspace = workspace()
        .file(".toolgate/prompts/say.md", prompt)
        .file("skills/a/SKILL.md", skill)
        .file("d.md", "text\n")
        .file("d.json", format!("{{\"pin\": {PIN}}}"));
    over_both_tuned(
        &workspace,
        |launch| {
            let launch = launch.set("secrets_values_from", "DEPLOY,PIN").env("DEPLOY", NAMED);
            launch.env("PIN", PIN)
        },
        |client| {
            let root = client.server().root().display().to_string();
            let folder = json!({ "uri": format!("file://{root}") });
            let template = format!("file://{root}/{{+path}}");
            let reference = json!({ "type": "ref/resource", "uri": template });
            let typed =
                json!({ "ref": reference, "argument": { "name": "path", "value": "hunter2" } });
            for (method, params) in [
                ("resources/list", json!({})),
                ("resources/directory/read", folder),
                ("completion/complete", typed),
                ("prompts/list", json!({})),
                ("skills/list", json!({})),
            ] {
                check_redacted(method, &client.ask(method, params));
            }
            let input = json!({ "path": "d.md", "metadataPath": "d.json" });
            let answer = client.call("docs_load_fetch", input).to_string();
            assert!(!answer.contains(PIN) && answer.contains("[redacted]"), "{answer}");
        },
    );
}

#[test]
fn job_output_is_stored_redacted_even_if_it_comes_in_pieces() {
    let secrets = tempfile::tempdir().unwrap();
    over_both_tuned(
        &workspace(),
        |launch| with_secrets(launch, &secrets),
        |client| {
            let (start, end) = NAMED.split_at(9);
            let script =
                format!("printf 'is {start}'; sleep 0.4; printf '{end}, '; printf 'is {start}'");
            let arguments = json!({ "command": "sh", "args": ["-c", script] });
            let job = json!({ "tool": "exec_run", "arguments": arguments });
            let job = structured(&client.call("jobs_start", job))["job_id"].clone();
            let ended = wait_for("it ends", || {
                let looked = client.call("jobs_get", json!({ "job_id": job, "wait_ms": 5000 }));
                Some(structured(&looked).clone()).filter(|job| job["state"] == "succeeded")
            });
            check_redacted("its result", &ended);
            let output = client.call("jobs_output", json!({ "job_id": job }));
            check_redacted("its output", &output);
            let pieces = structured(&output)["pieces"].as_array().unwrap();
            let text: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
            // A partial match is sent once no more output comes.
            assert_eq!(text, format!("is [redacted], is {start}"));
        },
    );
}

#[test]
fn a_configured_secret_is_redacted_in_older_dialects() {
    let secrets = tempfile::tempdir().unwrap();
    let launch = with_secrets(ServerLaunchOptions::over(&workspace()), &secrets);
    let mut stdio = launch.arg("--dialect").arg("mira").stdio();
    let params = json!({ "path": "s.txt" });
    let read = json!({ "jsonrpc": "2.0", "id": 1, "method": "files/read", "params": params });
    stdio.write(format!("{read}\n").as_bytes());
    check_redacted("files/read", &stdio.receive());
}

#[test]
fn a_configured_secret_is_redacted_from_the_refusal_of_a_message() {
    for dialect in ["mcp", "mira", "zyra", "workstation"] {
        let secrets = tempfile::tempdir().unwrap();
        let launch = with_secrets(ServerLaunchOptions::over(&workspace()), &secrets);
        let mut stdio = launch.arg("--dialect").arg(dialect).stdio();
        let unknown = json!({ "jsonrpc": "2.0", "id": 1, "method": NAMED, "params": {} });
        stdio.write(format!("{unknown}\n").as_bytes());
        let refusal = stdio.receive();
        check_clean(dialect, &refusal.to_string());
    }
}

#[test]
fn results_are_unchanged_if_no_secret_is_configured() {
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::over(&workspace()).env("DEPLOY_TOKEN", NAMED),
        crate::support::MODERN,
    );
    let answer = client.call("files_read", json!({ "path": "s.txt" }));
    assert_eq!(structured(&answer)["content"], format!("first {NAMED}\nthen {IN_FILE}\n"));
}

#[test]
fn the_server_does_not_start_if_a_secret_is_missing_or_short() {
    for (launch, expected) in [
        (
            ServerLaunchOptions::over(&TempWorkspace::new()),
            "`DEPLOY` of secrets.values_from is not set",
        ),
        (ServerLaunchOptions::over(&TempWorkspace::new()).env("DEPLOY", "short12"), "has 7 bytes"),
    ] {
        let stdio = launch.set("secrets_values_from", "DEPLOY").stdio();
        assert_eq!(stdio.wait_for_exit().code(), Some(2));
        wait_until("it says why", || stdio.log().contains(expected));
        assert!(!stdio.log().contains("short12"), "{}", stdio.log());
    }
}
