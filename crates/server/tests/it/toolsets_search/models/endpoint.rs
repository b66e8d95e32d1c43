//! An endpoint that speaks as OpenAI's does, and can be turned to misbehave while it runs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

/// How many numbers its vectors have.
pub(super) const DIMENSIONS: usize = 8;

/// What it does with a request.
#[derive(Clone, Copy)]
pub(super) enum Does {
    /// Texts of okapis and quaggas have one vector, all others another.
    Right,
    /// Reads it and says nothing.
    Hangs,
    /// Gives vectors of two numbers.
    Short,
    /// Gives one of numbers that are too large to be any.
    Nan,
}

/// A server at a port of its own, until it is dropped: then nobody listens there.
pub(super) struct Endpoint {
    url: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    does: AtomicU8,
    asked: AtomicUsize,
    passages: AtomicUsize,
    ends: AtomicBool,
}

impl Endpoint {
    pub(super) fn new(does: Does) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { does: AtomicU8::new(does as u8), ..Shared::default() });
        let seen = shared.clone();
        let thread = thread::spawn(move || {
            while !seen.ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let seen = seen.clone();
                        thread::spawn(move || answer(stream, &seen));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Self { url, shared, thread: Some(thread) }
    }

    /// Settings that name it.
    pub(super) fn settings(&self) -> String {
        format!(
            "[search.embedder]\nurl = \"{}\"\nmodel = \"small\"\ndimensions = {DIMENSIONS}\n\
             timeout_ms = 500\n",
            self.url
        )
    }

    pub(super) fn turn(&self, does: Does) {
        self.shared.does.store(does as u8, Ordering::Relaxed);
    }

    /// How many requests there were.
    pub(super) fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::Relaxed)
    }

    /// How many passages it has given vectors of; what is asked is none.
    pub(super) fn passages(&self) -> usize {
        self.shared.passages.load(Ordering::Relaxed)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let Some(asked) = request(&mut stream) else { return };
    let does = shared.does.load(Ordering::Relaxed);
    shared.asked.fetch_add(1, Ordering::Relaxed);
    let texts = asked["input"].as_array().unwrap();
    let is_striped = |text: &Value| {
        let text = text.as_str().unwrap();
        text.contains("okapi") || text.contains("quagga")
    };
    let vector = |text: &Value| match (does, is_striped(text)) {
        (it, _) if it == Does::Short as u8 => "[1,0]".to_owned(),
        (it, _) if it == Does::Nan as u8 => "[1e999,0,0,0,0,0,0,0]".to_owned(),
        (_, true) => "[1,0,0,0,0,0,0,0.1]".to_owned(),
        (_, false) => "[0,1,0,0,0,0,0,0]".to_owned(),
    };
    if does == Does::Hangs as u8 {
        // Until whoever asks has left.
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

/// What was posted, if it came whole.
fn request(stream: &mut TcpStream) -> Option<Value> {
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
