//! Streams a program's output as events while the program runs. The events contain the complete
//! output in order, and are buffered for a short time.

use std::time::{Duration, Instant};

use toolgate_contract::{OutputStreamKind, ToolContext};

use super::encoding::whole_chars_len;
use super::meter::OutputProgressParser;

/// The maximum number of bytes of a program's output in one event.
const EVENT_BYTES_MAX: usize = 16 << 10;

/// The number of bytes that are kept from the end of an output stream, to find its last line.
const TAIL_BYTES: usize = 1 << 10;

/// The maximum length of the output line in a progress event, in characters.
const LINE_CHARS_MAX: usize = 200;

/// The shortest pause between two progress events.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The pause between progress events of a silent program.
const SILENCE_INTERVAL: Duration = Duration::from_secs(1);

/// Sender of a program's output to the client that listens to the call's events. Buffers less than
/// one event of each stream.
pub(super) struct ProgramOutputForwarder<'c> {
    ctx: &'c ToolContext,
    meter: Option<OutputProgressParser<'c>>,
    started: Instant,
    /// The time at which the last progress event was sent.
    last_progress: Instant,
    /// The stream that last had output since the last progress event. `None` if there was no
    /// output.
    updated_stream: Option<OutputStreamKind>,
    stdout: OutputStreamBuffer,
    stderr: OutputStreamBuffer,
}

/// Output of one stream of a program that was not sent yet.
struct OutputStreamBuffer {
    stream: OutputStreamKind,
    bytes: Vec<u8>,
    /// The end of the output that was already sent, in which the last line is found.
    tail: String,
}

impl<'c> ProgramOutputForwarder<'c> {
    /// Creates a forwarder that sends events to the listener of `ctx`. `meter` reads the progress
    /// from the output. Without `meter`, the progress is the elapsed time in seconds.
    pub(super) fn new(ctx: &'c ToolContext, meter: Option<OutputProgressParser<'c>>) -> Self {
        let buffer = |stream| OutputStreamBuffer { stream, bytes: Vec::new(), tail: String::new() };
        let now = Instant::now();
        Self {
            ctx,
            meter,
            started: now,
            last_progress: now,
            updated_stream: None,
            stdout: buffer(OutputStreamKind::Stdout),
            stderr: buffer(OutputStreamKind::Stderr),
        }
    }

    /// Buffers `bytes`, a chunk of the output `stream`. Sends an event for each full buffer.
    pub(super) fn buffer(&mut self, stream: OutputStreamKind, bytes: &[u8]) {
        let buffer = match stream {
            OutputStreamKind::Stdout => &mut self.stdout,
            OutputStreamKind::Stderr => &mut self.stderr,
        };
        buffer.bytes.extend_from_slice(bytes);
        if buffer.send_events(self.ctx, EVENT_BYTES_MAX) {
            self.updated_stream = Some(stream);
        }
    }

    /// Sends the buffered output up to the last complete character. Also sends a progress event if
    /// the pause since the last one is over.
    pub(super) fn send_buffered(&mut self) {
        for buffer in [&mut self.stdout, &mut self.stderr] {
            if buffer.send_events(self.ctx, 1) {
                self.updated_stream = Some(buffer.stream);
            }
        }
        let due = if self.updated_stream.is_some() { PROGRESS_INTERVAL } else { SILENCE_INTERVAL };
        if self.last_progress.elapsed() >= due {
            self.send_progress();
        }
    }

    /// Sends all buffered output. Must be called once, after the program has ended.
    pub(super) fn finish(&mut self) {
        for buffer in [&mut self.stdout, &mut self.stderr] {
            if buffer.send_events(self.ctx, 1) | buffer.flush(self.ctx) {
                self.updated_stream = Some(buffer.stream);
            }
        }
        if self.updated_stream.is_some() {
            self.send_progress();
        }
    }

    fn send_progress(&mut self) {
        self.last_progress = Instant::now();
        let stdout = self.stdout.tail.as_str();
        let stderr = self.stderr.tail.as_str();
        let tails = self.updated_stream.take().map(|stream| match stream {
            OutputStreamKind::Stdout => [stdout, stderr],
            OutputStreamKind::Stderr => [stderr, stdout],
        });
        let message = tails.and_then(|[tail, _]| last_line(tail));
        let Some(meter) = &mut self.meter else {
            return self.ctx.report_progress(self.started.elapsed().as_secs_f64(), None, message);
        };
        // Both streams may have new output, but only one of them may show the progress.
        let read = tails.and_then(|tails| tails.into_iter().find_map(|tail| meter.read(tail)));
        if let Some((done, total)) = read {
            self.ctx.report_progress(done, Some(total), message);
        }
    }
}

impl OutputStreamBuffer {
    /// Sends events of complete characters while at least `enough` bytes are buffered. Returns true
    /// if an event was sent.
    fn send_events(&mut self, ctx: &ToolContext, enough: usize) -> bool {
        let mut sent = 0;
        while self.bytes.len() - sent >= enough.max(1) {
            let rest = &self.bytes[sent..];
            let len = whole_chars_len(&rest[..rest.len().min(EVENT_BYTES_MAX)]);
            if len == 0 {
                break;
            }
            send_chunks(ctx, self.stream, &rest[..len], &mut self.tail);
            sent += len;
        }
        self.bytes.drain(..sent);
        sent > 0
    }

    /// Sends the rest of the buffer, which is an incomplete character. Returns true if the buffer
    /// was not empty.
    fn flush(&mut self, ctx: &ToolContext) -> bool {
        let rest = std::mem::take(&mut self.bytes);
        send_chunks(ctx, self.stream, &rest, &mut self.tail);
        !rest.is_empty()
    }
}

/// Sends `bytes` as text, in events of limited size. Keeps the end of the text in `tail`.
fn send_chunks(ctx: &ToolContext, stream: OutputStreamKind, bytes: &[u8], tail: &mut String) {
    let text = String::from_utf8_lossy(bytes);
    let mut rest: &str = &text;
    // The replacement character is longer than an invalid byte, so the text may exceed one event.
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.floor_char_boundary(EVENT_BYTES_MAX));
        ctx.send_output(stream, piece.to_owned());
        rest = more;
    }
    tail.push_str(&text[text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES))..]);
    tail.drain(..tail.ceil_char_boundary(tail.len().saturating_sub(TAIL_BYTES)));
}

/// Returns the last line of `text` that is not empty, as a terminal shows it.
fn last_line(text: &str) -> Option<String> {
    let shown = |line: &str| -> String {
        strip_escapes(line.trim()).filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect()
    };
    text.rsplit(['\n', '\r']).map(shown).find(|line| !line.is_empty())
}

/// Returns the characters of `line` without terminal escape sequences, such as colors and titles.
pub(crate) fn strip_escapes(line: &str) -> impl Iterator<Item = char> {
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
    use toolgate_contract::{CallEvent, CallEventSink, Caller};

    use super::*;

    /// Returns the texts of the output events for `reads`, the chunks of a program's output. If
    /// `ticks` is set, the flush timer fires after each chunk.
    fn forwarded_pieces(reads: &[Vec<u8>], ticks: bool) -> Vec<String> {
        let texts = Arc::new(Mutex::new(Vec::new()));
        let sink = texts.clone();
        let events = CallEventSink::new(move |event| {
            if let CallEvent::ProgramOutput { text, .. } = event {
                sink.lock().unwrap().push(text);
            }
        });
        let ctx = ToolContext { events, ..ToolContext::detached(Caller::local(), Instant::now()) };
        let mut forwarder = ProgramOutputForwarder::new(&ctx, None);
        for read in reads {
            forwarder.buffer(OutputStreamKind::Stdout, read);
            assert!(forwarder.stdout.bytes.len() < EVENT_BYTES_MAX, "less than one event");
            if ticks {
                forwarder.send_buffered();
            }
        }
        forwarder.finish();
        std::mem::take(&mut *texts.lock().unwrap())
    }

    proptest! {
        #[test]
        fn the_forwarded_text_is_the_output_however_it_was_read(
            reads in vec(vec(prop_oneof![Just(0xE2u8), Just(0x82), Just(0xF0), Just(0x9F), any::<u8>()], 0..40), 0..12),
            ticks: bool,
        ) {
            let whole = String::from_utf8_lossy(&reads.concat()).into_owned();
            prop_assert_eq!(forwarded_pieces(&reads, ticks).concat(), whole);
        }
    }

    #[test]
    fn the_last_line_has_no_escape_sequences() {
        let text = "one\n\u{1b}]0;title\u{7}\u{1b}[1;31mred\u{1b}[0m end\n";
        assert_eq!(last_line(text).as_deref(), Some("red end"));
    }

    #[test]
    fn no_forwarded_piece_is_longer_than_an_event() {
        for byte in [b'a', 0xFF, 0xE2] {
            let reads = vec![vec![byte; 70_000]; 3];
            let pieces = forwarded_pieces(&reads, false);
            assert!(pieces.iter().all(|piece| piece.len() <= EVENT_BYTES_MAX));
            assert_eq!(pieces.concat(), String::from_utf8_lossy(&reads.concat()));
        }
    }
}
