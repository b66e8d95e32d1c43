//! Tests of the search engine with a real PostgreSQL server with pgvector, which each test starts
//! itself.
#![allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]

use std::time::Instant;

use toolgate_postgres::DatabasePassword;

use super::super::tests::{
    check_commits, check_filters, check_kept_documents, check_model_vectors, check_names,
    check_ranking, corpus, document, fill, found, identity, next_writer, search_for,
};
use super::*;

mod rejected;
#[path = "../../../../../../tests/postgres/server.rs"]
mod server;

use server::PostgresServerProcess as Postgres16;

/// Returns the engine of the namespace `identity` at the server that `settings` name.
fn engine(
    settings: &PostgresSearchSettings,
    identity: SearchNamespaceIdentity,
    model: Option<VectorSpace>,
) -> Result<Arc<dyn SearchEngine>, String> {
    Ok(PostgresSearchServer::new(settings)?.engine(identity, model))
}

fn settings(url: &str) -> PostgresSearchSettings {
    serde_json::from_value(serde_json::json!({ "url": url })).unwrap()
}

fn engine_at(
    server: &Postgres16,
    name: &str,
    source: NamespaceDocumentSource,
) -> Arc<dyn SearchEngine> {
    engine(&settings(&server.url()), identity(name, source), None).unwrap()
}

fn unavailable_reason(err: SearchEngineError) -> String {
    let SearchEngineError::Unavailable(why) = err else { panic!("{err:?}") };
    why
}

#[tokio::test]
async fn results_are_ranked_and_filtered_exactly() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "workspace", NamespaceDocumentSource::Files);
    assert_eq!(engine.open_index().await.unwrap(), IndexOpenOutcome::Created);
    // Another namespace has no influence.
    let other = engine_at(&server, "other", NamespaceDocumentSource::Files);
    fill(&*other, vec![document("src/http/auth.rs", "fn authentication_middleware() {}", &[])])
        .await;
    fill(&*engine, corpus()).await;
    check_ranking(&*engine).await;
    check_filters(&*engine).await;
    assert_eq!(engine.open_index().await.unwrap(), IndexOpenOutcome::Existing);
    assert_eq!(other.status().await.unwrap().documents, 1);
}

#[tokio::test]
async fn namespaces_of_documents_are_listed_by_a_later_server() {
    let server = Postgres16::start();
    let namespaces = || async {
        let server = PostgresSearchServer::new(&settings(&server.url())).unwrap();
        server.document_namespaces("/workspace".as_ref()).await.unwrap()
    };
    assert!(namespaces().await.is_empty());
    let notes = engine_at(&server, "notes", NamespaceDocumentSource::Documents);
    fill(&*notes, vec![document("note", "about a quagga", &[])]).await;
    fill(&*engine_at(&server, "workspace", NamespaceDocumentSource::Files), Vec::new()).await;
    assert_eq!(namespaces().await, ["notes"]);
}

#[tokio::test]
async fn committed_documents_names_and_vectors_are_found() {
    let server = Postgres16::start();
    check_commits(&*engine_at(&server, "workspace", NamespaceDocumentSource::Files)).await;
    check_names(&*engine_at(&server, "names", NamespaceDocumentSource::Files)).await;
    check_kept_documents(&*engine_at(&server, "notes", NamespaceDocumentSource::Documents)).await;
    let model = Some(VectorSpace { model: "colours".to_owned(), dimensions: 4 });
    let identity = identity("colours", NamespaceDocumentSource::Files);
    check_model_vectors(&*engine(&settings(&server.url()), identity, model).unwrap()).await;
}

#[tokio::test]
async fn uncommitted_and_interrupted_writes_leave_nothing_behind() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "workspace", NamespaceDocumentSource::Files);
    let mut writer = engine.acquire_writer().await.unwrap().unwrap();
    writer.put(vec![document("a.rs", "fn quagga() {}", &[])]).await.unwrap();
    assert!(found(&*engine, search_for("quagga")).await.is_empty());
    // A rejected step and a cancelled one do not affect the others.
    let rejected = writer.put(vec![document("nul\0.rs", "fn okapi() {}", &[])]).await;
    assert!(matches!(rejected, Err(SearchEngineError::Failed(_))), "{rejected:?}");
    let many: Vec<StoredDocument> = (0..500)
        .map(|at| document(&format!("{at}.rs"), &"fn zebra() {}\n".repeat(50), &[]))
        .collect();
    let cancelled = tokio::time::timeout(Duration::from_millis(1), writer.put(many)).await;
    assert!(cancelled.is_err(), "the write finished before it was cancelled");
    writer.put(vec![document("b.rs", "fn lemur() {}", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    let documents: Vec<String> = engine.documents().await.unwrap().into_keys().collect();
    assert_eq!(documents, ["a.rs", "b.rs"]);
    let status = engine.status().await.unwrap();
    let chunks = server.run("select chunks from toolgate_search.namespaces");
    assert_eq!(status.chunks.to_string(), chunks);
    // A writer that is dropped without a commit has written nothing.
    writer.put(vec![document("c.rs", "fn okapi() {}", &[])]).await.unwrap();
    drop(writer);
    let mut writer = next_writer(&*engine).await;
    writer.commit().await.unwrap();
    assert!(!engine.documents().await.unwrap().contains_key("c.rs"));
}

#[tokio::test]
async fn one_server_writes_and_others_read_its_commits() {
    let server = Postgres16::start();
    let [one, other] =
        [(), ()].map(|()| engine_at(&server, "workspace", NamespaceDocumentSource::Files));
    let (first, second) = tokio::join!(one.open_index(), other.open_index());
    first.unwrap();
    second.unwrap();
    let mut writer = one.acquire_writer().await.unwrap().unwrap();
    assert!(other.acquire_writer().await.unwrap().is_none());
    writer.put(vec![document("a.rs", "fn quagga() {}", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(found(&*other, search_for("quagga")).await[0].0, "a.rs");
    drop(writer);
    drop(next_writer(&*other).await);
    // A workspace in another folder has its own index, unless the settings give it the same name.
    let mut elsewhere = identity("workspace", NamespaceDocumentSource::Files);
    elsewhere.root = "/elsewhere".into();
    let separate = engine(&settings(&server.url()), elsewhere.clone(), None).unwrap();
    assert_eq!(separate.open_index().await.unwrap(), IndexOpenOutcome::Created);
    let same_name = PostgresSearchSettings {
        workspace: Some("/workspace".to_owned()),
        ..settings(&server.url())
    };
    let same = engine(&same_name, elsewhere, None).unwrap();
    assert_eq!(found(&*same, search_for("quagga")).await[0].0, "a.rs");
}

#[tokio::test]
async fn a_stopped_server_is_unavailable_at_once_and_used_again_after_a_restart() {
    let mut server = Postgres16::start();
    let engine = engine_at(&server, "workspace", NamespaceDocumentSource::Files);
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    let mut writer = next_writer(&*engine).await;
    server.stop();
    let start = Instant::now();
    let why = unavailable_reason(engine.candidates(search_for("quagga")).await.err().unwrap());
    assert!(why.contains("PostgreSQL `postgres` at"), "{why}");
    unavailable_reason(engine.open_index().await.unwrap_err());
    let put = writer.put(vec![document("b.rs", "fn okapi() {}", &[])]).await;
    unavailable_reason(put.unwrap_err());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    server.again();
    assert_eq!(engine.open_index().await.unwrap(), IndexOpenOutcome::Existing);
    assert_eq!(found(&*engine, search_for("quagga")).await[0].0, "a.rs");
    fill(&*engine, vec![document("b.rs", "fn okapi() {}", &[])]).await;
    assert_eq!(found(&*engine, search_for("okapi")).await[0].0, "b.rs");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_unavailable_after_the_time_limit() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgresql://u@{}/db", silent.local_addr().unwrap());
    let engine =
        engine(&settings(&url), identity("w", NamespaceDocumentSource::Files), None).unwrap();
    let start = Instant::now();
    let why = unavailable_reason(engine.open_index().await.unwrap_err());
    assert!(why.contains("did not answer within"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_an_error_that_does_not_contain_it() {
    let server = Postgres16::with_password("correct horse");
    let with = |password: &str| {
        let password = DatabasePassword::from(password);
        let settings = PostgresSearchSettings { password, ..settings(&server.url()) };
        assert!(!format!("{settings:?}").contains("horse"));
        engine(&settings, identity("w", NamespaceDocumentSource::Files), None).unwrap()
    };
    with("correct horse").open_index().await.unwrap();
    let wrong = unavailable_reason(with("wrong horse").open_index().await.unwrap_err());
    assert!(wrong.contains("rejects the login of `postgres`"), "{wrong}");
    assert!(wrong.contains("PGPASSWORD") && !wrong.contains("horse"), "{wrong}");
    let none = unavailable_reason(with("").open_index().await.unwrap_err());
    assert!(none.contains("requires a password") && none.contains("PGPASSWORD"), "{none}");
}

#[tokio::test]
async fn a_missing_pgvector_or_database_is_an_error_with_the_reason() {
    let server = Postgres16::without_pgvector();
    let files = engine_at(&server, "w", NamespaceDocumentSource::Files);
    let why = unavailable_reason(files.open_index().await.unwrap_err());
    assert!(why.contains("has no pgvector"), "{why}");
    let schemas = "select count(*) from pg_namespace where nspname = 'toolgate_search'";
    assert_eq!(server.run(schemas), "0");
    let missing = server.url().replace("/postgres?", "/nowhere?");
    let engine =
        engine(&settings(&missing), identity("w", NamespaceDocumentSource::Files), None).unwrap();
    let why = unavailable_reason(engine.open_index().await.unwrap_err());
    assert!(why.contains("has no such database"), "{why}");
}

#[tokio::test]
async fn an_older_index_is_rebuilt_and_a_newer_one_is_not_touched() {
    let server = Postgres16::start();
    let files = engine_at(&server, "w", NamespaceDocumentSource::Files);
    fill(&*files, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    let notes = engine_at(&server, "n", NamespaceDocumentSource::Documents);
    fill(&*notes, vec![document("note", "about a quagga", &[])]).await;
    // As an older version would have left it.
    server.run(
        "update toolgate_search.version set number = 0;
        update toolgate_search.namespaces set form = '0 older 8';
        alter table toolgate_search.chunks_1 drop column head",
    );
    let again = engine_at(&server, "w", NamespaceDocumentSource::Files);
    assert!(matches!(again.open_index().await.unwrap(), IndexOpenOutcome::Rebuilt(_)));
    assert_eq!(again.status().await.unwrap().documents, 0);
    fill(&*again, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    assert_eq!(found(&*again, search_for("quagga")).await[0].0, "a.rs");
    // Documents without a file are still there.
    let notes = engine_at(&server, "n", NamespaceDocumentSource::Documents);
    assert!(matches!(notes.open_index().await.unwrap(), IndexOpenOutcome::Rebuilt(_)));
    assert_eq!(found(&*notes, search_for("quagga")).await[0].0, "note");
    assert_eq!(server.run("select number from toolgate_search.version"), "2");

    server.run("update toolgate_search.version set number = 7");
    let newer = engine_at(&server, "w", NamespaceDocumentSource::Files);
    let why = unavailable_reason(newer.open_index().await.unwrap_err());
    assert!(why.contains("newer toolgate (schema 7; this one supports 2)"), "{why}");
    assert_eq!(server.run("select count(*) from toolgate_search.documents_1"), "1");
}

#[tokio::test]
async fn missing_tables_are_damage_and_recreated_by_a_reset() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "w", NamespaceDocumentSource::Files);
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    server.run("drop table toolgate_search.words_1");
    let damaged = engine.candidates(search_for("quagga")).await.err().unwrap();
    assert!(matches!(damaged, SearchEngineError::Damaged(_)), "{damaged:?}");
    engine.reset().await.unwrap();
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    assert_eq!(found(&*engine, search_for("quagga")).await[0].0, "a.rs");
}

#[tokio::test]
async fn tables_are_recreated_once_the_writer_is_gone() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "w", NamespaceDocumentSource::Files);
    let writer = engine.acquire_writer().await.unwrap().unwrap();
    server.run("drop table toolgate_search.words_1");
    let mut opening = engine.open_index();
    // The writer still has the lock.
    let waiting = tokio::time::timeout(Duration::from_millis(300), &mut opening).await;
    assert!(waiting.is_err(), "{waiting:?}");
    drop(writer);
    assert!(matches!(opening.await.unwrap(), IndexOpenOutcome::Rebuilt(_)));
}

#[tokio::test]
async fn many_vectors_are_searched_through_an_approximate_index() {
    let server = Postgres16::start();
    let settings = PostgresSearchSettings { approximate_from: 500, ..settings(&server.url()) };
    let model = Some(VectorSpace { model: "random".to_owned(), dimensions: 32 });
    let engine = engine(&settings, identity("w", NamespaceDocumentSource::Files), model).unwrap();
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
    let pending = engine.pending_chunks(1_000).await.unwrap();
    assert_eq!(pending.len(), 600);
    let vectors = pending.into_iter().map(|it| (it.hash, vector(it.path))).collect();
    writer.put_vectors(vectors).await.unwrap();
    // Every commit checks whether an approximate index is needed.
    let built = "select count(*) from pg_index where indisvalid and indexrelid::regclass::text
        like 'toolgate_search.near_2_%'";
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.run(built) != "1" {
        assert!(Instant::now() < deadline, "no approximate index was built");
        writer.put(vec![document("0.rs", &text(0), &[])]).await.unwrap();
        writer.commit().await.unwrap();
    }
    let mut same = 0;
    for at in 0..20 {
        let model = Some(vector(format!("question {at}")));
        let approximate =
            SearchEngineQuery { model_vector: model, limit: 10, ..SearchEngineQuery::default() };
        // With a filter, all vectors are compared.
        let filter = DocumentFilter { prefixes: vec![String::new()], tags: Vec::new() };
        let exact = SearchEngineQuery { filter, ..approximate.clone() };
        let paths = async |query| {
            let found = engine.candidates(query).await.unwrap().candidates;
            assert_eq!(found.len(), 10);
            found.into_iter().map(|it| it.summary.path).collect::<Vec<_>>()
        };
        let approximate = paths(approximate).await;
        same += paths(exact).await.iter().filter(|it| approximate.contains(it)).count();
    }
    assert!(same >= 190, "only {same} of the 200 nearest are found");
}
