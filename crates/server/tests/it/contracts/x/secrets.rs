//! Secrets: said to the server, and never said by it in an error, its log or its records.

use serde_json::{Value, json};

use super::house::{House, Tongue};
use crate::support::{Launch, Stdio, Workspace, wait_until};

/// A secret by its shape, one in an address, one in a variable, one in an argument, and the
/// server's own.
const SHAPED: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";
const IN_URL: &str = "hunter2-in-a-url";
const IN_ENV: &str = "hunter2-in-the-environment";
const IN_ARGS: &str = "hunter2-in-the-arguments";
const OWN: &str = "hunter2-of-the-server";

/// Calls that are refused, each with a secret where the refusal repeats what it was given.
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
fn says_none(where_: &str, text: &str) {
    for secret in [SHAPED, IN_URL, IN_ENV, IN_ARGS, OWN] {
        assert!(!text.contains(secret), "{where_} says {secret}: {text}");
    }
}

fn tuned(launch: Launch) -> Launch {
    launch.set("log_level", "trace").env("SERVICE_API_KEY", OWN)
}

#[test]
fn s3_78_x_04_no_contract_says_a_secret_in_an_error_its_log_or_a_record() {
    let house = House::over(&Workspace::new(), tuned);
    let calls = calls();
    let mut redacted = 0;
    for tongue in Tongue::ALL {
        for (tool, arguments) in &calls {
            // What a tool is called is a method there, and no argument.
            if tongue == Tongue::Mira && *tool == SHAPED {
                continue;
            }
            let answer = house.call(tongue, tool, arguments.clone());
            assert_ne!(answer["ok"], true, "{tongue:?} {tool} was not refused: {answer}");
            // What an envelope says of the request is the request's own.
            let told = if tongue == Tongue::Envelope { &answer["error"] } else { &answer };
            let answer = told.to_string();
            says_none(&format!("{tongue:?} {tool} {arguments}"), &answer);
            redacted += usize::from(answer.contains("[redacted]"));
        }
    }
    // The refusals do repeat what they were given, but for that.
    assert!(redacted >= Tongue::ALL.len() * (calls.len() - 5), "{redacted}");
    house.synesthetic("get_example", json!({ "path": format!("{SHAPED}/{OWN}") }));
    house.synesthetic("populate_backend", json!({ "asset": { "api_token": IN_ENV } }));

    house.server().outcomes(Tongue::ALL.len() * (calls.len() - 1));
    says_none("a record", &Value::from(house.server().records()).to_string());
    wait_until("something is logged", || !house.server().log().is_empty());
    says_none("the log", &house.server().log());
}

/// `toolgate stdio` in a contract, its answers as they come.
fn stdio(dialect: &str) -> Stdio {
    tuned(Launch::over(&Workspace::new())).arg("--dialect").arg(dialect).stdio()
}

#[test]
fn s3_78_x_04_nor_over_standard_streams_with_the_records_on_standard_error() {
    for (dialect, method) in [
        ("mira", "files/read"),
        ("workstation", "tools/call"),
        ("zyra", "tools/call"),
        ("envelope", "mcp.tool.invoke"),
        ("synesthetic", "get_example"),
    ] {
        let mut stdio = match dialect {
            "synesthetic" => stdio(dialect),
            _ => tuned(Launch::over(&Workspace::new()).set("audit_to", "stderr"))
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
        says_none(dialect, &answer);
        stdio.close_input();
        stdio.ended();
        says_none(dialect, &stdio.log());
    }
}

#[test]
fn s3_78_what_a_tool_gives_back_is_not_touched() {
    let workspace = Workspace::new().file("a.env", format!("TOKEN={SHAPED}\n"));
    let house = House::over(&workspace, tuned);
    for tongue in Tongue::ALL {
        let answer = house.call(tongue, "files.read", json!({ "path": "a.env" }));
        assert_eq!(tongue.text(&answer), format!("TOKEN={SHAPED}\n"));
    }
}
