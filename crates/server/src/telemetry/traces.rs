//! Sends spans to a collector over OTLP/HTTP with JSON.
//!
//! A bounded queue leads to a separate thread, which sends batches every second. Calls never wait:
//! spans that do not fit are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use toolgate_host::{Begins, Ends};
use toolgate_toolsets::world::Fetch;
use toolgate_toolsets::world::fetch::{Asked, Target};

use super::span::{Open, Span, attribute};

/// Spans that may wait.
const QUEUE: usize = 4096;
/// Most spans in one request.
const BATCH: usize = 512;
/// Time for which a batch is collected.
const GATHER: Duration = Duration::from_secs(1);
/// Timeout of a request to the collector, and longest pause before a retry.
const WITHIN: Duration = Duration::from_secs(10);
/// Pauses before each retry.
const AGAIN: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Longest answer of the collector that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Path of the trace endpoint under the collector's URL.
const PATH: &str = "/v1/traces";

/// Sender of spans to a collector.
pub(super) struct Traces {
    queue: mpsc::Sender<Word>,
    counts: Arc<Counts>,
    /// Set once [`Traces::close`] was called.
    closed: AtomicBool,
}

/// Numbers of sent and dropped spans.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// Set when the server stops and only waits for the rest.
    hurry: AtomicBool,
}

enum Word {
    Span(Box<Span>),
    /// Request to be notified once all earlier spans are sent.
    Told(oneshot::Sender<()>),
}

impl Traces {
    /// Starts the thread that sends spans to the collector at `url`, without contacting it yet.
    ///
    /// # Errors
    /// When `url` is invalid or no thread can be started.
    pub(super) fn to(url: &str) -> anyhow::Result<Self> {
        let target = Target::new(url, PATH)
            .map_err(|why| anyhow::anyhow!("telemetry.otlp is `{url}`, which {why}"))?;
        let (queue, words) = mpsc::channel(QUEUE);
        let counts = Arc::<Counts>::default();
        let sender =
            Sender { target, fetch: Fetch::default(), counts: counts.clone(), failing: false };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("traces".into())
            .spawn(move || runtime.block_on(sender.send_all(words)))
            .context("there is no thread to send spans from")?;
        Ok(Self { queue, counts, closed: AtomicBool::new(false) })
    }

    /// Opens the span of a call. Returns `None` if the client's trace is not sampled.
    pub(super) fn begins(&self, call: &Begins<'_>) -> Option<Open> {
        Open::of(call)
    }

    /// Ends the span of a call and queues it, or drops it if the queue is full.
    pub(super) fn ends(&self, span: Open, how: &Ends<'_>) {
        if self.queue.try_send(Word::Span(Box::new(span.ended(how)))).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the numbers of sent and dropped spans.
    pub(super) fn sent(&self) -> Sent {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Sent { sent: count(&self.counts.sent), dropped: count(&self.counts.dropped) }
    }

    /// Waits up to `at_most` until all queued spans are sent. Later calls return at once.
    pub(super) async fn close(&self, at_most: Duration) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.counts.hurry.store(true, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        let flushed = async {
            if self.queue.send(Word::Told(tell)).await.is_ok() {
                let _ = told.await;
            }
        };
        if timeout(at_most, flushed).await.is_err() {
            tracing::warn!("the last spans are not at their collector, which takes too long");
        }
    }
}

/// Thread that reads the queue and sends batches.
struct Sender {
    target: Target,
    fetch: Fetch,
    counts: Arc<Counts>,
    /// True if the last batch failed.
    failing: bool,
}

/// Collector's answer to an export request.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Taken {
    partial_success: Option<Partly>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Partly {
    /// Number of rejected spans. JSON of protocol buffers writes it as a string.
    rejected_spans: Value,
}

/// Failure of an export request.
enum Untaken {
    /// Temporary failure, with the pause that the collector asks for.
    Later(Option<Duration>, String),
    Never(String),
}

impl Sender {
    async fn send_all(mut self, mut words: mpsc::Receiver<Word>) {
        let mut batch = Vec::new();
        let mut tell = Vec::new();
        while let Some(word) = words.recv().await {
            self.take(word, &mut batch, &mut tell);
            let gathered = async {
                while batch.len() < BATCH && tell.is_empty() {
                    match words.recv().await {
                        Some(word) => self.take(word, &mut batch, &mut tell),
                        None => return,
                    }
                }
            };
            // A timeout keeps the spans that were collected.
            let _ = timeout(GATHER, gathered).await;
            if !batch.is_empty() {
                self.send(&batch).await;
                batch.clear();
            }
            for tell in tell.drain(..) {
                // The receiver may be gone.
                let _: Result<(), ()> = tell.send(());
            }
        }
    }

    fn take(&self, word: Word, batch: &mut Vec<Value>, tell: &mut Vec<oneshot::Sender<()>>) {
        match word {
            Word::Span(span) => batch.push(span.written()),
            Word::Told(one) => tell.push(one),
        }
    }

    /// Sends `spans`, with up to three retries.
    async fn send(&mut self, spans: &[Value]) {
        let json = request(spans);
        let mut pauses = AGAIN.iter();
        loop {
            let why = match self.try_send(&json).await {
                Ok(rejected) => {
                    let rejected = rejected.min(spans.len() as u64);
                    self.counts.sent.fetch_add(spans.len() as u64 - rejected, Ordering::Relaxed);
                    self.counts.dropped.fetch_add(rejected, Ordering::Relaxed);
                    self.failing = false;
                    return;
                }
                Err(Untaken::Later(wait, why)) => {
                    let hurry = self.counts.hurry.load(Ordering::Relaxed);
                    if let Some(pause) = pauses.next().filter(|_| !hurry) {
                        sleep(wait.unwrap_or(*pause).min(WITHIN)).await;
                        continue;
                    }
                    why
                }
                Err(Untaken::Never(why)) => why,
            };
            self.counts.dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
            // Logged once per outage, not once per batch.
            if !std::mem::replace(&mut self.failing, true) {
                tracing::warn!("spans are dropped: {} does not take them: {why}", self.target);
            }
            return;
        }
    }

    /// Sends one request. Returns the number of spans that the collector rejected.
    async fn try_send(&self, json: &[u8]) -> Result<u64, Untaken> {
        let json = json.to_owned();
        let answer_bytes_max = ANSWER_BYTES_MAX;
        let asked = Asked { json, key: None, within: WITHIN, answer_bytes_max };
        let answer = self.fetch.ask(&self.target, asked).await;
        let answer = answer.map_err(|why| Untaken::Later(None, why))?;
        let said = format!("it answered with status {}", answer.answered.status);
        match answer.answered.status {
            200..300 => Ok(rejected(&answer.answered.body)),
            429 | 502 | 503 | 504 => {
                let seconds = answer.retry_after.and_then(|after| after.trim().parse().ok());
                Err(Untaken::Later(seconds.map(Duration::from_secs), said))
            }
            _ => Err(Untaken::Never(said)),
        }
    }
}

/// Returns the body of an export request.
fn request(spans: &[Value]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let of = [("service.name", json!("toolgate")), ("service.version", json!(version))];
    let resource: Vec<_> = of.iter().map(attribute).collect();
    let request = json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "toolgate", "version": version }, "spans": spans }],
    }] });
    request.to_string().into_bytes()
}

/// Parses the number of rejected spans from a successful answer.
fn rejected(body: &[u8]) -> u64 {
    let taken: Taken = serde_json::from_slice(body).unwrap_or_default();
    let rejected = taken.partial_success.unwrap_or_default().rejected_spans;
    rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or_default()
}
