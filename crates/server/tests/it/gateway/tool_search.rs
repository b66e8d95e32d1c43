//! Tests of tool lists that are shortened for clients, and of the tool search that clients use
//! instead of the full list.

use std::fs;
use std::time::SystemTime;

use serde_json::json;

use super::{launch, names, stdio, text, with_odd};
use crate::support::{
    MODERN, TestClientTransport, TestHttpRequest, TestMcpClient, initialize, legacy, notification,
    wait_until,
};

const FOLDED: [&str; 3] = ["tools_search", "tools_call", "tools_read"];

#[test]
fn a_folded_list_leads_to_all_tools_in_every_era() {
    let workspace = with_odd("\n[discovery]\nmode = \"on\"\n");
    for mut client in [stdio(&workspace), TestMcpClient::http(launch(&workspace), "2025-06-18")] {
        let listed = client.tools();
        let cost = listed.iter().map(|tool| {
            let shown = [&tool["name"], &tool["description"], &tool["inputSchema"]];
            shown.iter().map(|part| part.to_string().len()).sum::<usize>()
        });
        // A token has 3.9 characters.
        assert!(cost.sum::<usize>() < 500 * 39 / 10, "{listed:?}");
        assert_eq!(names(&mut client), FOLDED);
        let found = client.call("tools_search", json!({ "queries": ["echo a message"] }));
        assert!(text(&found).starts_with("  odd_echo("), "{found}");
        let input = json!({ "name": "odd_echo", "arguments": { "message": "hello" } });
        assert_eq!(text(&client.call("tools_call", input)), "hello");
        let input = json!({ "name": "files_tree", "arguments": {} });
        assert_eq!(client.call("tools_read", input)["result"]["isError"], json!(false));
        let refused = json!({ "name": "odd_echo", "arguments": { "message": "hello" } });
        let refused = client.call("tools_read", refused);
        assert!(refused.to_string().contains("does more than read"), "{refused}");
        assert_eq!(text(&client.call("odd_echo", json!({ "message": "direct" }))), "direct");
        assert_eq!(names(&mut client), FOLDED);
    }
}

#[test]
fn a_session_receives_the_arguments_of_a_tool_once() {
    let workspace = with_odd("\n[discovery]\nmode = \"on\"\n");
    let found = |client: &mut TestMcpClient, query: &str| {
        text(&client.call("tools_search", json!({ "queries": [query] }))).to_owned()
    };
    let echo = "odd_echo(message?: str)";
    for mut client in [stdio(&workspace), TestMcpClient::http(launch(&workspace), "2025-06-18")] {
        assert!(found(&mut client, "echo a message").contains(echo));
        let later = found(&mut client, "say a message back");
        assert!(later.contains("  odd_echo  changes\n") && !later.contains(echo), "{later}");
        assert!(found(&mut client, "echo a message").contains(echo));
        let wrong = json!({ "name": "odd_echo", "arguments": { "message": [] } });
        let refused = client.call("tools_call", wrong.clone());
        assert!(text(&refused).contains("odd_echo takes: {"), "{refused}");
        let refused = client.call("tools_call", wrong);
        assert!(text(&refused).contains("the schema was sent before"), "{refused}");
    }
    // Requests without a session are answered in full.
    let mut client = TestMcpClient::http(launch(&workspace), MODERN);
    for query in ["echo a message", "say a message back"] {
        assert!(found(&mut client, query).contains(echo), "{query}");
    }
}

#[test]
fn a_result_of_a_found_tool_shows_16_kib_at_most() {
    let workspace = with_odd("\n[discovery]\nmode = \"on\"\n");
    let mut client = stdio(&workspace);
    for (tool, bytes, is_cut) in [
        ("tools_call", 16 << 10, false),
        ("tools_call", (16 << 10) + 1, true),
        ("odd_say", (16 << 10) + 1, false),
    ] {
        let said = json!({ "content": [{ "type": "text", "text": "x".repeat(bytes) }] });
        let input = match tool {
            "tools_call" => json!({ "name": "odd_say", "arguments": said }),
            _ => said,
        };
        let answer = client.call(tool, input);
        assert_eq!(text(&answer).len() < bytes, is_cut, "{tool} {bytes}");
        let note = "If results_read is not in your list, call it by tools_call.";
        assert_eq!(answer.to_string().contains(note), is_cut, "{answer}");
    }
}

#[test]
fn the_list_of_a_session_is_equal_after_a_hundred_searches_and_calls() {
    let workspace = with_odd("\n[discovery]\nmode = \"on\"\nfavourites = [\"odd.pid\"]\n");
    for mut client in [stdio(&workspace), TestMcpClient::http(launch(&workspace), "2025-06-18")] {
        let before = client.tools();
        for at in 0..100 {
            let query = json!({ "queries": [format!("echo message {at}")] });
            assert!(text(&client.call("tools_search", query)).contains("odd_echo"));
            let message = format!("hello {at}");
            let input = json!({ "name": "odd_echo", "arguments": { "message": message } });
            assert_eq!(text(&client.call("tools_call", input)), message);
        }
        client.call("odd_grow", json!({}));
        wait_until("it is found", || {
            let found = client.call("tools_search", json!({ "names": ["odd_grown"] }));
            !text(&found).contains("no tool is named")
        });
        assert_eq!(client.tools(), before);
    }
}

#[test]
fn a_folded_list_without_a_session_may_be_cached_until_the_end_of_the_day() {
    const DAY_MS: u128 = 86_400_000;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let mut client = stdio(&with_odd("\n[discovery]\nmode = \"on\"\n"));
    wait_until("the list is answered within one day", || {
        let before = now();
        let answer = client.ask("tools/list", json!({}));
        let after = now();
        let ttl = u128::from(answer["result"]["ttlMs"].as_u64().unwrap());
        // It counts whole seconds.
        let expected = DAY_MS - after % DAY_MS..=DAY_MS - before % DAY_MS + 1000;
        let is_one_day = before / DAY_MS == after / DAY_MS;
        assert!(!is_one_day || expected.contains(&ttl), "{ttl} {expected:?}");
        is_one_day
    });
}

#[test]
fn a_short_list_stays_whole_by_default() {
    let mut client = stdio(&with_odd(""));
    let listed = names(&mut client);
    assert!(listed.contains(&"odd_echo".to_owned()), "{listed:?}");
    assert!(FOLDED.iter().all(|name| !listed.contains(&(*name).to_owned())), "{listed:?}");
}

#[test]
fn a_client_with_a_search_of_its_own_gets_the_whole_list() {
    let settings = "\n[discovery]\nbudget_tokens = 0\nfavourites = [\"odd.echo\"]\n";
    let workspace = with_odd(settings);
    for (client, is_folded) in [("claude-code", false), ("another", true)] {
        let mut server = launch(&workspace).stdio();
        let mut hello = initialize("hello", "2025-11-25");
        hello["params"]["clientInfo"]["name"] = json!(client);
        server.ask(&hello);
        server.send(&notification("notifications/initialized", json!({})));
        let answer = server.ask(&legacy(1, "tools/list", json!({})));
        let tools = answer["result"]["tools"].as_array().expect("a list");
        let has_search = tools.iter().any(|tool| tool["name"] == "tools_search");
        assert_eq!(has_search, is_folded, "{client}");
        let echo = tools.iter().find(|tool| tool["name"] == "odd_echo").expect("a favourite");
        assert_eq!(echo["_meta"]["anthropic/alwaysLoad"], json!(true), "{client}");
    }
}

#[test]
fn a_client_with_a_search_of_its_own_gets_hints_from_remembered_queries() {
    let workspace = with_odd("\n[discovery]\nmemory = \"caller\"\n");
    let mut client = TestMcpClient::http(launch(&workspace), "2025-06-18");
    let hints = |client: &mut TestMcpClient| {
        let tools = client.tools();
        let hints = tools.iter().filter_map(|tool| {
            let hint = tool["_meta"]["anthropic/searchHint"].as_str()?;
            Some(format!("{} {hint}", tool["name"].as_str()?))
        });
        hints.collect::<Vec<_>>()
    };
    client.call("tools_search", json!({ "queries": ["echo a message"] }));
    let input = json!({ "name": "odd_echo", "arguments": { "message": "hello" } });
    assert_eq!(text(&client.call("tools_call", input)), "hello");
    open_session(&mut client, "claude-code");
    assert_eq!(hints(&mut client), ["odd_echo echo a message"]);
    open_session(&mut client, "another");
    assert_eq!(hints(&mut client), Vec::<String>::new());
}

/// Lets `client` continue in a new session of its server, in which it calls itself `name`.
fn open_session(client: &mut TestMcpClient, name: &str) {
    let TestClientTransport::Http(served) = &client.wire else { panic!("a session needs HTTP") };
    let mut hello = initialize("hello", client.revision);
    hello["params"]["clientInfo"]["name"] = json!(name);
    let response = served.send(&TestHttpRequest::mcp(&hello));
    client.session = response.header("mcp-session-id").map(str::to_owned);
    let response = client.response(&notification("notifications/initialized", json!({})));
    assert_eq!(response.status, 202, "{response:?}");
}

#[test]
fn a_list_near_its_budget_does_not_change_its_form_from_session_to_session() {
    let workspace = with_odd("\n[discovery]\nbudget_tokens = 14000\n");
    let mut client = TestMcpClient::http(launch(&workspace), "2025-06-18");
    // A token has 3.9 characters. The other tools of the upstream have fewer than 3,000 tokens. A
    // description has at most 64 KiB.
    for (version, tokens, is_folded) in
        [(1, 10_500, false), (2, 16_000, true), (3, 10_500, true), (4, 3_000, false)]
    {
        let marker = format!("Version {version}.");
        let description = format!("{marker} {}", "a".repeat(tokens * 39 / 10));
        fs::write(workspace.path("odd.log.says"), description).unwrap();
        client.call("odd_grow", json!({}));
        wait_until(&marker, || {
            let found = client.call("tools_search", json!({ "names": ["odd_echo"] }));
            text(&found).contains(&marker)
        });
        open_session(&mut client, "another");
        let listed = names(&mut client);
        assert_eq!(listed.contains(&FOLDED[0].to_owned()), is_folded, "{marker} {listed:?}");
    }
}
