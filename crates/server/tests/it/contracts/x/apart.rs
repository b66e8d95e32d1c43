//! No contract's words in another: each one's own check refuses every other's answers.

use serde_json::{Value, json};

use super::house::{House, Tongue};
use crate::support::Workspace;

/// The keys of an object, in the order they stand in.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|fields| fields.keys().map(String::as_str).collect()).unwrap_or_default()
}

/// Whether `value` has no keys but `may` and has all of `must`.
fn has(value: &Value, must: &[&str], may: &[&str]) -> bool {
    let keys = keys(value);
    must.iter().all(|key| keys.contains(key))
        && keys.iter().all(|key| must.contains(key) || may.contains(key))
}

/// Whether every tool of a list is as `fits` says, and there are some.
fn each(tools: &Value, fits: impl Fn(&Value) -> bool) -> bool {
    tools.as_array().is_some_and(|tools| tools.len() > 10 && tools.iter().all(fits))
}

/// Whether a name has nothing in it but lower-case letters, digits and `others`.
fn spelled(name: &Value, others: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || others.contains(c);
    name.as_str().is_some_and(|name| !name.is_empty() && name.chars().all(fits))
}

/// Whether `answer` tells tools as `tongue` has it: its keys, its names, and none but them.
fn tells_tools(tongue: Tongue, answer: &Value) -> bool {
    let result = &answer["result"];
    let tools = &result["tools"];
    let rpc = has(answer, &["jsonrpc", "id", "result"], &[]);
    match tongue {
        Tongue::Mcp => {
            let more = ["title", "description", "outputSchema", "icons", "execution", "_meta"];
            rpc && result.get("resultType").is_some()
                && each(tools, |tool| {
                    has(tool, &["name", "inputSchema", "annotations"], &more)
                        && spelled(&tool["name"], "_")
                })
        }
        Tongue::Zyra => {
            let must = ["name", "description", "inputSchema"];
            rpc && has(result, &["tools"], &[])
                && each(tools, |tool| has(tool, &must, &[]) && spelled(&tool["name"], "-"))
        }
        Tongue::Workstation => {
            let must = ["name", "description", "inputSchema"];
            rpc && has(result, &["tools"], &[])
                && each(tools, |tool| {
                    let schema = &tool["inputSchema"];
                    has(tool, &must, &[])
                        && spelled(&tool["name"], "/_")
                        && schema["type"] == "object"
                        && schema["properties"].is_object()
                        && schema["required"].is_array()
                })
                && tools[0]["name"] == "filesystem/read"
        }
        Tongue::Mira => {
            let must =
                ["name", "description", "input_schema", "auth_required", "server", "enabled"];
            let may = ["title", "version", "output_schema", "tags", "rate_limit"];
            rpc && has(result, &["tools"], &["next_cursor"])
                && each(tools, |tool| has(tool, &must, &may) && spelled(&tool["name"], "/_"))
        }
        Tongue::Envelope => {
            has(answer, &["ok", "data", "error", "meta"], &[])
                && answer["ok"] == true
                && each(&answer["data"]["tools"], |tool| {
                    tool["id"].as_str().is_some_and(|id| id.starts_with("mcp.tool:"))
                })
        }
    }
}

/// Whether `answer` refuses a file that is not there as `tongue` has it.
fn tells_missing(tongue: Tongue, answer: &Value) -> bool {
    let error = &answer["error"];
    let rpc = has(answer, &["jsonrpc", "id", "error"], &[])
        && has(error, &["code", "message", "data"], &[]);
    let data = &error["data"];
    match tongue {
        Tongue::Mcp => {
            answer["result"]["isError"] == true && answer["result"]["content"].is_array()
        }
        Tongue::Zyra => {
            let must = ["exit_code", "stderr", "stdout", "stage", "command"];
            rpc && error["code"] == -32000 && has(data, &must, &["reason"])
        }
        Tongue::Mira => rpc && error["code"] == 1001 && data["field"] == "path",
        Tongue::Workstation => {
            rpc && error["code"] == -32603
                && error["message"] == "Internal error"
                && has(data, &["reason", "detail"], &[])
        }
        Tongue::Envelope => {
            has(answer, &["ok", "data", "error", "meta"], &[])
                && has(error, &["code", "message"], &["details"])
                && error["code"] == "NOT_FOUND"
        }
    }
}

/// Holds each answer against the check of each contract: its own takes it, no other does.
#[track_caller]
fn crosswise(answers: &[(Tongue, Value)], check: impl Fn(Tongue, &Value) -> bool) {
    for (speaker, answer) in answers {
        let shown: String = answer.to_string().chars().take(600).collect();
        for listener in Tongue::ALL {
            let takes = check(listener, answer);
            assert_eq!(takes, *speaker == listener, "{speaker:?} held to be {listener:?}: {shown}");
        }
    }
}

#[test]
fn x_03_no_contract_takes_the_tools_of_another_for_its_own() {
    let house = House::over(&Workspace::new(), |launch| launch);
    let answers = Tongue::ALL.map(|tongue| (tongue, house.tools(tongue)));
    crosswise(&answers, tells_tools);
    let schemas = house.synesthetic("list_schemas", json!({}));
    assert!(Tongue::ALL.iter().all(|tongue| !tells_tools(*tongue, &schemas)), "{schemas}");
    // And none of their lists is an answer of Synesthetic's.
    assert_eq!(keys(&schemas["result"]), ["ok", "schemas"], "{schemas}");
    assert!(answers.iter().all(|(_, answer)| answer["result"].get("ok").is_none()));
}

#[test]
fn x_03_no_contract_takes_the_refusals_of_another_for_its_own() {
    let house = House::over(&Workspace::new(), |launch| launch);
    let missing = |tongue| house.call(tongue, "files.read", json!({ "path": "none.txt" }));
    crosswise(&Tongue::ALL.map(|tongue| (tongue, missing(tongue))), tells_missing);

    // The code of each for what no tool is named, and for arguments that are none.
    for (tongue, unknown, wrong) in [
        (Tongue::Mcp, json!(-32602), json!(null)),
        (Tongue::Zyra, json!(-32602), json!(-32602)),
        (Tongue::Mira, json!(-32601), json!(-32602)),
        (Tongue::Workstation, json!(-32601), json!(-32602)),
        (Tongue::Envelope, json!("NOT_FOUND"), json!("INVALID_INPUT")),
    ] {
        let answer = house.call(tongue, "files.explode", json!({}));
        assert_eq!(answer["error"]["code"], unknown, "{tongue:?}: {answer}");
        let answer = house.call(tongue, "files.read", json!({ "path": 5 }));
        assert_eq!(answer["error"]["code"], wrong, "{tongue:?}: {answer}");
    }
    let answer = house.synesthetic("explode", json!({}));
    assert_eq!(answer["result"]["reason"], "unsupported", "{answer}");
}

#[test]
fn x_03_content_is_shaped_as_each_contract_has_it() {
    let house = House::over(&Workspace::new(), |launch| launch);
    let read = |tongue| house.call(tongue, "files.read", json!({ "path": "README.md" }));
    let content = |answer: &Value| answer["result"]["content"].clone();
    assert!(content(&read(Tongue::Mcp)).is_array());
    assert!(content(&read(Tongue::Zyra)).is_array());
    assert!(content(&read(Tongue::Mira)).is_string());
    assert!(content(&read(Tongue::Workstation)).is_string());
    assert!(content(&read(Tongue::Envelope)).is_null());
    // Keys that one contract takes are none of another's.
    let strict = |tongue, key: &str| {
        house.call(tongue, "files.read", json!({ "path": "README.md", key: 1 }))
    };
    assert!(strict(Tongue::Mira, "max_bytes").get("error").is_some());
    assert_eq!(strict(Tongue::Mira, "start_line")["error"]["code"], -32602);
    assert_eq!(strict(Tongue::Workstation, "max_bytes")["error"]["code"], -32602);
    assert!(strict(Tongue::Mcp, "start_line").get("error").is_none());
}
