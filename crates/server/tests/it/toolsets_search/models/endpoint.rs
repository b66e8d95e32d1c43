//! OpenAI-compatible embeddings endpoint for tests, which can misbehave.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

/// The number of dimensions of the endpoint's vectors.
pub(super) const DIMENSIONS: usize = 8;

/// Tells how the test endpoint answers requests for vectors.
#[derive(Clone, Copy)]
pub(super) enum EmbeddingEndpointBehavior {
    /// Returns one vector for texts about okapis and quaggas, and another vector for all other
    /// texts.
    Embed,
    /// Reads the request and does not answer.
    Hang,
    /// Returns vectors of two numbers, which are too short.
    Short,
    /// Returns vectors with a number that is too large for a float.
    Nan,
}

/// Embeddings endpoint on its own port. Dropping this value frees the port.
pub(super) struct TestEmbeddingEndpoint {
    url: String,
    shared: Arc<TestEmbeddingEndpointState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct TestEmbeddingEndpointState {
    behavior: AtomicU8,
    requests: AtomicUsize,
    passages: AtomicUsize,
    is_stopping: AtomicBool,
}

impl TestEmbeddingEndpoint {
    pub(super) fn new(behavior: EmbeddingEndpointBehavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let behavior = AtomicU8::new(behavior as u8);
        let shared = Arc::new(TestEmbeddingEndpointState {
            behavior,
            ..TestEmbeddingEndpointState::default()
        });
        let state = shared.clone();
        let thread = thread::spawn(move || {
            while !state.is_stopping.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let state = state.clone();
                        thread::spawn(move || answer(stream, &state));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Self { url, shared, thread: Some(thread) }
    }

    /// Returns settings that configure this endpoint as the model of the search.
    pub(super) fn settings(&self) -> String {
        format!(
            "[search.embedder]\nurl = \"{}\"\nmodel = \"small\"\ndimensions = {DIMENSIONS}\n\
             timeout_ms = 500\n",
            self.url
        )
    }

    pub(super) fn set_behavior(&self, behavior: EmbeddingEndpointBehavior) {
        self.shared.behavior.store(behavior as u8, Ordering::Relaxed);
    }

    /// Returns the number of requests so far.
    pub(super) fn request_count(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns the number of passages that were embedded so far. Queries do not count.
    pub(super) fn passage_count(&self) -> usize {
        self.shared.passages.load(Ordering::Relaxed)
    }
}

impl Drop for TestEmbeddingEndpoint {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn answer(mut stream: TcpStream, shared: &TestEmbeddingEndpointState) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let Some(request) = read_request(&mut stream) else { return };
    let behavior = shared.behavior.load(Ordering::Relaxed);
    shared.requests.fetch_add(1, Ordering::Relaxed);
    let texts = request["input"].as_array().unwrap();
    let is_striped = |text: &Value| {
        let text = text.as_str().unwrap();
        text.contains("okapi") || text.contains("quagga")
    };
    let vector = |text: &Value| match (behavior, is_striped(text)) {
        (it, _) if it == EmbeddingEndpointBehavior::Short as u8 => "[1,0]".to_owned(),
        (it, _) if it == EmbeddingEndpointBehavior::Nan as u8 => "[1e999,0,0,0,0,0,0,0]".to_owned(),
        (_, true) => "[1,0,0,0,0,0,0,0.1]".to_owned(),
        (_, false) => "[0,1,0,0,0,0,0,0]".to_owned(),
    };
    if behavior == EmbeddingEndpointBehavior::Hang as u8 {
        // Wait until the client closes the connection.
        let _ = stream.read(&mut [0]);
        return;
    }
    let passages = texts.iter().filter(|text| text.as_str().unwrap().contains("fn "));
    shared.passages.fetch_add(passages.count(), Ordering::Relaxed);
    let one = |(index, text)| format!(r#"{{"index":{index},"embedding":{}}}"#, vector(text));
    let data: Vec<_> = texts.iter().enumerate().map(one).collect();
    let usage = json!({ "prompt_tokens": 1, "total_tokens": 1 });
    let body = format!(r#"{{"data":[{}],"usage":{usage}}}"#, data.join(","));
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
}

/// Reads an HTTP request and returns its JSON body, or `None` if the request is incomplete.
fn read_request(stream: &mut TcpStream) -> Option<Value> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
        if body.len() == length.parse::<usize>().unwrap() {
            return serde_json::from_str(body).ok();
        }
    }
}
