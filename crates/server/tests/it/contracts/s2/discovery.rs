//! Which tools there are, and how they are told.

use serde_json::{Value, json};

use super::desk::{ALONE, Desk, TOOLS, over_all, own_address};
use crate::support::{Connection, Launch, Post, Workspace, initialize};

#[test]
fn s2_01_03_16_17_25_tools_are_told_to_whoever_asks_first_on_every_wire_alike() {
    let workspace = Workspace::new();
    let listings = std::cell::RefCell::new(Vec::new());
    over_all(&workspace, |desk| {
        // The first message, with no handshake.
        let tools = desk.tools();
        let again = desk.ask("tools/list", json!({}));
        assert_eq!(again["result"], json!({ "tools": tools }));
        // A server remembers no call of the tools it lists, and is asked nothing before them.
        listings.borrow_mut().push(tools);
    });
    let listings = listings.into_inner();
    assert!(listings.len() == 4 && listings.iter().all(|one| *one == listings[0]));
}

#[test]
fn s2_03_tools_are_told_after_a_handshake_too() {
    let workspace = Workspace::new();
    let mut desk = Desk::stdio(Launch::over(&workspace));
    let before = desk.tools();
    desk.exchange(&initialize(100, "2025-06-18"));
    assert_eq!(desk.tools(), before);
}

#[test]
fn s2_11_13_35_each_tool_has_a_name_a_description_and_a_schema() {
    over_all(&Workspace::new(), |desk| {
        let tools = desk.tools();
        let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
        let names: Vec<_> = tools.iter().map(name).collect();
        assert_eq!(names[..TOOLS.len()], TOOLS);
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| !name.starts_with("files/")), "{names:?}");
        for more in ["filesystem/edit", "exec/run", "git/show", "ci/detect"] {
            assert!(names.contains(&more.to_owned()), "{more} is not among {names:?}");
        }
        for tool in &tools {
            let keys: Vec<&String> = tool.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["name", "description", "inputSchema"], "{tool}");
            assert!(tool["description"].as_str().is_some_and(|about| !about.is_empty()), "{tool}");
            let schema = &tool["inputSchema"];
            assert_eq!(schema["type"], "object", "{tool}");
            assert!(schema["properties"].is_object() && schema["required"].is_array(), "{tool}");
            jsonschema::draft202012::meta::validate(schema).unwrap_or_else(|err| {
                panic!("the schema of {} is none of 2020-12: {err}", tool["name"])
            });
        }
        let read = &tools[0]["inputSchema"];
        assert_eq!(read["properties"]["path"]["type"], "string");
        assert_eq!(read["required"], json!(["path"]));
    });
}

#[test]
fn s2_02_the_handshake_settles_on_a_revision_that_both_know() {
    for (wanted, settled) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("1.0", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        over_all(&Workspace::new(), |desk| {
            let client = json!({ "name": "it", "version": "1" });
            let answer = desk.ask(
                "initialize",
                json!({ "protocolVersion": wanted, "capabilities": {}, "clientInfo": client }),
            );
            let result = &answer["result"];
            assert_eq!(result["protocolVersion"], settled, "{answer}");
            assert!(result["capabilities"]["tools"].is_object(), "{answer}");
            assert!(result["serverInfo"]["version"].is_string(), "{answer}");
        });
    }
}

#[test]
fn s2_44_without_zyra_health_is_told_in_the_contracts_words_at_the_address_of_all() {
    let workspace = Workspace::new();
    let served = Launch::over(&workspace).set("server_dialects", "mcp,workstation").served();
    let health = served.send(&Post::bare("GET", "/health"));
    assert_eq!(health.status, 200, "{health:?}");
    assert_eq!(health.json(), json!({ "status": "healthy", "server": "toolgate" }));
}

#[test]
fn s2_44_tools_and_health_are_looked_at_with_get() {
    let workspace = Workspace::new().file("toolgate.toml", ALONE);
    let served = Launch::over(&workspace).served();
    let alone = own_address(&served);
    for addr in [served.addr, alone] {
        let get = |path: &str| {
            let mut connection = Connection::to(addr);
            connection.post(&Post::bare("GET", path));
            connection.response()
        };
        let health = get("/health");
        assert_eq!(health.status, 200, "{health:?}");
        // Beside Zyra, whose path it is too, it is Zyra's.
        let told = health.json();
        assert!(told["status"].is_string(), "{told}");
        if addr == alone {
            assert_eq!(told, json!({ "status": "healthy", "server": "toolgate" }));
        }
        let tools = get("/mcp/tools");
        assert_eq!(tools.status, 200, "{tools:?}");
        let tools = tools.json();
        let listed = tools["tools"].as_array().unwrap();
        assert_eq!(tools.as_object().unwrap().len(), 1);
        for (tool, name) in listed.iter().zip(TOOLS) {
            let keys: Vec<&String> = tool.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["name", "description"], "{tool}");
            assert_eq!(tool["name"], name);
        }
        assert!(listed.len() > TOOLS.len());
    }
}
