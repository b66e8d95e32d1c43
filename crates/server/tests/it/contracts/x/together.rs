//! Tests of one server that serves every contract with one catalog.

use std::thread;

use serde_json::{Value, json};

use super::setup::{MultiContractServer, TestedDialect};
use crate::support::{TempWorkspace, at_once};

const ROUNDS: usize = 20;

#[test]
fn x_01_all_contracts_are_served_at_once_without_mixing_answers() {
    let mut workspace = TempWorkspace::new();
    for dialect in TestedDialect::ALL {
        for round in 0..ROUNDS {
            let name = format!("{}/{round}.txt", dialect.name());
            let text = format!("{dialect:?} {round}");
            workspace = workspace.file(&name, text);
        }
    }
    let setup = MultiContractServer::over(&workspace, |launch| launch);
    // Each contract on the shared and on its dedicated listener, all at the same time.
    at_once(TestedDialect::ALL, |dialect| {
        for round in 0..ROUNDS {
            let path = json!({ "path": format!("{}/{round}.txt", dialect.name()) });
            let text = format!("{dialect:?} {round}");
            assert_eq!(dialect.text(&setup.call(dialect, "files.read", path.clone())), text);
            if let Some(answer) = setup.call_alone(dialect, "files.read", path) {
                assert_eq!(dialect.text(&answer), text);
            }
            if round % 5 == 0 {
                let schemas = setup.synesthetic("list_schemas", json!({}));
                assert_eq!(schemas["result"]["ok"], true, "{schemas}");
            }
        }
    });
    // All but MCP were called twice as often; all have the same kind of record.
    let records = setup.server().outcomes(ROUNDS * 9 + TestedDialect::ALL.len() * ROUNDS / 5);
    assert!(records.iter().all(|outcome| outcome == "ok"), "{records:?}");
}

/// Request that a test sends to each contract.
#[derive(Debug, Clone, Copy)]
enum ContractRequestKind {
    Listing,
    Read,
    Write,
    Refusal,
    Program,
}

impl ContractRequestKind {
    const ALL: [Self; 5] = [Self::Listing, Self::Read, Self::Write, Self::Refusal, Self::Program];
}

#[test]
fn x_01_all_kinds_of_requests_of_all_contracts_run_at_once() {
    let workspace = TempWorkspace::new();
    let setup = MultiContractServer::over(&workspace, |launch| launch);
    let all = TestedDialect::ALL
        .into_iter()
        .flat_map(|dialect| ContractRequestKind::ALL.map(|action| (dialect, action)));
    thread::scope(|scope| {
        for (dialect, action) in all {
            let setup = &setup;
            let workspace = &workspace;
            scope.spawn(move || {
                for round in 0..3 {
                    ask(setup, workspace, dialect, action, round);
                }
            });
        }
        scope.spawn(|| (0..3).for_each(|_| ask_synesthetic(&setup)));
    });
}

#[track_caller]
fn ask(
    setup: &MultiContractServer,
    workspace: &TempWorkspace,
    dialect: TestedDialect,
    action: ContractRequestKind,
    round: usize,
) {
    match action {
        ContractRequestKind::Listing => is_listing(dialect, &setup.tools(dialect)),
        ContractRequestKind::Read => {
            let read = json!({ "path": "README.md" });
            let answer = setup.call(dialect, "files.read", read);
            assert_eq!(dialect.text(&answer), TempWorkspace::README);
        }
        ContractRequestKind::Write => {
            let path = format!("written/{}/{round}.txt", dialect.name());
            let text = format!("{dialect:?} {round}\n");
            let write = json!({ "path": path, "content": text });
            is_done(dialect, &setup.call(dialect, "files.write", write));
            assert_eq!(workspace.read(&path), text);
        }
        ContractRequestKind::Refusal => {
            let read = json!({ "path": format!("none/{}/{round}.txt", dialect.name()) });
            is_refusal(dialect, &setup.call(dialect, "files.read", read));
        }
        ContractRequestKind::Program => {
            let word = format!("{}-{round}", dialect.name());
            let run = json!({ "command": "echo", "args": [word] });
            let answer = setup.call(dialect, "exec.run", run);
            // Dialects with text only have the exit status in later lines.
            assert_eq!(printed(dialect, &answer).lines().next(), Some(word.as_str()), "{answer}");
        }
    }
}

/// Checks that `answer` lists the tool for reading files, under the name that it has in `dialect`.
#[track_caller]
fn is_listing(dialect: TestedDialect, answer: &Value) {
    let (at, key, name) = match dialect {
        TestedDialect::Mcp => ("/result/tools", "name", "files_read"),
        TestedDialect::Zyra => ("/result/tools", "name", "files-read"),
        TestedDialect::Mira => ("/result/tools", "name", "files/read"),
        TestedDialect::Workstation => ("/result/tools", "name", "filesystem/read"),
        TestedDialect::Envelope => ("/data/tools", "id", "mcp.tool:files.read"),
    };
    let tools = answer.pointer(at).and_then(Value::as_array);
    let tools = tools.unwrap_or_else(|| panic!("{}: {answer}", dialect.name()));
    assert!(tools.iter().any(|tool| tool[key] == name), "{}: {answer}", dialect.name());
}

/// Checks that `answer` reports a completed write.
#[track_caller]
fn is_done(dialect: TestedDialect, answer: &Value) {
    let is_done = match dialect {
        TestedDialect::Mcp => answer["result"]["structuredContent"]["created"] == true,
        TestedDialect::Zyra => answer["result"]["status"] == "ok",
        TestedDialect::Mira => answer["result"]["created"] == true,
        TestedDialect::Workstation => answer["result"]["content"].is_string(),
        TestedDialect::Envelope => {
            answer["ok"] == true && answer["data"]["result"]["created"] == true
        }
    };
    assert!(is_done, "{}: {answer}", dialect.name());
}

/// Checks that `answer` refuses to read a missing file.
#[track_caller]
fn is_refusal(dialect: TestedDialect, answer: &Value) {
    let is_refusal = match dialect {
        TestedDialect::Mcp => answer["result"]["isError"] == true,
        TestedDialect::Zyra => {
            answer["error"]["code"] == -32000 && answer["error"]["data"]["reason"] == "not_found"
        }
        TestedDialect::Mira => answer["error"]["code"] == 1001,
        TestedDialect::Workstation => {
            answer["error"]["code"] == -32603 && answer["error"]["message"] == "Internal error"
        }
        TestedDialect::Envelope => answer["ok"] == false && answer["error"]["code"] == "NOT_FOUND",
    };
    assert!(is_refusal, "{}: {answer}", dialect.name());
}

/// Returns the output of the program that the call in `answer` ran.
#[track_caller]
fn printed(dialect: TestedDialect, answer: &Value) -> &str {
    let at = match dialect {
        TestedDialect::Mcp => "/result/structuredContent/stdout",
        TestedDialect::Zyra | TestedDialect::Mira => "/result/stdout",
        TestedDialect::Workstation => "/result/content",
        TestedDialect::Envelope => "/data/result/stdout",
    };
    let text = answer.pointer(at).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("{}: {answer}", dialect.name()))
}

/// Checks lists, reads and refusals of the Synesthetic contract, which has no files or programs.
#[track_caller]
fn ask_synesthetic(setup: &MultiContractServer) {
    let listed = setup.synesthetic("list_schemas", json!({}));
    assert_eq!(listed["result"]["schemas"][0]["name"], "tone", "{listed}");
    let read = setup.synesthetic("get_schema", json!({ "name": "tone" }));
    assert_eq!(read["result"]["schema"], json!({ "type": "object" }), "{read}");
    let invalid = setup.synesthetic("validate_asset", json!({ "schema": "tone", "asset": 1 }));
    assert_eq!(invalid["result"]["reason"], "validation_failed", "{invalid}");
    let disabled = setup.synesthetic("populate_backend", json!({ "asset": {} }));
    assert_eq!(disabled["result"]["reason"], "unsupported", "{disabled}");
}

#[test]
fn x_02_a_file_written_through_one_contract_is_read_through_every_other() {
    let workspace = TempWorkspace::new();
    let setup = MultiContractServer::over(&workspace, |launch| launch);
    let write = json!({ "path": "by-mira.txt", "content": "from Mira\n" });
    let written = setup.call(TestedDialect::Mira, "files.write", write);
    assert_eq!(written["result"]["created"], true, "{written}");
    let read = json!({ "path": "by-mira.txt" });
    let answer = setup.call(TestedDialect::Workstation, "files.read", read);
    assert_eq!(answer["result"]["content"], "from Mira\n", "{answer}");
    setup.server().outcomes(2);
    let records = setup.server().records();
    let record = |at: usize| (records[at]["dialect"].clone(), records[at]["tool"].clone());
    assert_eq!(record(0), (json!("mira"), json!("files.write")));
    assert_eq!(record(1), (json!("workstation"), json!("files.read")));

    for writer in TestedDialect::ALL {
        let path = format!("by-{}.txt", writer.name());
        let text = format!("{writer:?}\n");
        let mut arguments = json!({ "path": path });
        arguments["content"] = json!(text);
        if writer != TestedDialect::Workstation {
            arguments["overwrite"] = json!(true);
        }
        setup.call(writer, "files.write", arguments);
        assert_eq!(workspace.read(&path), text);
        for reader in TestedDialect::ALL {
            let answer = setup.call(reader, "files.read", json!({ "path": path }));
            assert_eq!(reader.text(&answer), text, "{} by {}", writer.name(), reader.name());
        }
    }
}
