//! One record per call, whatever came of it.
//!
//! A call takes a place in the queue before it runs, so laying its record down
//! never waits. A thread of its own writes what has come every few milliseconds.
//! While it cannot, it tries again, and calls beyond the queue are refused: none
//! runs without a record.
#![allow(clippy::disallowed_methods, reason = "the log is the host's own file, outside every root")]

mod tail;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use toolgate_contract::{Call, CallError, Ending, Resources};

use crate::secrets::Secrets;

/// How many calls may have a record open or unwritten.
const PLACES: usize = 16_384;
/// How long a call waits for a place.
const PLACE_WAIT: Duration = Duration::from_secs(2);
/// How long a record waits for others to be written with.
const GATHER: Duration = Duration::from_millis(5);
/// How long to wait before trying a failed write again.
const RETRY: Duration = Duration::from_millis(250);
/// How long whoever ends waits for what is not written yet.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// How many callers' news wait for whoever listens to them; who is further behind looks anyway.
const NEWS: usize = 64;
/// How much of a tool's name is written down.
const NAME_CHARS_MAX: usize = 200;
/// How large the file grows before it is put aside as `.1`.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Nowhere.
    Off,
    /// Standard error.
    Stderr,
    /// A file, created with its folders, appended to.
    File(PathBuf),
}

/// The audit log.
pub struct Audit(Option<Arc<Queue>>);

/// What is known of one call after it ended.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    /// When it began.
    ts: Timestamp,
    /// Who called.
    caller: Arc<str>,
    /// By which dialect.
    dialect: Cow<'static, str>,
    /// Which job it was, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// Which trace it belongs to, as `traceparent` says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// The tool's name as called.
    tool: String,
    /// Which rule of policy decided about it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<Arc<str>>,
    /// `ok`, `program_failed`, or the reason there is no result, in a word.
    outcome: &'static str,
    /// Why it failed, where the caller was told less.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// How long it took.
    duration_us: u64,
}

/// What calls and the writer share.
struct Queue {
    /// A place for each record that is open or unwritten.
    places: Arc<Semaphore>,
    pile: Mutex<Pile>,
    /// Told when there is something to write, or someone waits for it.
    to_write: Condvar,
    /// Told when something was written.
    written: Condvar,
    /// The file that is written, if it is one.
    file: Option<PathBuf>,
    /// Told whose records were written.
    news: broadcast::Sender<Arc<str>>,
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

impl Audit {
    /// An audit log that writes to `destination`.
    pub fn open(destination: &Destination) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match destination {
            Destination::Off => return Ok(Self(None)),
            Destination::Stderr => Box::new(io::stderr()),
            Destination::File(path) => Box::new(RolledFile::open(path)?),
        };
        let file = match destination {
            Destination::File(path) => Some(path.clone()),
            Destination::Off | Destination::Stderr => None,
        };
        let queue = Arc::new(Queue::new(PLACES, file));
        let writers = queue.clone();
        std::thread::Builder::new()
            .name("audit".into())
            .stack_size(256 << 10)
            .spawn(move || writers.write_all(sink))?;
        Ok(Self(Some(queue)))
    }

    /// Begins the record of `call`. It is written when it is closed or dropped.
    ///
    /// Refused while the log cannot be written and the queue is full.
    pub(crate) async fn begin(&self, call: &Call) -> Result<OpenRecord<'_>, CallError> {
        let began = Instant::now();
        let Some(queue) = &self.0 else { return Ok(OpenRecord { began, open: None }) };
        let place = queue.place().await?;
        let record = Record {
            ts: Timestamp::now(),
            caller: call.caller.name.clone(),
            dialect: call.dialect.clone(),
            job: call.job.map(|id| id.to_string()),
            trace: call.beside.trace.as_ref().map(|trace| trace.parent.clone()),
            tool: call.tool.chars().take(NAME_CHARS_MAX).collect(),
            rule: None,
            outcome: "dropped",
            cause: None,
            duration_us: 0,
        };
        Ok(OpenRecord { began, open: Some((queue, record, place)) })
    }

    /// The last records as a resource; `None` where they are in no file.
    pub fn resources(&self) -> Option<Arc<dyn Resources>> {
        tail::of(self.0.as_ref()?)
    }

    /// Waits until every record so far is written, for a while at most.
    pub fn flush(&self) {
        if let Some(queue) = &self.0 {
            queue.flush();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.flush();
            // The writer is not waited for: it may be stuck in a write that never ends.
            queue.pile().closed = true;
            queue.to_write.notify_one();
        }
    }
}

/// A record whose call has not ended. Dropped, it says so: a call leaves one however it ends.
pub(crate) struct OpenRecord<'a> {
    began: Instant,
    open: Option<(&'a Queue, Record, OwnedSemaphorePermit)>,
}

impl OpenRecord<'_> {
    /// The same without `secrets`: what is no tool's name may be anything.
    pub(crate) fn without(mut self, secrets: &Secrets) -> Self {
        if let Some((_, record, _)) = &mut self.open
            && let Cow::Owned(clean) = secrets.redacted(&record.tool)
        {
            record.tool = clean;
        }
        self
    }

    /// Notes the rule that decided about the call.
    pub(crate) fn decided(&mut self, rule: &Arc<str>) {
        if let Some((_, record, _)) = &mut self.open {
            record.rule = Some(rule.clone());
        }
    }

    pub(crate) fn close(mut self, outcome: Result<Ending, &CallError>) {
        if let Some((_, record, _)) = &mut self.open {
            record.outcome = match outcome {
                Ok(Ending::Done) => "ok",
                Ok(Ending::ProgramFailed) => "program_failed",
                Err(error) => error.reason(),
            };
            record.cause = outcome.err().and_then(CallError::cause).map(str::to_owned);
        }
    }
}

impl Drop for OpenRecord<'_> {
    fn drop(&mut self) {
        let Some((queue, mut record, place)) = self.open.take() else { return };
        record.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        queue.lay(record, place);
    }
}

impl Queue {
    fn new(places: usize, file: Option<PathBuf>) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            pile: Mutex::default(),
            to_write: Condvar::new(),
            written: Condvar::new(),
            file,
            news: broadcast::Sender::new(NEWS),
        }
    }

    fn pile(&self) -> MutexGuard<'_, Pile> {
        self.pile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, CallError> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        let waited = tokio::time::timeout(PLACE_WAIT, self.places.clone().acquire_owned()).await;
        waited.ok().and_then(Result::ok).ok_or_else(|| CallError::Limited {
            message: "the audit log cannot be written, and no call runs without a record"
                .to_owned(),
            retry_after: PLACE_WAIT,
        })
    }

    /// Lays `record` on the pile, where its place is.
    fn lay(&self, record: Record, place: OwnedSemaphorePermit) {
        let mut pile = self.pile();
        pile.records.push((record, place));
        pile.laid += 1;
        // A writer that gathers wakes by itself; waking it for each record would cost more than the record.
        if pile.asleep {
            self.to_write.notify_one();
        }
    }

    fn flush(&self) {
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
        let idle = |pile: &mut Pile| !pile.hurry && !pile.closed;
        let gathered = self.to_write.wait_timeout_while(pile, GATHER, idle);
        let (mut pile, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        pile.hurry = false;
        Some(std::mem::take(&mut pile.records))
    }

    fn write_all(&self, mut sink: Box<dyn Write + Send>) {
        let mut lines = Vec::with_capacity(4096);
        while let Some(records) = self.take() {
            lines.clear();
            for (record, _) in &records {
                if serde_json::to_writer(&mut lines, record).is_ok() {
                    lines.push(b'\n');
                }
            }
            self.write(sink.as_mut(), &lines);
            self.pile().done += records.len() as u64;
            self.written.notify_all();
            self.tell(&records);
        }
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

    /// Writes all of `bytes`, however often that has to be tried, unless the log is closed.
    fn write(&self, sink: &mut dyn Write, mut bytes: &[u8]) {
        let mut failing = false;
        while !bytes.is_empty() {
            match sink.write(bytes).and_then(|written| sink.flush().map(|()| written)) {
                Ok(written) => bytes = &bytes[written..],
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => {
                    // Said once, not once a try: a full disk must not fill the log about it.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!("the audit log cannot be written, trying again: {err}");
                    }
                    let open = |pile: &mut Pile| !pile.closed;
                    let waited = self.to_write.wait_timeout_while(self.pile(), RETRY, open);
                    if waited.unwrap_or_else(PoisonError::into_inner).0.closed {
                        return;
                    }
                }
            }
        }
    }
}

/// A file that is put aside when it is full; one older one is kept.
///
/// Every toolgate of a user may write to the same one.
struct RolledFile {
    path: PathBuf,
    file: File,
}

impl RolledFile {
    fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(Self { path: path.to_owned(), file: append(path)? })
    }

    /// Goes on in a new file if this one is full or was put aside by another process.
    fn roll_if_full(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() < FILE_BYTES_MAX {
            return Ok(());
        }
        // Whoever has the lock of the file that is at the path puts it aside; who comes second
        // finds another file there.
        self.file.lock()?;
        if same_file(&self.path, &self.file) {
            std::fs::rename(&self.path, aside(&self.path))?;
        }
        self.file = append(&self.path)?;
        Ok(())
    }
}

impl Write for RolledFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.roll_if_full()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Where the file at `path` is put when it is full.
fn aside(path: &Path) -> PathBuf {
    let mut aside = path.to_owned().into_os_string();
    aside.push(".1");
    aside.into()
}

fn same_file(path: &Path, file: &File) -> bool {
    let (Ok(at_path), Ok(open)) = (std::fs::metadata(path), file.metadata()) else { return false };
    (at_path.dev(), at_path.ino()) == (open.dev(), open.ino())
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests;
