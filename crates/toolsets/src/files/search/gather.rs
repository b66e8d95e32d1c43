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

use super::Match;
use crate::world::root::{File, Watch};

/// A longer line is not searched: no more than this is held of a file.
const LINE_BYTES_MAX: usize = 16 << 20;
/// A longer line is shown in part.
const SHOWN_BYTES_MAX: usize = 500;
/// How much is shown before a match in a long line.
const LEAD_BYTES: usize = 100;

/// How a file turned out.
#[derive(Debug)]
pub(super) enum Gathered {
    /// Its matches, as many as were wanted.
    Matches(Vec<Match>),
    /// It is not text.
    Binary,
    /// It vanished, or reading it failed.
    Unreadable,
    /// It has a line too long to search.
    LongLine,
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

/// Up to `limit` lines of `file` that match, those after the line `after`.
pub(super) fn gather(
    searcher: &mut Searcher,
    matcher: &RegexMatcher,
    file: File,
    after: u64,
    limit: usize,
    watch: &Watch,
) -> Gathered {
    let path = file.path().to_owned();
    let mut gather = Gather {
        matcher,
        path,
        after,
        limit,
        before: Vec::new(),
        matches: Vec::new(),
        binary: false,
    };
    let bytes = file.meta().size();
    let file = fs::File::from(OwnedFd::from(file)).take(bytes);
    match searcher.search_reader(matcher, Watched { file, watch }, &mut gather) {
        Ok(()) if gather.binary => Gathered::Binary,
        Ok(()) => Gathered::Matches(gather.matches),
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
    path: String,
    after: u64,
    limit: usize,
    before: Vec<String>,
    matches: Vec<Match>,
    binary: bool,
}

impl Sink for Gather<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let before = std::mem::take(&mut self.before);
        let line = found.line_number().unwrap_or(0);
        if line <= self.after {
            return Ok(true);
        }
        let bytes = found.bytes();
        let at = self.matcher.find(bytes).ok().flatten().map_or(0, |span| span.start());
        self.matches.push(Match {
            path: self.path.clone(),
            line,
            column: at as u64 + 1,
            text: clip(bytes, at),
            before,
            after: Vec::new(),
        });
        Ok(self.matches.len() < self.limit)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = clip(context.bytes(), 0);
        match (context.kind(), self.matches.last_mut()) {
            (SinkContextKind::After, Some(last)) => last.after.push(line),
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
