//! Collects the events of a running job and stores them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use toolgate_contract::{Event, EventSink, Happened, LeftFile, Level, Stream, line_of};

use super::live::Live;
use super::store::{Said, Store};

/// Time that an event waits to be stored together with others.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before a failed write is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Largest output in one event, in bytes.
const EVENT_BYTES: usize = 64 << 10;
/// Output stored at once, in bytes. Several copies exist on the way to the store.
const STORED_BYTES: usize = 1 << 20;
/// Largest number of log lines kept per job.
const LOGS_MAX: usize = 10_000;
/// Number of progress reports that are kept as they come. Later ones are thinned out.
const WORDS_MAX: u32 = 1_000;
/// Interval between kept reports after that.
const WORD_EVERY: SignedDuration = SignedDuration::from_secs(10);
/// Most characters of a message that are kept.
const MESSAGE_CHARS: usize = 1_000;
/// Largest number of files that one job may leave.
const FILES_MAX: usize = 10_000;

/// Moves a job's events to the store. The job never waits for it, and its buffer is bounded by the
/// limits on a job.
pub(super) struct Pump {
    heap: Mutex<Heap>,
    more: Notify,
}

struct Heap {
    said: Vec<Said>,
    left: Vec<LeftFile>,
    fraction: f64,
    /// Bytes of output that may still be kept.
    output_room: usize,
    output_bytes_max: usize,
    logs: usize,
    words: u32,
    last_word: Timestamp,
    closed: bool,
}

impl Pump {
    pub(super) fn new(output_bytes_max: usize) -> Arc<Self> {
        let heap = Heap {
            said: Vec::new(),
            left: Vec::new(),
            fraction: 0.0,
            output_room: output_bytes_max,
            output_bytes_max,
            logs: 0,
            words: 0,
            last_word: Timestamp::UNIX_EPOCH,
            closed: false,
        };
        Arc::new(Self { heap: Mutex::new(heap), more: Notify::new() })
    }

    /// Returns the sink for the job's events.
    pub(super) fn sink(self: &Arc<Self>) -> EventSink {
        let pump = self.clone();
        let sink = EventSink::new(move |event| {
            pump.heap().take(event);
            pump.more.notify_one();
        });
        sink.for_lines(Some(Level::Info))
    }

    /// Adds an event that comes from the server, not from the tool.
    pub(super) fn say(&self, what: Happened) {
        self.heap().said.push((Timestamp::now(), what));
        self.more.notify_one();
    }

    /// Closes the pump, which ends [`Pump::run`].
    pub(super) fn close(&self) {
        self.heap().closed = true;
        self.more.notify_one();
    }

    /// Stores events until the pump is closed. [`Pump::rest`] returns the remaining ones.
    pub(super) async fn run(&self, store: &dyn Store, live: &Live) {
        loop {
            self.more.notified().await;
            if self.is_closed() {
                return;
            }
            // Stop gathering as soon as the pump is closed.
            let _ = tokio::time::timeout(GATHER, self.closed()).await;
            let mut said = self.heap().next();
            while !said.is_empty() {
                match store.append(live.id, said.clone()).await {
                    Ok(first) => {
                        live.publish(first, std::mem::take(&mut said));
                        let mut heap = self.heap();
                        // Store a full batch at once; otherwise gather again.
                        if heap.is_much() {
                            said = heap.next();
                        } else if !heap.said.is_empty() {
                            self.more.notify_one();
                        }
                    }
                    Err(err) => {
                        tracing::warn!(job = %live.id, "{err}; trying again");
                        if tokio::time::timeout(RETRY, self.closed()).await.is_ok() {
                            // The job has ended: remaining events are stored with its end.
                            self.put_back(said);
                            return;
                        }
                    }
                }
            }
        }
    }

    fn put_back(&self, mut said: Vec<Said>) {
        let mut heap = self.heap();
        said.append(&mut heap.said);
        heap.said = said;
    }

    /// Takes the events not yet stored and the files that the job left.
    pub(super) fn rest(&self) -> (Vec<Said>, Vec<LeftFile>) {
        let mut heap = self.heap();
        (std::mem::take(&mut heap.said), std::mem::take(&mut heap.left))
    }

    fn is_closed(&self) -> bool {
        self.heap().closed
    }

    async fn closed(&self) {
        while !self.is_closed() {
            self.more.notified().await;
        }
        // Pass the wake-up on, since this loop consumed it.
        self.more.notify_one();
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heap {
    fn take(&mut self, event: Event) {
        if self.closed {
            return;
        }
        match event {
            Event::Progress { done, total, message } => self.progress(done, total, message),
            Event::Chunk { stream, text } => self.output(stream, text),
            Event::Log { level, data, .. } => self.log(level, &line_of(&data)),
            Event::Left(file) => {
                if self.left.len() < FILES_MAX {
                    self.left.push(file);
                }
            }
            // No client is connected to a job.
            Event::LetGo | Event::Visited { .. } => {}
        }
    }

    fn progress(&mut self, done: f64, total: Option<f64>, message: Option<String>) {
        if let Some(total) = total.filter(|total| *total > 0.0) {
            let fraction = (done / total).clamp(0.0, 1.0);
            // NaN compares as not greater and is ignored.
            if fraction > self.fraction {
                self.fraction = fraction;
            }
        }
        let message = message.map(|message| message.chars().take(MESSAGE_CHARS).collect());
        let now = Happened::Progress { fraction: self.fraction, message };
        if let Some((at, what @ Happened::Progress { .. })) = self.said.last_mut() {
            (*at, *what) = (Timestamp::now(), now);
        } else if self.may_say_a_word() {
            self.say(now);
        }
    }

    /// Returns true if another progress report is kept, and counts it.
    fn may_say_a_word(&mut self) -> bool {
        let now = Timestamp::now();
        let may = self.words < WORDS_MAX || now.duration_since(self.last_word) >= WORD_EVERY;
        if may {
            self.words += 1;
            self.last_word = now;
        }
        may
    }

    fn output(&mut self, stream: Stream, mut text: String) {
        if self.output_room == 0 {
            return;
        }
        if text.len() > self.output_room {
            text.truncate(text.floor_char_boundary(self.output_room));
            self.output_room = 0;
        } else {
            self.output_room -= text.len();
        }
        match self.said.last_mut() {
            Some((_, Happened::Output { stream: last, text: held }))
                if *last == stream && held.len() + text.len() <= EVENT_BYTES =>
            {
                held.push_str(&text);
            }
            Some(_) | None => self.say(Happened::Output { stream, text }),
        }
        if self.output_room == 0 {
            let message =
                format!("no more than {} bytes of output are kept here", self.output_bytes_max);
            self.say(Happened::Log { level: Level::Warning, message });
        }
    }

    fn log(&mut self, level: Level, message: &str) {
        self.logs += 1;
        if self.logs <= LOGS_MAX {
            let message = message.chars().take(MESSAGE_CHARS).collect();
            self.say(Happened::Log { level, message });
        }
    }

    fn say(&mut self, what: Happened) {
        self.said.push((Timestamp::now(), what));
    }

    /// Takes the next batch to store.
    fn next(&mut self) -> Vec<Said> {
        let mut bytes = 0;
        let is_next = |(_, what): &&Said| {
            let is_next = bytes < STORED_BYTES;
            bytes += output_bytes(what);
            is_next
        };
        let count = self.said.iter().take_while(is_next).count();
        self.said.drain(..count).collect()
    }

    /// Returns true if a full batch is waiting.
    fn is_much(&self) -> bool {
        let bytes: usize = self.said.iter().map(|(_, what)| output_bytes(what)).sum();
        bytes >= STORED_BYTES
    }
}

fn output_bytes(what: &Happened) -> usize {
    match what {
        Happened::Output { text, .. } => text.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> Event {
        Event::Chunk { stream: Stream::Stdout, text: text.to_owned() }
    }

    fn said(pump: &Pump) -> Vec<Happened> {
        pump.rest().0.into_iter().map(|(_, what)| what).collect()
    }

    #[test]
    fn output_is_kept_to_its_bound_and_that_it_was_cut_is_said_once() {
        let pump = Pump::new(4);
        let sink = pump.sink();
        ["ab", "c\u{e9}f", "more", "more"].into_iter().for_each(|text| sink.send(chunk(text)));
        let said = said(&pump);
        let text = Happened::Output { stream: Stream::Stdout, text: "abc".to_owned() };
        assert_eq!(said[0], text);
        assert!(matches!(said[1..], [Happened::Log { level: Level::Warning, .. }]), "{said:?}");
    }

    #[test]
    fn progress_never_falls_and_only_the_last_word_is_kept() {
        let pump = Pump::new(4);
        let sink = pump.sink();
        for (done, total) in [(1.0, Some(4.0)), (3.0, Some(4.0)), (2.0, Some(4.0)), (9.0, None)] {
            sink.send(Event::Progress { done, total, message: None });
        }
        assert_eq!(said(&pump), [Happened::Progress { fraction: 0.75, message: None }]);
    }

    #[test]
    fn much_output_is_stored_in_parts_and_in_order() {
        let pump = Pump::new(usize::MAX);
        let sink = pump.sink();
        let lines = (0..100_000).map(|line| format!("a line of output, number {line}\n"));
        let lines: Vec<_> = lines.collect();
        lines.iter().for_each(|line| sink.send(chunk(line)));
        let mut stored = String::new();
        loop {
            let is_much = pump.heap().is_much();
            let part = pump.heap().next();
            let texts = part.iter().filter_map(|(_, what)| match what {
                Happened::Output { text, .. } => Some(text.as_str()),
                _ => None,
            });
            let part: String = texts.collect();
            assert!(part.len() <= STORED_BYTES + EVENT_BYTES);
            assert_eq!(part.len() >= STORED_BYTES, is_much);
            if part.is_empty() {
                break;
            }
            stored += &part;
        }
        assert_eq!(stored, lines.concat());
        assert!(stored.len() > 2 * STORED_BYTES);
    }

    #[test]
    fn what_comes_after_the_end_is_not_taken() {
        let pump = Pump::new(4);
        pump.close();
        pump.sink().send(chunk("x"));
        assert_eq!(said(&pump), []);
    }
}
