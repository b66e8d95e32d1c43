//! Tests of the `docs` tools with a running server: loading, rendering and finding documents.

use serde_json::json;

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both, refusal, structured,
};

/// SHA-256 of `TempWorkspace::README`, from `sha256sum`.
const README_SHA256: &str = "d07c1ea9be6a9c56e030345c78292850171ac42a1e087e8794f47de7d811fe02";

#[test]
fn documents_are_loaded_rendered_and_found() {
    let workspace = TempWorkspace::new()
        .file(
            "docs/walk.md",
            "---\ntitle: A walk\nby: { name: Ada }\n---\n\n# Walk\n\nMoss and fern.\n",
        )
        .file("docs/walk.json", "{\"season\":\"spring\"}");
    over_both(&workspace, |client| {
        let loaded = client.call("docs_load_fetch", json!({ "path": "README.md" }));
        let document = json!({ "path": "README.md", "content": TempWorkspace::README,
            "sha256": README_SHA256 });
        let bytes = TempWorkspace::README.len();
        let expected = json!({ "document": document, "metadata": {}, "stats": { "bytes": bytes } });
        assert_eq!(structured(&loaded), &expected);

        let walk = json!({ "path": "docs/walk.md" });
        let answer = client.call("docs_load_fetch", walk);
        let walk = structured(&answer);
        assert_eq!(walk["metadata"], json!({ "title": "A walk", "by": { "name": "Ada" } }));
        let with_metadata = json!({ "path": "docs/walk.md", "metadataPath": "docs/walk.json" });
        let answer = client.call("docs_load_fetch", with_metadata);
        assert_eq!(structured(&answer)["metadata"], json!({ "season": "spring" }));

        let render = json!({ "title": "Two", "template": "# {{ title }}\n\n{{ metadata.by.name }}: {{ body }}",
            "body": "{{ title }}", "frontMatter": { "z": 1, "a": "x: y" }, "metadata": walk["metadata"] });
        let answer = client.call("docs_render", render.clone());
        let rendered = structured(&answer);
        assert_eq!(
            rendered["markdown"],
            "---\na: \"x: y\"\nz: 1\n---\n\n# Two\n\nAda: {{ title }}"
        );
        assert_eq!(
            rendered["contentHash"],
            "673ad76157e2ec0093ec124fae5b0ecbb3fd791327cdc321c253bca815eb803f"
        );
        let expected = json!({ "title": "Two", "frontMatter": { "z": 1, "a": "x: y" } });
        assert_eq!(rendered["metadata"], expected);
        assert_eq!(client.call("docs_render", render)["result"], answer["result"]);

        let answer = client.call("docs_search", json!({ "query": "fern", "topK": 1 }));
        let found = structured(&answer);
        assert_eq!((&found["query"], &found["total"]), (&json!("fern"), &json!(1)));
        let hit = &found["hits"][0];
        assert_eq!(hit["rank"], 1);
        let document = json!({ "title": "A walk", "snippet": "# Walk\n\nMoss and fern.",
            "sourcePath": "docs/walk.md" });
        assert_eq!(hit["document"], document);
    });
}

#[test]
fn invalid_input_is_rejected_with_its_pointer() {
    let workspace = TempWorkspace::new().file("docs/big.md", "x".repeat(2 << 20));
    over_both(&workspace, |client| {
        for (tool, input, why) in [
            ("docs_load_fetch", json!({}), "path"),
            ("docs_load_fetch", json!({ "path": "README.md", "also": 1 }), "also"),
            ("docs_load_fetch", json!({ "path": "README.md", "encoding": "x" }), "/encoding"),
            ("docs_load_fetch", json!({ "path": "../README.md" }), ""),
            ("docs_load_fetch", json!({ "path": "docs/big.md" }), "at most 1048576"),
            ("docs_render", json!({ "title": "", "template": "x", "body": "" }), "/title"),
            ("docs_render", json!({ "title": "t", "template": "", "body": "" }), "/template"),
            ("docs_render", json!({ "title": "t", "template": "{{ x }}", "body": "" }), "`x`"),
            ("docs_render", json!({ "title": "t", "template": "x" }), "body"),
            ("docs_search", json!({ "query": "" }), "/query"),
            ("docs_search", json!({ "query": "x", "topK": 0 }), "/topK"),
            ("docs_search", json!({ "query": "x", "topK": 11 }), "/topK"),
            ("docs_search", json!({ "query": "x", "filters": { "lang": "md" } }), "lang"),
        ] {
            let message = refusal(&client.call(tool, input.clone()));
            assert!(message.contains(why), "{tool} {input}: {message}");
        }
    });
}

#[test]
fn every_tool_refuses_an_unknown_argument() {
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()), MODERN);
    let tools = client.tools();
    let docs_tools = tools.iter().filter(|it| it["name"].as_str().unwrap().starts_with("docs_"));
    let mut count = 0;
    for tool in docs_tools {
        let name = tool["name"].as_str().unwrap();
        let message = refusal(&client.call(name, json!({ "no_such_argument": 1 })));
        assert!(message.contains("no_such_argument"), "{name}: {message}");
        count += 1;
    }
    assert_eq!(count, 3);
}
