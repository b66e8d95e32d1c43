//! The matching lines of one file.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use grep_matcher::{LineTerminator, Matcher};
use grep_regex::RegexMatcher;
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkFinish,
    SinkMatch,
};

use crate::world::root::{File, Watch};

/// A longer line is not searched: no more than this is held of a file.
const LINE_BYTES_MAX: usize = 16 << 20;
/// A longer line is shown in part.
const SHOWN_BYTES_MAX: usize = 500;
/// How much is shown before a match in a long line.
const LEAD_BYTES: usize = 100;

/// What a match costs in an answer beside its text, and each line around it.
pub(super) const LINE_BYTES: usize = 32;

/// How a file turned out.
#[derive(Debug)]
pub(super) enum Gathered {
    /// Its lines that match, as many as were wanted.
    Lines(Vec<Line>),
    /// It is not text.
    Binary,
    /// It vanished, or reading it failed.
    Unreadable,
    /// It has a line too long to search.
    LongLine,
}

/// A line that matches; its file is known.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: u64,
    pub(super) column: u64,
    pub(super) text: String,
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
}

/// How much an answer still takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) lines: usize,
    pub(super) bytes: usize,
}

impl Line {
    /// What it takes up in an answer, beside its path.
    pub(super) fn bytes(&self) -> usize {
        let around = self.before.iter().chain(&self.after);
        LINE_BYTES + self.text.len() + around.map(|line| LINE_BYTES + line.len()).sum::<usize>()
    }
}

impl Room {
    /// Whether `lines` of `bytes` together, or fewer, fill it: then nothing after them is wanted.
    ///
    /// An answer takes its first line whatever its length, so it is never one line that does.
    pub(super) fn is_filled_by(self, lines: usize, bytes: usize) -> bool {
        lines > self.lines || (lines > 1 && bytes > self.bytes)
    }
}

/// A searcher that shows `context` lines around a match.
pub(super) fn searcher(context: usize) -> Searcher {
    SearcherBuilder::new()
        .line_terminator(LineTerminator::crlf())
        .line_number(true)
        .before_context(context)
        .after_context(context)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(LINE_BYTES_MAX))
        .build()
}

/// The lines of `file` that match, those after the line `after`, until they fill `room`.
///
/// The last of those that fill it only tells that there is more.
pub(super) fn gather(
    searcher: &mut Searcher,
    matcher: &RegexMatcher,
    file: File,
    after: u64,
    room: Room,
    watch: &Watch,
) -> Gathered {
    let mut gather = Gather {
        matcher,
        path_bytes: file.path().len(),
        after,
        room,
        before: Vec::new(),
        lines: Vec::new(),
        bytes: 0,
        binary: false,
    };
    let bytes = file.meta().size();
    let file = fs::File::from(OwnedFd::from(file)).take(bytes);
    match searcher.search_reader(matcher, Watched { file, watch }, &mut gather) {
        Ok(()) if gather.binary => Gathered::Binary,
        Ok(()) => Gathered::Lines(gather.lines),
        Err(err)
            if err.get_ref().is_some_and(|err| err.to_string().contains("allocation limit")) =>
        {
            Gathered::LongLine
        }
        Err(_) => Gathered::Unreadable,
    }
}

/// A file that ends, as an error, once nobody wants it any more.
struct Watched<'w> {
    file: io::Take<fs::File>,
    watch: &'w Watch,
}

impl Read for Watched<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.watch.check().map_err(|err| io::Error::other(err.message))?;
        self.file.read(into)
    }
}

struct Gather<'m> {
    matcher: &'m RegexMatcher,
    path_bytes: usize,
    after: u64,
    room: Room,
    before: Vec<String>,
    lines: Vec<Line>,
    /// What the lines take up.
    bytes: usize,
    binary: bool,
}

impl Sink for Gather<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let before = std::mem::take(&mut self.before);
        let number = found.line_number().unwrap_or(0);
        if number <= self.after {
            return Ok(true);
        }
        let bytes = found.bytes();
        let at = self.matcher.find(bytes).ok().flatten().map_or(0, |span| span.start());
        let column = at as u64 + 1;
        let line = Line { number, column, text: clip(bytes, at), before, after: Vec::new() };
        self.bytes += self.path_bytes + line.bytes();
        self.lines.push(line);
        Ok(!self.room.is_filled_by(self.lines.len(), self.bytes))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = clip(context.bytes(), 0);
        match (context.kind(), self.lines.last_mut()) {
            (SinkContextKind::After, Some(last)) => {
                self.bytes += LINE_BYTES + line.len();
                last.after.push(line);
            }
            (SinkContextKind::Before, _) => self.before.push(line),
            (SinkContextKind::After | SinkContextKind::Other, _) => {}
        }
        Ok(true)
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> io::Result<()> {
        self.binary = finish.binary_byte_offset().is_some();
        Ok(())
    }
}

/// A line without its end; of a long one the part around `at`.
fn clip(line: &[u8], at: usize) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= SHOWN_BYTES_MAX {
        return String::from_utf8_lossy(line).into_owned();
    }
    let continues = |at: usize| line.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    let mut from = at.saturating_sub(LEAD_BYTES).min(line.len() - SHOWN_BYTES_MAX);
    let mut to = from + SHOWN_BYTES_MAX;
    while continues(from) && from < to {
        from += 1;
    }
    while continues(to) && to > from {
        to -= 1;
    }
    let (lead, tail) = (if from > 0 { "…" } else { "" }, if to < line.len() { "…" } else { "" });
    format!("{lead}{}{tail}", String::from_utf8_lossy(&line[from..to]))
}
