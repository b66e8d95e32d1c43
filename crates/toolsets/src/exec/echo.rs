//! What a program prints, said while it runs: little at a time, and not too often.

use std::time::{Duration, Instant};

use toolgate_contract::{Ctx, Stream};

use super::encoding::whole_chars;

/// How much one event says.
const EVENT_BYTES: usize = 16 << 10;

/// How much of the last line a progress event says.
const LINE_CHARS: usize = 200;

/// How often it is said that a silent program still runs.
const SILENCE: Duration = Duration::from_secs(1);

/// Collects what a program prints until it is time to pass it on.
pub(super) struct Echo {
    started: Instant,
    /// When it was last said how long it has run.
    said: Instant,
    stdout: Waiting,
    stderr: Waiting,
}

/// What one stream has waiting.
struct Waiting {
    stream: Stream,
    bytes: Vec<u8>,
    /// How much may still wait: all of an output that fits its result, and one event beyond.
    room: usize,
    skipped: u64,
}

impl Echo {
    /// For outputs that are shown whole up to `shown_bytes_max`.
    pub(super) fn new(shown_bytes_max: usize) -> Self {
        let waiting = |stream| Waiting {
            stream,
            bytes: Vec::new(),
            room: shown_bytes_max.max(EVENT_BYTES),
            skipped: 0,
        };
        let now = Instant::now();
        Self {
            started: now,
            said: now,
            stdout: waiting(Stream::Stdout),
            stderr: waiting(Stream::Stderr),
        }
    }

    /// Takes what was printed.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Stdout => self.stdout.take(bytes),
            Stream::Stderr => self.stderr.take(bytes),
        }
    }

    /// Passes on an event's worth of each stream, and how long it has run.
    pub(super) fn say(&mut self, ctx: &Ctx) {
        let said = [self.stdout.say(ctx), self.stderr.say(ctx)];
        let text = said.iter().flatten().next_back();
        if text.is_some() || self.said.elapsed() >= SILENCE {
            self.said = Instant::now();
            let done = self.started.elapsed().as_secs_f64();
            ctx.progress(done, None, text.and_then(|text| last_line(text)));
        }
    }

    /// Passes on all that waits; nothing comes after it.
    pub(super) fn say_all(&mut self, ctx: &Ctx) {
        self.say(ctx);
        for waiting in [&mut self.stdout, &mut self.stderr] {
            while waiting.say(ctx).is_some() {}
            waiting.flush(ctx);
        }
    }
}

impl Waiting {
    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let excess = self.bytes.len().saturating_sub(self.room);
        if excess > 0 {
            // Only an output that is cut gets here, so the pieces need not make it up.
            self.bytes.drain(..excess);
            self.skipped += excess as u64;
        }
    }

    /// Passes on one event's worth, ending with a whole character.
    fn say(&mut self, ctx: &Ctx) -> Option<String> {
        let len = whole_chars(&self.bytes[..self.bytes.len().min(EVENT_BYTES)]);
        self.send(ctx, len)
    }

    /// Passes on the character that never ended.
    fn flush(&mut self, ctx: &Ctx) {
        let _ = self.send(ctx, self.bytes.len());
    }

    fn send(&mut self, ctx: &Ctx, len: usize) -> Option<String> {
        if len == 0 {
            return None;
        }
        let bytes: Vec<u8> = self.bytes.drain(..len).collect();
        self.room = self.room.saturating_sub(len).max(EVENT_BYTES);
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if self.skipped > 0 {
            text.insert_str(0, &format!("[{} bytes not shown]\n", self.skipped));
            self.skipped = 0;
        }
        ctx.chunk(self.stream, text.clone());
        Some(text)
    }
}

/// The last line of `text` with anything in it, as a terminal would show it.
fn last_line(text: &str) -> Option<String> {
    let mut lines = text.rsplit(['\n', '\r']).map(str::trim);
    let line = lines.find(|line| !line.is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(LINE_CHARS).collect())
}
