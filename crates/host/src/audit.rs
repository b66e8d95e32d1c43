//! One record per call, whatever came of it.
//!
//! Records are handed to a thread of their own. When it falls behind, calls wait
//! for it: no record is lost while the process lives.
#![allow(clippy::disallowed_methods, reason = "the log is the host's own file, outside every root")]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use jiff::Timestamp;
use serde::Serialize;
use toolgate_contract::{Call, CallError, Output};

/// How many records may wait for the disk.
const QUEUE: usize = 4096;
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
    queue: Option<SyncSender<Entry>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What is known of one call after it ended.
#[derive(Debug, Serialize)]
pub struct Record {
    /// When it began.
    pub ts: Timestamp,
    /// Who called.
    pub caller: String,
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

enum Entry {
    Record(Record),
    Flush(SyncSender<()>),
}

impl Audit {
    /// An audit log that writes to `destination`.
    pub fn open(destination: &Destination) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match destination {
            Destination::Off => return Ok(Self { queue: None, writer: Mutex::new(None) }),
            Destination::Stderr => Box::new(io::stderr()),
            Destination::File(path) => Box::new(RolledFile::open(path)?),
        };
        let (queue, entries) = sync_channel(QUEUE);
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .stack_size(256 << 10)
            .spawn(move || write_all(sink, &entries))?;
        Ok(Self { queue: Some(queue), writer: Mutex::new(Some(writer)) })
    }

    /// Begins the record of `call`. It is written when it is closed or dropped.
    pub(crate) fn begin(&self, call: &Call) -> OpenRecord<'_> {
        OpenRecord {
            audit: self,
            began: Instant::now(),
            record: self.queue.is_some().then(|| Record {
                ts: Timestamp::now(),
                caller: call.caller.name.to_string(),
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
        let Some(queue) = &self.queue else { return };
        let (done, wait) = sync_channel(1);
        if queue.send(Entry::Flush(done)).is_ok() {
            let _ = wait.recv();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.queue = None;
        let writer = self.writer.get_mut().ok().and_then(Option::take);
        if let Some(writer) = writer {
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
        let (Some(mut record), Some(queue)) = (self.record.take(), &self.audit.queue) else {
            return;
        };
        record.duration_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        // The writer only ends when the queue is closed, which this borrow prevents.
        let _ = queue.send(Entry::Record(record));
    }
}

/// Writes entries until the queue closes; what is ready together is written together.
fn write_all(mut sink: Box<dyn Write + Send>, entries: &Receiver<Entry>) {
    let mut lines = Vec::with_capacity(4096);
    let mut failing = false;
    while let Ok(first) = entries.recv() {
        let mut flushed = Vec::new();
        for entry in std::iter::once(first).chain(entries.try_iter().take(QUEUE)) {
            match entry {
                Entry::Record(record) => {
                    if serde_json::to_writer(&mut lines, &record).is_ok() {
                        lines.push(b'\n');
                    }
                }
                Entry::Flush(done) => flushed.push(done),
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
        for done in flushed {
            let _ = done.send(());
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
