//! Tests of the number of tokens of the tool list and of results, and of how results are sent.

use serde_json::{Value, json};

use crate::support::{
    MODERN, REVISIONS, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both_tuned,
};

/// Maximum number of tokens of all listed tools, counting only names, descriptions and input
/// schemas.
const MODEL_TOKENS_MAX: usize = 5_000;
/// Maximum number of tokens of the complete answer that lists all tools.
const LIST_TOKENS_MAX: usize = 7_000;

/// Returns start options of a server that sends results as text, as by default.
fn with_texts(launch: ServerLaunchOptions) -> ServerLaunchOptions {
    launch.set("server_results", "text")
}

#[test]
fn the_list_of_all_tools_costs_a_model_at_most_5000_tokens() {
    let encoding = tiktoken_rs::cl100k_base().unwrap();
    let tokens = |value: &Value| encoding.encode_ordinary(&value.to_string()).len();
    for revision in REVISIONS {
        let launch =
            with_texts(ServerLaunchOptions::over(&TempWorkspace::new())).arg("--tools").arg("all");
        let mut client = TestMcpClient::stdio(launch, revision);
        let answer = client.ask("tools/list", json!({}));
        let tools = answer["result"]["tools"].as_array().unwrap();
        let visible = |tool: &Value| {
            let members = ["name", "description", "inputSchema"];
            let members = members.map(|name| (name.to_owned(), tool[name].clone()));
            Value::Object(members.into_iter().collect())
        };
        let model: usize = tools.iter().map(|tool| tokens(&visible(tool))).sum();
        assert!(model <= MODEL_TOKENS_MAX, "{revision}: {model} tokens");
        assert!(tokens(&answer) <= LIST_TOKENS_MAX, "{revision}: {} tokens", tokens(&answer));
    }
}

#[test]
fn listed_tools_have_plain_schemas_and_no_icons() {
    over_both_tuned(&TempWorkspace::new(), with_texts, |client| {
        let tools = client.tools();
        let listed = json!(tools).to_string();
        assert!(!listed.contains("\"null\""), "{listed}");
        for tool in &tools {
            assert!(tool.get("icons").is_none(), "{tool}");
            let description = tool["description"].as_str().unwrap();
            assert!(!tool["inputSchema"].to_string().contains("\\n"), "{tool}");
            assert!(!description.contains('\n') && !description.contains("  "), "{tool}");
        }
    });
}

#[test]
fn a_result_is_one_text_block_by_default() {
    let workspace = TempWorkspace::new().file("a.txt", "one\ntwo\n");
    over_both_tuned(&workspace, with_texts, |client| {
        assert!(client.tools().iter().all(|tool| tool.get("outputSchema").is_none()));
        let answer = client.call("files_read", json!({ "path": "a.txt", "end_line": 1 }));
        let result = &answer["result"];
        assert!(result.get("structuredContent").is_none(), "{answer}");
        let blocks = result["content"].as_array().unwrap();
        let text = blocks[0]["text"].as_str().unwrap();
        assert_eq!(blocks.len(), 1, "{answer}");
        assert!(text.starts_with("one\n[etag "), "{text}");
        assert!(text.ends_with("lines 1 to 1 of 2; continue with start_line: 2]"), "{text}");
    });
}

#[test]
fn a_request_names_the_form_of_its_result() {
    let workspace = TempWorkspace::new().file("a.txt", "one\n");
    over_both_tuned(&workspace, with_texts, |client| {
        let mut ask = |form: Value| {
            let arguments = json!({ "path": "a.txt" });
            let params = json!({ "name": "files_read", "arguments": arguments });
            let mut message = client.request("tools/call", params);
            message["params"]["_meta"]["io.toolgate/results"] = form;
            client.exchange(&message)
        };
        let both = ask(json!("both"));
        assert_eq!(both["result"]["structuredContent"]["content"], "one\n", "{both}");
        assert_eq!(both["result"]["content"][0]["text"], "one\n", "{both}");
        let structured = ask(json!("structured"));
        assert_eq!(structured["result"]["structuredContent"]["content"], "one\n", "{structured}");
        assert_eq!(structured["result"]["content"], json!([]), "{structured}");
        for invalid in [json!("json"), json!(true)] {
            assert_eq!(ask(invalid)["error"]["code"], -32602);
        }
    });
}

#[test]
fn structured_results_come_with_output_schemas() {
    for form in ["structured", "both"] {
        let launch = ServerLaunchOptions::over(&TempWorkspace::new()).set("server_results", form);
        let mut client = TestMcpClient::stdio(launch, MODERN);
        let tools = client.tools();
        let read = tools.iter().find(|tool| tool["name"] == "files_read").unwrap();
        assert_eq!(read["outputSchema"]["type"], "object", "{read}");
        let answer = client.call("files_list", json!({}));
        assert!(answer["result"]["structuredContent"]["entries"].is_array(), "{answer}");
    }
}
