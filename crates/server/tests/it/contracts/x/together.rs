//! Every contract served at once, on one catalog.

use std::thread;

use serde_json::{Value, json};

use super::house::{House, Tongue};
use crate::support::{Workspace, at_once};

const ROUNDS: usize = 20;

#[test]
fn x_01_every_contract_is_served_at_once_and_none_gets_what_is_anothers() {
    let mut workspace = Workspace::new();
    for tongue in Tongue::ALL {
        for round in 0..ROUNDS {
            let name = format!("{}/{round}.txt", tongue.name());
            let text = format!("{tongue:?} {round}");
            workspace = workspace.file(&name, text);
        }
    }
    let house = House::over(&workspace, |launch| launch);
    // Each contract at the address of all and at its own, all at the same time.
    at_once(Tongue::ALL, |tongue| {
        for round in 0..ROUNDS {
            let path = json!({ "path": format!("{}/{round}.txt", tongue.name()) });
            let text = format!("{tongue:?} {round}");
            assert_eq!(tongue.text(&house.call(tongue, "files.read", path.clone())), text);
            if let Some(answer) = house.call_alone(tongue, "files.read", path) {
                assert_eq!(tongue.text(&answer), text);
            }
            if round % 5 == 0 {
                let schemas = house.synesthetic("list_schemas", json!({}));
                assert_eq!(schemas["result"]["ok"], true, "{schemas}");
            }
        }
    });
    // All but MCP were asked twice as often; one kind of record for all.
    let records = house.server().outcomes(ROUNDS * 9 + Tongue::ALL.len() * ROUNDS / 5);
    assert!(records.iter().all(|outcome| outcome == "ok"), "{records:?}");
}

/// What is asked of a contract.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Listing,
    Read,
    Write,
    Refusal,
    Program,
}

impl Asked {
    const ALL: [Self; 5] = [Self::Listing, Self::Read, Self::Write, Self::Refusal, Self::Program];
}

#[test]
fn x_01_listings_reads_writes_refusals_and_programs_go_on_at_once_in_the_words_of_each() {
    let workspace = Workspace::new();
    let house = House::over(&workspace, |launch| launch);
    let all = Tongue::ALL.into_iter().flat_map(|tongue| Asked::ALL.map(|asked| (tongue, asked)));
    thread::scope(|scope| {
        for (tongue, asked) in all {
            let house = &house;
            let workspace = &workspace;
            scope.spawn(move || {
                for round in 0..3 {
                    ask(house, workspace, tongue, asked, round);
                }
            });
        }
        scope.spawn(|| (0..3).for_each(|_| ask_synesthetic(&house)));
    });
}

#[track_caller]
fn ask(house: &House, workspace: &Workspace, tongue: Tongue, asked: Asked, round: usize) {
    match asked {
        Asked::Listing => is_listing(tongue, &house.tools(tongue)),
        Asked::Read => {
            let read = json!({ "path": "README.md" });
            let answer = house.call(tongue, "files.read", read);
            assert_eq!(tongue.text(&answer), Workspace::README);
        }
        Asked::Write => {
            let path = format!("written/{}/{round}.txt", tongue.name());
            let text = format!("{tongue:?} {round}\n");
            let write = json!({ "path": path, "content": text });
            is_done(tongue, &house.call(tongue, "files.write", write));
            assert_eq!(workspace.read(&path), text);
        }
        Asked::Refusal => {
            let read = json!({ "path": format!("none/{}/{round}.txt", tongue.name()) });
            is_refusal(tongue, &house.call(tongue, "files.read", read));
        }
        Asked::Program => {
            let said = format!("{}-{round}", tongue.name());
            let run = json!({ "command": "echo", "args": [said] });
            let answer = house.call(tongue, "exec.run", run);
            // Where a wire has nothing but text, how it ended comes in the lines after.
            assert_eq!(printed(tongue, &answer).lines().next(), Some(said.as_str()), "{answer}");
        }
    }
}

/// Checks that `answer` lists the tool that reads files, under the name it has there.
#[track_caller]
fn is_listing(tongue: Tongue, answer: &Value) {
    let (at, key, name) = match tongue {
        Tongue::Mcp => ("/result/tools", "name", "files_read"),
        Tongue::Zyra => ("/result/tools", "name", "files-read"),
        Tongue::Mira => ("/result/tools", "name", "files/read"),
        Tongue::Workstation => ("/result/tools", "name", "filesystem/read"),
        Tongue::Envelope => ("/data/tools", "id", "mcp.tool:files.read"),
    };
    let tools = answer.pointer(at).and_then(Value::as_array);
    let tools = tools.unwrap_or_else(|| panic!("{}: {answer}", tongue.name()));
    assert!(tools.iter().any(|tool| tool[key] == name), "{}: {answer}", tongue.name());
}

/// Checks that `answer` tells of a write that was done.
#[track_caller]
fn is_done(tongue: Tongue, answer: &Value) {
    let is_done = match tongue {
        Tongue::Mcp => answer["result"]["structuredContent"]["created"] == true,
        Tongue::Zyra => answer["result"]["status"] == "ok",
        Tongue::Mira => answer["result"]["created"] == true,
        Tongue::Workstation => answer["result"]["content"].is_string(),
        Tongue::Envelope => answer["ok"] == true && answer["data"]["result"]["created"] == true,
    };
    assert!(is_done, "{}: {answer}", tongue.name());
}

/// Checks that `answer` refuses to read what is not there.
#[track_caller]
fn is_refusal(tongue: Tongue, answer: &Value) {
    let is_refusal = match tongue {
        Tongue::Mcp => answer["result"]["isError"] == true,
        Tongue::Zyra => {
            answer["error"]["code"] == -32000 && answer["error"]["data"]["reason"] == "not_found"
        }
        Tongue::Mira => answer["error"]["code"] == 1001,
        Tongue::Workstation => {
            answer["error"]["code"] == -32603 && answer["error"]["message"] == "Internal error"
        }
        Tongue::Envelope => answer["ok"] == false && answer["error"]["code"] == "NOT_FOUND",
    };
    assert!(is_refusal, "{}: {answer}", tongue.name());
}

/// What a program printed, as `answer` tells it.
#[track_caller]
fn printed(tongue: Tongue, answer: &Value) -> &str {
    let at = match tongue {
        Tongue::Mcp => "/result/structuredContent/stdout",
        Tongue::Zyra | Tongue::Mira => "/result/stdout",
        Tongue::Workstation => "/result/content",
        Tongue::Envelope => "/data/result/stdout",
    };
    let text = answer.pointer(at).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("{}: {answer}", tongue.name()))
}

/// Synesthetic has no files and no programs: its own listing, read, and refusals.
#[track_caller]
fn ask_synesthetic(house: &House) {
    let listed = house.synesthetic("list_schemas", json!({}));
    assert_eq!(listed["result"]["schemas"][0]["name"], "tone", "{listed}");
    let read = house.synesthetic("get_schema", json!({ "name": "tone" }));
    assert_eq!(read["result"]["schema"], json!({ "type": "object" }), "{read}");
    let invalid = house.synesthetic("validate_asset", json!({ "schema": "tone", "asset": 1 }));
    assert_eq!(invalid["result"]["reason"], "validation_failed", "{invalid}");
    let away = house.synesthetic("populate_backend", json!({ "asset": {} }));
    assert_eq!(away["result"]["reason"], "unsupported", "{away}");
}

#[test]
fn x_02_what_is_written_by_one_contract_is_read_by_every_other() {
    let workspace = Workspace::new();
    let house = House::over(&workspace, |launch| launch);
    let write = json!({ "path": "by-mira.txt", "content": "from Mira\n" });
    let written = house.call(Tongue::Mira, "files.write", write);
    assert_eq!(written["result"]["created"], true, "{written}");
    let read = json!({ "path": "by-mira.txt" });
    let answer = house.call(Tongue::Workstation, "files.read", read);
    assert_eq!(answer["result"]["content"], "from Mira\n", "{answer}");
    house.server().outcomes(2);
    let records = house.server().records();
    let told = |at: usize| (records[at]["dialect"].clone(), records[at]["tool"].clone());
    assert_eq!(told(0), (json!("mira"), json!("files.write")));
    assert_eq!(told(1), (json!("workstation"), json!("files.read")));

    for writer in Tongue::ALL {
        let path = format!("by-{}.txt", writer.name());
        let text = format!("{writer:?}\n");
        let mut arguments = json!({ "path": path });
        arguments["content"] = json!(text);
        if writer != Tongue::Workstation {
            arguments["overwrite"] = json!(true);
        }
        house.call(writer, "files.write", arguments);
        assert_eq!(workspace.read(&path), text);
        for reader in Tongue::ALL {
            let answer = house.call(reader, "files.read", json!({ "path": path }));
            assert_eq!(reader.text(&answer), text, "{} by {}", writer.name(), reader.name());
        }
    }
}
