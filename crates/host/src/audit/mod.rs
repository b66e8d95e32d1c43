//! Writes one audit record for each call, whatever its outcome.
//!
//! A call reserves a place in the queue before it runs, so that closing its record never waits. A
//! separate thread writes the records every few milliseconds and retries on failure. Meanwhile
//! calls beyond the queue's capacity are refused, because none runs without a record. In a file
//! each line is chained to the previous one, and [`verify`] detects changes.
#![allow(clippy::disallowed_methods, reason = "the log is the host's own file, outside every root")]

mod record;
mod measured;
mod queue;
mod chain;
mod file;
mod verify;
mod tail;
#[cfg(any(fuzzing, test))]
mod fuzzing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolgate_contract::{Call, CallError, Resources};

use crate::gauges::RecordGauge;
use file::Chain;
use queue::{Queue, Sink};

pub use chain::Key;
#[cfg(any(fuzzing, test))]
pub(crate) use fuzzing::log;
pub(crate) use measured::Measured;
pub(crate) use record::{Laid, OpenRecord, outcome};
pub use tail::guard as audit_guard;
pub use verify::{Broken, Whole, verify};

/// Largest number of records that are open or unwritten.
const PLACES: usize = 16_384;

/// Destination of audit records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// No records are written.
    Off,
    /// Standard error.
    Stderr,
    /// A file, which is appended to. It is created with its folders if needed.
    File(ToFile),
}

/// Settings of a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToFile {
    /// Path of the log file.
    pub path: PathBuf,
    /// Path of the key file that seals the log. It is created if missing.
    pub key: PathBuf,
    /// Number of older files that are kept, at least 1.
    pub keep: u32,
    /// Size in bytes at which the file is rotated.
    pub bytes_max: u64,
}

impl ToFile {
    /// Creates default settings for a log at `path`: key in the folder `state`, 10 older files, 32
    /// MiB per file.
    pub fn at(path: PathBuf, state: &Path) -> Self {
        Self { path, key: state.join("audit.key"), keep: 10, bytes_max: 32 << 20 }
    }
}

/// The audit log, or nothing if it is off.
pub struct Audit(Option<Arc<Queue>>);

impl Audit {
    /// Opens an audit log that writes to `destination`. With `strict`, each call waits until its
    /// record is on disk.
    pub fn open(destination: &Destination, strict: bool) -> io::Result<Self> {
        let (sink, file) = match destination {
            Destination::Off => return Ok(Self(None)),
            Destination::Stderr => (Sink::Stream(Box::new(io::stderr())), None),
            Destination::File(to) => (to.sink()?, Some(to.path.clone())),
        };
        let queue = Arc::new(Queue::new(PLACES, file, strict));
        let writers = queue.clone();
        std::thread::Builder::new()
            .name("audit".into())
            .stack_size(256 << 10)
            .spawn(move || writers.write_all(sink))?;
        Ok(Self(Some(queue)))
    }

    /// Begins the record of `call`. It is written when it is closed or dropped.
    ///
    /// # Errors
    /// If the log cannot be written and the queue stays full for 2 s.
    pub(crate) async fn begin(&self, call: &Call) -> Result<OpenRecord<'_>, CallError> {
        let Some(queue) = &self.0 else { return Ok(OpenRecord::of(call, None)) };
        let place = queue.place().await?;
        Ok(OpenRecord::of(call, Some((queue, place))))
    }

    /// Waits until the record `laid` is on disk, if the log is strict.
    ///
    /// # Errors
    /// If the record is not written within 10 s.
    pub(crate) async fn kept(&self, laid: Laid) -> Result<(), CallError> {
        match &self.0 {
            Some(queue) => queue.kept(laid.0).await,
            None => Ok(()),
        }
    }

    /// Returns the load of the queue, or `None` if the log is off.
    pub(crate) fn gauge(&self) -> Option<RecordGauge> {
        Some(self.0.as_ref()?.gauge(PLACES))
    }

    /// Returns the latest records as a resource, or `None` if they are not in a file.
    pub fn resources(&self) -> Option<Arc<dyn Resources>> {
        tail::of(self.0.as_ref()?)
    }

    /// Waits until all records so far are written, for 2 s at most.
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
            // Joining the writer could block forever in a stuck write.
            queue.close();
        }
    }
}

impl ToFile {
    /// Opens the sink. A pipe, terminal or other special file is written without a chain, because
    /// it cannot be read again.
    fn sink(&self) -> io::Result<Sink> {
        let Self { path, key, keep, bytes_max } = self;
        let no_file = std::fs::metadata(path).is_ok_and(|there| !there.is_file());
        if no_file {
            let stream = std::fs::OpenOptions::new().append(true).open(path)?;
            return Ok(Sink::Stream(Box::new(stream)));
        }
        let key = Key::at(key).map_err(|err| {
            let key = key.display();
            io::Error::new(err.kind(), format!("the key {key} it is sealed with: {err}"))
        })?;
        Ok(Sink::Chain(Box::new(Chain::open(path, key, *keep, *bytes_max)?)))
    }
}

#[cfg(test)]
mod tests;
