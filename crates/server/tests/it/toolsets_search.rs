//! Tests of `search.semantic` over the wire: results, filters and errors.

mod building;
mod crashing_grammars;
mod freshness;
mod mishaps;
mod documents;
mod models;
mod trouble;
#[path = "../../../../tests/search-gold.rs"]
mod gold;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both, over_both_tuned,
    over_both_with, refusal, structured,
};
use crate::toolsets_git::{git, repository};
pub(crate) use building::large;
pub(crate) use gold::GOLD;

/// Returns a workspace with the files of the test corpus.
pub(crate) fn corpus() -> TempWorkspace {
    fn copy(workspace: &TempWorkspace, folder: &Path, root: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                copy(workspace, &path, root);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                workspace.put(&name, fs::read(&path).unwrap());
            }
        }
    }
    let workspace = TempWorkspace::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
    copy(&workspace, &root, &root);
    workspace
}

pub(crate) fn paths(found: &Value) -> Vec<&str> {
    let matches = found["matches"].as_array().unwrap();
    matches.iter().map(|it| it["path"].as_str().unwrap()).collect()
}

/// Returns the result of a search with `input`.
#[track_caller]
pub(crate) fn search(client: &mut TestMcpClient, input: Value) -> Value {
    structured(&client.call("search_semantic", input)).clone()
}

/// Returns the index status of the namespace `namespace`. Does not start indexing.
#[track_caller]
pub(crate) fn status(client: &mut TestMcpClient, namespace: &str) -> Value {
    let answer = client.call("search_index_status", json!({ "namespace": namespace }));
    structured(&answer)["namespaces"][namespace].clone()
}

#[test]
fn a_file_is_one_match_with_its_other_places_unless_passages_are_requested() {
    // Longer functions are passages of their own.
    let function = |name: &str| format!("fn {name}() {{\n{}}}\n\n", "    give(hay);\n".repeat(30));
    let workspace = TempWorkspace::new();
    workspace.put("zoo.rs", function("feed_okapi") + &function("wash_okapi"));
    workspace.put("keeper.rs", function("call_okapi"));
    over_both(&workspace, |client| {
        let files = search(client, json!({ "query": "give hay to the okapi" }));
        assert_eq!(paths(&files), ["zoo.rs", "keeper.rs"], "{files}");
        let more = files["matches"][0]["more"].as_array().unwrap();
        assert_eq!(more.len(), 1, "{files}");
        assert!(files["matches"][1].get("more").is_none(), "{files}");
        let passages = json!({ "query": "give hay to the okapi", "by_file": false });
        let passages = search(client, passages);
        let in_zoo = paths(&passages).iter().filter(|it| **it == "zoo.rs").count();
        assert_eq!(in_zoo, 2, "{passages}");
    });
}

#[test]
fn a_misspelled_name_finds_its_definition_and_a_hint_says_so() {
    let workspace = TempWorkspace::new().file("io.rs", "pub struct JsonReader;\n");
    over_both(&workspace, |client| {
        let found = search(client, json!({ "query": "JsonRaeder" }));
        assert_eq!(paths(&found), ["io.rs"], "{found}");
        assert_eq!(found["hint"], "no `JsonRaeder` was found; searched for `JsonReader`");
        let none = search(client, json!({ "query": "where is it" }));
        assert_eq!(paths(&none), [""; 0], "{none}");
        assert!(none["hint"].as_str().unwrap().contains("only common words"), "{none}");
    });
}

#[test]
fn a_query_in_words_finds_the_code_with_its_current_lines_and_etag() {
    let workspace = corpus();
    over_both_tuned(
        &workspace,
        |launch| launch,
        |client| {
            let input = json!({ "query": "authentication middleware", "top_k": 5 });
            let answer = client.call("search_semantic", input.clone());
            let found = structured(&answer);
            assert_eq!(paths(found)[0], "src/http/auth.rs", "{found}");
            let matches = found["matches"].as_array().unwrap();
            assert!((2..=5).contains(&matches.len()), "{found}");
            let scores: Vec<f64> = matches.iter().map(|it| it["score"].as_f64().unwrap()).collect();
            assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
            for it in matches {
                let lines = |name: &str| usize::try_from(it[name].as_u64().unwrap()).unwrap();
                let file = workspace.read(it["path"].as_str().unwrap());
                let lines: Vec<&str> = file
                    .split('\n')
                    .skip(lines("line_start") - 1)
                    .take(lines("line_end") + 1 - lines("line_start"))
                    .collect();
                assert_eq!(it["snippet"], lines.join("\n"));
                let read = client.call("files_read", json!({ "path": it["path"] }));
                assert_eq!(it["etag"], structured(&read)["etag"], "{it}");
                assert_eq!((&it["commit"], &it["shard_id"]), (&Value::Null, &Value::Null));
                assert!(it.get("vector").is_none(), "{it}");
            }
            assert_eq!(found["index"]["complete"], true);
            assert_eq!(found["index"]["files"], 17);
            let usage = &found["usage"];
            assert!(usage["embedding_model"].as_str().unwrap().starts_with("toolgate-static-"));
            assert!(usage["rerank_model"].as_str().unwrap().starts_with("features-"));
            assert_eq!(usage["embed_time_ms"], Value::Null);
            assert_eq!(client.call("search_semantic", input)["result"], answer["result"]);
        },
    );
}

#[test]
fn a_file_is_found_once_written_and_not_after_its_deletion() {
    over_both_tuned(
        &TempWorkspace::new(),
        |launch| launch,
        |client| {
            let input = json!({ "query": "quagga" });
            assert!(paths(structured(&client.call("search_semantic", input.clone()))).is_empty());
            let write = json!({ "path": "a/q.rs", "content": "fn find_quagga() {}\n" });
            structured(&client.call("files_write", write));
            let answer = client.call("search_semantic", input.clone());
            assert_eq!(paths(structured(&answer)), ["a/q.rs"]);
            structured(&client.call("files_delete", json!({ "path": "a", "recursive": true })));
            assert!(paths(structured(&client.call("search_semantic", input))).is_empty());
        },
    );
}

#[test]
fn files_with_keys_and_passwords_are_not_found() {
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n";
    let workspace = TempWorkspace::new()
        .file(".env", "OKAPI_TOKEN=canary\n")
        .file("deploy/server.pem", key)
        .file("keys/id_ed25519", key)
        .file("config/okapi.yaml", format!("okapi_token: |\n  {key}"))
        .file(".env.example", "# okapi token goes here\nOKAPI_TOKEN=\n");
    over_both(&workspace, |client| {
        for query in ["okapi token", "okapi canary", "okapi private key b3BlbnNzaC1rZXk"] {
            let found = search(client, json!({ "query": query, "top_k": 20 }));
            let paths = paths(&found);
            let allowed = |path: &&str| matches!(*path, "README.md" | ".env.example");
            assert!(paths.iter().all(allowed), "{query}: {paths:?}");
            assert!(paths.contains(&".env.example"), "{query}: {paths:?}");
        }
    });
}

#[test]
fn filters_and_namespaces_restrict_a_search() {
    let settings = [("search_namespaces", "guides=docs, web=./web, gone=gone")];
    over_both_with(&corpus(), &settings, |client| {
        let mut search_paths = |more: Value| {
            let mut input = json!({ "query": "authentication request token", "top_k": 50 });
            input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = client.call("search_semantic", input);
            let mut paths: Vec<String> =
                paths(structured(&answer)).into_iter().map(str::to_owned).collect();
            paths.dedup();
            paths
        };
        assert!(search_paths(json!({})).len() > 3);
        assert_eq!(
            search_paths(json!({})),
            search_paths(json!({ "namespace": null, "path_prefix": null, "tags": [] }))
        );
        assert_eq!(search_paths(json!({})), search_paths(json!({ "namespace": "workspace" })));
        assert_eq!(search_paths(json!({ "namespace": "guides" })), ["docs/security.md"]);
        assert_eq!(search_paths(json!({ "namespace": "web" })), [""; 0]);
        assert_eq!(
            search_paths(json!({ "path_prefix": "src/http/auth.rs" })),
            ["src/http/auth.rs"]
        );
        assert_eq!(search_paths(json!({ "path_prefix": "src/http/a" })), [""; 0]);
        assert_eq!(search_paths(json!({ "tags": ["python", "test"] })), ["tests/auth_test.py"]);
        let unknown = json!({ "query": "x1", "namespace": "nowhere" });
        let message = refusal(&client.call("search_semantic", unknown));
        assert!(
            message.contains("unknown namespace `nowhere`") && message.contains("guides"),
            "{message}"
        );
        let gone = json!({ "query": "x1", "namespace": "gone" });
        let message = refusal(&client.call("search_semantic", gone));
        assert!(message.contains("the index of `gone` cannot be brought up to date"), "{message}");
    });
}

#[test]
fn a_folder_elsewhere_is_searched_by_its_name_but_not_read_by_other_tools() {
    let other = TempDir::new().unwrap();
    let put = |name: &str, text: &str| fs::write(other.path().join(name), text).unwrap();
    put("lib.rs", "/// Feeds an okapi.\npub fn feed_okapi() {}\n");
    let workspace = TempWorkspace::new().file("own.rs", "fn feed_gnu() {}\n");
    let folders = format!("std={}, gone=/no/such/folder", other.path().display());
    let tune = |launch: ServerLaunchOptions| launch.set("search_namespaces", &folders);
    over_both_tuned(&workspace, tune, |client| {
        let feed = |more: Value| {
            let mut input = json!({ "query": "feed okapi" });
            input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            input
        };
        let std = search(client, feed(json!({ "namespace": "std" })));
        assert_eq!((paths(&std), &std["index"]["files"]), (vec!["lib.rs"], &json!(1)));
        assert_eq!(std["matches"][0]["snippet"], "/// Feeds an okapi.\npub fn feed_okapi() {}");
        assert_eq!(paths(&search(client, feed(json!({})))), ["own.rs"]);
        let text = json!({ "text": "okapi", "namespace": "std" });
        assert_eq!(structured(&client.call("search_text", text))["files"][0]["path"], "lib.rs");
        let name = json!({ "name": "feed_okapi", "namespace": "std" });
        let named = client.call("search_names", name);
        assert_eq!(structured(&named)["definitions"][0]["path"], "lib.rs");
        let status = client.call("search_index_status", json!({}));
        let namespaces = structured(&status)["namespaces"].as_object().unwrap().clone();
        assert_eq!(namespaces.keys().collect::<Vec<_>>(), ["gone", "std", "workspace"]);
        // Changes there are found, and a missing root is unavailable.
        put("new.rs", "fn find_quagga() {}\n");
        let quagga = json!({ "query": "find quagga", "namespace": "std" });
        assert_eq!(paths(&search(client, quagga.clone())), ["new.rs"]);
        fs::remove_file(other.path().join("new.rs")).unwrap();
        assert_eq!(paths(&search(client, quagga)), [""; 0]);
        let gone = feed(json!({ "namespace": "gone" }));
        let message = refusal(&client.call("search_semantic", gone));
        let why = "the index of `gone` cannot be brought up to date: its folder cannot be opened";
        assert!(message.contains(why), "{message}");
        // Only search reads it.
        let file = other.path().join("lib.rs");
        refusal(&client.call("files_read", json!({ "path": file })));
        let documents = json!([{ "id": "a", "text": "x" }]);
        let put = json!({ "namespace": "std", "documents": documents });
        assert!(refusal(&client.call("search_upsert", put)).contains("`std` has files"));
    });
}

#[test]
fn a_match_has_the_commit_if_its_file_is_unchanged_in_git() {
    let workspace = repository();
    workspace.put("a.rs", "fn feed_okapi() {}\n");
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-qm", "okapi"]);
    let commit = git(&workspace, &["rev-parse", "HEAD"]).trim().to_owned();
    over_both(&workspace, |client| {
        let commit_of = |client: &mut TestMcpClient, query: &str| {
            let all = search(client, json!({ "query": query, "top_k": 1 }));
            all["matches"][0]["commit"].clone()
        };
        assert_eq!(commit_of(client, "feed okapi"), json!(commit));
        workspace.put("b.rs", "fn feed_gnu() {}\n");
        assert_eq!(commit_of(client, "feed gnu"), Value::Null);
        workspace.put("a.rs", "fn feed_okapi() { slowly() }\n");
        assert_eq!(commit_of(client, "feed okapi"), Value::Null);
        git(&workspace, &["checkout", "-q", "a.rs"]);
        fs::remove_file(workspace.path("b.rs")).unwrap();
    });
}

#[test]
fn the_vector_of_a_match_finds_it_again_and_invalid_vectors_are_rejected() {
    over_both_tuned(
        &corpus(),
        |launch| launch,
        |client| {
            let input = json!({ "query": "evictOldest", "include_vectors": true, "rerank": false });
            let answer = client.call("search_semantic", input);
            let found = structured(&answer);
            assert_eq!(found["usage"]["rerank_model"], Value::Null);
            let model = found["usage"]["embedding_model"].as_str().unwrap();
            assert!(model.starts_with("toolgate-static-"), "{model}");
            let first = &found["matches"][0];
            assert_eq!(first["vector"].as_array().unwrap().len(), 256);
            let by_vector = json!({ "embedding": first["vector"], "query": null, "top_k": 1 });
            let again = client.call("search_semantic", by_vector);
            assert_eq!(structured(&again)["matches"][0]["id"], first["id"]);
            for (input, pointer) in [
                (json!({}), "/query"),
                (json!({ "query": null, "embedding": null }), "/query"),
                (json!({ "query": " " }), "/query"),
                (json!({ "embedding": [1, 2, 3] }), "/embedding"),
                (json!({ "embedding": vec![0; 256] }), "/embedding"),
                (json!({ "query": "x", "embedding": ["a"] }), "/embedding/0"),
                (json!({ "query": "x", "top_k": 0 }), "/top_k"),
                (json!({ "query": "x", "top_k": 51 }), "/top_k"),
                (json!({ "query": "x", "top": 5 }), "top"),
            ] {
                let message = refusal(&client.call("search_semantic", input.clone()));
                assert!(message.contains(pointer), "{input}: {message}");
            }
        },
    );
}

#[test]
fn instructions_recommend_search_only_if_it_is_available() {
    for (deny, recommended) in [("", "search_semantic"), ("search.*", "files_search")] {
        let launch = ServerLaunchOptions::over(&TempWorkspace::new()).set("tools_deny", deny);
        let mut client = TestMcpClient::stdio(launch, MODERN);
        let has_search = client.tools().iter().any(|tool| tool["name"] == "search_semantic");
        assert_eq!(has_search, deny.is_empty());
        let discovered = client.ask("server/discover", json!({}));
        let instructions = discovered["result"]["instructions"].as_str().unwrap();
        assert!(instructions.contains(recommended), "{instructions}");
        assert_eq!(instructions.contains("search_semantic"), has_search, "{instructions}");
    }
}

#[test]
fn a_deleted_workspace_makes_search_unavailable() {
    let workspace = corpus();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    let input = json!({ "query": "token" });
    structured(&client.call("search_semantic", input.clone()));
    fs::remove_dir_all(workspace.root()).unwrap();
    let message = refusal(&client.call("search_semantic", input));
    assert!(message.contains("the index of `workspace` cannot be brought up to date"), "{message}");
}
