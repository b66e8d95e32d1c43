//! One record per call, whatever came of it.
//!
//! A call takes a place in the queue before it runs, so laying its record down
//! never waits. A thread of its own writes what has come every few milliseconds.
//! While it cannot, it tries again, and calls beyond the queue are refused: none
//! runs without a record. In a file each line is chained to the one before, so that
//! [`verify`] finds what was changed.
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

/// How many calls may have a record open or unwritten.
const PLACES: usize = 16_384;

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Nowhere.
    Off,
    /// Standard error.
    Stderr,
    /// A file, created with its folders, appended to.
    File(ToFile),
}

/// Records in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToFile {
    /// Where it is.
    pub path: PathBuf,
    /// Where the key is that it is sealed with, made there if there is none.
    pub key: PathBuf,
    /// How many older files are kept beside it, at least one.
    pub keep: u32,
    /// How large it grows before it is put aside.
    pub bytes_max: u64,
}

impl ToFile {
    /// Records at `path` as they are kept where nobody says how, its key in the folder `state`.
    pub fn at(path: PathBuf, state: &Path) -> Self {
        Self { path, key: state.join("audit.key"), keep: 10, bytes_max: 32 << 20 }
    }
}

/// The audit log.
pub struct Audit(Option<Arc<Queue>>);

impl Audit {
    /// An audit log that writes to `destination`. If it is `strict`, no call is answered before
    /// its record is on the disk.
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
    /// Refused while the log cannot be written and the queue is full.
    pub(crate) async fn begin(&self, call: &Call) -> Result<OpenRecord<'_>, CallError> {
        let Some(queue) = &self.0 else { return Ok(OpenRecord::of(call, None)) };
        let place = queue.place().await?;
        Ok(OpenRecord::of(call, Some((queue, place))))
    }

    /// Waits until the record that was `laid` is kept, if no call is to be answered before.
    ///
    /// # Errors
    /// When it could not be written for long.
    pub(crate) async fn kept(&self, laid: Laid) -> Result<(), CallError> {
        match &self.0 {
            Some(queue) => queue.kept(laid.0).await,
            None => Ok(()),
        }
    }

    /// How many records wait to be written, of how many; `None` where none are kept.
    pub(crate) fn gauge(&self) -> Option<RecordGauge> {
        Some(self.0.as_ref()?.gauge(PLACES))
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
            queue.close();
        }
    }
}

impl ToFile {
    /// What is no file on a disk, a pipe or a terminal, cannot be gone back in and is not chained.
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
