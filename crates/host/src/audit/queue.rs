//! Queues records, and writes them on a separate thread.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use toolgate_contract::{CallError, lock_mutex};

use super::file::ChainedAuditLog;
use super::recent_calls::RecentCalls;
use super::record::AuditRecord;
use super::tail;
use crate::gauges::AuditQueueGauge;

/// Longest wait of a call for a free slot in the queue of audit records.
const PLACE_WAIT: Duration = Duration::from_secs(2);
/// Time that an audit record waits to be written together with others.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// Pause before a failed write of audit records is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Longest wait for unwritten audit records at a flush.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Longest wait of a finished call until its audit record is on disk.
const STORED_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of notifications about written records that may wait for a listener. A listener
/// that misses some loses no records, because it reads them from the log file.
const NOTICES_MAX: usize = 64;

/// JSON text before the last member of each audit record, which identifies the server process.
const SERVER_START: &str = ",\"server\":\"";
/// Maximum number of audit records that may wait for a listener to live records.
const LIVE_RECORDS_MAX: usize = 1024;

/// Queue of audit records, shared by the calls and the writer thread.
pub(super) struct AuditRecordQueue {
    /// Free slots of the queue. Each open or unwritten audit record occupies one.
    places: Arc<Semaphore>,
    pending: Mutex<PendingAuditRecords>,
    /// Condition that is notified when there are audit records to write or a flush waits.
    to_write: Condvar,
    /// Condition that is notified after a write of audit records.
    written: Condvar,
    /// Path of the audit log, if it is a file.
    pub(super) file: Option<PathBuf>,
    /// JSON text of the last member of each audit record, which identifies this process.
    server_suffix: String,
    /// Channel for the names of callers whose audit records were just written.
    pub(super) written_callers: broadcast::Sender<Arc<str>>,
    /// Channel for the JSON of audit records that were just written.
    pub(super) live_records: broadcast::Sender<Arc<str>>,
    /// False if the audit log is off, so that records only reach the listeners of live records.
    pub(super) is_kept: bool,
    /// True if each call waits until its audit record is on disk.
    strict: bool,
    /// True if the last write to the audit log failed.
    failing: AtomicBool,
    /// Number of audit records on disk, for calls that wait for their record.
    stored_count: watch::Sender<u64>,
    /// Arguments and results of recent calls, for the console.
    pub(super) recent_calls: RecentCalls,
}

/// Audit records that wait to be written, and signals to the writer thread.
#[derive(Default)]
struct PendingAuditRecords {
    records: Vec<(AuditRecord, OwnedSemaphorePermit)>,
    /// Number of audit records that were ever queued, including those that are already written.
    pushed: u64,
    written: u64,
    /// True if a flush waits for the writer thread.
    flush_requested: bool,
    /// True if the writer thread sleeps until it is notified.
    writer_asleep: bool,
    /// True if no more audit records will follow.
    closed: bool,
}

/// Target to which audit records are written.
pub(super) enum AuditRecordSink {
    /// A stream such as standard error, whose records are not sealed.
    Stream(Box<dyn Write + Send>),
    /// Discards all audit records, because the log is off.
    Discard,
    /// A log file whose records are chained by seals.
    Chain(Box<ChainedAuditLog>),
}

/// Serialized audit records of one write.
#[derive(Default)]
struct AuditRecordBatch {
    text: Vec<u8>,
    /// Byte range of each record within the batch's text, without its line break.
    bodies: Vec<Range<usize>>,
    /// Number of bytes of the batch already written to a stream.
    written_bytes: usize,
    /// True if the batch is already written to the log file and only waits to be flushed to disk.
    is_chained: bool,
}

impl AuditRecordQueue {
    pub(super) fn new(places: usize, file: Option<PathBuf>, strict: bool) -> Self {
        // Process ids are reused, so a random number is added.
        let mut more = [0; 4];
        let _ = getrandom::fill(&mut more);
        let pid = std::process::id();
        let more = u32::from_ne_bytes(more);
        Self {
            places: Arc::new(Semaphore::new(places)),
            pending: Mutex::default(),
            to_write: Condvar::new(),
            written: Condvar::new(),
            file,
            server_suffix: format!("{SERVER_START}{pid}-{more:08x}\"}}"),
            written_callers: broadcast::Sender::new(NOTICES_MAX),
            live_records: broadcast::Sender::new(LIVE_RECORDS_MAX),
            is_kept: true,
            strict,
            failing: AtomicBool::new(false),
            stored_count: watch::Sender::new(0),
            recent_calls: RecentCalls::default(),
        }
    }

    /// Returns true if `server`, the identity in an audit record, is that of this process.
    pub(super) fn is_own(&self, server: &str) -> bool {
        let suffix = self.server_suffix.strip_prefix(SERVER_START);
        suffix.and_then(|suffix| suffix.strip_suffix("\"}")) == Some(server)
    }

    /// Converts this queue for an audit log that is off: records are only sent to listeners.
    pub(super) fn for_listeners_only(self) -> Self {
        Self { is_kept: false, ..self }
    }

    /// Reserves a queue slot for one audit record, and waits up to 2 s for a free slot.
    ///
    /// # Errors
    /// No slot is free in time, or the log is strict and its last write has failed.
    pub(super) async fn reserve_place(&self) -> Result<OwnedSemaphorePermit, CallError> {
        let stuck = self.strict && self.failing.load(Ordering::Relaxed);
        if let Some(place) = self.places.clone().try_acquire_owned().ok().filter(|_| !stuck) {
            return Ok(place);
        }
        let place = async {
            // In a strict log the call could not be answered now.
            while self.strict && self.failing.load(Ordering::Relaxed) {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            self.places.clone().acquire_owned().await
        };
        let waited = tokio::time::timeout(PLACE_WAIT, place).await;
        waited.ok().and_then(Result::ok).ok_or_else(|| CallError::Limited {
            message: "the audit log cannot be written, and no call runs without a record; the \
                      server's log shows why"
                .to_owned(),
            retry_after: PLACE_WAIT,
        })
    }

    /// Returns the load of this queue, which has `places` slots for audit records.
    pub(super) fn gauge(&self, places: usize) -> AuditQueueGauge {
        let pending = lock_mutex(&self.pending);
        let waiting = pending.pushed - pending.written;
        AuditQueueGauge { waiting, capacity: places, failing: self.failing.load(Ordering::Relaxed) }
    }

    /// Queues `record` in the reserved slot `place` and returns the number of the record.
    pub(super) fn push(&self, record: AuditRecord, place: OwnedSemaphorePermit) -> u64 {
        let mut pending = lock_mutex(&self.pending);
        pending.records.push((record, place));
        pending.pushed += 1;
        // A gathering writer wakes by itself. Waking it for each record would cost more than the
        // record.
        if pending.writer_asleep {
            self.to_write.notify_one();
        }
        pending.pushed
    }

    /// Waits until the audit record with this number is on disk, if the log is strict.
    ///
    /// # Errors
    /// The record is not written within 10 s.
    pub(super) async fn wait_until_stored(&self, number: u64) -> Result<(), CallError> {
        if !self.strict {
            return Ok(());
        }
        let mut stored = self.stored_count.subscribe();
        let stored =
            tokio::time::timeout(STORED_WAIT, stored.wait_for(|stored| *stored >= number)).await;
        match stored {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(CallError::Failed {
                message: "the call ran and ended, but its audit record could not be written, so \
                          `audit.strict` does not allow the result to be sent"
                    .to_owned(),
                cause: "the audit log cannot be written".to_owned(),
            }),
        }
    }

    pub(super) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        let mut pending = lock_mutex(&self.pending);
        let pushed = pending.pushed;
        while pending.written < pushed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return tracing::error!(
                    "{} audit records were not written",
                    pushed - pending.written
                );
            }
            pending.flush_requested = true;
            self.to_write.notify_one();
            let waited = self.written.wait_timeout(pending, left);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Marks the record queue as closed. No more records will follow.
    pub(super) fn close(&self) {
        lock_mutex(&self.pending).closed = true;
        self.to_write.notify_one();
    }

    /// Drops `records`, waits for queued audit records, then up to 5 ms for more, and moves them all
    /// to `records`. Returns false if the queue is closed and empty.
    ///
    /// The queue uses the memory of `records` for later records. If no records wait, this memory is
    /// freed.
    fn take_batch(&self, records: &mut Vec<(AuditRecord, OwnedSemaphorePermit)>) -> bool {
        records.clear();
        let mut pending = lock_mutex(&self.pending);
        while pending.records.is_empty() {
            if pending.closed {
                return false;
            }
            (pending.records, *records) = (Vec::new(), Vec::new());
            pending.writer_asleep = true;
            pending = self.to_write.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        pending.writer_asleep = false;
        // In a strict log, waiting calls share the next write, so do not gather.
        let idle = |pending: &mut PendingAuditRecords| {
            !pending.flush_requested && !pending.closed && !self.strict
        };
        let gathered = self.to_write.wait_timeout_while(pending, GATHER_TIME, idle);
        let (mut pending, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        pending.flush_requested = false;
        std::mem::swap(&mut pending.records, records);
        true
    }

    /// Writes queued audit records to `sink` until the queue is closed.
    pub(super) fn run_writer(&self, mut sink: AuditRecordSink) {
        let mut batch = AuditRecordBatch::default();
        let mut records = Vec::new();
        while self.take_batch(&mut records) {
            batch.fill(&records, &self.server_suffix);
            let is_stored = self.write_with_retry(&mut sink, &mut batch);
            let done = {
                let mut pending = lock_mutex(&self.pending);
                pending.written += records.len() as u64;
                pending.written
            };
            self.written.notify_all();
            if is_stored {
                self.stored_count.send_replace(done);
            }
            self.notify_listeners(&records);
            self.send_live_records(&batch);
        }
        // Without `strict` no write waits for the disk, so sync once at the end.
        sink.sync();
    }

    /// Returns true if anything listens to live audit records.
    pub(super) fn has_live_listeners(&self) -> bool {
        self.live_records.receiver_count() > 0
    }

    /// Sends the records of `batch` to the listeners of live records.
    fn send_live_records(&self, batch: &AuditRecordBatch) {
        if !self.has_live_listeners() {
            return;
        }
        for body in &batch.bodies {
            if let Ok(record) = str::from_utf8(&batch.text[body.clone()]) {
                // Sending fails if the listener has left.
                let _ = self.live_records.send(record.into());
            }
        }
    }

    /// Notifies listeners which callers have new audit records.
    ///
    /// Records about reads of the log itself are left out. Otherwise each read would trigger
    /// another notification.
    fn notify_listeners(&self, records: &[(AuditRecord, OwnedSemaphorePermit)]) {
        if self.written_callers.receiver_count() == 0 {
            return;
        }
        let records = records.iter().filter(|(record, _)| record.tool != tail::GUARD_ID);
        let callers: BTreeSet<_> = records.map(|(record, _)| record.caller.clone()).collect();
        for caller in callers {
            // Sending fails if the listener has left.
            let _ = self.written_callers.send(caller);
        }
    }

    /// Writes all records of `batch` with retries. Returns false if the log was closed before all
    /// were written.
    fn write_with_retry(&self, sink: &mut AuditRecordSink, batch: &mut AuditRecordBatch) -> bool {
        while let Err(err) = sink.write(batch, self.strict) {
            // Logged once, not at each retry, so that a full disk is not filled further.
            if !self.failing.swap(true, Ordering::Relaxed) {
                tracing::error!("the audit log cannot be written; trying again: {err}");
            }
            let open = |pending: &mut PendingAuditRecords| !pending.closed;
            let waited =
                self.to_write.wait_timeout_while(lock_mutex(&self.pending), RETRY_PAUSE, open);
            if waited.unwrap_or_else(PoisonError::into_inner).0.closed {
                return false;
            }
        }
        self.failing.store(false, Ordering::Relaxed);
        true
    }
}

impl AuditRecordSink {
    /// Writes `batch`, or the rest of the batch after an earlier failure. With `strict`, a log file
    /// is also flushed to disk.
    fn write(&mut self, batch: &mut AuditRecordBatch, strict: bool) -> io::Result<()> {
        let stream = match self {
            Self::Stream(stream) => stream,
            Self::Discard => return Ok(()),
            Self::Chain(chain) => {
                if !std::mem::replace(&mut batch.is_chained, true) {
                    let bodies = batch.bodies.iter().map(|body| &batch.text[body.clone()]);
                    let added = chain.open_append(&bodies.collect::<Vec<_>>());
                    batch.is_chained = added.is_ok();
                    added?;
                }
                return if strict { chain.sync() } else { Ok(()) };
            }
        };
        while batch.written_bytes < batch.text.len() {
            match stream.write(&batch.text[batch.written_bytes..]) {
                Ok(written) => batch.written_bytes += written,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
        stream.flush()
    }

    /// Flushes written audit records to disk.
    fn sync(&mut self) {
        if let Self::Chain(chain) = self
            && let Err(err) = chain.sync().and_then(|()| chain.sync_head())
        {
            tracing::error!("the audit log could not be written to disk: {err}");
        }
    }
}

impl AuditRecordBatch {
    /// Replaces the content of the batch with `records`. Each record becomes a JSON object that
    /// ends with `server`.
    fn fill(&mut self, records: &[(AuditRecord, OwnedSemaphorePermit)], server: &str) {
        (self.written_bytes, self.is_chained) = (0, false);
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
