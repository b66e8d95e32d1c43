//! Tests of documents that a database server rejects, and of the effect on other documents.

use super::super::rows::PostgresDocumentRows;
use super::*;

/// Returns a text of one line with `words` different words of 192 letters each.
fn of_words(words: usize) -> String {
    let word = |at: usize| {
        let mut bytes = [0; 192];
        blake3::Hasher::new().update(&at.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes.map(|byte| char::from(b'a' + byte % 26)).iter().collect::<String>() + " "
    };
    (0..words).map(word).collect()
}

fn paths(documents: BTreeMap<String, StoredDocumentVersion>) -> Vec<String> {
    documents.into_keys().collect()
}

#[tokio::test]
async fn a_text_with_too_many_words_for_a_tsvector_is_found_by_those_that_fit() {
    let server = Postgres16::start();
    let notes = engine_at(&server, "notes", NamespaceDocumentSource::Documents);
    let text = of_words(6_000);
    fill(&*notes, vec![document("kept", "about a quagga", &[])]).await;
    fill(&*notes, vec![document("big", &text, &[])]).await;
    assert_eq!(paths(notes.documents().await.unwrap()), ["big", "kept"]);
    for (word, path) in [(text.split(' ').next().unwrap(), "big"), ("quagga", "kept")] {
        let by_word = SearchEngineQuery { static_vector: None, ..search_for(word) };
        assert_eq!(found(&*notes, by_word).await[0].0, path);
    }
    // Removing the documents subtracts all words that putting them added.
    let mut writer = next_writer(&*notes).await;
    writer.remove(vec!["big".to_owned(), "kept".to_owned()]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(server.run("select count(*) from toolgate_search.words_1"), "0");
    assert_eq!(server.run("select count(*) from toolgate_search.names_1"), "0");
}

#[tokio::test]
async fn a_document_with_the_longest_possible_path_is_found() {
    let server = Postgres16::start();
    // Incompressible names of long folders, below a root that is as long.
    let folder = |seed: usize| {
        let hash = |at: usize| blake3::hash(&(seed * 4 + at).to_le_bytes()).to_hex().to_string();
        (0..4).map(hash).collect::<String>()[..240].to_owned()
    };
    let long = (0..13).map(folder).collect::<Vec<_>>().join("/");
    let mut identity = identity("workspace", NamespaceDocumentSource::Files);
    identity.root = format!("/{long}").into();
    let open = || engine(&settings(&server.url()), identity.clone(), None).unwrap();
    let files = open();
    let at = format!("{long}/a.rs");
    let put = vec![document(&at, "fn quagga() {}", &[]), document("b.rs", "fn okapi() {}", &[])];
    fill(&*files, put).await;
    assert_eq!(found(&*files, search_for("quagga")).await[0].0, at);
    let again = open();
    assert_eq!(again.open_index().await.unwrap(), IndexOpenOutcome::Existing);
    let mut writer = next_writer(&*again).await;
    writer.put(vec![document(&at, "fn lemur() {}", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(again.status().await.unwrap().documents, 2);
    writer.remove(vec![at]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(paths(again.documents().await.unwrap()), ["b.rs"]);
}

#[tokio::test]
async fn a_rejected_file_is_left_out_and_the_others_are_found() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "workspace", NamespaceDocumentSource::Files);
    fill(&*engine, vec![document("b.rs", "fn quagga() {}", &[])]).await;
    server.refuse_poison("22000");
    let mut writer = next_writer(&*engine).await;
    writer.put(vec![document("first.rs", "fn zebra() {}", &[])]).await.unwrap();
    let put = vec![
        document("a.rs", "fn okapi() {}", &[]),
        document("b.rs", "fn poison() {}", &[]),
        document("c.rs", "fn lemur() {}", &[]),
    ];
    writer.put(put).await.unwrap();
    writer.put(vec![document("b2.rs", "fn poison() {}", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    for (word, path) in [("zebra", "first.rs"), ("okapi", "a.rs"), ("lemur", "c.rs")] {
        assert_eq!(found(&*engine, search_for(word)).await[0].0, path);
    }
    // It is recorded, so that it is not read again, and its earlier content is gone.
    let known = paths(engine.documents().await.unwrap());
    assert_eq!(known, ["a.rs", "b.rs", "b2.rs", "c.rs", "first.rs"]);
    assert!(!found(&*engine, search_for("quagga")).await.iter().any(|(path, _)| path == "b.rs"));
    assert_eq!(engine.status().await.unwrap().chunks, 3);
    assert_eq!(server.run("select chunks from toolgate_search.namespaces"), "3");
    let holding = "select count(*) from toolgate_search.words_1 where word in ('poison', 'quagga')";
    assert_eq!(server.run(holding), "0");
}

#[tokio::test]
async fn a_rejected_document_is_named_and_no_document_is_put() {
    let server = Postgres16::start();
    let notes = engine_at(&server, "notes", NamespaceDocumentSource::Documents);
    fill(&*notes, vec![document("a", "about poison", &[])]).await;
    server.refuse_poison("54000");
    let mut writer = next_writer(&*notes).await;
    let put = ["a quagga", "the poison"].map(|text| document(text, text, &[]));
    let SearchEngineError::Failed(why) = writer.put(put.into()).await.unwrap_err() else {
        panic!()
    };
    assert_eq!(why, "`the poison` cannot be stored: it does not agree (54000)");
    drop(writer);
    assert_eq!(paths(notes.documents().await.unwrap()), ["a"]);
    // A document that was accepted once may be rejected when the index is rebuilt. The rebuild
    // still succeeds.
    server.run(
        "create function again() returns event_trigger language plpgsql as $$ begin
            if to_regclass('toolgate_search.chunks_1') is not null then
                create or replace trigger refuse before insert on toolgate_search.chunks_1
                for each row execute function refuse();
            end if;
        end $$;
        create event trigger again on ddl_command_end when tag in ('CREATE TABLE')
        execute function again();
        insert into toolgate_search.kept select namespace, 'b', convert_to(replace(replace(
            convert_from(document, 'UTF8'), 'poison', 'an okapi'), '\"a\"', '\"b\"'), 'UTF8')
        from toolgate_search.kept;
        drop table toolgate_search.words_1",
    );
    let again = engine_at(&server, "notes", NamespaceDocumentSource::Documents);
    assert!(matches!(again.open_index().await.unwrap(), IndexOpenOutcome::Rebuilt(_)));
    assert_eq!(paths(again.documents().await.unwrap()), ["a", "b"]);
    assert_eq!(found(&*again, search_for("okapi")).await[0].0, "b");
    assert_eq!(again.status().await.unwrap().chunks, 1);
}

#[tokio::test]
async fn only_codes_of_corruption_are_damage() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "workspace", NamespaceDocumentSource::Files);
    engine.open_index().await.unwrap();
    let mut writer = next_writer(&*engine).await;
    for (code, is_damage) in [("XX001", true), ("XX002", true), ("23000", false)] {
        server.refuse_poison(code);
        let err = writer.put(vec![document("a.rs", "fn poison() {}", &[])]).await.unwrap_err();
        assert_eq!(matches!(err, SearchEngineError::Damaged(_)), is_damage, "{err:?}");
    }
    // If every document is rejected, the documents are not the cause.
    server.refuse_poison("XX000");
    let many = |from: usize| -> Vec<StoredDocument> {
        (from..20).map(|at| document(&format!("{at}.rs"), "fn poison() {}", &[])).collect()
    };
    let err = writer.put(many(0)).await.unwrap_err();
    assert!(matches!(err, SearchEngineError::Failed(_)), "{err:?}");
    writer.put(many(18)).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(paths(engine.documents().await.unwrap()), ["18.rs", "19.rs"]);
}

#[tokio::test]
async fn the_approximate_index_is_not_built_during_a_bulk_write() {
    let server = Postgres16::start();
    let settings = PostgresSearchSettings { approximate_from: 100, ..settings(&server.url()) };
    let server = PostgresSearchServer::new(&settings).unwrap();
    let postgres = server.postgres_engine(identity("w", NamespaceDocumentSource::Files), None);
    let mut writer = postgres.acquire_writer().await.unwrap().unwrap();
    let put = |at: usize| document(&format!("{at}.rs"), &format!("fn quagga_{at}() {{}}\n"), &[]);
    writer.put((0..300).map(put).collect()).await.unwrap();
    writer.commit().await.unwrap();
    assert!(!postgres.upkeep.was_started());
    writer.release_resources().await.unwrap();
    assert!(postgres.upkeep.was_started());
}

#[tokio::test]
async fn preparing_documents_does_not_block_the_runtime() {
    let server = Postgres16::start();
    let engine = engine_at(&server, "workspace", NamespaceDocumentSource::Files);
    engine.open_index().await.unwrap();
    let mut writer = engine.acquire_writer().await.unwrap().unwrap();
    let text = of_words(1_500);
    let many: Vec<StoredDocument> =
        (0..4).map(|at| document(&format!("{at}.txt"), &text, &[])).collect();
    let mut longest = Duration::ZERO;
    let mut putting = writer.put(many);
    // This runtime has one thread, so all other tasks wait during each poll.
    std::future::poll_fn(|context| {
        let start = Instant::now();
        let polled = putting.as_mut().poll(context);
        longest = longest.max(start.elapsed());
        polled
    })
    .await
    .unwrap();
    let start = Instant::now();
    drop(PostgresDocumentRows::new(document("0.txt", &text, &[])));
    let one = start.elapsed();
    assert!(longest < 2 * one, "a poll took {longest:?}, and one of four documents takes {one:?}");
}
