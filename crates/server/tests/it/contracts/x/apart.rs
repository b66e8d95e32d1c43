//! Tests that the contracts are separate: the check of each contract refuses the answers of all
//! others.

use serde_json::{Value, json};

use super::setup::{MultiContractServer, TestedDialect};
use crate::support::TempWorkspace;

/// Returns the keys of an object, in order.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|fields| fields.keys().map(String::as_str).collect()).unwrap_or_default()
}

/// Returns true if the object `value` has all keys in `must`, and no other keys except those in
/// `may`.
fn has(value: &Value, must: &[&str], may: &[&str]) -> bool {
    let keys = keys(value);
    must.iter().all(|key| keys.contains(key))
        && keys.iter().all(|key| must.contains(key) || may.contains(key))
}

/// Returns true if the list `tools` has more than ten tools and `is_valid` returns true for each.
fn all_tools(tools: &Value, is_valid: impl Fn(&Value) -> bool) -> bool {
    tools.as_array().is_some_and(|tools| tools.len() > 10 && tools.iter().all(is_valid))
}

/// Returns true if `name` has only lower-case letters, digits and characters in `others`.
fn is_spelled(name: &Value, others: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || others.contains(c);
    name.as_str().is_some_and(|name| !name.is_empty() && name.chars().all(is_valid))
}

/// Returns true if `answer` is a tool list with exactly the keys and names of `dialect`.
fn is_tool_list(dialect: TestedDialect, answer: &Value) -> bool {
    let result = &answer["result"];
    let tools = &result["tools"];
    let rpc = has(answer, &["jsonrpc", "id", "result"], &[]);
    match dialect {
        TestedDialect::Mcp => {
            let more =
                ["title", "description", "outputSchema", "annotations", "execution", "_meta"];
            rpc && result.get("resultType").is_some()
                && all_tools(tools, |tool| {
                    has(tool, &["name", "inputSchema"], &more) && is_spelled(&tool["name"], "_")
                })
        }
        TestedDialect::Zyra => {
            let must = ["name", "description", "inputSchema"];
            rpc && has(result, &["tools"], &[])
                && all_tools(tools, |tool| has(tool, &must, &[]) && is_spelled(&tool["name"], "-"))
        }
        TestedDialect::Workstation => {
            let must = ["name", "description", "inputSchema"];
            rpc && has(result, &["tools"], &[])
                && all_tools(tools, |tool| {
                    let schema = &tool["inputSchema"];
                    has(tool, &must, &[])
                        && is_spelled(&tool["name"], "/_")
                        && schema["type"] == "object"
                        && schema["properties"].is_object()
                        && schema["required"].is_array()
                })
                && tools[0]["name"] == "filesystem/read"
        }
        TestedDialect::Mira => {
            let must =
                ["name", "description", "input_schema", "auth_required", "server", "enabled"];
            let may = ["title", "version", "output_schema", "tags", "rate_limit"];
            rpc && has(result, &["tools"], &["next_cursor"])
                && all_tools(tools, |tool| {
                    has(tool, &must, &may) && is_spelled(&tool["name"], "/_")
                })
        }
        TestedDialect::Envelope => {
            has(answer, &["ok", "data", "error", "meta"], &[])
                && answer["ok"] == true
                && all_tools(&answer["data"]["tools"], |tool| {
                    tool["id"].as_str().is_some_and(|id| id.starts_with("mcp.tool:"))
                })
        }
    }
}

/// Returns true if `answer` is the error of `dialect` for a missing file.
fn is_missing_file_error(dialect: TestedDialect, answer: &Value) -> bool {
    let error = &answer["error"];
    let rpc = has(answer, &["jsonrpc", "id", "error"], &[])
        && has(error, &["code", "message", "data"], &[]);
    let data = &error["data"];
    match dialect {
        TestedDialect::Mcp => {
            answer["result"]["isError"] == true && answer["result"]["content"].is_array()
        }
        TestedDialect::Zyra => {
            let must = ["exit_code", "stderr", "stdout", "stage", "command"];
            rpc && error["code"] == -32000 && has(data, &must, &["reason"])
        }
        TestedDialect::Mira => rpc && error["code"] == 1001 && data["field"] == "path",
        TestedDialect::Workstation => {
            rpc && error["code"] == -32603
                && error["message"] == "Internal error"
                && has(data, &["reason", "detail"], &[])
        }
        TestedDialect::Envelope => {
            has(answer, &["ok", "data", "error", "meta"], &[])
                && has(error, &["code", "message"], &["details"])
                && error["code"] == "NOT_FOUND"
        }
    }
}

/// Checks each answer against each contract. Only the contract of the answer itself may accept it.
#[track_caller]
fn check_crosswise(
    answers: &[(TestedDialect, Value)],
    check: impl Fn(TestedDialect, &Value) -> bool,
) {
    for (sender, answer) in answers {
        let shown: String = answer.to_string().chars().take(600).collect();
        for receiver in TestedDialect::ALL {
            let accepted = check(receiver, answer);
            assert_eq!(
                accepted,
                *sender == receiver,
                "{sender:?} checked as {receiver:?}: {shown}"
            );
        }
    }
}

#[test]
fn x_03_each_contracts_tool_list_fails_every_other_contracts_check() {
    let setup = MultiContractServer::over(&TempWorkspace::new(), |launch| launch);
    let answers = TestedDialect::ALL.map(|dialect| (dialect, setup.tools(dialect)));
    check_crosswise(&answers, is_tool_list);
    let schemas = setup.synesthetic("list_schemas", json!({}));
    assert!(
        TestedDialect::ALL.iter().all(|dialect| !is_tool_list(*dialect, &schemas)),
        "{schemas}"
    );
    // None of their lists is an answer of Synesthetic.
    assert_eq!(keys(&schemas["result"]), ["ok", "schemas"], "{schemas}");
    assert!(answers.iter().all(|(_, answer)| answer["result"].get("ok").is_none()));
}

#[test]
fn x_03_each_contracts_refusals_fail_every_other_contracts_check() {
    let setup = MultiContractServer::over(&TempWorkspace::new(), |launch| launch);
    let missing = |dialect| setup.call(dialect, "files.read", json!({ "path": "none.txt" }));
    check_crosswise(
        &TestedDialect::ALL.map(|dialect| (dialect, missing(dialect))),
        is_missing_file_error,
    );

    // The code of each for an unknown tool and for invalid arguments.
    for (dialect, unknown, wrong) in [
        (TestedDialect::Mcp, json!(-32602), json!(null)),
        (TestedDialect::Zyra, json!(-32602), json!(-32602)),
        (TestedDialect::Mira, json!(-32601), json!(-32602)),
        (TestedDialect::Workstation, json!(-32601), json!(-32602)),
        (TestedDialect::Envelope, json!("NOT_FOUND"), json!("INVALID_INPUT")),
    ] {
        let answer = setup.call(dialect, "files.explode", json!({}));
        assert_eq!(answer["error"]["code"], unknown, "{dialect:?}: {answer}");
        let answer = setup.call(dialect, "files.read", json!({ "path": 5 }));
        assert_eq!(answer["error"]["code"], wrong, "{dialect:?}: {answer}");
    }
    let answer = setup.synesthetic("explode", json!({}));
    assert_eq!(answer["result"]["reason"], "unsupported", "{answer}");
}

#[test]
fn x_03_content_is_shaped_as_each_contract_specifies() {
    let setup = MultiContractServer::over(&TempWorkspace::new(), |launch| launch);
    let read = |dialect| setup.call(dialect, "files.read", json!({ "path": "README.md" }));
    let content = |answer: &Value| answer["result"]["content"].clone();
    assert!(content(&read(TestedDialect::Mcp)).is_array());
    assert!(content(&read(TestedDialect::Zyra)).is_array());
    assert!(content(&read(TestedDialect::Mira)).is_string());
    assert!(content(&read(TestedDialect::Workstation)).is_string());
    assert!(content(&read(TestedDialect::Envelope)).is_null());
    // Arguments of one contract are unknown to another.
    let strict = |dialect, key: &str| {
        setup.call(dialect, "files.read", json!({ "path": "README.md", key: 1 }))
    };
    assert!(strict(TestedDialect::Mira, "max_bytes").get("error").is_some());
    assert_eq!(strict(TestedDialect::Mira, "start_line")["error"]["code"], -32602);
    assert_eq!(strict(TestedDialect::Workstation, "max_bytes")["error"]["code"], -32602);
    assert!(strict(TestedDialect::Mcp, "start_line").get("error").is_none());
}
