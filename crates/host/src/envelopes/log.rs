//! Logs envelopes as JSON lines, in files of which the last few are kept.
//!
//! A separate thread writes. No call waits for it: lines that it cannot keep up with are dropped,
//! and their number is logged.
#![allow(clippy::disallowed_methods, reason = "the log is the host's own file, outside every root")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use toolgate_contract::{Envelope, EnvelopeError, Meta, Problem, Trace};

use super::ids;
use crate::secrets::Secrets;

/// Subfolder of the log in the configured folder.
const FOLDER: &str = "mcp_server";
/// Prefix of the names of its files.
const STEM: &str = "envelope_validation";
/// Name of the link to the newest file.
const LATEST: &str = "envelope_validation.latest.jsonl";
/// Agent id that readers of the log expect.
const AGENT: &str = "mcp_server";
/// Task id that readers of the log expect.
const TASK: &str = "06cV2B_mcp_envelope_and_schema_validation_B";
/// Number of files that are kept.
const KEPT: usize = 5;
/// Size in bytes at which the next file is begun.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Further bytes written to a full file before a failed rotation is tried again.
const RETRY_BYTES: u64 = 1 << 20;
/// Most characters of a caller's name that are logged.
const NAME_CHARS_MAX: usize = 200;
/// Most characters of it that are searched for secrets. It is larger, so that no part of a secret
/// remains at the cut.
const NAME_CHARS_SEEN: usize = 1000;
/// Largest number of lines that wait to be written.
const WAITING: usize = 4096;
/// Longest wait for unwritten lines at a flush.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Time of the first line in deterministic mode; each further line is a second later.
const EPOCH: Timestamp = Timestamp::constant(1_735_689_600, 0);

/// Log of envelopes.
#[derive(Debug)]
pub struct EnvelopeLog {
    to_write: Mutex<SyncSender<Box<Line>>>,
    /// Number of lines that were handed to the writer.
    laid: AtomicU64,
    written: Arc<Written>,
    left_out: Arc<AtomicU64>,
}

/// Number of lines that the writer has finished, written or failed.
#[derive(Debug, Default)]
struct Written {
    lines: Mutex<u64>,
    grown: Condvar,
}

/// Log line of one envelope.
struct Line {
    ts: Timestamp,
    meta: Meta,
    error: Option<Value>,
    /// JSON pointers of schema violations, if the envelope breaks its schema.
    at: Option<Vec<String>>,
    traceparent: Option<String>,
    /// Secrets to redact from it.
    secrets: Arc<Secrets>,
}

/// State of the writer thread.
struct Writer {
    folder: PathBuf,
    /// Path of the log as configured, which appears in its lines.
    named: String,
    deterministic: bool,
    mode: &'static str,
    run: String,
    file: BufWriter<File>,
    bytes: u64,
    step: u64,
    written: Arc<Written>,
    left_out: Arc<AtomicU64>,
}

impl EnvelopeLog {
    /// Opens a log under `folder`. `mode` names the envelope check in each line.
    ///
    /// # Errors
    /// If the folder or file cannot be created.
    pub fn open(folder: &Path, mode: &'static str, deterministic: bool) -> io::Result<Self> {
        let named = format!("{}/{FOLDER}/{LATEST}", folder.display());
        let folder = folder.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let run = if deterministic { ids::reckoned("run", "") } else { ids::random() };
        let (file, name) = begin_file(&folder)?;
        make_latest(&folder, &name)?;
        let file = BufWriter::new(file);
        let (log, lines) = Self::unwritten();
        let writer = Writer {
            folder,
            named,
            deterministic,
            mode,
            run,
            file,
            bytes: 0,
            step: 0,
            written: log.written.clone(),
            left_out: log.left_out.clone(),
        };
        std::thread::Builder::new()
            .name("envelopes".into())
            .stack_size(256 << 10)
            .spawn(move || writer.write_all(&lines))?;
        Ok(log)
    }

    /// Creates a log without a writer, and the receiver of its lines.
    fn unwritten() -> (Self, Receiver<Box<Line>>) {
        let (to_write, lines) = sync_channel(WAITING);
        let log = Self {
            to_write: Mutex::new(to_write),
            laid: AtomicU64::new(0),
            written: Arc::default(),
            left_out: Arc::default(),
        };
        (log, lines)
    }

    /// Logs `envelope` with `secrets` redacted. If there are `problems`, it is logged as broken.
    pub(super) fn write(
        &self,
        envelope: &Envelope,
        problems: Option<&[Problem]>,
        trace: Option<&Trace>,
        secrets: &Arc<Secrets>,
    ) {
        let error = match (problems, &envelope.error) {
            (Some(problems), _) => Some(told(&super::broken(problems))),
            (None, error) => error.as_ref().map(told),
        };
        let at = |problems: &[Problem]| {
            problems.iter().map(|problem| beginning(&problem.pointer).to_owned()).collect()
        };
        let Meta { method, tool_id, prompt_id, .. } = &envelope.meta;
        let named = |name: &Option<String>| name.as_deref().map(beginning).map(str::to_owned);
        let line = Line {
            ts: Timestamp::now(),
            meta: Meta {
                method: beginning(method).to_owned(),
                tool_id: named(tool_id),
                prompt_id: named(prompt_id),
                ..envelope.meta.clone()
            },
            error,
            at: problems.map(at),
            traceparent: trace.map(|trace| trace.parent.clone()),
            secrets: secrets.clone(),
        };
        let to_write = self.to_write.lock().unwrap_or_else(PoisonError::into_inner);
        match to_write.try_send(Box::new(line)) {
            Ok(()) => self.laid.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.left_out.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Waits until all lines so far are written, for 2 s at most.
    pub(super) fn flush(&self) {
        self.flush_within(FLUSH_MAX);
    }

    fn flush_within(&self, at_most: Duration) {
        let laid = self.laid.load(Ordering::Relaxed);
        let behind = |lines: &mut u64| *lines < laid;
        // A timeout needs no handling.
        let _ = self.written.grown.wait_timeout_while(self.written.lines(), at_most, behind);
    }
}

impl Drop for EnvelopeLog {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Written {
    fn lines(&self) -> MutexGuard<'_, u64> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn write_all(mut self, lines: &Receiver<Box<Line>>) {
        while let Ok(first) = lines.recv() {
            let mut written = 0;
            // Lines that came meanwhile share one flush.
            for line in std::iter::once(first).chain(lines.try_iter().take(WAITING)) {
                self.or_complain(|writer| writer.write(&line));
                written += 1;
            }
            self.or_complain(|writer| writer.file.flush());
            *self.written.lines() += written;
            self.written.grown.notify_all();
        }
    }

    fn or_complain(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) {
        if let Err(err) = write(self) {
            tracing::error!("an envelope could not be logged in {}: {err}", self.folder.display());
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            tracing::error!("{left_out} envelopes were not logged: the disk is too slow for them");
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        if self.bytes >= FILE_BYTES_MAX {
            self.or_complain(Self::go_on);
        }
        self.step += 1;
        let mut text = self.record(line).to_string();
        text.push('\n');
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes())
    }

    /// Continues in the next file, or in this one if no other can be created.
    fn go_on(&mut self) -> io::Result<()> {
        // After a failure, wait for `RETRY_BYTES` before the next try.
        self.bytes = FILE_BYTES_MAX.saturating_sub(RETRY_BYTES);
        self.file.flush()?;
        let (file, name) = begin_file(&self.folder)?;
        self.file = BufWriter::new(file);
        self.bytes = 0;
        make_latest(&self.folder, &name)
    }

    fn record(&self, Line { ts, meta, error, at, traceparent, secrets }: &Line) -> Value {
        let step = self.step;
        let seconds = i64::try_from(step).unwrap_or(i64::MAX).saturating_sub(1);
        let ts = if self.deterministic {
            EPOCH.saturating_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(EPOCH)
        } else {
            *ts
        };
        let attempt_id = if self.deterministic {
            ids::reckoned("attempt", &step.to_string())
        } else {
            ids::random()
        };
        let clean =
            |name: &str| secrets.redacted(name).chars().take(NAME_CHARS_MAX).collect::<String>();
        let named = |name: &Option<String>| name.as_deref().map(clean).map(Value::from);
        let mut error = error.clone();
        if let (Some(error), Some(at)) = (&mut error, at) {
            error["details"]["at"] = at.iter().map(|pointer| clean(pointer)).collect();
        }
        let metadata = [
            ("schemaVersion", Some(meta.schema_version.clone().into())),
            ("deterministic", Some(meta.deterministic.into())),
            ("validation", Some(self.mode.into())),
            ("toolId", named(&meta.tool_id)),
            ("promptId", named(&meta.prompt_id)),
            ("traceparent", named(traceparent)),
            ("runId", Some(self.run.clone().into())),
            ("attemptId", Some(attempt_id.into())),
            ("logPath", Some(self.named.clone().into())),
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

/// Returns an error without any text that a caller wrote.
fn told(EnvelopeError { code, details, .. }: &EnvelopeError) -> Value {
    let reason = details.as_ref().map(|details| details["reason"].clone());
    json!({
        "code": code.code(),
        "canonical": code.code(),
        "httpStatus": code.http_status(),
        "jsonrpcCode": code.jsonrpc_code(),
        "message": code.message(),
        "retryable": code.is_retryable(),
        "details": { "reason": reason },
    })
}

/// Returns the part of `name` that is searched for secrets.
fn beginning(name: &str) -> &str {
    name.char_indices().nth(NAME_CHARS_SEEN).map_or(name, |(end, _)| &name[..end])
}

/// Creates the next file in `folder` and returns it with its name.
fn begin_file(folder: &Path) -> io::Result<(File, String)> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%S%3fZ").to_string();
    let run = ids::random();
    let name = format!("{STEM}.{now}.{}.jsonl", &run[..8]);
    let file =
        OpenOptions::new().append(true).create_new(true).mode(0o600).open(folder.join(&name))?;
    Ok((file, name))
}

/// Links the file `name` as the latest in `folder`, and removes the oldest files.
fn make_latest(folder: &Path, name: &str) -> io::Result<()> {
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
    let many = old.len().saturating_sub(KEPT);
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
    fn whoever_waits_for_a_writer_that_is_stuck_waits_no_longer_than_they_will() {
        let (log, lines) = EnvelopeLog::unwritten();
        let envelope = discovered();
        for _ in 0..WAITING + 3 {
            log.write(&envelope, None, None, &Arc::default());
        }
        assert_eq!(log.left_out.load(Ordering::Relaxed), 3);
        let began = Instant::now();
        log.flush_within(Duration::from_millis(20));
        assert!(began.elapsed() < FLUSH_MAX);
        // What is dropped waits as well.
        *log.written.lines() += lines.try_iter().count() as u64;
    }

    /// A writer whose file is full, in `folder`.
    fn full(folder: &Path) -> Writer {
        let (file, _) = begin_file(folder).expect("a file");
        Writer {
            folder: folder.to_owned(),
            named: String::new(),
            deterministic: true,
            mode: "off",
            run: String::new(),
            file: BufWriter::new(file),
            bytes: FILE_BYTES_MAX,
            step: 0,
            written: Arc::default(),
            left_out: Arc::default(),
        }
    }

    fn line() -> Box<Line> {
        let (log, lines) = EnvelopeLog::unwritten();
        log.write(&discovered(), None, None, &Arc::default());
        *log.written.lines() += 1;
        lines.recv().expect("a line")
    }

    fn files(folder: &Path) -> usize {
        let names =
            fs::read_dir(folder).expect("a folder").map(|one| one.expect("one").file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".jsonl")).count()
    }

    #[test]
    fn a_next_file_that_cannot_be_the_latest_is_begun_once_and_written_to() {
        let folder = TempDir::new().expect("a folder");
        // Nothing can be put over a folder that has something in it.
        fs::create_dir_all(folder.path().join(LATEST).join("in the way")).expect("a folder");
        let mut writer = full(folder.path());
        let before = files(folder.path());
        assert!(writer.go_on().is_err());
        assert!(writer.bytes < FILE_BYTES_MAX);
        for _ in 0..3 {
            writer.write(&line()).expect("it is written");
        }
        writer.file.flush().expect("it is written");
        assert_eq!(files(folder.path()), before + 1);
    }

    #[test]
    fn where_there_can_be_no_next_file_the_last_is_gone_on_with() {
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
