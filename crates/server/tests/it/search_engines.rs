//! Tests of searches whose index is in PostgreSQL, and of failures of the PostgreSQL server.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    MODERN, ServerLaunchOptions, StdioServerProcess, TempWorkspace, TestMcpClient, refusal,
    wait_for, wait_until,
};
use crate::toolsets_search::{GOLD, corpus, paths, search};

#[path = "../../../../tests/postgres/server.rs"]
pub(crate) mod server;

use server::PostgresServerProcess;

/// Returns start options of toolgate for `workspace`, with the search index in the database of
/// `server`.
fn launch(
    workspace: &TempWorkspace,
    settings: &TempDir,
    server: &PostgresServerProcess,
) -> ServerLaunchOptions {
    let file = settings.path().join("toolgate.toml");
    let url = server.url();
    fs::write(&file, format!("[search.engine.postgres]\nurl = \"{url}\"\n")).unwrap();
    ServerLaunchOptions::over(workspace).env("TOOLGATE_CONFIG", file)
}

/// Calls Mira's method `vector/search` and returns the answer.
fn vector_search(mira: &mut StdioServerProcess, id: u64, query: &str) -> Value {
    let params = json!({ "query": query });
    let request =
        json!({ "jsonrpc": "2.0", "method": "vector/search", "id": id, "params": params });
    mira.send(&request);
    mira.answer(id)
}

#[test]
fn the_queries_of_the_corpus_have_the_same_answers_as_without_a_server() {
    let server = PostgresServerProcess::start();
    let settings = TempDir::new().unwrap();
    let workspace = corpus();
    let mut client = TestMcpClient::stdio(launch(&workspace, &settings, &server), MODERN);
    wait_until("the index is complete", || {
        search(&mut client, json!({ "query": "x" }))["index"]["complete"] == true
    });
    let rank = |(query, path): (&str, &str)| {
        let all = search(&mut client, json!({ "query": query, "top_k": 5 }));
        (query.to_owned(), paths(&all).iter().position(|it| *it == path))
    };
    let ranks: Vec<_> = GOLD.into_iter().map(rank).collect();
    assert!(ranks.iter().all(|(_, rank)| rank.is_some()), "{ranks:?}");
    let first = ranks.iter().filter(|(_, rank)| *rank == Some(0)).count();
    assert!(first >= GOLD.len() - 3, "{ranks:?}");
    let documents = server.run("select count(*) from toolgate_search.documents_1");
    assert_eq!(documents, "17");
    // Filters apply, and saved files are found.
    let docs = search(&mut client, json!({ "query": "release", "path_prefix": "docs/" }));
    assert!(paths(&docs).iter().all(|path| path.starts_with("docs/")), "{docs}");
    workspace.put("src/okapi.rs", "/// Finds an okapi.\nfn find_okapi() {}\n");
    wait_until("the saved file is found", || {
        paths(&search(&mut client, json!({ "query": "find okapi" }))).first()
            == Some(&"src/okapi.rs")
    });
}

#[test]
fn a_stopped_server_is_unavailable_at_once_and_used_again_after_a_restart() {
    let mut server = PostgresServerProcess::start();
    let settings = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("a.rs", "fn find_quagga() {}\n");
    let launch = launch(&workspace, &settings, &server);
    let mut mira = launch.arg("--dialect").arg("mira").stdio();
    let mut id = 0;
    let mut next = |mira: &mut StdioServerProcess| {
        id += 1;
        vector_search(mira, id, "find quagga")
    };
    let is_found = |answer: &Value| answer["result"]["matches"][0]["metadata"]["path"] == "a.rs";
    wait_until("the file is found", || is_found(&next(&mut mira)));
    server.stop();
    let start = Instant::now();
    let answer = next(&mut mira);
    assert_eq!(answer["error"]["code"], 1010, "{answer}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    server.again();
    workspace.put("b.rs", "fn find_okapi() {}\n");
    wait_until("the file is found again", || is_found(&next(&mut mira)));
    let mut id = 10_000;
    wait_until("a file that was saved meanwhile is found", || {
        id += 1;
        let answer = vector_search(&mut mira, id, "find okapi");
        answer["result"]["matches"][0]["metadata"]["path"] == "b.rs"
    });
}

#[test]
fn two_servers_share_an_index_and_each_can_maintain_it() {
    let server = PostgresServerProcess::start();
    let settings = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("a.rs", "fn find_quagga() {}\n");
    let start = || TestMcpClient::stdio(launch(&workspace, &settings, &server), MODERN);
    let mut one = start();
    let mut other = start();
    let finds = |client: &mut TestMcpClient, query: &str, path: &str| {
        wait_until(query, || {
            paths(&search(client, json!({ "query": query }))).first() == Some(&path)
        });
    };
    finds(&mut one, "find quagga", "a.rs");
    finds(&mut other, "find quagga", "a.rs");
    assert_eq!(server.run("select count(*) from toolgate_search.namespaces"), "1");
    workspace.put("b.rs", "fn find_okapi() {}\n");
    finds(&mut one, "find okapi", "b.rs");
    finds(&mut other, "find okapi", "b.rs");
    drop(one);
    workspace.put("c.rs", "fn find_zebra() {}\n");
    finds(&mut other, "find zebra", "c.rs");
}

#[test]
fn a_file_that_the_server_rejects_is_reported_until_it_changes() {
    let server = PostgresServerProcess::start();
    let settings = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("a.rs", "fn find_quagga() {}\n");
    let start = || TestMcpClient::stdio(launch(&workspace, &settings, &server), MODERN);
    let finds = |client: &mut TestMcpClient, query: &str, path: &str| {
        wait_for(query, || {
            let all = search(client, json!({ "query": query }));
            let is_it = all["index"]["state"] == "ready" && paths(&all).first() == Some(&path);
            is_it.then(|| (all["index"]["complete"].clone(), all["index"]["note"].clone()))
        })
    };
    let complete = (json!(true), Value::Null);
    let incomplete = (json!(false), json!("1 file cannot be indexed: `a.rs`"));
    let mut client = start();
    assert_eq!(finds(&mut client, "find quagga", "a.rs"), complete);
    server.refuse_poison("22000");
    workspace.put("a.rs", "fn find_poison() {}\n");
    workspace.put("b.rs", "fn find_okapi() {}\n");
    assert_eq!(finds(&mut client, "find okapi", "b.rs"), incomplete);
    let before = search(&mut client, json!({ "query": "find quagga" }));
    assert!(!paths(&before).contains(&"a.rs"), "{before}");
    // The next process tries again, and reports it, too.
    drop(client);
    let mut client = start();
    assert_eq!(finds(&mut client, "find okapi", "b.rs"), incomplete);
    workspace.put("a.rs", "fn find_zebra() {}\n");
    assert_eq!(finds(&mut client, "find zebra", "a.rs"), complete);
}

#[test]
fn documents_on_the_server_are_found_by_a_later_process() {
    let server = PostgresServerProcess::start();
    let settings = TempDir::new().unwrap();
    let workspace = TempWorkspace::new();
    let start = || TestMcpClient::stdio(launch(&workspace, &settings, &server), MODERN);
    let documents = json!([{ "id": "note 1", "text": "An okapi is no quagga." }]);
    let put = json!({ "namespace": "notes", "documents": documents });
    let mut one = start();
    let answer = one.call("search_upsert", put);
    assert!(answer.get("error").is_none(), "{answer}");
    drop(one);
    let mut other = start();
    let all = search(&mut other, json!({ "query": "okapi", "namespace": "notes" }));
    assert_eq!(paths(&all), ["note 1"], "{all}");
    assert!(all["matches"][0]["snippet"].as_str().unwrap().contains("no quagga"), "{all}");
}

#[test]
fn a_wrong_password_is_an_error_that_does_not_contain_it() {
    let server = PostgresServerProcess::with_password("correct horse");
    let settings = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("a.rs", "fn find_quagga() {}\n");
    let with = |password: &str| {
        let launch = launch(&workspace, &settings, &server).env("PGPASSWORD", password);
        TestMcpClient::stdio(launch, MODERN)
    };
    let mut wrong = with("wrong horse");
    let message = refusal(&wrong.call("search_semantic", json!({ "query": "quagga" })));
    assert!(message.contains("rejects the login of `postgres`"), "{message}");
    assert!(!message.contains("horse") && !wrong.server().log().contains("horse"), "{message}");
    let mut correct = with("correct horse");
    wait_until("the file is found", || {
        paths(&search(&mut correct, json!({ "query": "find quagga" }))).first() == Some(&"a.rs")
    });
}

#[test]
fn a_server_without_pgvector_is_an_error_with_the_reason() {
    let server = PostgresServerProcess::without_pgvector();
    let settings = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("a.rs", "fn find_quagga() {}\n");
    let mut client = TestMcpClient::stdio(launch(&workspace, &settings, &server), MODERN);
    let message = refusal(&client.call("search_semantic", json!({ "query": "quagga" })));
    assert!(message.contains("has no pgvector"), "{message}");
}
