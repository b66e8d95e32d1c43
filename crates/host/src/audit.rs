//! Writes one audit record for each call, whatever its outcome.
//!
//! Each call reserves a slot in the record queue before it runs, so that closing its record never
//! waits. A separate thread writes the records every few milliseconds, and retries after a failure.
//! No call runs without a record: while the queue is full, calls are refused. In a log file, each
//! line contains a seal over itself and all lines before, and [`verify`] detects changes.
#![allow(clippy::disallowed_methods, reason = "the log is the host's own file, outside every root")]

mod arguments;
mod step_times;
mod recent_calls;
mod record;
mod call_record;
mod byte_size;
mod queue;
mod chain;
mod file;
mod verify;
mod tail;
mod log_reader;
mod index;
#[cfg(any(fuzzing, test))]
mod fuzzing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::broadcast;
use toolgate_contract::{CallError, ResourceSource, ToolCall};

use crate::gauges::AuditQueueGauge;
use file::ChainedAuditLog;
use queue::{AuditRecordQueue, AuditRecordSink};

pub use arguments::AuditArgumentDetail;
pub(crate) use byte_size::AuditedPayload;
pub use call_record::{AuditRecordFilter, ParsedAuditRecord};
pub use chain::AuditKey;
#[cfg(any(fuzzing, test))]
pub(crate) use fuzzing::fuzz_log;
pub use index::{AuditIndex, CallGrouping, CallStatistics, FoundAuditRecords};
pub use log_reader::{AuditLogFollower, newest_records};
pub use recent_calls::{ChangedLineCounts, RecentCallDetails};
pub(crate) use record::{AuditRecordNumber, OpenAuditRecord, outcome_word};
pub use step_times::CallStepTimes;
pub use tail::audit_guard;
pub use verify::{AuditLogDefect, VerifiedAuditLog, verify};

/// Returns the JSON Schema of an audit record, without the fields that a log file adds.
pub fn audit_record_schema() -> serde_json::Value {
    toolgate_contract::schema_of::<record::AuditRecord>()
}

/// Maximum number of audit records that are open or wait to be written.
const RECORDS_MAX: usize = 16_384;

/// Destination of audit records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditDestination {
    /// No records are written, because the audit log is off.
    Off,
    /// Audit records are written to standard error.
    Stderr,
    /// Audit records are appended to a file. The file and its folders are created if needed.
    File(AuditFileSettings),
}

/// Settings of an audit log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditFileSettings {
    /// Path of the audit log file.
    pub path: PathBuf,
    /// Path of the file with the key that seals the audit log. The file is created if missing.
    pub key: PathBuf,
    /// Number of rotated audit log files that are kept, at least 1.
    pub keep: u32,
    /// Size in bytes at which the audit log is rotated.
    pub bytes_max: u64,
}

impl AuditFileSettings {
    /// Creates default settings for an audit log at `path`: a key file in the folder `state`, 10
    /// rotated files, and 32 MiB per file.
    pub fn with_defaults(path: PathBuf, state: &Path) -> Self {
        Self { path, key: state.join("audit.key"), keep: 10, bytes_max: 32 << 20 }
    }
}

/// The audit log of a server. While the log is off, records only reach subscribers, if any.
pub struct AuditLog(Option<Arc<AuditRecordQueue>>);

impl AuditLog {
    /// Opens an audit log that writes to `destination`. With `strict`, each call waits until its
    /// record is on disk.
    ///
    /// # Errors
    /// The log file, its head file or its key cannot be opened.
    pub fn open(destination: &AuditDestination, strict: bool) -> io::Result<Self> {
        let (sink, file) = match destination {
            AuditDestination::Off => (AuditRecordSink::Discard, None),
            AuditDestination::Stderr => (AuditRecordSink::Stream(Box::new(io::stderr())), None),
            AuditDestination::File(to) => (to.open_sink()?, Some(to.path.clone())),
        };
        let is_kept = !matches!(sink, AuditRecordSink::Discard);
        let queue = AuditRecordQueue::new(RECORDS_MAX, file, strict && is_kept);
        let queue = Arc::new(if is_kept { queue } else { queue.for_listeners_only() });
        let writer_queue = queue.clone();
        std::thread::Builder::new()
            .name("audit".into())
            .stack_size(256 << 10)
            .spawn(move || writer_queue.run_writer(sink))?;
        Ok(Self(Some(queue)))
    }

    /// Begins the audit record of `call`. The record is written when it is closed or dropped.
    ///
    /// # Errors
    /// The log cannot be written, and the queue stays full for 2 s.
    pub(crate) async fn begin_record(
        &self,
        call: &ToolCall,
    ) -> Result<OpenAuditRecord<'_>, CallError> {
        let queue = self.0.as_ref().filter(|queue| queue.is_kept || queue.has_live_listeners());
        let Some(queue) = queue else { return Ok(OpenAuditRecord::open(call, None)) };
        let place = queue.reserve_place().await?;
        Ok(OpenAuditRecord::open(call, Some((queue, place))))
    }

    /// Waits until `record` is on disk, if the log is strict.
    ///
    /// # Errors
    /// The record is not written within 10 s.
    pub(crate) async fn wait_until_stored(
        &self,
        record: AuditRecordNumber,
    ) -> Result<(), CallError> {
        match &self.0 {
            Some(queue) => queue.wait_until_stored(record.0).await,
            None => Ok(()),
        }
    }

    /// Returns the load of the audit log's record queue, or `None` if the log is off.
    pub(crate) fn gauge(&self) -> Option<AuditQueueGauge> {
        Some(self.0.as_ref().filter(|queue| queue.is_kept)?.gauge(RECORDS_MAX))
    }

    /// Subscribes to the audit records of calls that end from now on, as JSON. Records are sent
    /// even if the log is off. A listener that falls too far behind receives a lag error.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        match &self.0 {
            Some(queue) => queue.live_records.subscribe(),
            None => broadcast::Sender::new(1).subscribe(),
        }
    }

    /// Returns true if this server process wrote `record`.
    pub fn has_written(&self, record: &ParsedAuditRecord) -> bool {
        let server = record.server.as_deref();
        self.0.as_ref().is_some_and(|queue| server.is_some_and(|server| queue.is_own(server)))
    }

    /// Returns the arguments and the result of the call of `record`, if they are still in memory.
    pub fn recent_call(&self, record: &ParsedAuditRecord) -> Option<Arc<RecentCallDetails>> {
        if !self.has_written(record) {
            return None;
        }
        self.0.as_ref()?.recent_calls.find((record.ts, record.duration_us))
    }

    /// Removes the arguments and results of all recent calls from memory.
    pub(crate) fn forget_recent_calls(&self) {
        if let Some(queue) = &self.0 {
            queue.recent_calls.clear();
        }
    }

    /// Returns the MCP resource source that shows the latest audit records, or `None` if the log is
    /// not a file.
    pub fn resources(&self) -> Option<Arc<dyn ResourceSource>> {
        tail::tail_resource(self.0.as_ref()?)
    }

    /// Waits until all audit records so far are written, but at most 2 s.
    pub fn flush(&self) {
        if let Some(queue) = &self.0 {
            queue.flush();
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.flush();
            // Joining the writer could block forever in a stuck write.
            queue.close();
        }
    }
}

impl AuditFileSettings {
    /// Opens the sink that writes audit records to this destination. Records in a pipe, terminal or
    /// other special file are not sealed, because they cannot be read again.
    fn open_sink(&self) -> io::Result<AuditRecordSink> {
        let Self { path, key, keep, bytes_max } = self;
        let is_special = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        if is_special {
            let stream = std::fs::OpenOptions::new().append(true).open(path)?;
            return Ok(AuditRecordSink::Stream(Box::new(stream)));
        }
        let key = AuditKey::open_or_create(key).map_err(|err| {
            let key = key.display();
            io::Error::new(err.kind(), format!("cannot use the key {key} of the audit log: {err}"))
        })?;
        Ok(AuditRecordSink::Chain(Box::new(ChainedAuditLog::open(path, key, *keep, *bytes_max)?)))
    }
}

#[cfg(test)]
mod tests;
