//! The endpoint against a server that misbehaves in all the ways that servers do.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;

/// What the server does with one request.
enum Does {
    /// Gives each text the vector `[its length, 1, 0]`, and counts ten tokens a text.
    Right,
    /// The same, the last text first.
    Backwards,
    Answers(u16, &'static str, String),
    /// Reads the request and says nothing.
    Hangs,
    /// Closes before, or in the middle of its answer.
    Closes,
    Cuts,
}

/// A server that does one thing after another, and what it was asked.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn new(does: Vec<Does>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = asked.clone();
        let task = tokio::spawn(async move {
            let mut does = VecDeque::from(does);
            let mut hanging = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (head, body) = request(&mut stream).await;
                kept.lock().unwrap().push((head, body.clone()));
                let answer = match does.pop_front().expect("it is not asked so often") {
                    Does::Right => answer(200, "", &right(&body).to_string()),
                    Does::Backwards => {
                        let mut said = right(&body);
                        said["data"].as_array_mut().unwrap().reverse();
                        answer(200, "", &said.to_string())
                    }
                    Does::Answers(status, head, body) => answer(status, head, &body),
                    Does::Hangs => {
                        hanging.push(stream);
                        continue;
                    }
                    Does::Closes => continue,
                    Does::Cuts => {
                        let whole = answer(200, "", &right(&body).to_string());
                        whole[..whole.len() - 20].to_owned()
                    }
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { url, asked, task }
    }

    fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().unwrap().clone()
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
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "it hung up");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return (head, serde_json::from_str(body).unwrap());
        }
    }
}

fn right(body: &Value) -> Value {
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
    format!("HTTP/1.1 {status} Said\r\n{head}content-length: {}\r\n\r\n{body}", body.len())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// What comes of two texts where the server does `does`, without where it is.
async fn outcome(does: Vec<Does>, role: EmbeddingRole) -> (String, usize) {
    let server = Server::new(does).await;
    let endpoint = server.endpoint(|_| {});
    let outcome = match endpoint.embed(&texts(&["a", "bb"]), role).await {
        Ok((vectors, usage)) => format!("{} vectors, {} tokens", vectors.len(), usage.tokens),
        Err(EmbedderUnavailable(why)) => why.replace(&server.url, "URL"),
    };
    (outcome, server.asked().len())
}

#[track_caller]
fn check((outcome, asked): (String, usize), expected: &str, times: usize) {
    assert_eq!((outcome.as_str(), asked), (expected, times));
}

#[tokio::test]
async fn texts_are_asked_for_in_batches_and_come_back_in_order() {
    let server = Server::new(vec![Does::Backwards, Does::Right]).await;
    let endpoint = server.endpoint(|settings| {
        settings.batch = 2;
        settings.shorten = true;
        settings.price = Some(Money(2.0));
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
    let asked = server.asked();
    assert!(asked[0].0.starts_with("post /v1/embeddings http/1.1\r\n"), "{}", asked[0].0);
    assert!(asked[0].0.contains("\r\nauthorization: bearer sk-1"), "{}", asked[0].0);
    let first = json!({ "model": "small", "input": [" ", "abc"], "encoding_format": "float", "dimensions": 3 });
    assert_eq!(asked[0].1, first);
    assert_eq!(asked[1].1["input"], json!(["b"]));
    assert_eq!(
        endpoint.space(),
        &VectorSpace { model: "small@127.0.0.1".to_owned(), dimensions: 3 }
    );
}

#[tokio::test]
async fn a_batch_is_asked_for_again_where_that_may_help() {
    let limited = || Does::Answers(429, "", r#"{"error":{"message":"slow down"}}"#.to_owned());
    let broken = || Does::Answers(503, "", "<html>".to_owned());
    let right = "2 vectors, 20 tokens";
    check(outcome(vec![limited(), Does::Right], EmbeddingRole::Chunk).await, right, 2);
    check(outcome(vec![broken(), broken(), Does::Right], EmbeddingRole::Chunk).await, right, 3);
    let always = (0..5).map(|_| broken()).collect();
    check(outcome(always, EmbeddingRole::Chunk).await, "the endpoint URL answers 503, 5 times", 5);
    let why = "the endpoint URL answers 429: slow down";
    check(outcome(vec![limited()], EmbeddingRole::Query).await, why, 1);
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_is_said_to_be_so_at_once() {
    let why = "the endpoint URL does not answer: there was no answer within 0.4 s";
    for role in [EmbeddingRole::Chunk, EmbeddingRole::Query] {
        check(outcome(vec![Does::Hangs], role).await, why, 1);
        for does in [Does::Closes, Does::Cuts] {
            let (why, asked) = outcome(vec![does], role).await;
            assert!(why.starts_with("the endpoint URL does not answer: "), "{why}");
            assert_eq!(asked, 1);
        }
    }
}

#[tokio::test]
async fn whoever_searches_does_not_wait_for_an_endpoint_that_does_not_answer() {
    let server =
        Server::new(vec![Does::Hangs, Does::Right, Does::Right, Does::Hangs, Does::Right]).await;
    let mut endpoint = server.endpoint(|settings| settings.timeout_ms = 60_000);
    let one = texts(&["a"]);
    let away = async |endpoint: &EmbeddingEndpoint| {
        let begun = Instant::now();
        let Err(EmbedderUnavailable(why)) = endpoint.embed(&one, EmbeddingRole::Query).await else {
            panic!("it is answered");
        };
        assert!(why.ends_with("does not answer: there was no answer within 1.5 s"), "{why}");
        begun.elapsed()
    };
    let first = away(&endpoint).await;
    assert!((1_400..1_900).contains(&first.as_millis()), "{first:?}");
    let next = away(&endpoint).await;
    assert!(next < Duration::from_millis(100), "{next:?}");
    assert_eq!(server.asked().len(), 1);
    // What is made in the background goes on, and where that is answered, queries are asked for.
    endpoint.embed(&one, EmbeddingRole::Chunk).await.unwrap();
    endpoint.embed(&one, EmbeddingRole::Query).await.unwrap();
    away(&endpoint).await;
    endpoint.silence_pause = Duration::ZERO;
    endpoint.embed(&one, EmbeddingRole::Query).await.unwrap();
    assert_eq!(server.asked().len(), 5);
}

#[tokio::test]
async fn an_endpoint_is_left_alone_for_as_long_as_it_says() {
    let head = "retry-after: 0.2\r\n";
    let server = Server::new(vec![Does::Answers(429, head, String::new()), Does::Right]).await;
    let before = Instant::now();
    server.endpoint(|_| {}).embed(&texts(&["a"]), EmbeddingRole::Chunk).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(200), "{:?}", before.elapsed());
    let does = vec![Does::Answers(429, "retry-after: 3600\r\n", String::new())];
    let why = "the endpoint URL answers 429, and wants to be left alone for 3600 s";
    check(outcome(does, EmbeddingRole::Chunk).await, why, 1);
}

#[tokio::test]
async fn what_are_no_such_vectors_is_refused_and_not_asked_for_again() {
    let one = |embedding: &str| format!(r#"{{"index":0,"embedding":{embedding}}}"#);
    let two = |embedding: &str| {
        format!(r#"{{"data":[{},{{"index":1,"embedding":[1,0,0]}}]}}"#, one(embedding))
    };
    let cases = [
        (format!(r#"{{"data":[{}]}}"#, one("[1,0,0]")), "1 vectors for 2 texts"),
        (
            format!(r#"{{"data":[{0},{0}]}}"#, one("[1,0,0]")),
            "a vector for the text 0, which is not there or has one",
        ),
        (two("[1,0]"), "a vector of 2 numbers, where `search.embedder.dimensions` is 3"),
        (two("[0,0,0]"), "a vector of no direction, or with what is no number"),
        (two("[NaN,0,0]"), "expected value at line 1 column 34"),
        (two("[null,0,0]"), "invalid type: null, expected f32 at line 1 column 37"),
        ("{}".to_owned(), "missing field `data` at line 1 column 2"),
        ("x".repeat(70_000), "more than 66752 bytes"),
    ];
    for (body, why) in cases {
        let why = format!("the endpoint URL answers what are no such vectors: {why}");
        check(outcome(vec![Does::Answers(200, "", body)], EmbeddingRole::Chunk).await, &why, 1);
    }
    // Whether that is too large is said by whoever reads it first.
    let (large, _) =
        outcome(vec![Does::Answers(200, "", two("[1e39,0,0]"))], EmbeddingRole::Chunk).await;
    assert!(large.starts_with("the endpoint URL answers what are no such vectors: "), "{large}");
    let refused = Does::Answers(400, "", r#"{"error":"no model `small`"}"#.to_owned());
    let why = "the endpoint URL answers 400: no model `small`";
    check(outcome(vec![refused], EmbeddingRole::Chunk).await, why, 1);
}

#[tokio::test]
async fn nothing_is_asked_for_beyond_what_may_be_spent() {
    let server = Server::new(vec![Does::Right, Does::Right]).await;
    let endpoint = server.endpoint(|settings| {
        settings.price = Some(Money(1_000.0));
        settings.cost_max = Some(Money(0.025));
    });
    // Ten tokens a text, a thousandth each; what is guessed is less and made good afterwards.
    for _ in 0..2 {
        endpoint.embed(&texts(&["a"]), EmbeddingRole::Chunk).await.unwrap();
    }
    let long = "x".repeat(20);
    let Err(EmbedderUnavailable(why)) =
        endpoint.embed(&texts(&[&long]), EmbeddingRole::Query).await
    else {
        panic!("it is still asked");
    };
    let expected = "the endpoint URL is not asked any more: 0.0200 of the 0.025 that \
                    `search.embedder.cost_max` allows is spent; raise it, or start the server again";
    assert_eq!(why.replace(&server.url, "URL"), expected);
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn a_key_is_in_no_message() {
    let quoting = r#"{"error":{"message":"bad: sk-secret"}}"#.to_owned();
    let does = vec![Does::Answers(401, "", quoting.clone()), Does::Answers(400, "", quoting)];
    let server = Server::new(does).await;
    let endpoint = server.endpoint(|settings| {
        settings.key_env = Some("A_KEY".to_owned());
        settings.take_secrets(|_| Some("sk-secret"));
    });
    let mut said = Vec::new();
    for _ in 0..2 {
        let Err(EmbedderUnavailable(why)) =
            endpoint.embed(&texts(&["a"]), EmbeddingRole::Chunk).await
        else {
            panic!("it is answered");
        };
        said.push(why.replace(&server.url, "URL"));
    }
    let refused =
        "the endpoint URL refuses us (401); look at the key in the environment variable `A_KEY`";
    assert_eq!(said, [refused, "the endpoint URL answers 400: bad: [redacted]"]);
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_away_and_a_key_that_is_missing_is_said() {
    // Its port is free again, and nobody listens there.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let mut settings = EmbedderSettings {
        url: Some(url.clone()),
        model: Some("small".to_owned()),
        dimensions: Some(3),
        ..EmbedderSettings::default()
    };
    let gone = EmbeddingEndpoint::new(&settings, &HttpFetcher::default()).unwrap();
    let Err(EmbedderUnavailable(why)) = gone.embed(&texts(&["a"]), EmbeddingRole::Query).await
    else {
        panic!("somebody answers there");
    };
    assert!(why.starts_with(&format!("the endpoint {url} does not answer: ")), "{why}");
    assert!(why.contains("refused"), "{why}");
    settings.key_env = Some("MISSING_KEY".to_owned());
    let why = EmbeddingEndpoint::new(&settings, &HttpFetcher::default()).err().unwrap();
    let expected = "the environment variable `MISSING_KEY`, which `search.embedder.key_env` names, \
                    is not set; put the endpoint's key there";
    assert_eq!(why, expected);
}
