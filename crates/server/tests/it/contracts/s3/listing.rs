//! Tests of `tools/list`: filters, pages, and the description of each tool.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use super::client::{MiraClient, MiraServer, dedicated_address, over_all};
use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest, binary,
};

#[track_caller]
fn names(listed: &Value) -> Vec<String> {
    let tools = listed["tools"].as_array().unwrap().iter();
    tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// Lists all tools that match `filter` in pages of `limit`. Returns the tools, and the number of
/// pages.
#[track_caller]
fn walk(mira: &mut MiraClient, limit: u64, filter: &Value) -> (Vec<Value>, usize) {
    let mut all = Vec::new();
    let mut cursor = Value::Null;
    let mut pages = 0;
    loop {
        let params = json!({ "limit": limit, "cursor": cursor, "filter": filter });
        let page = mira.get("tools/list", params);
        let tools = page["tools"].as_array().unwrap();
        assert!(tools.len() <= usize::try_from(limit).unwrap(), "{page}");
        all.extend(tools.clone());
        pages += 1;
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            return (all, pages);
        }
        assert!(cursor.is_string(), "{page}");
    }
}

#[test]
fn s3_09_26_27_74_paging_lists_every_tool_once() {
    over_all(&TempWorkspace::new(), |mira| {
        let full = mira.get("tools/list", json!({ "limit": 200 }));
        assert!(full["next_cursor"].is_null(), "{}", full["next_cursor"]);
        let full = full["tools"].as_array().unwrap().clone();
        let distinct: BTreeSet<_> = full.iter().map(|tool| tool["name"].to_string()).collect();
        assert!(full.len() > 10 && distinct.len() == full.len(), "{distinct:?}");
        for limit in [1, 7] {
            let (walked, pages) = walk(mira, limit, &json!({}));
            assert_eq!(walked, full, "in pages of {limit}");
            assert_eq!(pages, full.len().div_ceil(usize::try_from(limit).unwrap()));
        }
    });
}

#[test]
fn s3_27_more_tools_than_the_server_lists_at_once_are_each_listed_once() {
    // The server lists 200 tools at once, and these come first.
    let workspace = TempWorkspace::with_many_tools(210);
    let mut mira = MiraClient::stdio(ServerLaunchOptions::over(&workspace));
    for (filter, least) in [
        (json!({}), 220),
        (json!({ "tags": ["exec"] }), 2),
        (json!({ "names": ["files/write"] }), 1),
    ] {
        let (whole, _) = walk(&mut mira, 200, &filter);
        let distinct: BTreeSet<_> = whole.iter().map(|tool| tool["name"].to_string()).collect();
        assert!(whole.len() >= least && distinct.len() == whole.len(), "{filter}: {distinct:?}");
        assert_eq!(walk(&mut mira, 50, &filter).0, whole, "{filter}");
    }
}

#[test]
fn s3_14_24_25_filters_combine_and_out_of_range_values_are_refused() {
    over_all(&TempWorkspace::new(), |mira| {
        let mut filtered =
            |filter: Value| names(&mira.get("tools/list", json!({ "filter": filter })));
        assert_eq!(filtered(json!({ "names": ["files/read"] })), ["files/read"]);
        assert_eq!(filtered(json!({ "names": ["exec/run", "files/read", "no/such"] })).len(), 2);
        assert_eq!(filtered(json!({ "names": ["files.read", "files_read"] })), [""; 0]);
        let fs = filtered(json!({ "tags": ["fs"] }));
        assert!(fs.len() > 5 && fs.iter().all(|name| name.starts_with("files/")), "{fs:?}");
        let several = filtered(json!({ "tags": ["fs", "exec"] }));
        assert!(several.len() > fs.len(), "{several:?}");
        let both = json!({ "tags": ["fs"], "names": ["exec/run", "files/write"], "enabled": true });
        assert_eq!(filtered(both), ["files/write"]);
        assert_eq!(filtered(json!({ "enabled": true })), filtered(json!({})));
        assert_eq!(filtered(json!({ "enabled": false })), [""; 0]);
        assert_eq!(filtered(json!({ "names": [] })), [""; 0]);
        for (field, params) in [
            ("filter.name", json!({ "filter": { "name": "files/read" } })),
            ("filter.names", json!({ "filter": { "names": "files/read" } })),
            ("filter.names.0", json!({ "filter": { "names": [1] } })),
            ("filter.tags", json!({ "filter": { "tags": null } })),
            ("filter.enabled", json!({ "filter": { "enabled": "yes" } })),
            ("filter", json!({ "filter": null })),
            ("limit", json!({ "limit": 0 })),
            ("limit", json!({ "limit": 201 })),
            ("limit", json!({ "limit": 1.5 })),
            ("limit", json!({ "limit": null })),
            ("cursor", json!({ "cursor": 1 })),
            ("offset", json!({ "offset": 1 })),
        ] {
            mira.expect_refusal_of(-32602, field, "tools/list", params);
        }
        for garbage in ["", "files/read", "bm90IG91cnM", "\u{1f600}", "////"] {
            mira.expect_refusal_of(1003, "cursor", "tools/list", json!({ "cursor": garbage }));
        }
        for fine in [json!({ "limit": 1 }), json!({ "limit": 200, "cursor": null }), json!({})] {
            mira.get("tools/list", fine);
        }
    });
}

#[test]
fn s3_25_a_page_has_fifty_tools_by_default() {
    let mut declared = String::new();
    for number in 0..60 {
        declared += &format!(
            "[command.\"many.t{number:02}\"]\nabout = \"Says {number}\"\nprogram = \"echo\"\nargv = [\"{number}\"]\n"
        );
    }
    let workspace = TempWorkspace::new().file("toolgate.toml", declared);
    let mut mira = MiraClient::stdio(ServerLaunchOptions::over(&workspace));
    let mut page = mira.get("tools/list", Value::Null);
    let mut all = names(&page);
    assert_eq!(all.len(), 50);
    while page["next_cursor"].is_string() {
        page = mira.get("tools/list", json!({ "cursor": page["next_cursor"] }));
        let more = names(&page);
        assert!(more.len() == 50 || page["next_cursor"].is_null(), "{more:?}");
        all.extend(more);
    }
    assert_eq!(all.iter().filter(|name| name.starts_with("many/")).count(), 60, "{all:?}");
    // Each is also a method.
    let result = mira.get("many/t07", json!({}));
    assert_eq!(result["stdout"], "7\n", "{result}");
}

#[test]
fn s3_26_28_29_30_each_tool_is_listed_with_the_contracts_keys() {
    over_all(&TempWorkspace::new(), |mira| {
        // Every result is validated against the seed's schema, which forbids other keys.
        let listed = mira.get("tools/list", json!({ "limit": 200 }));
        for tool in listed["tools"].as_array().unwrap() {
            for key in ["name", "title", "description", "version"] {
                assert!(tool[key].as_str().is_some_and(|text| !text.is_empty()), "{tool}");
            }
            assert_eq!(tool["input_schema"]["type"], "object", "{tool}");
            assert_eq!((&tool["enabled"], &tool["rate_limit"]), (&json!(true), &Value::Null));
            assert_eq!(tool["tags"].as_array().unwrap().len(), 1, "{tool}");
            let (server, tag) = (&tool["server"], &tool["tags"][0]);
            assert_eq!(&server["id"], tag, "{tool}");
            if mira.name() == "stdio" {
                assert_eq!(
                    (&server["transport"], &server["endpoint"]),
                    (&json!("stdio"), &Value::Null)
                );
            }
            if !mira.is_connected() {
                assert_eq!(server["transport"], "http", "{tool}");
                let endpoint = server["endpoint"].as_str().unwrap();
                assert!(endpoint.starts_with("http://127.0.0.1:"), "{endpoint}");
                let path = if mira.name() == "/" { "" } else { mira.name() };
                assert!(endpoint.ends_with(path) && !endpoint.ends_with('/'), "{endpoint}");
            }
        }
        let methods = names(&listed);
        for method in ["files/read", "files/write", "exec/run"] {
            assert!(methods.iter().any(|name| name == method), "{methods:?}");
        }
    });
}

#[test]
fn s3_31_the_contracts_example_is_listed_with_the_endpoint_in_miras_settings() {
    // The settings in the guide are valid and have the port of Mira's client.
    let guide = include_str!("../../../../../../docs/guide/mira.md");
    let (_, rest) = guide.split_once("```toml runnable\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    let workspace = TempWorkspace::new().file("toolgate.toml", shown);
    let mut check = Command::new(binary());
    let checked = check
        .args(["check-config", "--config", "toolgate.toml"])
        .current_dir(workspace.root())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let listen = "[[listen]]\naddr = \"127.0.0.1:3001\"\ndialect = \"mira\"\n";
    assert!(printed.contains(listen), "{printed}");
    // With any free port, the endpoint has the host name that the caller used.
    let any = shown.replace(":3001", ":0");
    workspace.put("toolgate.toml", any);
    let served = ServerLaunchOptions::over(&workspace).served();
    let root = dedicated_address(&served);
    assert_ne!(root.port(), served.addr.port());
    let endpoint = format!("http://localhost:{}", root.port());
    assert_eq!(
        example(root, &format!("localhost:{}", root.port()))["server"]["endpoint"],
        endpoint
    );
    // A client with the endpoint `http://localhost:3001` in its settings sends that host.
    let allow = |launch: ServerLaunchOptions| launch.set("server_allowed_hosts", "localhost:3001");
    let server = MiraServer::with(&TempWorkspace::new(), "", allow);
    let read = example(server.root, "localhost:3001");
    assert_eq!((&read["title"], &read["tags"]), (&json!("Read File"), &json!(["fs"])));
    assert_eq!((&read["version"], &read["auth_required"]), (&json!("1.0.0"), &json!(false)));
    let expected_server =
        json!({ "id": "fs", "transport": "http", "endpoint": "http://localhost:3001" });
    assert_eq!(read["server"], expected_server);
    // Its input and output schemas are those of the contract.
    let schemas = [
        (
            "input_schema",
            include_str!("../../../../../dialects/src/mira/files_read.params.schema.json"),
        ),
        (
            "output_schema",
            include_str!("../../../../../dialects/src/mira/files_read.result.schema.json"),
        ),
    ];
    for (key, schema) in schemas {
        assert_eq!(read[key], serde_json::from_str::<Value>(schema).unwrap(), "{key}");
    }
}

/// Sends the contract's example request with the HTTP header `Host: HOST`, where HOST is `host`.
/// Returns the entry of the tool `files/read`.
#[track_caller]
fn example(addr: SocketAddr, host: &str) -> Value {
    let example =
        json!({ "jsonrpc": "2.0", "method": "tools/list", "params": {"limit": 50}, "id": 1 });
    let mut connection = TestHttpConnection::to(addr);
    let post = TestHttpRequest::bytes(example.to_string().as_bytes()).to("/");
    connection.post(&post.with("host", host));
    let answer = connection.response().json();
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().find(|tool| tool["name"] == "files/read").unwrap().clone()
}
