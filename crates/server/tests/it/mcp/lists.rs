//! Tests of lists, their pages and their caching (rows TL, PG and CA of the MCP checklist).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{code, in_each, sessions, uri};
use crate::support::{
    MODERN, REVISIONS, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient,
    over_both, over_both_with, text,
};

/// Methods that list items, each with the key under which a result has the items.
const LISTS: [(&str, &str); 4] = [
    ("tools/list", "tools"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
    ("prompts/list", "prompts"),
];

/// Requests all pages of the list `method`, and returns their answers.
#[track_caller]
fn pages(client: &mut TestMcpClient, method: &str) -> Vec<Value> {
    let mut pages = Vec::new();
    let mut params = json!({});
    for _ in 0..100 {
        let page = client.ask(method, params.clone());
        assert!(page["result"].is_object(), "{method}: {page}");
        pages.push(page["result"].clone());
        match pages.last().unwrap().get("nextCursor") {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => return pages,
        }
    }
    panic!("{method} has no end");
}

fn items(pages: &[Value], member: &str) -> Vec<Value> {
    pages.iter().flat_map(|page| page[member].as_array().unwrap().clone()).collect()
}

fn many_files() -> TempWorkspace {
    (0..7).fold(TempWorkspace::new(), |workspace, n| workspace.file(&format!("d/{n}.txt"), "x"))
}

/// Number of items in a page of a list.
const PAGE: usize = 200;

/// Returns a workspace with so many tools, files and prompts that each list has two pages.
fn paged() -> TempWorkspace {
    let workspace = TempWorkspace::with_many_tools(PAGE);
    for n in 0..PAGE + 10 {
        workspace.put(&format!("d/{n:03}.txt"), "x");
        let prompt = format!("---\ndescription: Says {n}.\n---\nSay {n}.\n");
        workspace.put(&format!(".toolgate/prompts/p{n:03}.md"), prompt);
    }
    workspace
}

#[test]
fn tl1_lists_are_the_same_on_every_transport_and_after_any_call() {
    let workspace = many_files();
    let mut seen: Vec<(String, Value)> = Vec::new();
    let mut look = |client: &mut TestMcpClient| {
        for (method, member) in LISTS {
            let all = json!(items(&pages(client, method), member));
            seen.push((format!("{}{method}", client.revision), all));
        }
    };
    for mut client in [
        TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN),
        TestMcpClient::http(ServerLaunchOptions::over(&workspace), MODERN),
    ] {
        look(&mut client);
        client.call("files_read", json!({ "path": "README.md" }));
        client.call("exec_run", json!({ "command": "true" }));
        client.ask("server/discover", json!({}));
        look(&mut client);
    }
    for (what, list) in &seen {
        // Jobs differ between servers, so `job://` is left out.
        let strip = |list: &Value| -> Vec<Value> {
            let all = list.as_array().unwrap().iter();
            all.filter(|one| !one["uri"].as_str().unwrap_or("").starts_with("job:"))
                .cloned()
                .collect()
        };
        let first = seen.iter().find(|(other, _)| other == what).unwrap();
        assert_eq!(strip(list), strip(&first.1), "{what}");
    }
}

#[test]
fn tl2_a_list_has_the_same_order_each_time_page_by_page() {
    let workspace = paged();
    let first: Vec<Vec<Value>> = {
        let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
        LISTS.map(|(method, member)| items(&pages(&mut client, method), member)).into()
    };
    over_both(&workspace, |client| {
        for ((method, member), first) in LISTS.iter().zip(&first) {
            let pages = pages(client, method);
            let sizes = pages.iter().map(|page| page[*member].as_array().unwrap().len());
            let sizes: Vec<_> = sizes.collect();
            // There are too few templates for pages.
            let is_paged = *method != "resources/templates/list";
            let (_, full) = sizes.split_last().unwrap();
            assert!(!is_paged || !full.is_empty(), "{method}: {sizes:?}");
            assert!(full.iter().all(|size| *size == PAGE), "{method}: {sizes:?}");
            let items = items(&pages, member);
            let distinct: HashSet<_> = items.iter().map(Value::to_string).collect();
            assert_eq!(distinct.len(), items.len(), "{method}");
            assert_eq!(items, *first, "{method}");
        }
    });
}

#[test]
fn tl4_tool_names_are_plain_and_unique() {
    over_both(&TempWorkspace::new(), |client| {
        let mut names = HashSet::new();
        for tool in client.tools() {
            let name = tool["name"].as_str().unwrap().to_owned();
            let is_plain = |one: char| one.is_ascii_alphanumeric() || "_-.".contains(one);
            assert!((1..=128).contains(&name.len()) && name.chars().all(is_plain), "{name}");
            assert!(names.insert(name), "twice: {tool}");
        }
    });
}

#[test]
fn tl6_every_input_schema_describes_an_object() {
    in_each(REVISIONS, &TempWorkspace::new(), |client| {
        for tool in client.tools() {
            assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        }
    });
}

#[test]
fn tl7_structured_content_is_repeated_in_the_text() {
    over_both(&TempWorkspace::new(), |client| {
        let answer = client.call("files_list", json!({}));
        let text_content = text(&answer);
        for entry in
            answer["result"]["structuredContent"]["entries"].as_array().into_iter().flatten()
        {
            let name = entry["path"].as_str().or(entry["name"].as_str()).unwrap();
            assert!(text_content.contains(name), "{name} is not in {text_content}");
        }
    });
}

#[test]
fn tl9_an_unknown_tool_is_a_protocol_error_and_a_failed_call_is_a_result() {
    in_each(REVISIONS, &TempWorkspace::new(), |client| {
        for params in [
            json!({ "name": "files_fly", "arguments": {} }),
            json!({ "name": "", "arguments": {} }),
            json!({ "name": "FILES_READ", "arguments": { "path": "README.md" } }),
            json!({ "name": 5, "arguments": {} }),
            json!({ "arguments": {} }),
            json!({ "name": "files_read", "arguments": [] }),
            json!({ "name": "files_read", "arguments": "path" }),
            json!({ "name": "files_read", "arguments": 5 }),
        ] {
            let message = client.request("tools/call", params.clone());
            let answer = match &client.wire {
                TestClientTransport::Http(served) => {
                    let post = client.post(&message);
                    // An invalid name has no header.
                    let post = match params["name"].as_str() {
                        Some("") | None => post.without("mcp-name").with("mcp-name", "none"),
                        Some(_) => post,
                    };
                    served.send(&post).message()
                }
                TestClientTransport::Stdio(_) => client.exchange(&message),
            };
            let mismatched = code(&answer) == -32020 && client.revision == MODERN;
            assert!(code(&answer) == -32602 || mismatched, "{params}: {answer}");
        }
        let refused = client.call("files_read", json!({ "path": "none" }));
        assert_eq!(refused["result"]["isError"], true, "{refused}");
    });
}

#[test]
fn tl9_missing_arguments_mean_an_empty_object() {
    in_each(REVISIONS, &TempWorkspace::new(), |client| {
        let answer = client.ask("tools/call", json!({ "name": "files_list" }));
        assert_eq!(answer["result"]["isError"], false, "{answer}");
    });
}

#[test]
fn tl11_no_tool_argument_is_mirrored_in_a_header() {
    over_both(&TempWorkspace::new(), |client| {
        for tool in client.tools() {
            let properties =
                tool["inputSchema"]["properties"].as_object().cloned().unwrap_or_default();
            for (name, schema) in properties {
                assert!(schema.get("x-mcp-header").is_none(), "{name} of {tool}");
            }
        }
    });
}

#[test]
fn pg1_an_invalid_cursor_is_refused_by_every_list() {
    let workspace = paged();
    for revision in [MODERN, "2025-11-25", "2024-11-05"] {
        let launch = || ServerLaunchOptions::over(&workspace);
        for mut client in
            [TestMcpClient::stdio(launch(), revision), TestMcpClient::http(launch(), revision)]
        {
            let first = client.ask("resources/list", json!({}));
            let real = first["result"]["nextCursor"].as_str().unwrap().to_owned();
            for (method, _) in LISTS {
                let mut bad =
                    vec![json!("none"), json!("AAAA"), json!(" "), json!(5), json!([]), json!({})];
                bad.push(json!(format!("{real}x")));
                bad.push(json!(real.to_uppercase()));
                if method != "resources/list" {
                    // A cursor of another list.
                    bad.push(json!(real));
                }
                for cursor in bad {
                    let answer = client.ask(method, json!({ "cursor": cursor }));
                    assert_eq!(code(&answer), -32602, "{revision} {method} {cursor}: {answer}");
                }
            }
            if revision == MODERN {
                let answer = client.ask("skills/list", json!({ "cursor": real }));
                assert_eq!(code(&answer), -32602, "a cursor of another list: {answer}");
            }
            // Some clients send null instead of no cursor.
            let none = client.request("resources/list", json!({ "cursor": null }));
            let answer = client.exchange_malformed(&none);
            assert_eq!(answer["result"]["nextCursor"], real.as_str(), "{answer}");
            // A cursor can be used repeatedly.
            for _ in 0..2 {
                let next = client.ask("resources/list", json!({ "cursor": real }));
                assert!(!next["result"]["resources"].as_array().unwrap().is_empty(), "{next}");
            }
        }
    }
}

#[test]
fn pg1_a_cursor_stays_valid_while_the_list_changes() {
    let workspace = paged();
    over_both(&workspace, |client| {
        // This file is on the first page.
        workspace.put(".first.txt", "x");
        let first = client.ask("resources/list", json!({}));
        let cursor = &first["result"]["nextCursor"];
        let names = |page: &Value| -> Vec<String> {
            let all = page["result"]["resources"].as_array().unwrap_or_else(|| panic!("{page}"));
            all.iter().map(|one| one["uri"].as_str().unwrap().to_owned()).collect()
        };
        let before = names(&client.ask("resources/list", json!({ "cursor": cursor })));
        std::fs::remove_file(workspace.path(".first.txt")).unwrap();
        let after = names(&client.ask("resources/list", json!({ "cursor": cursor })));
        assert!(!before.is_empty());
        assert!(before.iter().all(|uri| after.contains(uri)), "{before:?} then {after:?}");
    });
}

/// Returns the cache lifetime and scope of `result`.
fn cache_fields(result: &Value) -> (Option<u64>, Option<&str>) {
    (result["ttlMs"].as_u64(), result["cacheScope"].as_str())
}

#[test]
fn ca1_only_cacheable_results_have_a_ttl_and_a_scope() {
    let workspace = many_files();
    let read = json!({ "uri": uri(&workspace, "README.md") });
    over_both_with(&workspace, &[("tools_confirm", "files.write")], |client| {
        let mut cacheable = vec![("server/discover", json!({})), ("resources/read", read.clone())];
        cacheable.extend(LISTS.map(|(method, _)| (method, json!({}))));
        cacheable.push(("skills/list", json!({})));
        for (method, params) in cacheable {
            let answer = client.ask(method, params);
            let (ttl, scope) = cache_fields(&answer["result"]);
            assert!(
                ttl.is_some() && ["private", "public"].contains(&scope.unwrap_or("")),
                "{method}: {answer}"
            );
        }
        let write = json!({ "name": "files_write", "arguments": { "path": "a", "content": "" } });
        let mut confirmed = write;
        confirmed["_meta"] = super::meta_with_capabilities(json!({ "elicitation": {} }));
        let made = json!({ "name": "explain", "arguments": { "path": "README.md" } });
        let call = json!({ "name": "files_read", "arguments": { "path": "README.md" } });
        for (method, params) in
            [("tools/call", confirmed), ("tools/call", call), ("prompts/get", made)]
        {
            let answer = client.ask(method, params);
            assert!(answer["result"].is_object(), "{answer}");
            assert_eq!(cache_fields(&answer["result"]), (None, None), "{method}: {answer}");
        }
    });
}

#[test]
fn ca2_every_page_of_a_list_has_the_same_cache_scope() {
    let workspace = paged();
    over_both(&workspace, |client| {
        for (method, _) in LISTS {
            let pages = pages(client, method);
            let scopes: HashSet<_> =
                pages.iter().map(|page| page["cacheScope"].to_string()).collect();
            assert_eq!(scopes.len(), 1, "{method}: {scopes:?}");
        }
    });
}

#[test]
fn ca3_results_specific_to_a_caller_are_never_public() {
    let workspace = many_files();
    let read = json!({ "uri": uri(&workspace, "README.md") });
    over_both(&workspace, |client| {
        for (method, params) in [("resources/list", json!({})), ("resources/read", read.clone())] {
            let answer = client.ask(method, params);
            assert_eq!(answer["result"]["cacheScope"], "private", "{method}: {answer}");
        }
    });
    in_each(sessions(), &workspace, |client| {
        assert!(client.ask("tools/list", json!({}))["result"].get("cacheScope").is_none());
    });
}
