//! Tests of the embeddings endpoint client with a server that misbehaves.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;

/// Tells how the test server answers one request.
enum EmbeddingServerReaction {
    /// Returns the vector `[length, 1, 0]` for each text, and counts ten tokens for each.
    Embed,
    /// Returns the vector `[length, 1, 0]` for each text, in reverse order.
    EmbedReversed,
    Respond(u16, &'static str, String),
    /// Reads the request and does not answer.
    Hang,
    /// Closes the connection before or during the response.
    Close,
    CutShort,
}

/// Test server with a list of reactions to requests. It records the requests.
struct EmbeddingServer {
    url: String,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    task: JoinHandle<()>,
}

impl Drop for EmbeddingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EmbeddingServer {
    async fn new(reactions: Vec<EmbeddingServerReaction>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        let task = tokio::spawn(async move {
            let mut reactions = VecDeque::from(reactions);
            let mut hanging = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (head, body) = request(&mut stream).await;
                log.lock().unwrap().push((head, body.clone()));
                let answer = match reactions.pop_front().expect("an unexpected request") {
                    EmbeddingServerReaction::Embed => {
                        answer(200, "", &vectors_of(&body).to_string())
                    }
                    EmbeddingServerReaction::EmbedReversed => {
                        let mut vectors = vectors_of(&body);
                        vectors["data"].as_array_mut().unwrap().reverse();
                        answer(200, "", &vectors.to_string())
                    }
                    EmbeddingServerReaction::Respond(status, head, body) => {
                        answer(status, head, &body)
                    }
                    EmbeddingServerReaction::Hang => {
                        hanging.push(stream);
                        continue;
                    }
                    EmbeddingServerReaction::Close => continue,
                    EmbeddingServerReaction::CutShort => {
                        let whole = answer(200, "", &vectors_of(&body).to_string());
                        whole[..whole.len() - 20].to_owned()
                    }
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { url, requests, task }
    }

    fn requests(&self) -> Vec<(String, Value)> {
        self.requests.lock().unwrap().clone()
    }

    fn endpoint(&self, change: impl FnOnce(&mut EmbedderSettings)) -> EmbeddingEndpoint {
        let mut settings = EmbedderSettings {
            url: Some(self.url.clone()),
            model: Some("small".to_owned()),
            dimensions: Some(3),
            timeout_ms: 400,
            ..EmbedderSettings::default()
        };
        change(&mut settings);
        settings.check().unwrap();
        let mut endpoint = EmbeddingEndpoint::new(&settings, &HttpFetcher::default()).unwrap();
        endpoint.pause = Duration::from_millis(5);
        endpoint
    }
}

async fn request(stream: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    loop {
        assert_ne!(
            stream.read_buf(&mut bytes).await.unwrap(),
            0,
            "the client closed the connection"
        );
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return (head, serde_json::from_str(body).unwrap());
        }
    }
}

fn vectors_of(body: &Value) -> Value {
    let texts = body["input"].as_array().unwrap();
    let data = texts.iter().enumerate().map(|(index, text)| {
        let length = text.as_str().unwrap().len();
        json!({ "object": "embedding", "index": index, "embedding": [length, 1, 0] })
    });
    let data: Vec<_> = data.collect();
    let tokens = 10 * texts.len();
    json!({ "data": data, "model": "small", "usage": { "prompt_tokens": tokens, "total_tokens": tokens } })
}

fn answer(status: u16, head: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} Status\r\n{head}content-length: {}\r\n\r\n{body}", body.len())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Embeds two texts with a test server that has these `reactions`. Returns the outcome, with `URL`
/// for the server's address, and the number of requests.
async fn outcome(reactions: Vec<EmbeddingServerReaction>, role: EmbeddingRole) -> (String, usize) {
    let server = EmbeddingServer::new(reactions).await;
    let endpoint = server.endpoint(|_| {});
    let outcome = match endpoint.embed(&texts(&["a", "bb"]), role).await {
        Ok((vectors, usage)) => format!("{} vectors, {} tokens", vectors.len(), usage.tokens),
        Err(EmbedderUnavailable(why)) => why.replace(&server.url, "URL"),
    };
    (outcome, server.requests().len())
}

#[track_caller]
fn check((outcome, requests): (String, usize), expected: &str, expected_requests: usize) {
    assert_eq!((outcome.as_str(), requests), (expected, expected_requests));
}

#[tokio::test]
async fn texts_are_sent_in_batches_and_vectors_keep_their_order() {
    let server = EmbeddingServer::new(vec![
        EmbeddingServerReaction::EmbedReversed,
        EmbeddingServerReaction::Embed,
    ])
    .await;
    let endpoint = server.endpoint(|settings| {
        settings.batch = 2;
        settings.shorten = true;
        settings.price = Some(DecimalMoneyAmount(2.0));
        settings.key_env = Some("A_KEY".to_owned());
        settings.take_secrets(|_| Some("sk-1"));
    });
    let (vectors, usage) =
        endpoint.embed(&texts(&["", "abc", "b"]), EmbeddingRole::Chunk).await.unwrap();
    let expected = [[1.0, 1.0], [3.0, 1.0], [1.0, 1.0]];
    for (vector, [x, y]) in vectors.iter().zip(expected) {
        let length = f32::hypot(x, y);
        let near = |a: f32, b: f32| (a - b).abs() < 1e-6;
        assert!(near(vector[0], x / length) && near(vector[1], y / length), "{vector:?}");
    }
    assert_eq!((vectors.len(), usage.tokens), (3, 30));
    assert!((usage.cost - 0.000_06).abs() < 1e-12, "{}", usage.cost);
    let requests = server.requests();
    assert!(requests[0].0.starts_with("post /v1/embeddings http/1.1\r\n"), "{}", requests[0].0);
    assert!(requests[0].0.contains("\r\nauthorization: bearer sk-1"), "{}", requests[0].0);
    let first = json!({ "model": "small", "input": [" ", "abc"], "encoding_format": "float", "dimensions": 3 });
    assert_eq!(requests[0].1, first);
    assert_eq!(requests[1].1["input"], json!(["b"]));
    assert_eq!(
        endpoint.space(),
        &VectorSpace { model: "small@127.0.0.1".to_owned(), dimensions: 3 }
    );
}

#[tokio::test]
async fn a_batch_is_retried_after_a_temporary_error() {
    let limited = || {
        EmbeddingServerReaction::Respond(429, "", r#"{"error":{"message":"slow down"}}"#.to_owned())
    };
    let broken = || EmbeddingServerReaction::Respond(503, "", "<html>".to_owned());
    let success = "2 vectors, 20 tokens";
    check(
        outcome(vec![limited(), EmbeddingServerReaction::Embed], EmbeddingRole::Chunk).await,
        success,
        2,
    );
    check(
        outcome(vec![broken(), broken(), EmbeddingServerReaction::Embed], EmbeddingRole::Chunk)
            .await,
        success,
        3,
    );
    let always = (0..5).map(|_| broken()).collect();
    check(outcome(always, EmbeddingRole::Chunk).await, "the endpoint URL answers 503, 5 times", 5);
    let why = "the endpoint URL answers 429: slow down";
    check(outcome(vec![limited()], EmbeddingRole::Query).await, why, 1);
}

#[tokio::test]
async fn a_request_without_an_answer_is_not_retried() {
    let why = "the endpoint URL does not answer: timed out after 0.4 s";
    for role in [EmbeddingRole::Chunk, EmbeddingRole::Query] {
        check(outcome(vec![EmbeddingServerReaction::Hang], role).await, why, 1);
        for reaction in [EmbeddingServerReaction::Close, EmbeddingServerReaction::CutShort] {
            let (why, requests) = outcome(vec![reaction], role).await;
            assert!(why.starts_with("the endpoint URL does not answer: "), "{why}");
            assert_eq!(requests, 1);
        }
    }
}

#[tokio::test]
async fn a_query_does_not_wait_for_an_endpoint_that_did_not_answer_before() {
    let server = EmbeddingServer::new(vec![
        EmbeddingServerReaction::Hang,
        EmbeddingServerReaction::Embed,
        EmbeddingServerReaction::Embed,
        EmbeddingServerReaction::Hang,
        EmbeddingServerReaction::Embed,
    ])
    .await;
    let mut endpoint = server.endpoint(|settings| settings.timeout_ms = 60_000);
    let one = texts(&["a"]);
    let time_of_failure = async |endpoint: &EmbeddingEndpoint| {
        let start = Instant::now();
        let Err(EmbedderUnavailable(why)) = endpoint.embed(&one, EmbeddingRole::Query).await else {
            panic!("the query got vectors");
        };
        assert!(why.ends_with("does not answer: timed out after 1.5 s"), "{why}");
        start.elapsed()
    };
    let first = time_of_failure(&endpoint).await;
    assert!((1_400..1_900).contains(&first.as_millis()), "{first:?}");
    let next = time_of_failure(&endpoint).await;
    assert!(next < Duration::from_millis(100), "{next:?}");
    assert_eq!(server.requests().len(), 1);
    // Batches are still sent, and after an answer to one, queries are sent again.
    endpoint.embed(&one, EmbeddingRole::Chunk).await.unwrap();
    endpoint.embed(&one, EmbeddingRole::Query).await.unwrap();
    time_of_failure(&endpoint).await;
    endpoint.silence_pause = Duration::ZERO;
    endpoint.embed(&one, EmbeddingRole::Query).await.unwrap();
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test]
async fn a_retry_waits_for_the_time_in_retry_after() {
    let head = "retry-after: 0.2\r\n";
    let server = EmbeddingServer::new(vec![
        EmbeddingServerReaction::Respond(429, head, String::new()),
        EmbeddingServerReaction::Embed,
    ])
    .await;
    let before = Instant::now();
    server.endpoint(|_| {}).embed(&texts(&["a"]), EmbeddingRole::Chunk).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(200), "{:?}", before.elapsed());
    let reactions =
        vec![EmbeddingServerReaction::Respond(429, "retry-after: 3600\r\n", String::new())];
    let why = "the endpoint URL answers 429, and asks to retry after 3600 s";
    check(outcome(reactions, EmbeddingRole::Chunk).await, why, 1);
}

#[tokio::test]
async fn invalid_vectors_are_rejected_without_a_retry() {
    let one = |embedding: &str| format!(r#"{{"index":0,"embedding":{embedding}}}"#);
    let two = |embedding: &str| {
        format!(r#"{{"data":[{},{{"index":1,"embedding":[1,0,0]}}]}}"#, one(embedding))
    };
    let cases = [
        (format!(r#"{{"data":[{}]}}"#, one("[1,0,0]")), "1 vector for 2 texts"),
        (
            format!(r#"{{"data":[{0},{0}]}}"#, one("[1,0,0]")),
            "a vector for text 0, which does not exist or already has one",
        ),
        (two("[1,0]"), "a vector of 2 numbers, where `search.embedder.dimensions` is 3"),
        (two("[0,0,0]"), "a vector that is zero or contains a value that is not a number"),
        (two("[NaN,0,0]"), "expected value at line 1 column 34"),
        (two("[null,0,0]"), "invalid type: null, expected f32 at line 1 column 37"),
        ("{}".to_owned(), "missing field `data` at line 1 column 2"),
        ("x".repeat(70_000), "more than 66752 bytes"),
    ];
    for (body, why) in cases {
        let why = format!("the endpoint URL returned invalid vectors: {why}");
        let reactions = vec![EmbeddingServerReaction::Respond(200, "", body)];
        check(outcome(reactions, EmbeddingRole::Chunk).await, &why, 1);
    }
    // Either the JSON parser or our check rejects the number.
    let (large, _) = outcome(
        vec![EmbeddingServerReaction::Respond(200, "", two("[1e39,0,0]"))],
        EmbeddingRole::Chunk,
    )
    .await;
    assert!(large.starts_with("the endpoint URL returned invalid vectors: "), "{large}");
    let rejected =
        EmbeddingServerReaction::Respond(400, "", r#"{"error":"no model `small`"}"#.to_owned());
    let why = "the endpoint URL answers 400: no model `small`";
    check(outcome(vec![rejected], EmbeddingRole::Chunk).await, why, 1);
}

#[tokio::test]
async fn no_request_is_sent_beyond_the_cost_limit() {
    let server =
        EmbeddingServer::new(vec![EmbeddingServerReaction::Embed, EmbeddingServerReaction::Embed])
            .await;
    let endpoint = server.endpoint(|settings| {
        settings.price = Some(DecimalMoneyAmount(1_000.0));
        settings.cost_max = Some(DecimalMoneyAmount(0.025));
    });
    // Ten tokens a text, a thousandth each. The estimate is lower, and is corrected afterwards.
    for _ in 0..2 {
        endpoint.embed(&texts(&["a"]), EmbeddingRole::Chunk).await.unwrap();
    }
    let long = "x".repeat(20);
    let Err(EmbedderUnavailable(why)) =
        endpoint.embed(&texts(&[&long]), EmbeddingRole::Query).await
    else {
        panic!("the request was sent");
    };
    let expected = "requests to the endpoint URL have stopped: 0.0200 of the limit 0.025 in \
                    `search.embedder.cost_max` is spent; raise the limit, or restart the server";
    assert_eq!(why.replace(&server.url, "URL"), expected);
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn the_key_is_redacted_in_messages() {
    let quoting = r#"{"error":{"message":"bad: sk-secret"}}"#.to_owned();
    let reactions = vec![
        EmbeddingServerReaction::Respond(401, "", quoting.clone()),
        EmbeddingServerReaction::Respond(400, "", quoting),
    ];
    let server = EmbeddingServer::new(reactions).await;
    let endpoint = server.endpoint(|settings| {
        settings.key_env = Some("A_KEY".to_owned());
        settings.take_secrets(|_| Some("sk-secret"));
    });
    let mut messages = Vec::new();
    for _ in 0..2 {
        let Err(EmbedderUnavailable(why)) =
            endpoint.embed(&texts(&["a"]), EmbeddingRole::Chunk).await
        else {
            panic!("the request succeeded");
        };
        messages.push(why.replace(&server.url, "URL"));
    }
    let denied =
        "the endpoint URL denies access (401); check the key in the environment variable `A_KEY`";
    assert_eq!(messages, [denied, "the endpoint URL answers 400: bad: [redacted]"]);
}

#[tokio::test]
async fn an_error_names_an_endpoint_that_is_down_and_a_missing_key() {
    // The port is free again, and no process listens on it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let mut settings = EmbedderSettings {
        url: Some(url.clone()),
        model: Some("small".to_owned()),
        dimensions: Some(3),
        ..EmbedderSettings::default()
    };
    let down = EmbeddingEndpoint::new(&settings, &HttpFetcher::default()).unwrap();
    let Err(EmbedderUnavailable(why)) = down.embed(&texts(&["a"]), EmbeddingRole::Query).await
    else {
        panic!("another process answers there");
    };
    assert!(why.starts_with(&format!("the endpoint {url} does not answer: ")), "{why}");
    assert!(why.contains("refused"), "{why}");
    settings.key_env = Some("MISSING_KEY".to_owned());
    let why = EmbeddingEndpoint::new(&settings, &HttpFetcher::default()).err().unwrap();
    let expected = "the environment variable `MISSING_KEY`, which `search.embedder.key_env` names, \
                    is not set; put the endpoint's key there";
    assert_eq!(why, expected);
}
