//! Tests of the list of workstation tools.

use serde_json::{Value, json};

use super::client::{ALONE, TOOLS, WorkstationClient, over_all, own_address};
use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest, initialize,
};

#[test]
fn s2_01_03_16_17_25_tools_can_be_listed_first_and_alike_on_every_transport() {
    let workspace = TempWorkspace::new();
    let listings = std::cell::RefCell::new(Vec::new());
    over_all(&workspace, |client| {
        // The first message, with no handshake.
        let tools = client.tools();
        let again = client.ask("tools/list", json!({}));
        assert_eq!(again["result"], json!({ "tools": tools }));
        // Listing needs no earlier request and keeps no state.
        listings.borrow_mut().push(tools);
    });
    let listings = listings.into_inner();
    assert!(listings.len() == 4 && listings.iter().all(|one| *one == listings[0]));
}

#[test]
fn s2_03_tools_are_listed_after_a_handshake_too() {
    let workspace = TempWorkspace::new();
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    let before = client.tools();
    client.exchange(&initialize(100, "2025-06-18"));
    assert_eq!(client.tools(), before);
}

#[test]
fn s2_11_13_35_each_tool_has_a_name_a_description_and_a_schema() {
    over_all(&TempWorkspace::new(), |client| {
        let tools = client.tools();
        let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
        let names: Vec<_> = tools.iter().map(name).collect();
        assert_eq!(names[..TOOLS.len()], TOOLS);
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| !name.starts_with("files/")), "{names:?}");
        for more in ["filesystem/edit", "exec/run", "git/show", "ci/detect"] {
            assert!(names.contains(&more.to_owned()), "{more} is missing from {names:?}");
        }
        for tool in &tools {
            let keys: Vec<&String> = tool.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["name", "description", "inputSchema"], "{tool}");
            assert!(tool["description"].as_str().is_some_and(|about| !about.is_empty()), "{tool}");
            let schema = &tool["inputSchema"];
            assert_eq!(schema["type"], "object", "{tool}");
            assert!(schema["properties"].is_object() && schema["required"].is_array(), "{tool}");
            jsonschema::draft202012::meta::validate(schema).unwrap_or_else(|err| {
                panic!("the schema of {} is not valid in 2020-12: {err}", tool["name"])
            });
        }
        let read = &tools[0]["inputSchema"];
        assert_eq!(read["properties"]["path"]["type"], "string");
        assert_eq!(read["required"], json!(["path"]));
    });
}

#[test]
fn s2_02_the_handshake_selects_a_revision_that_both_support() {
    for (wanted, selected) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("1.0", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        over_all(&TempWorkspace::new(), |client| {
            let client_info = json!({ "name": "it", "version": "1" });
            let answer = client.ask(
                "initialize",
                json!({ "protocolVersion": wanted, "capabilities": {}, "clientInfo": client_info }),
            );
            let result = &answer["result"];
            assert_eq!(result["protocolVersion"], selected, "{answer}");
            assert!(result["capabilities"]["tools"].is_object(), "{answer}");
            assert!(result["serverInfo"]["version"].is_string(), "{answer}");
        });
    }
}

#[test]
fn s2_44_health_has_the_contracts_form_on_the_shared_listener_without_zyra() {
    let workspace = TempWorkspace::new();
    let served =
        ServerLaunchOptions::over(&workspace).set("server_dialects", "mcp,workstation").served();
    let health = served.send(&TestHttpRequest::bare("GET", "/health"));
    assert_eq!(health.status, 200, "{health:?}");
    assert_eq!(health.json(), json!({ "status": "healthy", "server": "toolgate" }));
}

#[test]
fn s2_44_tools_and_health_are_readable_with_get() {
    let workspace = TempWorkspace::new().file("toolgate.toml", ALONE);
    let served = ServerLaunchOptions::over(&workspace).served();
    let alone = own_address(&served);
    for addr in [served.addr, alone] {
        let get = |path: &str| {
            let mut connection = TestHttpConnection::to(addr);
            connection.post(&TestHttpRequest::bare("GET", path));
            connection.response()
        };
        let health = get("/health");
        assert_eq!(health.status, 200, "{health:?}");
        // On the shared listener Zyra has the same path and takes precedence.
        let body = health.json();
        assert!(body["status"].is_string(), "{body}");
        if addr == alone {
            assert_eq!(body, json!({ "status": "healthy", "server": "toolgate" }));
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
