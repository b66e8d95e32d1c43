//! What a program prints, passed on while it runs: all of it and in order, gathered for a moment.

use std::time::{Duration, Instant};

use toolgate_contract::{Ctx, Stream};

use super::encoding::whole_chars;
use super::meter::Meter;

/// How much one event says at most.
const EVENT_BYTES: usize = 16 << 10;

/// How much of the end of a stream is looked at for its last line.
const TAIL_BYTES: usize = 1 << 10;

/// How much of the last line a progress event says.
const LINE_CHARS: usize = 200;

/// How often it is said how far a program is.
const PROGRESS: Duration = Duration::from_millis(250);

/// How often it is said that a silent program still runs.
const SILENCE: Duration = Duration::from_secs(1);

/// Passes on what a program prints. It holds less than an event's worth of each stream, so
/// whoever listens decides what is kept.
pub(super) struct Echo<'c> {
    ctx: &'c Ctx,
    meter: Option<Meter<'c>>,
    started: Instant,
    /// When it was last said how far the program is.
    said: Instant,
    /// Which stream has said something since.
    news: Option<Stream>,
    stdout: Waiting,
    stderr: Waiting,
}

/// What one stream has waiting.
struct Waiting {
    stream: Stream,
    bytes: Vec<u8>,
    /// The end of what was passed on.
    tail: String,
}

impl<'c> Echo<'c> {
    /// To whoever listens to `ctx`; how far the program is says `meter`, or else the clock.
    pub(super) fn new(ctx: &'c Ctx, meter: Option<Meter<'c>>) -> Self {
        let waiting = |stream| Waiting { stream, bytes: Vec::new(), tail: String::new() };
        let now = Instant::now();
        Self {
            ctx,
            meter,
            started: now,
            said: now,
            news: None,
            stdout: waiting(Stream::Stdout),
            stderr: waiting(Stream::Stderr),
        }
    }

    /// Takes what was printed, and passes it on where it fills events.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        let waiting = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        waiting.bytes.extend_from_slice(bytes);
        if waiting.send(self.ctx, EVENT_BYTES) {
            self.news = Some(stream);
        }
    }

    /// Passes on what waits, but for characters not yet whole, and now and then how far it is.
    pub(super) fn say(&mut self) {
        for waiting in [&mut self.stdout, &mut self.stderr] {
            if waiting.send(self.ctx, 1) {
                self.news = Some(waiting.stream);
            }
        }
        let due = if self.news.is_some() { PROGRESS } else { SILENCE };
        if self.said.elapsed() >= due {
            self.progress();
        }
    }

    /// Passes on all that waits; nothing comes after it.
    pub(super) fn say_all(&mut self) {
        for waiting in [&mut self.stdout, &mut self.stderr] {
            if waiting.send(self.ctx, 1) | waiting.flush(self.ctx) {
                self.news = Some(waiting.stream);
            }
        }
        if self.news.is_some() {
            self.progress();
        }
    }

    fn progress(&mut self) {
        self.said = Instant::now();
        let (stdout, stderr) = (self.stdout.tail.as_str(), self.stderr.tail.as_str());
        let tails = self.news.take().map(|stream| match stream {
            Stream::Stdout => [stdout, stderr],
            Stream::Stderr => [stderr, stdout],
        });
        let message = tails.and_then(|[tail, _]| last_line(tail));
        let Some(meter) = &mut self.meter else {
            return self.ctx.progress(self.started.elapsed().as_secs_f64(), None, message);
        };
        // Both may have spoken, and only one of them says how far it is.
        let read = tails.and_then(|tails| tails.into_iter().find_map(|tail| meter.read(tail)));
        if let Some((done, total)) = read {
            self.ctx.progress(done, Some(total), message);
        }
    }
}

impl Waiting {
    /// Passes on events of whole characters, while there are at least `enough` bytes for one.
    fn send(&mut self, ctx: &Ctx, enough: usize) -> bool {
        let mut sent = 0;
        while self.bytes.len() - sent >= enough.max(1) {
            let rest = &self.bytes[sent..];
            let len = whole_chars(&rest[..rest.len().min(EVENT_BYTES)]);
            if len == 0 {
                break;
            }
            tell(ctx, self.stream, &rest[..len], &mut self.tail);
            sent += len;
        }
        self.bytes.drain(..sent);
        sent > 0
    }

    /// Passes on the character that never ended.
    fn flush(&mut self, ctx: &Ctx) -> bool {
        let rest = std::mem::take(&mut self.bytes);
        tell(ctx, self.stream, &rest, &mut self.tail);
        !rest.is_empty()
    }
}

/// Passes on `bytes` as text, and keeps its end in `tail`.
fn tell(ctx: &Ctx, stream: Stream, bytes: &[u8], tail: &mut String) {
    let text = String::from_utf8_lossy(bytes);
    let mut rest: &str = &text;
    // What replaces a byte that is no text is longer than it.
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.floor_char_boundary(EVENT_BYTES));
        ctx.chunk(stream, piece.to_owned());
        rest = more;
    }
    tail.push_str(&text[text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES))..]);
    tail.drain(..tail.ceil_char_boundary(tail.len().saturating_sub(TAIL_BYTES)));
}

/// The last line of `text` with anything in it, as a terminal would show it.
fn last_line(text: &str) -> Option<String> {
    let shown = |line: &str| -> String {
        plain(line.trim()).filter(|c| !c.is_control()).take(LINE_CHARS).collect()
    };
    text.rsplit(['\n', '\r']).map(shown).find(|line| !line.is_empty())
}

/// The characters of `line` without what only tells a terminal how to show them: colours, titles.
pub(crate) fn plain(line: &str) -> impl Iterator<Item = char> {
    let mut chars = line.chars();
    std::iter::from_fn(move || {
        loop {
            match chars.next()? {
                '\u{1b}' => match chars.next() {
                    Some('[') => drop(chars.find(|c| ('\u{40}'..='\u{7e}').contains(c))),
                    Some(']') => drop(chars.find(|c| matches!(c, '\u{7}' | '\u{1b}'))),
                    Some(_) | None => {}
                },
                other => return Some(other),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use toolgate_contract::{Caller, Event, EventSink};

    use super::*;

    /// The pieces in which `reads` are passed on, with a tick after each if `ticks`.
    fn pieces(reads: &[Vec<u8>], ticks: bool) -> Vec<String> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = heard.clone();
        let events = EventSink::new(move |event| {
            if let Event::Chunk { text, .. } = event {
                sink.lock().unwrap().push(text);
            }
        });
        let ctx = Ctx { events, ..Ctx::alone(Caller::local(), Instant::now()) };
        let mut echo = Echo::new(&ctx, None);
        for read in reads {
            echo.take(Stream::Stdout, read);
            assert!(echo.stdout.bytes.len() < EVENT_BYTES, "it holds less than an event");
            if ticks {
                echo.say();
            }
        }
        echo.say_all();
        std::mem::take(&mut *heard.lock().unwrap())
    }

    proptest! {
        #[test]
        fn what_is_passed_on_is_what_was_printed_however_it_was_read(
            reads in vec(vec(prop_oneof![Just(0xE2u8), Just(0x82), Just(0xF0), Just(0x9F), any::<u8>()], 0..40), 0..12),
            ticks: bool,
        ) {
            let whole = String::from_utf8_lossy(&reads.concat()).into_owned();
            prop_assert_eq!(pieces(&reads, ticks).concat(), whole);
        }
    }

    #[test]
    fn the_last_line_is_told_without_its_colours() {
        let text = "one\n\u{1b}]0;title\u{7}\u{1b}[1;31mred\u{1b}[0m end\n";
        assert_eq!(last_line(text).as_deref(), Some("red end"));
    }

    #[test]
    fn no_piece_is_longer_than_an_event() {
        for byte in [b'a', 0xFF, 0xE2] {
            let reads = vec![vec![byte; 70_000]; 3];
            let pieces = pieces(&reads, false);
            assert!(pieces.iter().all(|piece| piece.len() <= EVENT_BYTES));
            assert_eq!(pieces.concat(), String::from_utf8_lossy(&reads.concat()));
        }
    }
}
