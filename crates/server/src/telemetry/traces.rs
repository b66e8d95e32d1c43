//! Spans on their way to a collector, over OTLP/HTTP in JSON.
//!
//! They wait in a bounded queue for a thread of their own, which sends what has come every second.
//! No call waits for it: what there is no room for is dropped, and counted.

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

/// How many spans wait.
const QUEUE: usize = 4096;
/// How many are sent at once.
const BATCH: usize = 512;
/// How long what has come waits for more.
const GATHER: Duration = Duration::from_secs(1);
/// How long a collector may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long one that does not take them is left alone, and how often it is tried again.
const AGAIN: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// How much of its answer is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Where spans are taken, at whatever a collector's address is.
const PATH: &str = "/v1/traces";

/// Spans on their way to a collector.
pub(super) struct Traces {
    queue: mpsc::Sender<Word>,
    counts: Arc<Counts>,
    /// Whether whoever waits for the rest has.
    closed: AtomicBool,
}

/// How many spans a collector has, and how many none has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// Whether whoever stops waits for what is left.
    hurry: AtomicBool,
}

enum Word {
    Span(Box<Span>),
    /// Whoever says it is told once all that came before is sent.
    Told(oneshot::Sender<()>),
}

impl Traces {
    /// To the collector at `url`. It is not asked whether it is there.
    ///
    /// # Errors
    /// When `url` is none, or there is no thread to spare.
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

    /// A call begins; `None` where whoever called wants it untraced.
    pub(super) fn begins(&self, call: &Begins<'_>) -> Option<Open> {
        Open::of(call)
    }

    /// It has ended.
    pub(super) fn ends(&self, span: Open, how: &Ends<'_>) {
        if self.queue.try_send(Word::Span(Box::new(span.ended(how)))).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many were sent, and how many were not.
    pub(super) fn sent(&self) -> Sent {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Sent { sent: count(&self.counts.sent), dropped: count(&self.counts.dropped) }
    }

    /// Waits until what has come is at the collector, for `at_most` so long, and only once.
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

/// The other end of the queue.
struct Sender {
    target: Target,
    fetch: Fetch,
    counts: Arc<Counts>,
    /// Whether the last try failed.
    failing: bool,
}

/// What a collector says to spans.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Taken {
    partial_success: Option<Partly>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Partly {
    /// A number, which JSON of protocol buffers writes as a text.
    rejected_spans: Value,
}

/// What becomes of spans that were not taken.
enum Untaken {
    /// They may be taken later.
    Later(Option<Duration>, String),
    Never(String),
}

impl Sender {
    async fn send_all(mut self, mut words: mpsc::Receiver<Word>) {
        let (mut batch, mut tell) = (Vec::new(), Vec::new());
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
            // What came stays in the batch, however this ends.
            let _ = timeout(GATHER, gathered).await;
            if !batch.is_empty() {
                self.send(&batch).await;
                batch.clear();
            }
            for tell in tell.drain(..) {
                // Whoever waited may have gone.
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

    /// Sends `spans`, a few times if it must.
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
            // Said once, not once a batch.
            if !std::mem::replace(&mut self.failing, true) {
                tracing::warn!("spans are dropped: {} does not take them: {why}", self.target);
            }
            return;
        }
    }

    /// How many it did not take.
    async fn try_send(&self, json: &[u8]) -> Result<u64, Untaken> {
        let (json, answer_bytes_max) = (json.to_owned(), ANSWER_BYTES_MAX);
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

/// `spans` as they are posted.
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

/// How many spans a collector says it did not take, that took the others.
fn rejected(body: &[u8]) -> u64 {
    let taken: Taken = serde_json::from_slice(body).unwrap_or_default();
    let rejected = taken.partial_success.unwrap_or_default().rejected_spans;
    rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or_default()
}
