//! Sends trace spans to a collector over OTLP/HTTP with JSON.
//!
//! A queue of limited length leads to a separate thread, which sends batches every second. Calls
//! never wait: spans that do not fit into the queue are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use toolgate_host::{ObservedCallEnd, ObservedCallStart};
use toolgate_net::{HttpUrl, RetryBackoff, parse_retry_after};
use toolgate_world::HttpFetcher;
use toolgate_world::fetch::JsonPostRequest;

use super::span::{FinishedCallSpan, RunningCallSpan, otlp_attribute};

/// Maximum number of trace spans that wait to be sent.
const QUEUE_SPANS_MAX: usize = 4096;
/// Maximum number of trace spans in one request to the collector.
const BATCH_SPANS_MAX: usize = 512;
/// Time for which trace spans are collected before they are sent together.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time limit of a request to the trace collector, and longest pause before a retry.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of retries of a request to the trace collector.
const RETRIES_MAX: usize = 3;
/// Pause before the first retry of a request to the trace collector. The pause doubles before each
/// further retry.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Longest answer of the trace collector that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Path of the OTLP endpoint for traces, relative to the collector's URL.
const PATH: &str = "/v1/traces";

/// Sender of trace spans to a collector.
pub(super) struct TraceExporter {
    queue: mpsc::Sender<SpanExportItem>,
    counts: Arc<SpanCounters>,
    /// True once [`TraceExporter::close`] was called.
    is_closed: AtomicBool,
}

/// Numbers of trace spans that were sent and dropped.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpanCounts {
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
}

/// Counters of trace spans that were sent and dropped.
#[derive(Default)]
struct SpanCounters {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// True once the server stops and only waits until the remaining trace spans are sent.
    is_closing: AtomicBool,
}

/// Item in the queue of the trace exporter: a span, or a request for a notification.
enum SpanExportItem {
    Span(Box<FinishedCallSpan>),
    /// Request to notify this sender once all earlier trace spans were sent.
    Flush(oneshot::Sender<()>),
}

impl TraceExporter {
    /// Starts the thread that sends trace spans to the collector at `url`. Does not contact the
    /// collector yet.
    ///
    /// # Errors
    /// `url` is invalid, or no thread can be started.
    pub(super) fn to_collector(url: &str) -> anyhow::Result<Self> {
        let target = HttpUrl::parse_below(url, PATH)
            .map_err(|why| anyhow::anyhow!("telemetry.otlp is `{url}`, which {why}"))?;
        let (queue, items) = mpsc::channel(QUEUE_SPANS_MAX);
        let counts = Arc::<SpanCounters>::default();
        let sender = SpanSenderThread {
            target,
            fetch: HttpFetcher::default(),
            counts: counts.clone(),
            failing: false,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("traces".into())
            .spawn(move || runtime.block_on(sender.run(items)))
            .context("cannot start the thread that sends spans")?;
        Ok(Self { queue, counts, is_closed: AtomicBool::new(false) })
    }

    /// Opens the trace span of a call. Returns `None` if the client's trace context says that the
    /// trace is not sampled.
    pub(super) fn begin_span(&self, call: &ObservedCallStart<'_>) -> Option<RunningCallSpan> {
        RunningCallSpan::for_call(call)
    }

    /// Ends the trace span of a call and queues the span. If the queue is full, drops and counts
    /// the span.
    pub(super) fn end_span(&self, span: RunningCallSpan, how: &ObservedCallEnd<'_>) {
        if self.queue.try_send(SpanExportItem::Span(Box::new(span.finish(how)))).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the numbers of trace spans that were sent and dropped.
    pub(super) fn span_counts(&self) -> SpanCounts {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SpanCounts { sent: count(&self.counts.sent), dropped: count(&self.counts.dropped) }
    }

    /// Waits until all queued trace spans are sent, for at most the time `at_most`. A second call
    /// returns at once.
    pub(super) async fn close(&self, at_most: Duration) {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.counts.is_closing.store(true, Ordering::Relaxed);
        let (done, is_done) = oneshot::channel();
        let flushed = async {
            if self.queue.send(SpanExportItem::Flush(done)).await.is_ok() {
                let _ = is_done.await;
            }
        };
        if timeout(at_most, flushed).await.is_err() {
            tracing::warn!("the last spans were not sent, because the collector is too slow");
        }
    }
}

/// State of the thread that sends the queued trace spans to the collector.
struct SpanSenderThread {
    target: HttpUrl,
    fetch: HttpFetcher,
    counts: Arc<SpanCounters>,
    /// True if the last request to the trace collector failed. A failure is logged only once in a
    /// row.
    failing: bool,
}

/// The trace collector's answer to a request that exports spans.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct TraceExportResponse {
    partial_success: Option<TracePartialSuccess>,
}

/// Field of the trace collector's answer that counts rejected spans.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct TracePartialSuccess {
    /// Number of spans that the collector rejected, as a number or, in the JSON encoding of
    /// protocol buffers, as a string.
    rejected_spans: Value,
}

/// Failure to send trace spans to the collector.
enum TraceExportFailure {
    /// A temporary failure. Contains the pause that the collector requested, if any, and the reason
    /// of the failure.
    Retryable(Option<Duration>, String),
    Permanent(String),
}

impl SpanSenderThread {
    async fn run(mut self, mut items: mpsc::Receiver<SpanExportItem>) {
        let mut batch = Vec::new();
        let mut waiting = Vec::new();
        while let Some(item) = items.recv().await {
            self.collect(item, &mut batch, &mut waiting);
            let gathered = async {
                while batch.len() < BATCH_SPANS_MAX && waiting.is_empty() {
                    match items.recv().await {
                        Some(item) => self.collect(item, &mut batch, &mut waiting),
                        None => return,
                    }
                }
            };
            // A timeout keeps the spans that were collected.
            let _ = timeout(BATCH_DELAY, gathered).await;
            if !batch.is_empty() {
                self.send_batch(&batch).await;
                batch.clear();
            }
            for done in waiting.drain(..) {
                // The receiver may have been dropped.
                let _: Result<(), ()> = done.send(());
            }
        }
    }

    fn collect(
        &self,
        item: SpanExportItem,
        batch: &mut Vec<Value>,
        waiting: &mut Vec<oneshot::Sender<()>>,
    ) {
        match item {
            SpanExportItem::Span(span) => batch.push(span.to_otlp()),
            SpanExportItem::Flush(done) => waiting.push(done),
        }
    }

    /// Sends `spans` to the trace collector, with up to three retries. Counts the spans as sent or
    /// dropped.
    async fn send_batch(&mut self, spans: &[Value]) {
        let json = export_request(spans);
        let mut backoff = RetryBackoff::new(RETRY_PAUSE, SEND_TIMEOUT);
        let mut tried = 0;
        loop {
            let why = match self.try_send(&json).await {
                Ok(rejected) => {
                    let rejected = rejected.min(spans.len() as u64);
                    self.counts.sent.fetch_add(spans.len() as u64 - rejected, Ordering::Relaxed);
                    self.counts.dropped.fetch_add(rejected, Ordering::Relaxed);
                    self.failing = false;
                    return;
                }
                Err(TraceExportFailure::Retryable(wait, why)) => {
                    let is_closing = self.counts.is_closing.load(Ordering::Relaxed);
                    if tried < RETRIES_MAX && !is_closing {
                        tried += 1;
                        let pause = backoff.next_pause();
                        sleep(wait.unwrap_or(pause).min(SEND_TIMEOUT)).await;
                        continue;
                    }
                    why
                }
                Err(TraceExportFailure::Permanent(why)) => why,
            };
            self.counts.dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
            // Logged once per outage, not once per batch.
            if !std::mem::replace(&mut self.failing, true) {
                tracing::warn!("spans are dropped: cannot send them to {}: {why}", self.target);
            }
            return;
        }
    }

    /// Sends one request with the body `json` to the trace collector. Returns the number of spans
    /// that the collector rejected. Fails if the collector does not answer or refuses the request.
    async fn try_send(&self, json: &[u8]) -> Result<u64, TraceExportFailure> {
        let json = json.to_owned();
        let answer_bytes_max = ANSWER_BYTES_MAX;
        let post = JsonPostRequest { json, key: None, timeout: SEND_TIMEOUT, answer_bytes_max };
        let answer = self.fetch.post_request(&self.target, post).await;
        let answer = answer.map_err(|why| TraceExportFailure::Retryable(None, why))?;
        let why = format!("the answer was {}", answer.response.status);
        match answer.response.status {
            200..300 => Ok(rejected_spans(&answer.response.body)),
            429 | 502 | 503 | 504 => {
                let wait = answer.retry_after.as_deref().and_then(parse_retry_after);
                Err(TraceExportFailure::Retryable(wait, why))
            }
            _ => Err(TraceExportFailure::Permanent(why)),
        }
    }
}

/// Returns the body of a request that exports trace `spans`.
fn export_request(spans: &[Value]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let service = [("service.name", json!("toolgate")), ("service.version", json!(version))];
    let resource: Vec<_> = service.iter().map(otlp_attribute).collect();
    let request = json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "toolgate", "version": version }, "spans": spans }],
    }] });
    request.to_string().into_bytes()
}

/// Parses the number of rejected spans from the trace collector's successful answer.
fn rejected_spans(body: &[u8]) -> u64 {
    let response: TraceExportResponse = serde_json::from_slice(body).unwrap_or_default();
    let rejected = response.partial_success.unwrap_or_default().rejected_spans;
    rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or_default()
}
