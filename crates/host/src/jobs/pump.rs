//! Collects the events of a running job and stores them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use toolgate_contract::{
    CallEvent, CallEventSink, JobEventKind, LogLevel, OutputStreamKind, ProducedFile, lock_mutex,
    log_text,
};

use super::live::UnfinishedJob;
use super::store::{JobStore, JobStoreError, TimedJobEvent};

/// Time for which a job's event waits to be stored together with others.
const GATHER_TIME: Duration = Duration::from_millis(20);
/// Pause before a failed write of events is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Largest piece of program output in one event, in bytes.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes of a job's output that are stored at once. The number is small, because
/// several copies exist on the way to the store.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of log lines that are kept for a job.
const LOGS_MAX: usize = 10_000;
/// Number of a job's first progress reports that are all stored. Later reports are stored only at
/// intervals.
const PROGRESS_MAX: u32 = 1_000;
/// Interval between stored progress reports of a job after the first [`PROGRESS_MAX`] reports.
const PROGRESS_INTERVAL: SignedDuration = SignedDuration::from_secs(10);
/// Maximum number of characters of a log or progress message that are kept.
const MESSAGE_CHARS_MAX: usize = 1_000;
/// Maximum number of files that one job may produce.
const FILES_MAX: usize = 10_000;

/// Forwarder that moves a job's events to the store. The job never waits for the store. The limits
/// on a job's events bound the buffer.
pub(super) struct JobEventForwarder {
    buffer: Mutex<JobEventBuffer>,
    changed: Notify,
}

/// Events of a job that wait to be stored.
struct JobEventBuffer {
    events: Vec<TimedJobEvent>,
    files: Vec<ProducedFile>,
    fraction: f64,
    /// Number of bytes of program output that may still be stored for the job.
    output_room: usize,
    output_bytes_max: usize,
    log_count: usize,
    progress_count: u32,
    last_progress: Timestamp,
    closed: bool,
}

impl JobEventForwarder {
    pub(super) fn new(output_bytes_max: usize) -> Arc<Self> {
        let buffer = JobEventBuffer {
            events: Vec::new(),
            files: Vec::new(),
            fraction: 0.0,
            output_room: output_bytes_max,
            output_bytes_max,
            log_count: 0,
            progress_count: 0,
            last_progress: Timestamp::UNIX_EPOCH,
            closed: false,
        };
        Arc::new(Self { buffer: Mutex::new(buffer), changed: Notify::new() })
    }

    /// Returns the sink that receives the events of the job.
    pub(super) fn sink(self: &Arc<Self>) -> CallEventSink {
        let pump = self.clone();
        let sink = CallEventSink::new(move |event| {
            lock_mutex(&pump.buffer).add_event(event);
            pump.changed.notify_one();
        });
        sink.with_log_level(Some(LogLevel::Info))
    }

    /// Adds an event of the job that comes from the server, not from the tool.
    pub(super) fn push(&self, kind: JobEventKind) {
        lock_mutex(&self.buffer).events.push((Timestamp::now(), kind));
        self.changed.notify_one();
    }

    /// Accepts no further events of the job, which ends [`JobEventForwarder::run`].
    pub(super) fn close(&self) {
        lock_mutex(&self.buffer).closed = true;
        self.changed.notify_one();
    }

    /// Stores the job's events, and the open questions with events about them, until the forwarder
    /// is closed. [`JobEventForwarder::take_rest`] returns the events that remain.
    pub(super) async fn run(&self, store: &dyn JobStore, live: &UnfinishedJob) {
        loop {
            self.changed.notified().await;
            if self.is_closed() {
                return;
            }
            // Stop gathering as soon as the pump is closed.
            let _ = tokio::time::timeout(GATHER_TIME, self.wait_until_closed()).await;
            let mut batch = lock_mutex(&self.buffer).take_batch();
            while !batch.is_empty() {
                match store_events(store, live, &batch).await {
                    Ok(first) => {
                        live.publish(first, std::mem::take(&mut batch));
                        let mut buffer = lock_mutex(&self.buffer);
                        // Store a full batch at once; otherwise gather again.
                        if buffer.is_batch_full() {
                            batch = buffer.take_batch();
                        } else if !buffer.events.is_empty() {
                            self.changed.notify_one();
                        }
                    }
                    Err(err) => {
                        tracing::warn!(job = %live.id, "{err}; trying again");
                        if tokio::time::timeout(RETRY_PAUSE, self.wait_until_closed()).await.is_ok()
                        {
                            // The job has ended: remaining events are stored with its end.
                            self.put_back(batch);
                            return;
                        }
                    }
                }
            }
        }
    }

    fn put_back(&self, mut events: Vec<TimedJobEvent>) {
        let mut buffer = lock_mutex(&self.buffer);
        events.append(&mut buffer.events);
        buffer.events = events;
    }

    /// Removes and returns the events that are not stored yet, and the files that the job produced.
    pub(super) fn take_rest(&self) -> (Vec<TimedJobEvent>, Vec<ProducedFile>) {
        let mut buffer = lock_mutex(&self.buffer);
        (std::mem::take(&mut buffer.events), std::mem::take(&mut buffer.files))
    }

    fn is_closed(&self) -> bool {
        lock_mutex(&self.buffer).closed
    }

    async fn wait_until_closed(&self) {
        while !self.is_closed() {
            self.changed.notified().await;
        }
        // Pass the wake-up on, since this loop consumed it.
        self.changed.notify_one();
    }
}

/// Stores events of the job. Before an event about questions, stores the open questions, so that a
/// client that sees the event at another server finds them.
async fn store_events(
    store: &dyn JobStore,
    live: &UnfinishedJob,
    events: &[TimedJobEvent],
) -> Result<u64, JobStoreError> {
    if events.iter().any(|(_, kind)| matches!(kind, JobEventKind::Asks { .. })) {
        store.set_questions(live.id, live.open_questions()).await?;
    }
    store.append_events(live.id, events.to_vec()).await
}

impl JobEventBuffer {
    fn add_event(&mut self, event: CallEvent) {
        if self.closed {
            return;
        }
        match event {
            CallEvent::Progress { done, total, message } => self.add_progress(done, total, message),
            CallEvent::ProgramOutput { stream, text } => self.add_output(stream, text),
            CallEvent::Log { level, data, .. } => self.add_log(level, &log_text(&data)),
            CallEvent::FileProduced(file) => {
                if self.files.len() < FILES_MAX {
                    self.files.push(file);
                }
            }
            // No client is connected to a job.
            CallEvent::ReleaseConnection | CallEvent::VisitFinished { .. } => {}
        }
    }

    fn add_progress(&mut self, done: f64, total: Option<f64>, message: Option<String>) {
        if let Some(total) = total.filter(|total| *total > 0.0) {
            let fraction = (done / total).clamp(0.0, 1.0);
            // NaN compares as not greater and is ignored.
            if fraction > self.fraction {
                self.fraction = fraction;
            }
        }
        let message = message.map(|message| message.chars().take(MESSAGE_CHARS_MAX).collect());
        let now = JobEventKind::Progress { fraction: self.fraction, message };
        if let Some((at, kind @ JobEventKind::Progress { .. })) = self.events.last_mut() {
            (*at, *kind) = (Timestamp::now(), now);
        } else if self.count_progress() {
            self.push(now);
        }
    }

    /// Counts a progress report of the job. Returns true if the report is stored.
    fn count_progress(&mut self) -> bool {
        let now = Timestamp::now();
        let is_kept = self.progress_count < PROGRESS_MAX
            || now.duration_since(self.last_progress) >= PROGRESS_INTERVAL;
        if is_kept {
            self.progress_count += 1;
            self.last_progress = now;
        }
        is_kept
    }

    fn add_output(&mut self, stream: OutputStreamKind, mut text: String) {
        if self.output_room == 0 {
            return;
        }
        if text.len() > self.output_room {
            text.truncate(text.floor_char_boundary(self.output_room));
            self.output_room = 0;
        } else {
            self.output_room -= text.len();
        }
        match self.events.last_mut() {
            Some((_, JobEventKind::Output { stream: last, text: last_text }))
                if *last == stream && last_text.len() + text.len() <= EVENT_BYTES_MAX =>
            {
                last_text.push_str(&text);
            }
            Some(_) | None => self.push(JobEventKind::Output { stream, text }),
        }
        if self.output_room == 0 {
            let message = format!("output beyond {} bytes is not stored", self.output_bytes_max);
            self.push(JobEventKind::Log { level: LogLevel::Warning, message });
        }
    }

    fn add_log(&mut self, level: LogLevel, message: &str) {
        self.log_count += 1;
        if self.log_count <= LOGS_MAX {
            let message = message.chars().take(MESSAGE_CHARS_MAX).collect();
            self.push(JobEventKind::Log { level, message });
        }
    }

    fn push(&mut self, kind: JobEventKind) {
        self.events.push((Timestamp::now(), kind));
    }

    /// Removes and returns the next batch of events to store.
    fn take_batch(&mut self) -> Vec<TimedJobEvent> {
        let mut bytes = 0;
        let is_next = |(_, kind): &&TimedJobEvent| {
            let is_next = bytes < BATCH_BYTES;
            bytes += output_bytes(kind);
            is_next
        };
        let count = self.events.iter().take_while(is_next).count();
        self.events.drain(..count).collect()
    }

    /// Returns true if a full batch of events is waiting.
    fn is_batch_full(&self) -> bool {
        let bytes: usize = self.events.iter().map(|(_, kind)| output_bytes(kind)).sum();
        bytes >= BATCH_BYTES
    }
}

fn output_bytes(kind: &JobEventKind) -> usize {
    match kind {
        JobEventKind::Output { text, .. } => text.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> CallEvent {
        CallEvent::ProgramOutput { stream: OutputStreamKind::Stdout, text: text.to_owned() }
    }

    fn events(pump: &JobEventForwarder) -> Vec<JobEventKind> {
        pump.take_rest().0.into_iter().map(|(_, kind)| kind).collect()
    }

    #[test]
    fn output_beyond_its_limit_is_dropped_with_one_warning() {
        let pump = JobEventForwarder::new(4);
        let sink = pump.sink();
        ["ab", "c\u{e9}f", "more", "more"].into_iter().for_each(|text| sink.send(chunk(text)));
        let events = events(&pump);
        let text =
            JobEventKind::Output { stream: OutputStreamKind::Stdout, text: "abc".to_owned() };
        assert_eq!(events[0], text);
        assert!(
            matches!(events[1..], [JobEventKind::Log { level: LogLevel::Warning, .. }]),
            "{events:?}"
        );
    }

    #[test]
    fn progress_never_falls_and_only_the_last_report_is_kept() {
        let pump = JobEventForwarder::new(4);
        let sink = pump.sink();
        for (done, total) in [(1.0, Some(4.0)), (3.0, Some(4.0)), (2.0, Some(4.0)), (9.0, None)] {
            sink.send(CallEvent::Progress { done, total, message: None });
        }
        assert_eq!(events(&pump), [JobEventKind::Progress { fraction: 0.75, message: None }]);
    }

    #[test]
    fn large_output_is_stored_in_parts_and_in_order() {
        let pump = JobEventForwarder::new(usize::MAX);
        let sink = pump.sink();
        let lines = (0..100_000).map(|line| format!("a line of output, number {line}\n"));
        let lines: Vec<_> = lines.collect();
        lines.iter().for_each(|line| sink.send(chunk(line)));
        let mut stored = String::new();
        loop {
            let is_full = lock_mutex(&pump.buffer).is_batch_full();
            let part = lock_mutex(&pump.buffer).take_batch();
            let texts = part.iter().filter_map(|(_, kind)| match kind {
                JobEventKind::Output { text, .. } => Some(text.as_str()),
                _ => None,
            });
            let part: String = texts.collect();
            assert!(part.len() <= BATCH_BYTES + EVENT_BYTES_MAX);
            assert_eq!(part.len() >= BATCH_BYTES, is_full);
            if part.is_empty() {
                break;
            }
            stored += &part;
        }
        assert_eq!(stored, lines.concat());
        assert!(stored.len() > 2 * BATCH_BYTES);
    }

    #[test]
    fn events_after_the_end_are_ignored() {
        let pump = JobEventForwarder::new(4);
        pump.close();
        pump.sink().send(chunk("x"));
        assert_eq!(events(&pump), []);
    }
}
