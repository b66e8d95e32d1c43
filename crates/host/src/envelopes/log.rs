//! Logs envelopes as JSON lines. Keeps the last few files.
//!
//! A separate thread writes the lines. No call waits for it: if the thread is too slow, lines are
//! dropped and their number is logged.
#![allow(clippy::disallowed_methods, reason = "the log is the host's own file, outside every root")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallEnvelope, EnvelopeError, EnvelopeMetadata, TraceContext, ValidationProblem, lock_mutex,
};

use super::ids;
use crate::secrets::SecretSet;

/// Subfolder of the configured folder that contains the log of envelopes.
const FOLDER: &str = "mcp_server";
/// Prefix of the file names of the envelope logs.
const STEM: &str = "envelope_validation";
/// Name of the link to the newest file of the envelope log.
const LATEST: &str = "envelope_validation.latest.jsonl";
/// Agent id that readers of the envelope log expect.
const AGENT: &str = "mcp_server";
/// Task id that readers of the envelope log expect.
const TASK: &str = "06cV2B_mcp_envelope_and_schema_validation_B";
/// Maximum number of files of the envelope log that are kept.
const FILES_MAX: usize = 5;
/// Size in bytes at which the envelope log continues in a new file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Number of bytes that are written to a full log file before a failed rotation is tried again.
const RETRY_BYTES: u64 = 1 << 20;
/// Maximum number of characters of a caller's name that are logged.
const NAME_CHARS_MAX: usize = 200;
/// Maximum number of characters of a caller's name that are searched for secrets. The limit is
/// higher than that of logged characters, so that the cut leaves no incomplete secret.
const NAME_CHARS_SCANNED: usize = 1000;
/// Maximum number of envelopes that wait to be written to the log.
const LINES_MAX: usize = 4096;
/// Longest wait for unwritten envelopes at a flush of the log.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Time of the first log line in deterministic mode. Each further line is a second later.
const EPOCH: Timestamp = Timestamp::constant(1_735_689_600, 0);

/// Log file to which the envelopes of calls are written.
#[derive(Debug)]
pub struct EnvelopeLog {
    to_write: Mutex<SyncSender<Box<EnvelopeLogLine>>>,
    /// Number of envelopes that were handed to the log's writer.
    pushed: AtomicU64,
    written: Arc<WrittenEnvelopeCount>,
    dropped_lines: Arc<AtomicU64>,
}

/// Number of envelopes that the log's writer has written or dropped after failures.
#[derive(Debug, Default)]
struct WrittenEnvelopeCount {
    lines: Mutex<u64>,
    changed: Condvar,
}

/// The log line of one envelope.
struct EnvelopeLogLine {
    ts: Timestamp,
    meta: EnvelopeMetadata,
    error: Option<Value>,
    /// JSON pointers of the schema violations, if the envelope violates its schema.
    pointers: Option<Vec<String>>,
    traceparent: Option<String>,
    /// Secrets to redact from the log line.
    secrets: Arc<SecretSet>,
}

/// State of the thread that writes the envelope log.
struct EnvelopeLogWriter {
    folder: PathBuf,
    /// Folder of the log as written in the settings. Each log line contains this path.
    configured_path: String,
    deterministic: bool,
    run_id: String,
    file: BufWriter<File>,
    bytes: u64,
    step: u64,
    written: Arc<WrittenEnvelopeCount>,
    dropped_lines: Arc<AtomicU64>,
}

impl EnvelopeLog {
    /// Opens a log of envelopes under `folder`.
    ///
    /// # Errors
    /// The folder or file cannot be created.
    pub fn open(folder: &Path, deterministic: bool) -> io::Result<Self> {
        let named = format!("{}/{FOLDER}/{LATEST}", folder.display());
        let folder = folder.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let run = if deterministic { ids::derived_id("run", "") } else { ids::random_id() };
        let (file, name) = create_file(&folder)?;
        link_latest(&folder, &name)?;
        let file = BufWriter::new(file);
        let (log, lines) = Self::without_writer();
        let writer = EnvelopeLogWriter {
            folder,
            configured_path: named,
            deterministic,
            run_id: run,
            file,
            bytes: 0,
            step: 0,
            written: log.written.clone(),
            dropped_lines: log.dropped_lines.clone(),
        };
        std::thread::Builder::new()
            .name("envelopes".into())
            .stack_size(256 << 10)
            .spawn(move || writer.run(&lines))?;
        Ok(log)
    }

    /// Creates an envelope log without a writer, and the receiver of its lines.
    fn without_writer() -> (Self, Receiver<Box<EnvelopeLogLine>>) {
        let (to_write, lines) = sync_channel(LINES_MAX);
        let log = Self {
            to_write: Mutex::new(to_write),
            pushed: AtomicU64::new(0),
            written: Arc::default(),
            dropped_lines: Arc::default(),
        };
        (log, lines)
    }

    /// Logs `envelope` with `secrets` redacted. If there are `problems`, the line marks it as
    /// invalid.
    pub(super) fn write(
        &self,
        envelope: &CallEnvelope,
        problems: Option<&[ValidationProblem]>,
        trace: Option<&TraceContext>,
        secrets: &Arc<SecretSet>,
    ) {
        let error = match (problems, &envelope.error) {
            (Some(problems), _) => Some(error_summary(&super::schema_violation(problems))),
            (None, error) => error.as_ref().map(error_summary),
        };
        let at = |problems: &[ValidationProblem]| {
            problems.iter().map(|problem| name_prefix(&problem.pointer).to_owned()).collect()
        };
        let EnvelopeMetadata { method, tool_id, prompt_id, .. } = &envelope.meta;
        let named = |name: &Option<String>| name.as_deref().map(name_prefix).map(str::to_owned);
        let line = EnvelopeLogLine {
            ts: Timestamp::now(),
            meta: EnvelopeMetadata {
                method: name_prefix(method).to_owned(),
                tool_id: named(tool_id),
                prompt_id: named(prompt_id),
                ..envelope.meta.clone()
            },
            error,
            pointers: problems.map(at),
            traceparent: trace.map(|trace| trace.parent.clone()),
            secrets: secrets.clone(),
        };
        let to_write = lock_mutex(&self.to_write);
        match to_write.try_send(Box::new(line)) {
            Ok(()) => self.pushed.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.dropped_lines.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Waits until all envelopes so far are logged, but at most 2 s.
    pub(super) fn flush(&self) {
        self.flush_within(FLUSH_MAX);
    }

    fn flush_within(&self, at_most: Duration) {
        let pushed = self.pushed.load(Ordering::Relaxed);
        let behind = |lines: &mut u64| *lines < pushed;
        // A timeout needs no handling.
        let lines = lock_mutex(&self.written.lines);
        let _ = self.written.changed.wait_timeout_while(lines, at_most, behind);
    }
}

impl Drop for EnvelopeLog {
    fn drop(&mut self) {
        self.flush();
    }
}

impl EnvelopeLogWriter {
    fn run(mut self, lines: &Receiver<Box<EnvelopeLogLine>>) {
        while let Ok(first) = lines.recv() {
            let mut written = 0;
            // Lines that came meanwhile share one flush.
            for line in std::iter::once(first).chain(lines.try_iter().take(LINES_MAX)) {
                self.log_failure(|writer| writer.write(&line));
                written += 1;
            }
            self.log_failure(|writer| writer.file.flush());
            *lock_mutex(&self.written.lines) += written;
            self.written.changed.notify_all();
        }
    }

    fn log_failure(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) {
        if let Err(err) = write(self) {
            tracing::error!("an envelope could not be logged in {}: {err}", self.folder.display());
        }
        let dropped = self.dropped_lines.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let were = if dropped == 1 { "envelope was" } else { "envelopes were" };
            tracing::error!("{dropped} {were} not logged, because the disk is too slow");
        }
    }

    fn write(&mut self, line: &EnvelopeLogLine) -> io::Result<()> {
        if self.bytes >= FILE_BYTES_MAX {
            self.log_failure(Self::rotate);
        }
        self.step += 1;
        let mut text = self.format_line(line).to_string();
        text.push('\n');
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes())
    }

    /// Continues the log in the next file, or in the current file if no other can be created.
    fn rotate(&mut self) -> io::Result<()> {
        // After a failure, wait for `RETRY_BYTES` before the next try.
        self.bytes = FILE_BYTES_MAX.saturating_sub(RETRY_BYTES);
        self.file.flush()?;
        let (file, name) = create_file(&self.folder)?;
        self.file = BufWriter::new(file);
        self.bytes = 0;
        link_latest(&self.folder, &name)
    }

    fn format_line(
        &self,
        EnvelopeLogLine { ts, meta, error, pointers: at, traceparent, secrets }: &EnvelopeLogLine,
    ) -> Value {
        let step = self.step;
        let seconds = i64::try_from(step).unwrap_or(i64::MAX).saturating_sub(1);
        let ts = if self.deterministic {
            EPOCH.saturating_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(EPOCH)
        } else {
            *ts
        };
        let attempt_id = if self.deterministic {
            ids::derived_id("attempt", &step.to_string())
        } else {
            ids::random_id()
        };
        let clean =
            |name: &str| secrets.redact(name).chars().take(NAME_CHARS_MAX).collect::<String>();
        let named = |name: &Option<String>| name.as_deref().map(clean).map(Value::from);
        let mut error = error.clone();
        if let (Some(error), Some(at)) = (&mut error, at) {
            error["details"]["at"] = at.iter().map(|pointer| clean(pointer)).collect();
        }
        let metadata = [
            ("schemaVersion", Some(meta.schema_version.clone().into())),
            ("deterministic", Some(meta.deterministic.into())),
            ("toolId", named(&meta.tool_id)),
            ("promptId", named(&meta.prompt_id)),
            ("traceparent", named(traceparent)),
            ("runId", Some(self.run_id.clone().into())),
            ("attemptId", Some(attempt_id.into())),
            ("logPath", Some(self.configured_path.clone().into())),
        ];
        let metadata = metadata.into_iter().filter_map(|(name, it)| Some((name.to_owned(), it?)));
        json!({
            "ts": ts.strftime("%Y-%m-%dT%H:%M:%S%.fZ").to_string(),
            "agentId": AGENT,
            "taskId": TASK,
            "stepId": step,
            "transport": meta.transport,
            "route": meta.route,
            "method": clean(&meta.method),
            "status": if error.is_some() { "error" } else { "ok" },
            "durationMs": meta.duration_ms,
            "attempt": meta.attempt,
            "inputBytes": meta.input_bytes,
            "outputBytes": meta.output_bytes,
            "requestId": meta.request_id,
            "traceId": meta.trace_id,
            "spanId": meta.span_id,
            "metadata": metadata.collect::<Map<_, _>>(),
            "error": error,
        })
    }
}

/// Returns a summary of an error for the envelope log, without any text that a caller chose.
fn error_summary(EnvelopeError { code, details, .. }: &EnvelopeError) -> Value {
    let reason = details.as_ref().map(|details| details["reason"].clone());
    json!({
        "code": code.as_str(),
        "canonical": code.as_str(),
        "httpStatus": code.http_status(),
        "jsonrpcCode": code.jsonrpc_code(),
        "message": code.message(),
        "retryable": code.is_retryable(),
        "details": { "reason": reason },
    })
}

/// Returns the beginning of the caller's `name` that is searched for secrets.
fn name_prefix(name: &str) -> &str {
    name.char_indices().nth(NAME_CHARS_SCANNED).map_or(name, |(end, _)| &name[..end])
}

/// Creates the next file of the envelope log in `folder` and returns it with its name.
fn create_file(folder: &Path) -> io::Result<(File, String)> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%S%3fZ").to_string();
    let run = ids::random_id();
    let name = format!("{STEM}.{now}.{}.jsonl", &run[..8]);
    let file =
        OpenOptions::new().append(true).create_new(true).mode(0o600).open(folder.join(&name))?;
    Ok((file, name))
}

/// Links the log file `name` as the latest in `folder`, and removes the oldest files.
fn link_latest(folder: &Path, name: &str) -> io::Result<()> {
    // Renaming the link replaces it in one step.
    let link = folder.join(format!(".{name}.link"));
    symlink(name, &link)?;
    if let Err(err) = fs::rename(&link, folder.join(LATEST)) {
        let _ = fs::remove_file(&link);
        return Err(err);
    }
    let mut old = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let Some(text) = name.to_str() else { continue };
        if text.starts_with(STEM) && text.ends_with(".jsonl") && text != LATEST {
            old.push(text.to_owned());
        }
    }
    // Names begin with their creation time.
    old.sort();
    let many = old.len().saturating_sub(FILES_MAX);
    for name in &old[..many] {
        match fs::remove_file(folder.join(name)) {
            // Another toolgate process that logs here has removed it.
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tempfile::TempDir;

    use super::*;
    use crate::envelopes::tests::discovered;

    #[test]
    fn a_flush_waits_for_a_stuck_writer_no_longer_than_its_limit() {
        let (log, lines) = EnvelopeLog::without_writer();
        let envelope = discovered();
        for _ in 0..LINES_MAX + 3 {
            log.write(&envelope, None, None, &Arc::default());
        }
        assert_eq!(log.dropped_lines.load(Ordering::Relaxed), 3);
        let began = Instant::now();
        log.flush_within(Duration::from_millis(20));
        assert!(began.elapsed() < FLUSH_MAX);
        // What is dropped waits as well.
        *lock_mutex(&log.written.lines) += lines.try_iter().count() as u64;
    }

    /// Creates an envelope log writer in `folder` whose file has already reached the maximum size.
    fn full(folder: &Path) -> EnvelopeLogWriter {
        let (file, _) = create_file(folder).expect("a file");
        EnvelopeLogWriter {
            folder: folder.to_owned(),
            configured_path: String::new(),
            deterministic: true,
            run_id: String::new(),
            file: BufWriter::new(file),
            bytes: FILE_BYTES_MAX,
            step: 0,
            written: Arc::default(),
            dropped_lines: Arc::default(),
        }
    }

    fn line() -> Box<EnvelopeLogLine> {
        let (log, lines) = EnvelopeLog::without_writer();
        log.write(&discovered(), None, None, &Arc::default());
        *lock_mutex(&log.written.lines) += 1;
        lines.recv().expect("a line")
    }

    fn files(folder: &Path) -> usize {
        let names =
            fs::read_dir(folder).expect("a folder").map(|one| one.expect("one").file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".jsonl")).count()
    }

    #[test]
    fn a_next_file_is_used_even_if_the_latest_link_cannot_be_replaced() {
        let folder = TempDir::new().expect("a folder");
        // Nothing can be put over a folder that has something in it.
        fs::create_dir_all(folder.path().join(LATEST).join("in the way")).expect("a folder");
        let mut writer = full(folder.path());
        let before = files(folder.path());
        assert!(writer.rotate().is_err());
        assert!(writer.bytes < FILE_BYTES_MAX);
        for _ in 0..3 {
            writer.write(&line()).expect("it is written");
        }
        writer.file.flush().expect("it is written");
        assert_eq!(files(folder.path()), before + 1);
    }

    #[test]
    fn the_current_file_is_used_on_if_no_next_one_can_be_created() {
        let folder = TempDir::new().expect("a folder");
        let mut writer = full(folder.path());
        let mut file = writer.file.get_ref().try_clone().expect("a file");
        writer.folder = folder.path().join("not there");
        writer.write(&line()).expect("it is written");
        writer.file.flush().expect("it is written");
        let bytes = io::Seek::stream_position(&mut file).expect("a place");
        assert!(bytes > 0);
        assert_eq!(writer.bytes, FILE_BYTES_MAX - RETRY_BYTES + bytes);
    }
}
