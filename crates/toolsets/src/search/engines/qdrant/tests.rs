//! Against the server at `TOOLGATE_TEST_QDRANT` where that is set, else against Qdrant's own
//! Python client's engine in memory behind Qdrant's gRPC (`tests/qdrant/server.py`), which is no
//! Qdrant server.
#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "a test sets up the world")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::Instant;

use tokio::task::JoinSet;

use super::super::settings::Password;
use super::super::tests::{
    corpus, document, fill, filters_exactly, finds_by_name, finds_by_the_model,
    finds_what_is_best_of_all, found, holds_what_was_committed, identity, keeps_documents, sought,
};
use qdrant_client::qdrant::{
    CreateCollectionBuilder, DeletePointsBuilder, Distance, VectorParamsBuilder,
    VectorsConfigBuilder,
};

use super::*;

/// Names a Qdrant server that tests may make and drop collections at.
const REAL: &str = "TOOLGATE_TEST_QDRANT";

/// A server, ended with this where it is the test's own.
struct Running {
    url: String,
    process: Option<Child>,
    /// What keeps the tests of one server from one another.
    workspace: String,
}

impl Running {
    /// The real one where there is one, else the stand-in.
    fn start(workspace: &str) -> Self {
        if let Ok(url) = std::env::var(REAL) {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let workspace = format!("{workspace} {}", now.unwrap().as_nanos());
            return Self { url, process: None, workspace };
        }
        eprintln!("{REAL} is not set: no Qdrant server is asked, but what stands in for one");
        Self::stand_in(workspace, &[])
    }

    /// What stands in for a server, however it was started.
    fn stand_in(workspace: &str, arguments: &[&str]) -> Self {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = checkout.join(".tools/qdrant/bin/python");
        assert!(python.exists(), "{} is missing: run `cargo xtask setup`", python.display());
        let mut process = Command::new(python)
            .arg(checkout.join("tests/qdrant/server.py"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let url = format!("http://127.0.0.1:{}", port.trim());
        Self { url, process: Some(process), workspace: workspace.to_owned() }
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn settings(&self) -> QdrantSettings {
        let settings = serde_json::json!({ "url": self.url, "workspace": self.workspace });
        serde_json::from_value(settings).unwrap()
    }

    fn server(&self) -> Server {
        Server::of(&self.settings()).unwrap()
    }

    fn engine(&self, name: &str, source: Source) -> Arc<dyn Engine> {
        self.server().engine(identity(name, source), None)
    }

    fn with_model(&self, dimensions: usize) -> Arc<dyn Engine> {
        let model = Space { model: "colours".to_owned(), dimensions };
        self.server().engine(identity("colours", Source::Files), Some(model))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn engine_at(url: &str) -> Arc<dyn Engine> {
    let settings = serde_json::from_value(serde_json::json!({ "url": url })).unwrap();
    Server::of(&settings).unwrap().engine(identity("w", Source::Files), None)
}

fn away(said: EngineError) -> String {
    let EngineError::Away(why) = said else { panic!("{said:?}") };
    why
}

#[tokio::test]
async fn it_finds_what_is_best_of_all_and_filters_exactly() {
    let running = Running::start("corpus");
    let engine = running.engine("workspace", Source::Files);
    assert_eq!(engine.open().await.unwrap(), Begun::New);
    // Another namespace beside it changes nothing.
    let other = running.engine("other", Source::Files);
    fill(&*other, vec![document("src/http/auth.rs", "fn authentication() {}", &[])]).await;
    fill(&*engine, corpus()).await;
    finds_what_is_best_of_all(&*engine).await;
    filters_exactly(&*engine).await;
    assert_eq!(running.engine("workspace", Source::Files).open().await.unwrap(), Begun::Kept);
    assert_eq!(other.status().await.unwrap().documents, 1);
}

#[tokio::test]
async fn it_holds_what_was_committed() {
    let running = Running::start("held");
    holds_what_was_committed(&*running.engine("workspace", Source::Files)).await;
    finds_by_name(&*running.engine("names", Source::Files)).await;
}

#[tokio::test]
async fn it_finds_by_the_model() {
    let running = Running::start("model");
    finds_by_the_model(&*running.with_model(4)).await;
}

#[tokio::test]
async fn a_text_that_comes_back_has_the_vector_it_had() {
    let running = Running::start("back");
    let engine = running.with_model(4);
    let was = document("a.rs", "fn quagga() {}\n", &[]);
    fill(&*engine, vec![was.clone()]).await;
    let mut writer = engine.writer().await.unwrap().unwrap();
    let hash = engine.unembedded(1).await.unwrap()[0].hash;
    writer.give(vec![(hash, vec![0.0, 1.0, 0.0, 0.0])]).await.unwrap();
    writer.commit().await.unwrap();
    // Other text in the same place has no vector, and what is left over is not found.
    writer.put(vec![document("a.rs", "fn okapi() {}\n", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    let status = engine.status().await.unwrap();
    assert_eq!((status.chunks, status.with_vectors), (1, 0));
    assert_eq!(engine.unembedded(9).await.unwrap().len(), 1);
    let wanted = || Sought { model: Some(vec![0.0, 1.0, 0.0, 0.0]), limit: 9, ..sought("okapi") };
    let likeness = |matched: Matched| -> Vec<Option<f32>> {
        matched.candidates.iter().map(|it| it.model).collect()
    };
    assert_eq!(likeness(engine.candidates(wanted()).await.unwrap()), [None]);
    writer.put(vec![was]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(likeness(engine.candidates(wanted()).await.unwrap()), [Some(1.0)]);
}

#[tokio::test]
async fn it_keeps_documents_and_knows_their_namespaces() {
    let running = Running::start("notes");
    assert!(running.server().document_namespaces("/".as_ref()).await.unwrap().is_empty());
    let notes = running.engine("notes", Source::Documents);
    fill(&*notes, vec![document("note 0", "about a zebra", &[])]).await;
    assert_eq!(running.server().document_namespaces("/".as_ref()).await.unwrap(), ["notes"]);
    keeps_documents(&*notes).await;
}

#[tokio::test]
async fn a_collection_that_was_left_half_made_is_made_whole() {
    let running = Running::start("half");
    let notes = running.engine("notes", Source::Documents);
    fill(&*notes, vec![document("note", "about a quagga", &[])]).await;
    // As a server leaves it that ends before what is kept was put again.
    let client = &running.server().shared.client.clone();
    let name = running.server().collection(&identity("notes", Source::Documents), None);
    let all = Where::must_not([Condition::matches("kind", "sums".to_owned())]);
    let delete = DeletePointsBuilder::new(name).points(all).wait(true);
    client.delete_points(delete).await.unwrap();
    let again = running.engine("notes", Source::Documents);
    assert_eq!(again.open().await.unwrap(), Begun::New);
    assert_eq!(found(&*again, sought("quagga")).await[0].0, "note");
    assert_eq!(running.engine("notes", Source::Documents).open().await.unwrap(), Begun::Kept);
}

#[tokio::test]
async fn a_removal_that_is_broken_off_is_found_and_done_again() {
    let running = Running::start("removed");
    let engine = running.engine("w", Source::Files);
    let client = running.server().shared.client.clone();
    let name = running.server().collection(&identity("w", Source::Files), None);
    for polls in 1.. {
        fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
        let mut writer = engine.writer().await.unwrap().unwrap();
        writer.remove(vec!["a.rs".to_owned()]).await.unwrap();
        let mut left = polls;
        let mut removing = writer.commit();
        let done = std::future::poll_fn(|context| {
            left -= 1;
            match removing.as_mut().poll(context) {
                Poll::Pending if left == 0 => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
                Poll::Ready(done) => Poll::Ready(done.is_ok()),
            }
        })
        .await;
        drop(removing);
        // Whoever comes next takes out what is told of and is no file.
        let chunks = counted(&client, &name, "chunk").await.unwrap();
        let known = engine.documents().await.unwrap();
        assert!(chunks == 0 || known.contains_key("a.rs"), "broken off at {polls}");
        if done {
            assert_eq!((chunks, known.len()), (0, 0));
            return;
        }
    }
}

#[tokio::test]
async fn what_is_written_is_thought_over_beside_the_runtime() {
    let running = Running::start("beside");
    let engine = running.engine("w", Source::Files);
    engine.open().await.unwrap();
    let text: String = (0..6_000).map(|at| format!("w{at:x}q ")).collect();
    let document = |at: usize| document(&format!("{at}.txt"), &text, &[]);
    let mut writer = engine.writer().await.unwrap().unwrap();
    writer.put((0..6).map(document).collect()).await.unwrap();
    let begun = Instant::now();
    let put = document(0);
    drop(points::row(&put, 0, &put.chunks[0]));
    let one = begun.elapsed();
    let mut longest = Duration::ZERO;
    let mut writing = writer.commit();
    // This runtime has one thread: how long a step of it takes is how long all others wait.
    std::future::poll_fn(|context| {
        let begun = Instant::now();
        let polled = writing.as_mut().poll(context);
        longest = longest.max(begun.elapsed());
        polled
    })
    .await
    .unwrap();
    assert!(longest < 3 * one, "{longest:?} at once, and one of six takes {one:?}");
}

#[tokio::test]
async fn a_collection_that_is_gone_is_damage_and_made_anew() {
    let running = Running::start("gone");
    let engine = running.engine("w", Source::Files);
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    let name = running.server().collection(&identity("w", Source::Files), None);
    running.server().shared.client.delete_collection(name).await.unwrap();
    let damaged = engine.candidates(sought("quagga")).await.err().unwrap();
    assert!(matches!(damaged, EngineError::Damaged(_)), "{damaged:?}");
    engine.reset().await.unwrap();
    assert_eq!(engine.status().await.unwrap(), Status::default());
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    assert_eq!(found(&*engine, sought("quagga")).await[0].0, "a.rs");
}

#[tokio::test]
async fn several_that_write_one_namespace_come_to_the_same() {
    let running = Running::start("several");
    let mut opening = JoinSet::new();
    for _ in 0..8 {
        let engine = running.engine("w", Source::Files);
        opening.spawn(async move { engine.open().await });
    }
    for opened in opening.join_all().await {
        opened.unwrap();
    }
    let [one, other] = [(), ()].map(|()| running.engine("w", Source::Files));
    let [mut first, mut second] =
        [one.writer().await.unwrap().unwrap(), other.writer().await.unwrap().unwrap()];
    for text in ["fn quagga() {}\n", "fn okapi() {}\nfn lemur() {}\n"] {
        first.put(vec![document("a.rs", text, &[])]).await.unwrap();
        second.put(vec![document("a.rs", text, &[])]).await.unwrap();
        let (one, other) = tokio::join!(first.commit(), second.commit());
        one.unwrap();
        other.unwrap();
    }
    let status = one.status().await.unwrap();
    let alone = document("a.rs", "fn okapi() {}\nfn lemur() {}\n", &[]).chunks.len() as u64;
    assert_eq!((status.documents, status.chunks), (1, alone));
    assert_eq!(found(&*other, sought("lemur")).await[0].0, "a.rs");
}

#[tokio::test]
async fn a_server_that_goes_is_away_at_once() {
    let mut running = Running::stand_in("goes", &[]);
    let engine = running.engine("workspace", Source::Files);
    fill(&*engine, vec![document("a.rs", "fn quagga() {}", &[])]).await;
    assert_eq!(found(&*engine, sought("quagga")).await[0].0, "a.rs");
    let mut writer = engine.writer().await.unwrap().unwrap();
    running.stop();
    let begun = Instant::now();
    let why = away(engine.candidates(sought("quagga")).await.err().unwrap());
    assert!(why.contains("Qdrant at http://127.0.0.1"), "{why}");
    assert!(why.contains("cannot be reached: Connection refused; see whether it runs"), "{why}");
    away(engine.open().await.unwrap_err());
    writer.put(vec![document("b.rs", "fn okapi() {}", &[])]).await.unwrap();
    away(writer.commit().await.unwrap_err());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_waited_for() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let begun = Instant::now();
    let why = away(engine_at(&url).open().await.unwrap_err());
    assert!(why.contains("did not answer within 3000 ms"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

/// A server that answers whoever calls with `answer`, whatever they say.
fn answering(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer_one = move |mut stream: TcpStream| {
        let mut said = [0; 512];
        drop(stream.read(&mut said));
        drop(stream.write_all(answer));
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer_one));
    url
}

#[tokio::test]
async fn what_speaks_no_grpc_is_said_to_speak_none() {
    let url = answering(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    let why = away(engine_at(&url).open().await.unwrap_err());
    assert!(why.contains("6334"), "{why}");
    let why = away(engine_at("http://nowhere.invalid:6334").open().await.unwrap_err());
    assert!(why.contains("cannot be reached: failed to lookup address"), "{why}");
    let https = url.replace("http://", "https://");
    let why = away(engine_at(&https).open().await.unwrap_err());
    assert!(why.contains("cannot be reached") && why.contains("6334"), "{why}");
}

#[tokio::test]
async fn a_key_is_asked_for_and_never_told() {
    let running = Running::stand_in("key", &["--key", "correct-horse"]);
    let with = |key: &str| {
        let settings = QdrantSettings { api_key: Password::from(key), ..running.settings() };
        assert!(!format!("{settings:?}").contains("horse"));
        Server::of(&settings).unwrap().engine(identity("w", Source::Files), None)
    };
    with("correct-horse").open().await.unwrap();
    for wrong in ["wrong-horse", "", "horse\n"] {
        let why = with(wrong).open().await.unwrap_err().to_string();
        assert!(why.contains("does not let this server in"), "{why}");
        assert!(why.contains("QDRANT_API_KEY") && !why.contains("horse"), "{why}");
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_said_to_be() {
    let old = Running::stand_in("old", &["--version", "1.18.3"]);
    let why = away(old.engine("w", Source::Files).open().await.unwrap_err());
    assert!(why.contains("is version 1.18.3, which is too old; 1.19 or newer is needed"), "{why}");
    let newer = Running::stand_in("newer", &["--version", "2.0.0-dev"]);
    newer.engine("w", Source::Files).open().await.unwrap();
}

#[tokio::test]
async fn a_collection_for_other_vectors_is_left_alone() {
    let running = Running::start("other");
    let model = Space { model: "colours".to_owned(), dimensions: 4 };
    let server = running.server();
    let name = server.collection(&identity("colours", Source::Files), Some(&model));
    let near = static_model::space().dimensions;
    let mut vectors = VectorsConfigBuilder::default();
    let dense = |size| VectorParamsBuilder::new(size, Distance::Dot);
    vectors.add_named_vector_params("static", dense(near as u64));
    vectors.add_named_vector_params("model", dense(8));
    let create = CreateCollectionBuilder::new(&name).vectors_config(vectors);
    server.shared.client.create_collection(create).await.unwrap();
    let why = away(running.with_model(4).open().await.unwrap_err());
    let said = format!(
        "has a collection `{name}` for vectors `model` of 8 numbers and `static` of {near} \
         numbers, which are to be `model` of 4 numbers and `static` of {near} numbers; delete it"
    );
    assert!(why.contains(&said), "{why}");
    assert!(server.shared.client.collection_exists(name).await.unwrap());
}
