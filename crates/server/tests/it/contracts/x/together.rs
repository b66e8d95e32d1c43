//! Every contract served at once, on one catalog.

use std::thread;

use serde_json::{Value, json};

use super::setup::{Dialect, Setup};
use crate::support::{Workspace, at_once};

const ROUNDS: usize = 20;

#[test]
fn x_01_all_contracts_are_served_at_once_without_mixing_answers() {
    let mut workspace = Workspace::new();
    for dialect in Dialect::ALL {
        for round in 0..ROUNDS {
            let name = format!("{}/{round}.txt", dialect.name());
            let text = format!("{dialect:?} {round}");
            workspace = workspace.file(&name, text);
        }
    }
    let setup = Setup::over(&workspace, |launch| launch);
    // Each contract on the shared and on its dedicated listener, all at the same time.
    at_once(Dialect::ALL, |dialect| {
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
    let records = setup.server().outcomes(ROUNDS * 9 + Dialect::ALL.len() * ROUNDS / 5);
    assert!(records.iter().all(|outcome| outcome == "ok"), "{records:?}");
}

/// A kind of request to a contract.
#[derive(Debug, Clone, Copy)]
enum Action {
    Listing,
    Read,
    Write,
    Refusal,
    Program,
}

impl Action {
    const ALL: [Self; 5] = [Self::Listing, Self::Read, Self::Write, Self::Refusal, Self::Program];
}

#[test]
fn x_01_all_kinds_of_requests_of_all_contracts_run_at_once() {
    let workspace = Workspace::new();
    let setup = Setup::over(&workspace, |launch| launch);
    let all =
        Dialect::ALL.into_iter().flat_map(|dialect| Action::ALL.map(|action| (dialect, action)));
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
fn ask(setup: &Setup, workspace: &Workspace, dialect: Dialect, action: Action, round: usize) {
    match action {
        Action::Listing => is_listing(dialect, &setup.tools(dialect)),
        Action::Read => {
            let read = json!({ "path": "README.md" });
            let answer = setup.call(dialect, "files.read", read);
            assert_eq!(dialect.text(&answer), Workspace::README);
        }
        Action::Write => {
            let path = format!("written/{}/{round}.txt", dialect.name());
            let text = format!("{dialect:?} {round}\n");
            let write = json!({ "path": path, "content": text });
            is_done(dialect, &setup.call(dialect, "files.write", write));
            assert_eq!(workspace.read(&path), text);
        }
        Action::Refusal => {
            let read = json!({ "path": format!("none/{}/{round}.txt", dialect.name()) });
            is_refusal(dialect, &setup.call(dialect, "files.read", read));
        }
        Action::Program => {
            let word = format!("{}-{round}", dialect.name());
            let run = json!({ "command": "echo", "args": [word] });
            let answer = setup.call(dialect, "exec.run", run);
            // Dialects with text only have the exit status in later lines.
            assert_eq!(printed(dialect, &answer).lines().next(), Some(word.as_str()), "{answer}");
        }
    }
}

/// Checks that `answer` lists the tool that reads files, under its name in `dialect`.
#[track_caller]
fn is_listing(dialect: Dialect, answer: &Value) {
    let (at, key, name) = match dialect {
        Dialect::Mcp => ("/result/tools", "name", "files_read"),
        Dialect::Zyra => ("/result/tools", "name", "files-read"),
        Dialect::Mira => ("/result/tools", "name", "files/read"),
        Dialect::Workstation => ("/result/tools", "name", "filesystem/read"),
        Dialect::Envelope => ("/data/tools", "id", "mcp.tool:files.read"),
    };
    let tools = answer.pointer(at).and_then(Value::as_array);
    let tools = tools.unwrap_or_else(|| panic!("{}: {answer}", dialect.name()));
    assert!(tools.iter().any(|tool| tool[key] == name), "{}: {answer}", dialect.name());
}

/// Checks that `answer` reports a completed write.
#[track_caller]
fn is_done(dialect: Dialect, answer: &Value) {
    let is_done = match dialect {
        Dialect::Mcp => answer["result"]["structuredContent"]["created"] == true,
        Dialect::Zyra => answer["result"]["status"] == "ok",
        Dialect::Mira => answer["result"]["created"] == true,
        Dialect::Workstation => answer["result"]["content"].is_string(),
        Dialect::Envelope => answer["ok"] == true && answer["data"]["result"]["created"] == true,
    };
    assert!(is_done, "{}: {answer}", dialect.name());
}

/// Checks that `answer` refuses to read a missing file.
#[track_caller]
fn is_refusal(dialect: Dialect, answer: &Value) {
    let is_refusal = match dialect {
        Dialect::Mcp => answer["result"]["isError"] == true,
        Dialect::Zyra => {
            answer["error"]["code"] == -32000 && answer["error"]["data"]["reason"] == "not_found"
        }
        Dialect::Mira => answer["error"]["code"] == 1001,
        Dialect::Workstation => {
            answer["error"]["code"] == -32603 && answer["error"]["message"] == "Internal error"
        }
        Dialect::Envelope => answer["ok"] == false && answer["error"]["code"] == "NOT_FOUND",
    };
    assert!(is_refusal, "{}: {answer}", dialect.name());
}

/// The output of a program in `answer`.
#[track_caller]
fn printed(dialect: Dialect, answer: &Value) -> &str {
    let at = match dialect {
        Dialect::Mcp => "/result/structuredContent/stdout",
        Dialect::Zyra | Dialect::Mira => "/result/stdout",
        Dialect::Workstation => "/result/content",
        Dialect::Envelope => "/data/result/stdout",
    };
    let text = answer.pointer(at).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("{}: {answer}", dialect.name()))
}

/// Synesthetic's own listing, reads and refusals: it has no files or programs.
#[track_caller]
fn ask_synesthetic(setup: &Setup) {
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
    let workspace = Workspace::new();
    let setup = Setup::over(&workspace, |launch| launch);
    let write = json!({ "path": "by-mira.txt", "content": "from Mira\n" });
    let written = setup.call(Dialect::Mira, "files.write", write);
    assert_eq!(written["result"]["created"], true, "{written}");
    let read = json!({ "path": "by-mira.txt" });
    let answer = setup.call(Dialect::Workstation, "files.read", read);
    assert_eq!(answer["result"]["content"], "from Mira\n", "{answer}");
    setup.server().outcomes(2);
    let records = setup.server().records();
    let record = |at: usize| (records[at]["dialect"].clone(), records[at]["tool"].clone());
    assert_eq!(record(0), (json!("mira"), json!("files.write")));
    assert_eq!(record(1), (json!("workstation"), json!("files.read")));

    for writer in Dialect::ALL {
        let path = format!("by-{}.txt", writer.name());
        let text = format!("{writer:?}\n");
        let mut arguments = json!({ "path": path });
        arguments["content"] = json!(text);
        if writer != Dialect::Workstation {
            arguments["overwrite"] = json!(true);
        }
        setup.call(writer, "files.write", arguments);
        assert_eq!(workspace.read(&path), text);
        for reader in Dialect::ALL {
            let answer = setup.call(reader, "files.read", json!({ "path": path }));
            assert_eq!(reader.text(&answer), text, "{} by {}", writer.name(), reader.name());
        }
    }
}
