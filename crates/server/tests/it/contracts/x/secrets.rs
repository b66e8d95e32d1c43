//! Tests that secrets sent to the server never appear in errors, in its log or in its records.

use serde_json::{Value, json};

use super::setup::{MultiContractServer, TestedDialect};
use crate::support::{ServerLaunchOptions, StdioServerProcess, TempWorkspace, wait_until};

/// Secret that toolgate recognizes by its format. The constants below are secrets in a URL, in a
/// variable, in an argument, and of the server itself.
const SHAPED: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";
const IN_URL: &str = "hunter2-in-a-url";
const IN_ENV: &str = "hunter2-in-the-environment";
const IN_ARGS: &str = "hunter2-in-the-arguments";
const OWN: &str = "hunter2-of-the-server";

/// Returns calls that the server refuses. Each has a secret in a field that the error message
/// repeats.
fn calls() -> Vec<(&'static str, Value)> {
    let mut calls = vec![
        ("files.read", json!({ "path": format!("{SHAPED}/a.txt") })),
        ("files.read", json!({ "path": format!("https://ada:{IN_URL}@host/a.txt") })),
        ("files.read", json!({ "path": format!("a/{OWN}/b") })),
        ("files.read", json!({ "path": format!("../--token={IN_URL}") })),
        (SHAPED, json!({})),
    ];
    for (secret, more) in [
        (IN_ENV, json!({ "env": { "API_TOKEN": IN_ENV } })),
        (IN_ARGS, json!({ "args": ["--password", IN_ARGS] })),
        (IN_ARGS, json!({ "args": [format!("--db-password={IN_ARGS}")] })),
        (OWN, json!({})),
    ] {
        for (command, cwd) in [("true", secret), (secret, ".")] {
            let mut arguments = more.clone();
            arguments["command"] = json!(command);
            arguments["cwd"] = json!(cwd);
            calls.push(("exec.run", arguments));
        }
    }
    calls
}

#[track_caller]
fn assert_no_secrets(source: &str, text: &str) {
    for secret in [SHAPED, IN_URL, IN_ENV, IN_ARGS, OWN] {
        assert!(!text.contains(secret), "{source} has {secret}: {text}");
    }
}

fn with_secret(launch: ServerLaunchOptions) -> ServerLaunchOptions {
    launch.set("log_level", "trace").env("SERVICE_API_KEY", OWN)
}

#[test]
fn s3_78_x_04_errors_logs_and_records_of_every_contract_have_no_secrets() {
    let setup = MultiContractServer::over(&TempWorkspace::new(), with_secret);
    let calls = calls();
    let mut redacted = 0;
    for dialect in TestedDialect::ALL {
        for (tool, arguments) in &calls {
            // In Mira the tool name is the method, which is not redacted.
            if dialect == TestedDialect::Mira && *tool == SHAPED {
                continue;
            }
            let answer = setup.call(dialect, tool, arguments.clone());
            assert_ne!(answer["ok"], true, "{dialect:?} {tool} was not refused: {answer}");
            // An envelope repeats parts of the request in `meta`.
            let checked =
                if dialect == TestedDialect::Envelope { &answer["error"] } else { &answer };
            let answer = checked.to_string();
            assert_no_secrets(&format!("{dialect:?} {tool} {arguments}"), &answer);
            redacted += usize::from(answer.contains("[redacted]"));
        }
    }
    // Refusals do repeat their input, with the secrets redacted.
    assert!(redacted >= TestedDialect::ALL.len() * (calls.len() - 5), "{redacted}");
    setup.synesthetic("get_example", json!({ "path": format!("{SHAPED}/{OWN}") }));
    setup.synesthetic("populate_backend", json!({ "asset": { "api_token": IN_ENV } }));

    setup.server().outcomes(TestedDialect::ALL.len() * (calls.len() - 1));
    assert_no_secrets("a record", &Value::from(setup.server().records()).to_string());
    wait_until("something is logged", || !setup.server().log().is_empty());
    assert_no_secrets("the log", &setup.server().log());
}

/// Starts `toolgate stdio` with the dialect `dialect`.
fn stdio(dialect: &str) -> StdioServerProcess {
    with_secret(ServerLaunchOptions::over(&TempWorkspace::new()))
        .arg("--dialect")
        .arg(dialect)
        .stdio()
}

#[test]
fn s3_78_x_04_answers_and_records_over_stdio_have_no_secrets() {
    for (dialect, method) in [
        ("mira", "files/read"),
        ("workstation", "tools/call"),
        ("zyra", "tools/call"),
        ("envelope", "mcp.tool.invoke"),
        ("synesthetic", "get_example"),
    ] {
        let mut stdio = match dialect {
            "synesthetic" => stdio(dialect),
            _ => with_secret(
                ServerLaunchOptions::over(&TempWorkspace::new()).set("audit_to", "stderr"),
            )
            .arg("--dialect")
            .arg(dialect)
            .stdio(),
        };
        let path = format!("{SHAPED}/{OWN}");
        let arguments = json!({ "path": path });
        let params = match dialect {
            "workstation" => json!({ "name": "filesystem/read", "arguments": arguments }),
            "zyra" => json!({ "name": "files-read", "arguments": arguments }),
            "envelope" => json!({ "toolId": "mcp.tool:files.read", "arguments": arguments }),
            _ => arguments,
        };
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        stdio.write(format!("{message}\n").as_bytes());
        let answer = stdio.receive().to_string();
        assert_no_secrets(dialect, &answer);
        stdio.close_input();
        stdio.wait_for_exit();
        assert_no_secrets(dialect, &stdio.log());
    }
}

#[test]
fn s3_78_tool_results_are_not_redacted() {
    let workspace = TempWorkspace::new().file("a.env", format!("TOKEN={SHAPED}\n"));
    let setup = MultiContractServer::over(&workspace, with_secret);
    for dialect in TestedDialect::ALL {
        let answer = setup.call(dialect, "files.read", json!({ "path": "a.env" }));
        assert_eq!(dialect.text(&answer), format!("TOKEN={SHAPED}\n"));
    }
}
