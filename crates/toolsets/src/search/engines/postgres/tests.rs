//! Against a real server with pgvector, which each test starts for itself.
#![allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]

use std::time::Instant;

use super::super::settings::EnginePassword;
use super::super::tests::{
    corpus, document, fill, filters_exactly, finds_by_name, finds_by_the_model,
    finds_what_is_best_of_all, found, holds_what_was_committed, identity, keeps_documents,
    next_writer, sought,
};
use super::*;

mod refused;
#[path = "../../../../../../tests/postgres/server.rs"]
mod server;

use server::Server as Postgres16;

/// The engine of a namespace at the server that `settings` name.
fn engine(
    settings: &PostgresSettings,
    identity: NamespaceIdentity,
    model: Option<VectorSpace>,
) -> Result<Arc<dyn SearchEngine>, String> {
    Ok(PostgresServer::new(settings)?.engine(identity, model))
}

fn settings(url: &str) -> PostgresSettings {
    serde_json::from_value(serde_json::json!({ "url": url })).unwrap()
}

fn engine_at(server: &Postgres16, name: &str, source: DocumentSource) -> Arc<dyn SearchEngine> {
    engine(&settings(&server.url()), identity(name, source), None).unwrap()
}

fn away(said: EngineError) -> String {
    let EngineError::Unavailable(why) = said else { panic!("{said:?}") };
    why
}

#[tokio::test]
async fn it_finds_what_is_best_of_all_and_filters_exactly() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "workspace", DocumentSource::Files);
    assert_eq!(engine.open_index().await.unwrap(), IndexOpenOutcome::Created);
    // Another namespace beside it changes nothing.
    let other = engine_at(&server, "other", DocumentSource::Files);
    fill(&*other, vec![document("src/http/auth.rs", "fn authentication_middleware() {}", &[])])
        .await;
    fill(&*engine, corpus()).await;
    finds_what_is_best_of_all(&*engine).await;
    filters_exactly(&*engine).await;
    assert_eq!(engine.open_index().await.unwrap(), IndexOpenOutcome::Existing);
    assert_eq!(other.status().await.unwrap().documents, 1);
}

#[tokio::test]
async fn namespaces_of_documents_are_known_to_whoever_comes_next() {
    let server = Postgres16::start();
    let known = || async {
        let server = PostgresServer::new(&settings(&server.url())).unwrap();
        server.document_namespaces("/workspace".as_ref()).await.unwrap()
    };
    assert!(known().await.is_empty());
    let notes = engine_at(&server, "notes", DocumentSource::Documents);
    fill(&*notes, vec![document("note", "about a quagga", &[])]).await;
    fill(&*engine_at(&server, "workspace", DocumentSource::Files), Vec::new()).await;
    assert_eq!(known().await, ["notes"]);
}

#[tokio::test]
async fn it_holds_what_was_committed() {
    let server = Postgres16::start();
    holds_what_was_committed(&*engine_at(&server, "workspace", DocumentSource::Files)).await;
    finds_by_name(&*engine_at(&server, "names", DocumentSource::Files)).await;
    keeps_documents(&*engine_at(&server, "notes", DocumentSource::Documents)).await;
    let model = Some(VectorSpace { model: "colours".to_owned(), dimensions: 4 });
    let identity = identity("colours", DocumentSource::Files);
    finds_by_the_model(&*engine(&settings(&server.url()), identity, model).unwrap()).await;
}

#[tokio::test]
async fn nothing_is_found_before_it_is_committed_and_nothing_is_left_half_done() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "workspace", DocumentSource::Files);
    let mut writer = engine.acquire_writer().await.unwrap().unwrap();
    writer.put(vec![document("a.rs", "fn quagga() {}", &[])]).await.unwrap();
    assert!(found(&*engine, sought("quagga")).await.is_empty());
    // A step that is refused, and one that is given up, leave the others be.
    let refused = writer.put(vec![document("nul\0.rs", "fn okapi() {}", &[])]).await;
    assert!(matches!(refused, Err(EngineError::Failed(_))), "{refused:?}");
    let many: Vec<StoredDocument> = (0..500)
        .map(|at| document(&format!("{at}.rs"), &"fn zebra() {}\n".repeat(50), &[]))
        .collect();
    let given_up = tokio::time::timeout(Duration::from_millis(1), writer.put(many)).await;
    assert!(given_up.is_err(), "it was done before it was given up");
    writer.put(vec![document("b.rs", "fn lemur() {}", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    let documents: Vec<String> = engine.documents().await.unwrap().into_keys().collect();
    assert_eq!(documents, ["a.rs", "b.rs"]);
    let status = engine.status().await.unwrap();
    let whole = server.run("select chunks from toolgate_search.namespaces");
    assert_eq!(status.chunks.to_string(), whole);
    // A writer that goes without committing has written nothing.
    writer.put(vec![document("c.rs", "fn okapi() {}", &[])]).await.unwrap();
    drop(writer);
    let mut writer = next_writer(&*engine).await;
    writer.commit().await.unwrap();
    assert!(!engine.documents().await.unwrap().contains_key("c.rs"));
}

#[tokio::test]
async fn one_writes_and_others_read_what_it_committed() {
    let server = Postgres16::start();
    let [one, other] = [(), ()].map(|()| engine_at(&server, "workspace", DocumentSource::Files));
    let (first, second) = tokio::join!(one.open_index(), other.open_index());
    first.unwrap();
    second.unwrap();
    let mut writer = one.acquire_writer().await.unwrap().unwrap();
    assert!(other.acquire_writer().await.unwrap().is_none());
    writer.put(vec![document("a.rs", "fn quagga() {}", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(found(&*other, sought("quagga")).await[0].0, "a.rs");
    drop(writer);
    drop(next_writer(&*other).await);
    // A workspace elsewhere of the same name is another, unless it is called the same.
    let mut elsewhere = identity("workspace", DocumentSource::Files);
    elsewhere.root = "/elsewhere".into();
    let stranger = engine(&settings(&server.url()), elsewhere.clone(), None).unwrap();
    assert_eq!(stranger.open_index().await.unwrap(), IndexOpenOutcome::Created);
    let called =
        PostgresSettings { workspace: Some("/workspace".to_owned()), ..settings(&server.url()) };
    let same = engine(&called, elsewhere, None).unwrap();
    assert_eq!(found(&*same, sought("quagga")).await[0].0, "a.rs");
}

#[tokio::test]
async fn a_server_that_goes_is_away_at_once_and_back_when_it_is() {
    let mut server = Postgres16::start();
    let engine = engine_at(&server, "workspace", DocumentSource::Files);
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    let mut writer = next_writer(&*engine).await;
    server.stop();
    let begun = Instant::now();
    let why = away(engine.candidates(sought("quagga")).await.err().unwrap());
    assert!(why.contains("PostgreSQL `postgres` at"), "{why}");
    away(engine.open_index().await.unwrap_err());
    away(writer.put(vec![document("b.rs", "fn okapi() {}", &[])]).await.unwrap_err());
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    server.again();
    assert_eq!(engine.open_index().await.unwrap(), IndexOpenOutcome::Existing);
    assert_eq!(found(&*engine, sought("quagga")).await[0].0, "a.rs");
    fill(&*engine, vec![document("b.rs", "fn okapi() {}", &[])]).await;
    assert_eq!(found(&*engine, sought("okapi")).await[0].0, "b.rs");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_waited_for() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgresql://u@{}/db", silent.local_addr().unwrap());
    let engine = engine(&settings(&url), identity("w", DocumentSource::Files), None).unwrap();
    let begun = Instant::now();
    let why = away(engine.open_index().await.unwrap_err());
    assert!(why.contains("did not answer within"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_password_is_asked_for_and_never_told() {
    let server = Postgres16::with_password("correct horse");
    let with = |password: &str| {
        let password = EnginePassword::from(password);
        let settings = PostgresSettings { password, ..settings(&server.url()) };
        assert!(!format!("{settings:?}").contains("horse"));
        engine(&settings, identity("w", DocumentSource::Files), None).unwrap()
    };
    with("correct horse").open_index().await.unwrap();
    let wrong = away(with("wrong horse").open_index().await.unwrap_err());
    assert!(wrong.contains("does not let `postgres` in"), "{wrong}");
    assert!(wrong.contains("PGPASSWORD") && !wrong.contains("horse"), "{wrong}");
    let none = away(with("").open_index().await.unwrap_err());
    assert!(none.contains("wants a password") && none.contains("PGPASSWORD"), "{none}");
}

#[tokio::test]
async fn a_server_without_pgvector_is_said_to_be_without() {
    let server = Postgres16::without_pgvector();
    let why = away(engine_at(&server, "w", DocumentSource::Files).open_index().await.unwrap_err());
    assert!(why.contains("has no pgvector"), "{why}");
    let there = "select count(*) from pg_namespace where nspname = 'toolgate_search'";
    assert_eq!(server.run(there), "0");
    let nowhere = server.url().replace("/postgres?", "/nowhere?");
    let engine = engine(&settings(&nowhere), identity("w", DocumentSource::Files), None).unwrap();
    let why = away(engine.open_index().await.unwrap_err());
    assert!(why.contains("has no such database"), "{why}");
}

#[tokio::test]
async fn another_version_s_index_is_made_anew_and_a_newer_one_is_left_alone() {
    let server = Postgres16::start();
    let files = engine_at(&server, "w", DocumentSource::Files);
    fill(&*files, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    let notes = engine_at(&server, "n", DocumentSource::Documents);
    fill(&*notes, vec![document("note", "about a quagga", &[])]).await;
    // As a version left it that knew less.
    server.run(
        "update toolgate_search.version set number = 0;
        update toolgate_search.namespaces set form = '0 older 8';
        alter table toolgate_search.chunks_1 drop column head",
    );
    let again = engine_at(&server, "w", DocumentSource::Files);
    assert!(matches!(again.open_index().await.unwrap(), IndexOpenOutcome::Rebuilt(_)));
    assert_eq!(again.status().await.unwrap().documents, 0);
    fill(&*again, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    assert_eq!(found(&*again, sought("quagga")).await[0].0, "a.rs");
    // What no file holds is there all the same.
    let notes = engine_at(&server, "n", DocumentSource::Documents);
    assert!(matches!(notes.open_index().await.unwrap(), IndexOpenOutcome::Rebuilt(_)));
    assert_eq!(found(&*notes, sought("quagga")).await[0].0, "note");
    assert_eq!(server.run("select number from toolgate_search.version"), "2");

    server.run("update toolgate_search.version set number = 7");
    let why = away(engine_at(&server, "w", DocumentSource::Files).open_index().await.unwrap_err());
    assert!(why.contains("newer toolgate (schema 7; this one knows 2)"), "{why}");
    assert_eq!(server.run("select count(*) from toolgate_search.documents_1"), "1");
}

#[tokio::test]
async fn tables_that_are_gone_are_damage_and_made_anew() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "w", DocumentSource::Files);
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    server.run("drop table toolgate_search.words_1");
    let damaged = engine.candidates(sought("quagga")).await.err().unwrap();
    assert!(matches!(damaged, EngineError::Damaged(_)), "{damaged:?}");
    engine.reset().await.unwrap();
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    assert_eq!(found(&*engine, sought("quagga")).await[0].0, "a.rs");
}

#[tokio::test]
async fn tables_are_made_anew_once_whoever_wrote_is_gone() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "w", DocumentSource::Files);
    let writer = engine.acquire_writer().await.unwrap().unwrap();
    server.run("drop table toolgate_search.words_1");
    let mut opening = engine.open_index();
    // The lock is asked for, and held.
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut opening).await;
    assert!(waits.is_err(), "{waits:?}");
    drop(writer);
    assert!(matches!(opening.await.unwrap(), IndexOpenOutcome::Rebuilt(_)));
}

#[tokio::test]
async fn many_vectors_are_found_through_an_index() {
    let server = Postgres16::start();
    let settings = PostgresSettings { approximate_from: 500, ..settings(&server.url()) };
    let model = Some(VectorSpace { model: "random".to_owned(), dimensions: 32 });
    let engine = engine(&settings, identity("w", DocumentSource::Files), model).unwrap();
    let vector = |seed: String| {
        let mut bytes = [0; 32];
        blake3::Hasher::new().update(seed.as_bytes()).finalize_xof().fill(&mut bytes);
        let numbers = bytes.map(|byte| f32::from(byte) - 127.5);
        let length = numbers.iter().map(|it| it * it).sum::<f32>().sqrt();
        numbers.map(|it| it / length).to_vec()
    };
    let text = |at: usize| format!("fn quagga_{at}() {{}}\n");
    let many = (0..600).map(|at| document(&format!("{at}.rs"), &text(at), &[])).collect();
    fill(&*engine, many).await;
    let mut writer = next_writer(&*engine).await;
    let wanting = engine.pending_chunks(1_000).await.unwrap();
    assert_eq!(wanting.len(), 600);
    let given = wanting.into_iter().map(|it| (it.hash, vector(it.path))).collect();
    writer.put_vectors(given).await.unwrap();
    // It is looked whether an index is to be made whenever something was written.
    let made = "select count(*) from pg_index where indisvalid and indexrelid::regclass::text
        like 'toolgate_search.near_2_%'";
    let until = Instant::now() + Duration::from_secs(60);
    while server.run(made) != "1" {
        assert!(Instant::now() < until, "no index was made");
        writer.put(vec![document("0.rs", &text(0), &[])]).await.unwrap();
        writer.commit().await.unwrap();
    }
    let mut same = 0;
    for at in 0..20 {
        let model = Some(vector(format!("question {at}")));
        let through = EngineQuery { model_vector: model, limit: 10, ..EngineQuery::default() };
        // A filter that lets all in is answered from all vectors.
        let filter = DocumentFilter { prefixes: vec![String::new()], tags: Vec::new() };
        let exactly = EngineQuery { filter, ..through.clone() };
        let paths = async |sought| {
            let found = engine.candidates(sought).await.unwrap().candidates;
            assert_eq!(found.len(), 10);
            found.into_iter().map(|it| it.summary.path).collect::<Vec<_>>()
        };
        let through = paths(through).await;
        same += paths(exactly).await.iter().filter(|it| through.contains(it)).count();
    }
    assert!(same >= 190, "of 200 nearest, {same} are found");
}
