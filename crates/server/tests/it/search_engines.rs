//! Searching with the index at a PostgreSQL server, over the wire: the same answers, and what
//! happens when that server is not as it should be.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Launch, MODERN, Stdio, Workspace, refusal, wait_for, wait_until};
use crate::toolsets_search::{GOLD, corpus, found, paths};

#[path = "../../../../tests/postgres/server.rs"]
mod server;

use server::Server;

/// The binary over `workspace` with its index at `server`.
fn launch(workspace: &Workspace, settings: &TempDir, server: &Server) -> Launch {
    let file = settings.path().join("toolgate.toml");
    let url = server.url();
    fs::write(&file, format!("[search.engine.postgres]\nurl = \"{url}\"\n")).unwrap();
    Launch::over(workspace).env("TOOLGATE_CONFIG", file)
}

/// Asks Mira's `vector/search`.
fn ask(mira: &mut Stdio, id: u64, query: &str) -> Value {
    let params = json!({ "query": query });
    let request =
        json!({ "jsonrpc": "2.0", "method": "vector/search", "id": id, "params": params });
    mira.send(&request);
    mira.answer(id)
}

#[test]
fn the_questions_of_the_corpus_are_answered_as_they_are_without_a_server() {
    let server = Server::start();
    let settings = TempDir::new().unwrap();
    let workspace = corpus();
    let mut client = Client::stdio(launch(&workspace, &settings, &server), MODERN);
    wait_until("the index is whole", || {
        found(&mut client, json!({ "query": "x" }))["index"]["complete"] == true
    });
    let place = |(query, path): (&str, &str)| {
        let all = found(&mut client, json!({ "query": query, "top_k": 5 }));
        (query.to_owned(), paths(&all).iter().position(|it| *it == path))
    };
    let places: Vec<_> = GOLD.into_iter().map(place).collect();
    assert!(places.iter().all(|(_, place)| place.is_some()), "{places:?}");
    let first = places.iter().filter(|(_, place)| *place == Some(0)).count();
    assert!(first >= GOLD.len() - 3, "{places:?}");
    let there = server.run("select count(*) from toolgate_search.documents_1");
    assert_eq!(there, "17");
    // What is looked for elsewhere is not here, and a save is seen.
    let docs = found(&mut client, json!({ "query": "release", "path_prefix": "docs/" }));
    assert!(paths(&docs).iter().all(|path| path.starts_with("docs/")), "{docs}");
    workspace.put("src/okapi.rs", "/// Finds an okapi.\nfn find_okapi() {}\n");
    wait_until("what was saved is found", || {
        paths(&found(&mut client, json!({ "query": "find okapi" }))).first()
            == Some(&"src/okapi.rs")
    });
}

#[test]
fn a_server_that_goes_is_unavailable_at_once_and_back_when_it_is() {
    let mut server = Server::start();
    let settings = TempDir::new().unwrap();
    let workspace = Workspace::new().file("a.rs", "fn find_quagga() {}\n");
    let launch = launch(&workspace, &settings, &server);
    let mut mira = launch.arg("--dialect").arg("mira").stdio();
    let mut id = 0;
    let mut next = |mira: &mut Stdio| {
        id += 1;
        ask(mira, id, "find quagga")
    };
    let is_found = |answer: &Value| answer["result"]["matches"][0]["metadata"]["path"] == "a.rs";
    wait_until("it is found", || is_found(&next(&mut mira)));
    server.stop();
    let begun = Instant::now();
    let refused = next(&mut mira);
    assert_eq!(refused["error"]["code"], 1010, "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    server.again();
    workspace.put("b.rs", "fn find_okapi() {}\n");
    wait_until("it is found again", || is_found(&next(&mut mira)));
    let mut id = 10_000;
    wait_until("what was saved meanwhile is found", || {
        id += 1;
        let answer = ask(&mut mira, id, "find okapi");
        answer["result"]["matches"][0]["metadata"]["path"] == "b.rs"
    });
}

#[test]
fn two_servers_share_an_index_and_either_keeps_it() {
    let server = Server::start();
    let settings = TempDir::new().unwrap();
    let workspace = Workspace::new().file("a.rs", "fn find_quagga() {}\n");
    let begin = || Client::stdio(launch(&workspace, &settings, &server), MODERN);
    let mut one = begin();
    let mut other = begin();
    let finds = |client: &mut Client, query: &str, path: &str| {
        wait_until(query, || {
            paths(&found(client, json!({ "query": query }))).first() == Some(&path)
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
fn a_file_that_is_refused_there_is_said_to_be_left_out_until_it_changes() {
    let server = Server::start();
    let settings = TempDir::new().unwrap();
    let workspace = Workspace::new().file("a.rs", "fn find_quagga() {}\n");
    let begin = || Client::stdio(launch(&workspace, &settings, &server), MODERN);
    let finds = |client: &mut Client, query: &str, path: &str| {
        wait_for(query, || {
            let all = found(client, json!({ "query": query }));
            let is_it = all["index"]["state"] == "ready" && paths(&all).first() == Some(&path);
            is_it.then(|| (all["index"]["complete"].clone(), all["index"]["note"].clone()))
        })
    };
    let whole = (json!(true), Value::Null);
    let cut = (json!(false), json!("1 files cannot be taken in, `a.rs` is one of them"));
    let mut client = begin();
    assert_eq!(finds(&mut client, "find quagga", "a.rs"), whole);
    server.refuse_poison("22000");
    workspace.put("a.rs", "fn find_poison() {}\n");
    workspace.put("b.rs", "fn find_okapi() {}\n");
    assert_eq!(finds(&mut client, "find okapi", "b.rs"), cut);
    let before = found(&mut client, json!({ "query": "find quagga" }));
    assert!(!paths(&before).contains(&"a.rs"), "{before}");
    // Who comes next tries again, and says so too.
    drop(client);
    let mut client = begin();
    assert_eq!(finds(&mut client, "find okapi", "b.rs"), cut);
    workspace.put("a.rs", "fn find_zebra() {}\n");
    assert_eq!(finds(&mut client, "find zebra", "a.rs"), whole);
}

#[test]
fn documents_are_kept_there_for_whoever_comes_next() {
    let server = Server::start();
    let settings = TempDir::new().unwrap();
    let workspace = Workspace::new();
    let begin = || Client::stdio(launch(&workspace, &settings, &server), MODERN);
    let documents = json!([{ "id": "note 1", "text": "An okapi is no quagga." }]);
    let put = json!({ "namespace": "notes", "documents": documents });
    let mut one = begin();
    let answer = one.call("search_upsert", put);
    assert!(answer.get("error").is_none(), "{answer}");
    drop(one);
    let mut other = begin();
    let all = found(&mut other, json!({ "query": "okapi", "namespace": "notes" }));
    assert_eq!(paths(&all), ["note 1"], "{all}");
    assert!(all["matches"][0]["snippet"].as_str().unwrap().contains("no quagga"), "{all}");
}

#[test]
fn a_wrong_password_is_told_without_it() {
    let server = Server::with_password("correct horse");
    let settings = TempDir::new().unwrap();
    let workspace = Workspace::new().file("a.rs", "fn find_quagga() {}\n");
    let with = |password: &str| {
        let launch = launch(&workspace, &settings, &server).env("PGPASSWORD", password);
        Client::stdio(launch, MODERN)
    };
    let mut wrong = with("wrong horse");
    let said = refusal(&wrong.call("search_semantic", json!({ "query": "quagga" })));
    assert!(said.contains("does not let `postgres` in"), "{said}");
    assert!(!said.contains("horse") && !wrong.server().log().contains("horse"), "{said}");
    let mut right = with("correct horse");
    wait_until("it is found", || {
        paths(&found(&mut right, json!({ "query": "find quagga" }))).first() == Some(&"a.rs")
    });
}

#[test]
fn a_server_without_pgvector_is_said_to_be_without() {
    let server = Server::without_pgvector();
    let settings = TempDir::new().unwrap();
    let workspace = Workspace::new().file("a.rs", "fn find_quagga() {}\n");
    let mut client = Client::stdio(launch(&workspace, &settings, &server), MODERN);
    let said = refusal(&client.call("search_semantic", json!({ "query": "quagga" })));
    assert!(said.contains("has no pgvector"), "{said}");
}
