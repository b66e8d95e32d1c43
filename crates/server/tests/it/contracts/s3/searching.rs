//! Tests of the method `vector/search` of Mira's contract.

use std::path::Path;

use serde_json::{Value, json};

use super::client::{MiraClient, MiraServer, over_all};
use crate::support::{ServerLaunchOptions, TempWorkspace};
use crate::toolsets_search::GOLD;

/// Returns a workspace with a small project, whose files are about different topics.
fn project() -> TempWorkspace {
    let middleware = "\
//! Authentication middleware: who makes a request is known before a handler sees it.

/// Checks the bearer token of every request, and refuses those without one.
pub fn authentication_middleware(request: &Request) -> Result<User, Refused> {
    let token = request.header(\"authorization\").ok_or(Refused)?;
    verify(token)
}
";
    TempWorkspace::new()
        .file("src/auth/middleware.rs", middleware)
        .file("src/db/pool.rs", "/// Keeps database connections open.\npub fn pool(size: usize) -> Pool {\n    Pool::new(size)\n}\n")
        .file("src/render/image.rs", "/// Scales a picture to a width.\npub fn scale(image: &Image, width: u32) -> Image {\n    image.resize(width)\n}\n")
        .file("src/queue.rs", "/// Jobs wait here in order.\npub fn push(queue: &mut Queue, job: Job) {\n    queue.jobs.push(job);\n}\n")
        .file("src/mail.rs", "/// Sends a letter by SMTP.\npub fn send(letter: &Letter) {}\n")
        .file("web/cart.ts", "// The shopping cart and its total.\nexport function total(cart: Cart): number {\n  return cart.sum();\n}\n")
        .file("web/login.ts", "// The login form asks for a password.\nexport function login(form: Form) {\n  return form.submit();\n}\n")
        .file("tools/parse.py", "# Parses dates out of log lines.\ndef parse(line):\n    return line.split()[0]\n")
        .file("docs/install.md", "# Install\n\nCopy the binary to a folder in PATH.\n")
        .file("docs/guide.md", "# Guide\n\nHow requests are routed to handlers.\n")
        .file("docs/money.md", "# Billing\n\nInvoices are written on the first of the month.\n")
}

/// A query that matches nearly every file.
const BROAD: &str =
    "request database picture jobs letter cart login parse install handlers invoices";

#[track_caller]
fn matches(mira: &mut MiraClient, params: Value) -> Vec<Value> {
    mira.get("vector/search", params)["matches"].as_array().unwrap().clone()
}

fn paths(matches: &[Value]) -> Vec<&str> {
    matches.iter().map(|found| found["metadata"]["path"].as_str().unwrap()).collect()
}

#[test]
fn s3_62_69_70_73_a_search_finds_the_nearest_passages() {
    let workspace = project();
    over_all(&workspace, |mira| {
        // The contract's own example.
        let example = json!({ "query": "authentication middleware", "top_k": 5 });
        let found = matches(mira, example);
        assert!(found.len() <= 5);
        assert!(paths(&found).contains(&"src/auth/middleware.rs"), "{:?}", paths(&found));
        for (query, path) in [
            ("database connections", "src/db/pool.rs"),
            ("resize a picture", "src/render/image.rs"),
            ("when are invoices written", "docs/money.md"),
            ("shopping cart total", "web/cart.ts"),
        ] {
            let found = matches(mira, json!({ "query": query }));
            assert!(paths(&found).contains(&path), "{query}: {:?}", paths(&found));
            let scores: Vec<_> = found.iter().map(|one| one["score"].as_f64().unwrap()).collect();
            assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
            for one in &found {
                let metadata = &one["metadata"];
                let text = workspace.read(metadata["path"].as_str().unwrap());
                let line = |key: &str| usize::try_from(metadata[key].as_u64().unwrap()).unwrap();
                let lines: Vec<_> =
                    text.lines().take(line("line_end")).skip(line("line_start") - 1).collect();
                assert_eq!(metadata["snippet"], lines.join("\n"), "{one}");
                let path = json!({ "path": metadata["path"] });
                assert_eq!(mira.get("files/read", path)["etag"], metadata["etag"], "{one}");
            }
        }
    });
}

#[test]
fn s3_73_every_gold_question_is_answered_in_the_top_five() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
    let mut mira = MiraClient::stdio(ServerLaunchOptions::at(&corpus.canonicalize().unwrap()));
    for (query, path) in GOLD {
        let found = matches(&mut mira, json!({ "query": query, "top_k": 5 }));
        assert!((1..=5).contains(&found.len()), "{query}: {}", found.len());
        assert!(paths(&found).contains(&path), "{query}: {:?}", paths(&found));
    }
}

#[test]
fn s3_14_18_62_63_66_67_68_71_72_search_parameters_are_as_the_contract_specifies() {
    let workspace = project();
    over_all(&workspace, |mira| {
        let query = BROAD;
        assert!(matches(mira, json!({ "query": query })).len() <= 5);
        assert_eq!(matches(mira, json!({ "query": query, "top_k": 1 })).len(), 1);
        let many = matches(mira, json!({ "query": query, "top_k": 50 }));
        assert!(many.len() > 5 && many.len() <= 50, "{}", many.len());
        assert_eq!(matches(mira, json!({ "query": query })).len(), 5, "by default");
        let nulls = json!({ "query": query, "embedding": null, "namespace": null });
        assert_eq!(matches(mira, nulls), matches(mira, json!({ "query": query })));

        // Vectors are returned on request, and searching with one finds its passage.
        assert!(many.iter().all(|found| found.get("vector").is_none_or(Value::is_null)));
        let with = json!({ "query": "shopping cart total", "include_vectors": true });
        let cart = matches(mira, with).swap_remove(0);
        let vector = cart["vector"].as_array().unwrap().clone();
        assert!(vector.iter().all(Value::is_number), "{vector:?}");
        let by_vector = matches(mira, json!({ "query": null, "embedding": vector, "top_k": 1 }));
        assert_eq!(by_vector[0]["id"], cart["id"]);

        let usage = |mira: &mut MiraClient, params: Value| {
            mira.get("vector/search", params)["usage"].clone()
        };
        let plain = usage(mira, json!({ "query": query, "rerank": false }));
        let keys: Vec<_> = plain.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["embedding_model", "embed_time_ms", "rerank_model"], "{plain}");
        assert!(plain["rerank_model"].is_null(), "{plain}");
        let reranked = usage(mira, json!({ "query": query }));
        assert!(reranked["rerank_model"].is_string(), "{reranked}");
        let embedded = usage(mira, json!({ "embedding": cart["vector"] }));
        assert!(embedded["embedding_model"].is_string(), "{embedded}");

        for (field, more) in [
            ("top_k", json!({ "top_k": 0 })),
            ("top_k", json!({ "top_k": 51 })),
            ("top_k", json!({ "top_k": 2.5 })),
            ("query", json!({ "query": 1 })),
            ("embedding", json!({ "embedding": "a" })),
            ("embedding.1", json!({ "embedding": [1, "a"] })),
            ("namespace", json!({ "namespace": 1 })),
            ("include_vectors", json!({ "include_vectors": null })),
            ("rerank", json!({ "rerank": "yes" })),
            ("filter", json!({ "filter": null })),
            ("filter.path", json!({ "filter": { "path": "src" } })),
            ("filter.tags", json!({ "filter": { "tags": "rust" } })),
            ("limit", json!({ "limit": 5 })),
            ("path_prefix", json!({ "path_prefix": "src/" })),
        ] {
            let mut params = json!({ "query": query });
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            mira.expect_refusal_of(-32602, field, "vector/search", params);
        }
        for (field, params) in [
            ("query", json!({})),
            ("query", json!({ "query": null, "embedding": null })),
            ("query", json!({ "query": "  " })),
            ("embedding", json!({ "embedding": [1, 2, 3] })),
            ("embedding", json!({ "embedding": [] })),
            ("namespace", json!({ "query": query, "namespace": "no-such" })),
            ("filter.path_prefix", json!({ "query": query, "filter": { "path_prefix": "../x" } })),
            ("filter.path_prefix", json!({ "query": query, "filter": { "path_prefix": "/else" } })),
        ] {
            mira.expect_refusal_of(1003, field, "vector/search", params);
        }
    });
}

#[test]
fn s3_64_65_a_namespace_and_a_filter_narrow_a_search() {
    let workspace = project();
    let launch =
        ServerLaunchOptions::over(&workspace).set("search_namespaces", "docs=docs,web=web");
    let mut mira = MiraClient::stdio(launch);
    let query = BROAD;
    let within = |mira: &mut MiraClient, more: Value, prefix: &str| {
        let mut params = json!({ "query": query, "top_k": 50 });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let found = matches(mira, params);
        let paths = paths(&found);
        assert!(
            !paths.is_empty() && paths.iter().all(|path| path.starts_with(prefix)),
            "{paths:?}"
        );
        found
    };
    within(&mut mira, json!({}), "");
    within(&mut mira, json!({ "namespace": "docs" }), "docs/");
    within(&mut mira, json!({ "namespace": "web" }), "web/");
    within(&mut mira, json!({ "filter": { "path_prefix": "src/" } }), "src/");
    within(&mut mira, json!({ "filter": { "path_prefix": null, "tags": [] } }), "");
    let root = workspace.root().to_str().unwrap();
    within(&mut mira, json!({ "filter": { "path_prefix": root } }), "");
    within(&mut mira, json!({ "filter": { "path_prefix": format!("{root}/src") } }), "src/");
    let all = within(&mut mira, json!({}), "");
    let tag = all[0]["metadata"]["tags"][0].clone();
    let tagged = within(&mut mira, json!({ "filter": { "tags": [tag] } }), "");
    assert!(tagged.iter().all(|one| one["metadata"]["tags"].as_array().unwrap().contains(&tag)));
    assert!(tagged.len() < all.len(), "{tag}: {} of {}", tagged.len(), all.len());
    let both = json!({ "query": query, "filter": { "path_prefix": "docs/", "tags": ["no-such"] } });
    assert_eq!(matches(&mut mira, both), [Value::Null; 0]);
    // Namespace and filter combine, and a namespace excludes all others.
    let outside =
        json!({ "query": query, "namespace": "docs", "filter": { "path_prefix": "src/" } });
    assert_eq!(matches(&mut mira, outside), [Value::Null; 0]);
}

#[test]
fn s3_21_72_search_is_unavailable_if_it_is_off_or_its_folder_is_missing() {
    let workspace = project();
    let mut off =
        MiraClient::stdio(ServerLaunchOptions::over(&workspace).set("tools_deny", "search.*"));
    off.expect_refusal(1010, "vector/search", json!({ "query": "authentication" }));
    let server =
        MiraServer::with(&workspace, "", |launch| launch.set("search_namespaces", "gone=gone"));
    for mut mira in [server.root(), server.rpc(), server.socket()] {
        mira.expect_refusal(
            1010,
            "vector/search",
            json!({ "query": "authentication", "namespace": "gone" }),
        );
        assert!(!matches(&mut mira, json!({ "query": "authentication" })).is_empty());
        // Invalid parameters are reported first.
        mira.expect_refusal(
            -32602,
            "vector/search",
            json!({ "query": "authentication", "more": 1 }),
        );
    }
}
