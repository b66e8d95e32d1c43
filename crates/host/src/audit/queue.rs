//! Where records wait to be written, and the thread that writes them.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use toolgate_contract::CallError;

use super::file::Chain;
use super::record::Record;
use super::tail;
use crate::gauges::RecordGauge;

/// How long a call waits for a place.
const PLACE_WAIT: Duration = Duration::from_secs(2);
/// How long a record waits for others to be written with.
const GATHER: Duration = Duration::from_millis(5);
/// How long to wait before trying a failed write again.
const RETRY: Duration = Duration::from_millis(250);
/// How long whoever ends waits for what is not written yet.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// How long a call that ran waits for its record to be kept.
const KEPT_WAIT: Duration = Duration::from_secs(10);
/// How many callers' news wait for whoever listens to them; who is further behind looks anyway.
const NEWS: usize = 64;

/// What calls and the writer share.
pub(super) struct Queue {
    /// A place for each record that is open or unwritten.
    places: Arc<Semaphore>,
    pile: Mutex<Pile>,
    /// Told when there is something to write, or someone waits for it.
    to_write: Condvar,
    /// Told when something was written.
    written: Condvar,
    /// The file that is written, if it is one.
    pub(super) file: Option<PathBuf>,
    /// Which process lays records here, as the end of each.
    server: String,
    /// Told whose records were written.
    pub(super) news: broadcast::Sender<Arc<str>>,
    /// Whether no call is answered before its record is kept.
    strict: bool,
    /// Whether the last try to write failed.
    failing: AtomicBool,
    /// How many records are kept, for calls that wait for it.
    kept: watch::Sender<u64>,
}

/// Records that wait to be written, and what the writer must know.
#[derive(Default)]
struct Pile {
    records: Vec<(Record, OwnedSemaphorePermit)>,
    /// How many were ever laid here, and how many of them are written.
    laid: u64,
    done: u64,
    /// Whether someone waits for what is here.
    hurry: bool,
    /// Whether the writer sleeps until it is told.
    asleep: bool,
    /// Whether nothing more will come.
    closed: bool,
}

/// Where records are written.
pub(super) enum Sink {
    /// One after the other, as they are.
    Stream(Box<dyn Write + Send>),
    /// Chained.
    Chain(Box<Chain>),
}

/// Records as they are written.
#[derive(Default)]
struct Batch {
    text: Vec<u8>,
    /// Where each is in it, without its line break.
    bodies: Vec<Range<usize>>,
    /// How much of it was written already, to a stream.
    written: usize,
    /// Whether it is in the chain already, and the disk alone is waited for.
    added: bool,
}

impl Queue {
    pub(super) fn new(places: usize, file: Option<PathBuf>, strict: bool) -> Self {
        // Process ids come again; with this much beside them they do not.
        let mut more = [0; 4];
        let _ = getrandom::fill(&mut more);
        let (pid, more) = (std::process::id(), u32::from_ne_bytes(more));
        Self {
            places: Arc::new(Semaphore::new(places)),
            pile: Mutex::default(),
            to_write: Condvar::new(),
            written: Condvar::new(),
            file,
            server: format!(",\"server\":\"{pid}-{more:08x}\"}}"),
            news: broadcast::Sender::new(NEWS),
            strict,
            failing: AtomicBool::new(false),
            kept: watch::Sender::new(0),
        }
    }

    fn pile(&self) -> MutexGuard<'_, Pile> {
        self.pile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one record, once there is one.
    pub(super) async fn place(&self) -> Result<OwnedSemaphorePermit, CallError> {
        let stuck = self.strict && self.failing.load(Ordering::Relaxed);
        if let Some(place) = self.places.clone().try_acquire_owned().ok().filter(|_| !stuck) {
            return Ok(place);
        }
        let place = async {
            // What runs now could not be answered.
            while self.strict && self.failing.load(Ordering::Relaxed) {
                tokio::time::sleep(RETRY).await;
            }
            self.places.clone().acquire_owned().await
        };
        let waited = tokio::time::timeout(PLACE_WAIT, place).await;
        waited.ok().and_then(Result::ok).ok_or_else(|| CallError::Limited {
            message: "the audit log cannot be written, and no call runs without a record"
                .to_owned(),
            retry_after: PLACE_WAIT,
        })
    }

    /// How much waits to be written, where there are so many `places`.
    pub(super) fn gauge(&self, places: usize) -> RecordGauge {
        let pile = self.pile();
        let waiting = pile.laid - pile.done;
        RecordGauge { waiting, places, failing: self.failing.load(Ordering::Relaxed) }
    }

    /// Lays `record` on the pile, where its place is; which one it is.
    pub(super) fn lay(&self, record: Record, place: OwnedSemaphorePermit) -> u64 {
        let mut pile = self.pile();
        pile.records.push((record, place));
        pile.laid += 1;
        // A writer that gathers wakes by itself; waking it for each record would cost more than the record.
        if pile.asleep {
            self.to_write.notify_one();
        }
        pile.laid
    }

    /// Waits until the record that was laid so is kept, if no call is to be answered before.
    pub(super) async fn kept(&self, laid: u64) -> Result<(), CallError> {
        if !self.strict {
            return Ok(());
        }
        let mut kept = self.kept.subscribe();
        let kept = tokio::time::timeout(KEPT_WAIT, kept.wait_for(|kept| *kept >= laid)).await;
        match kept {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(CallError::Failed {
                message: "the call ran and ended, but its record could not be written, and none \
                          is answered before it is (audit.strict)"
                    .to_owned(),
                cause: "the audit log cannot be written".to_owned(),
            }),
        }
    }

    pub(super) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        let mut pile = self.pile();
        let laid = pile.laid;
        while pile.done < laid {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return tracing::error!("{} audit records are not written", laid - pile.done);
            }
            pile.hurry = true;
            self.to_write.notify_one();
            let waited = self.written.wait_timeout(pile, left);
            pile = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Says that nothing more will come.
    pub(super) fn close(&self) {
        self.pile().closed = true;
        self.to_write.notify_one();
    }

    /// Takes what is on the pile, gathered for a moment; `None` when nothing more will come.
    fn take(&self) -> Option<Vec<(Record, OwnedSemaphorePermit)>> {
        let mut pile = self.pile();
        while pile.records.is_empty() {
            if pile.closed {
                return None;
            }
            pile.asleep = true;
            pile = self.to_write.wait(pile).unwrap_or_else(PoisonError::into_inner);
        }
        pile.asleep = false;
        // Where calls wait for it they share the next write, for as long as this one takes.
        let idle = |pile: &mut Pile| !pile.hurry && !pile.closed && !self.strict;
        let gathered = self.to_write.wait_timeout_while(pile, GATHER, idle);
        let (mut pile, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        pile.hurry = false;
        Some(std::mem::take(&mut pile.records))
    }

    /// Writes what comes until nothing more does.
    pub(super) fn write_all(&self, mut sink: Sink) {
        let mut batch = Batch::default();
        while let Some(records) = self.take() {
            batch.fill(&records, &self.server);
            let is_kept = self.write(&mut sink, &mut batch);
            let done = {
                let mut pile = self.pile();
                pile.done += records.len() as u64;
                pile.done
            };
            self.written.notify_all();
            if is_kept {
                self.kept.send_replace(done);
            }
            self.tell(&records);
        }
        // Where no call waits for the disk nothing does before: it may take long, and meanwhile
        // records would fill their places.
        sink.sync();
    }

    /// Tells whose records were written, but for those of looking at records: whoever looks
    /// whenever there are new ones must not make new ones by it.
    fn tell(&self, records: &[(Record, OwnedSemaphorePermit)]) {
        if self.news.receiver_count() == 0 {
            return;
        }
        let records = records.iter().filter(|(record, _)| record.tool != tail::ID);
        let callers: BTreeSet<_> = records.map(|(record, _)| record.caller.clone()).collect();
        for caller in callers {
            // Whoever listened may have left.
            let _ = self.news.send(caller);
        }
    }

    /// Writes all of `batch`, however often that has to be tried, unless the log is closed;
    /// whether it did.
    fn write(&self, sink: &mut Sink, batch: &mut Batch) -> bool {
        while let Err(err) = sink.write(batch, self.strict) {
            // Said once, not once a try: a full disk must not fill the log about it.
            if !self.failing.swap(true, Ordering::Relaxed) {
                tracing::error!("the audit log cannot be written, trying again: {err}");
            }
            let open = |pile: &mut Pile| !pile.closed;
            let waited = self.to_write.wait_timeout_while(self.pile(), RETRY, open);
            if waited.unwrap_or_else(PoisonError::into_inner).0.closed {
                return false;
            }
        }
        self.failing.store(false, Ordering::Relaxed);
        true
    }
}

impl Sink {
    /// Writes all of `batch`, or what was not written of it when this failed before.
    fn write(&mut self, batch: &mut Batch, strict: bool) -> io::Result<()> {
        let stream = match self {
            Self::Stream(stream) => stream,
            Self::Chain(chain) => {
                if !std::mem::replace(&mut batch.added, true) {
                    let bodies = batch.bodies.iter().map(|body| &batch.text[body.clone()]);
                    let added = chain.add(&bodies.collect::<Vec<_>>());
                    batch.added = added.is_ok();
                    added?;
                }
                return if strict { chain.sync() } else { Ok(()) };
            }
        };
        while batch.written < batch.text.len() {
            match stream.write(&batch.text[batch.written..]) {
                Ok(written) => batch.written += written,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
        stream.flush()
    }

    /// Has what was written put on the disk.
    fn sync(&mut self) {
        if let Self::Chain(chain) = self
            && let Err(err) = chain.sync().and_then(|()| chain.sync_head())
        {
            tracing::error!("the disk does not keep the audit log: {err}");
        }
    }
}

impl Batch {
    /// Holds `records` and nothing else, each as a JSON object that ends with `server`.
    fn fill(&mut self, records: &[(Record, OwnedSemaphorePermit)], server: &str) {
        (self.written, self.added) = (0, false);
        self.text.clear();
        self.bodies.clear();
        for (record, _) in records {
            let start = self.text.len();
            if serde_json::to_writer(&mut self.text, record).is_ok() {
                self.text.truncate(self.text.len() - 1);
                self.text.extend_from_slice(server.as_bytes());
                self.bodies.push(start..self.text.len());
                self.text.push(b'\n');
            }
        }
    }
}
