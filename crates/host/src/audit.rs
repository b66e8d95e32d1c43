//! One record per call, whatever came of it.
//!
//! Records are handed to a thread of their own, which writes what has come every
//! few milliseconds. When it falls behind, calls wait for it: no record is lost
//! while the process lives.
#![allow(clippy::disallowed_methods, reason = "the log is the host's own file, outside every root")]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use toolgate_contract::{Call, CallError, Output};

/// How many records may wait for the disk.
const WAITING_MAX: usize = 4096;
/// How long a record waits for others to be written with.
const GATHER: Duration = Duration::from_millis(5);
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
pub struct Audit {
    desk: Option<Arc<Desk>>,
    writer: Option<JoinHandle<()>>,
}

/// What is known of one call after it ended.
#[derive(Debug, Serialize)]
pub struct Record {
    /// When it began.
    pub ts: Timestamp,
    /// Who called.
    pub caller: Arc<str>,
    /// By which dialect.
    pub dialect: &'static str,
    /// The tool's name as called.
    pub tool: String,
    /// `ok`, or the reason it failed in a word.
    pub outcome: &'static str,
    /// Why it failed, where the caller was told less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// How long it took.
    pub duration_us: u64,
}

/// What calls and the writer share.
#[derive(Default)]
struct Desk {
    pile: Mutex<Pile>,
    /// Told when there is something to write, or someone waits for it.
    to_write: Condvar,
    /// Told when something was written.
    written: Condvar,
}

/// Records that wait to be written.
#[derive(Default)]
struct Pile {
    records: Vec<Record>,
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
            Destination::Off => return Ok(Self { desk: None, writer: None }),
            Destination::Stderr => Box::new(io::stderr()),
            Destination::File(path) => Box::new(RolledFile::open(path)?),
        };
        let desk = Arc::new(Desk::default());
        let writers = desk.clone();
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .stack_size(256 << 10)
            .spawn(move || writers.write_all(sink))?;
        Ok(Self { desk: Some(desk), writer: Some(writer) })
    }

    /// Begins the record of `call`. It is written when it is closed or dropped.
    pub(crate) fn begin(&self, call: &Call) -> OpenRecord<'_> {
        OpenRecord {
            audit: self,
            began: Instant::now(),
            record: self.desk.is_some().then(|| Record {
                ts: Timestamp::now(),
                caller: call.caller.name.clone(),
                dialect: call.dialect,
                tool: call.tool.chars().take(200).collect(),
                outcome: "dropped",
                cause: None,
                duration_us: 0,
            }),
        }
    }

    /// Waits until every record so far is written.
    pub fn flush(&self) {
        if let Some(desk) = &self.desk {
            desk.flush();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        if let Some(desk) = &self.desk {
            desk.pile().closed = true;
            desk.to_write.notify_one();
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// A record whose call has not ended. Dropped, it says so: a call leaves one however it ends.
pub(crate) struct OpenRecord<'a> {
    audit: &'a Audit,
    began: Instant,
    record: Option<Record>,
}

impl OpenRecord<'_> {
    pub(crate) fn close(mut self, outcome: &Result<Output, CallError>) {
        if let Some(record) = &mut self.record {
            record.outcome = outcome.as_ref().map_or_else(CallError::reason, |_| "ok");
            record.cause = outcome.as_ref().err().and_then(CallError::cause).map(str::to_owned);
        }
    }
}

impl Drop for OpenRecord<'_> {
    fn drop(&mut self) {
        let (Some(mut record), Some(desk)) = (self.record.take(), &self.audit.desk) else { return };
        record.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        desk.lay(record);
    }
}

impl Desk {
    fn pile(&self) -> MutexGuard<'_, Pile> {
        self.pile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays `record` on the pile, once there is room.
    fn lay(&self, record: Record) {
        let mut pile = self.pile();
        while pile.records.len() >= WAITING_MAX {
            pile.hurry = true;
            self.to_write.notify_one();
            pile = self.written.wait(pile).unwrap_or_else(PoisonError::into_inner);
        }
        pile.records.push(record);
        pile.laid += 1;
        // A writer that gathers wakes by itself; waking it for each record would cost more than the record.
        if pile.asleep {
            self.to_write.notify_one();
        }
    }

    fn flush(&self) {
        let mut pile = self.pile();
        let laid = pile.laid;
        while pile.done < laid {
            pile.hurry = true;
            self.to_write.notify_one();
            pile = self.written.wait(pile).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes what is on the pile, gathered for a moment; `None` when nothing more will come.
    fn take(&self) -> Option<Vec<Record>> {
        let mut pile = self.pile();
        while pile.records.is_empty() {
            if pile.closed {
                return None;
            }
            pile.asleep = true;
            pile = self.to_write.wait(pile).unwrap_or_else(PoisonError::into_inner);
        }
        pile.asleep = false;
        let busy = |pile: &mut Pile| !pile.hurry && !pile.closed;
        let gathered = self.to_write.wait_timeout_while(pile, GATHER, busy);
        let (mut pile, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        pile.hurry = false;
        Some(std::mem::take(&mut pile.records))
    }

    fn write_all(&self, mut sink: Box<dyn Write + Send>) {
        let mut lines = Vec::with_capacity(4096);
        let mut failing = false;
        while let Some(records) = self.take() {
            for record in &records {
                if serde_json::to_writer(&mut lines, record).is_ok() {
                    lines.push(b'\n');
                }
            }
            let written = sink.write_all(&lines).and_then(|()| sink.flush());
            lines.clear();
            match written {
                Ok(()) => failing = false,
                // Said once, not once a call: a full disk must not fill the log about it.
                Err(err) if !failing => {
                    failing = true;
                    tracing::error!("audit records are being lost: {err}");
                }
                Err(_) => {}
            }
            self.pile().done += records.len() as u64;
            self.written.notify_all();
        }
    }
}

/// A file that is put aside when it is full; one older one is kept.
struct RolledFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl RolledFile {
    fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = append(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, bytes })
    }

    fn roll(&mut self) -> io::Result<()> {
        let mut aside = self.path.clone().into_os_string();
        aside.push(".1");
        std::fs::rename(&self.path, aside)?;
        self.file = append(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

impl Write for RolledFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes >= FILE_BYTES_MAX {
            self.roll()?;
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
