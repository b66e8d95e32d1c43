//! Collects the lines of one file that match a search.

use std::io;

use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkContextKind, SinkMatch};

use super::find_span;
use super::scan::{FileMatchOutcome, FileScanner};
use toolgate_world::root::{DiskWorkMonitor, WorkspaceFile};

/// The maximum length of a matching line that is shown completely, in bytes.
const SHOWN_BYTES_MAX: usize = 500;
/// The number of bytes that are shown before the match in a line that is cut.
const LEAD_BYTES: usize = 100;

/// The size that a match or context line adds to an answer besides its text, in bytes.
pub(crate) const LINE_OVERHEAD_BYTES: usize = 32;

/// The result of searching one file for matching lines.
#[derive(Debug)]
pub(crate) enum SearchedFileLines {
    /// The matching lines of the file, up to the limit of the answer.
    Lines(Vec<MatchedLine>),
    /// The reason why no lines of the file are shown.
    Skipped(FileMatchOutcome),
}

/// A line that matches a search, without the path of its file.
#[derive(Debug)]
pub(crate) struct MatchedLine {
    pub(crate) number: u64,
    pub(crate) column: u64,
    pub(crate) text: String,
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
}

/// The number of lines and bytes that still fit into an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemainingAnswerSpace {
    pub(crate) lines: usize,
    pub(crate) bytes: usize,
}

impl MatchedLine {
    /// Returns the size of this line and its context in an answer, in bytes, without its path.
    pub(crate) fn answer_bytes(&self) -> usize {
        let around = self.before.iter().chain(&self.after);
        LINE_OVERHEAD_BYTES
            + self.text.len()
            + around.map(|line| LINE_OVERHEAD_BYTES + line.len()).sum::<usize>()
    }
}

impl RemainingAnswerSpace {
    /// Returns true if `lines` lines with `bytes` bytes in total exceed this space, so that the
    /// search can stop.
    ///
    /// An answer always contains the first line, however long it is, so a single line never exceeds
    /// the bytes.
    pub(crate) fn is_filled_by(self, lines: usize, bytes: usize) -> bool {
        lines > self.lines || (lines > 1 && bytes > self.bytes)
    }
}

/// Collects the matching lines of `file` after line number `after`, until they exceed `room`, the
/// remaining space in the answer.
///
/// The line that exceeds `room` only indicates that there are more matches.
pub(crate) fn collect_lines(
    scanner: &mut FileScanner,
    matcher: &RegexMatcher,
    file: WorkspaceFile,
    after: u64,
    room: RemainingAnswerSpace,
    watch: &DiskWorkMonitor,
) -> SearchedFileLines {
    let path_bytes = file.path().len();
    let before = Vec::new();
    let lines = Vec::new();
    let mut collector =
        MatchedLineCollector { matcher, path_bytes, after, room, before, lines, bytes: 0 };
    match scanner.scan(matcher, file, watch, &mut collector) {
        FileMatchOutcome::Searched => SearchedFileLines::Lines(collector.lines),
        reason @ (FileMatchOutcome::Binary
        | FileMatchOutcome::Unreadable
        | FileMatchOutcome::TooLong) => SearchedFileLines::Skipped(reason),
    }
}

/// Collector of the matching lines of one file.
struct MatchedLineCollector<'m> {
    matcher: &'m RegexMatcher,
    path_bytes: usize,
    after: u64,
    room: RemainingAnswerSpace,
    before: Vec<String>,
    lines: Vec<MatchedLine>,
    /// The size of the lines collected so far, in bytes.
    bytes: usize,
}

impl Sink for MatchedLineCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let before = std::mem::take(&mut self.before);
        let number = found.line_number().unwrap_or(0);
        if number <= self.after {
            return Ok(true);
        }
        let bytes = found.bytes();
        let at = find_span(self.matcher, bytes).map_or(0, |(at, _)| at);
        let column = at as u64 + 1;
        let line = MatchedLine { number, column, text: clip(bytes, at), before, after: Vec::new() };
        self.bytes += self.path_bytes + line.answer_bytes();
        self.lines.push(line);
        Ok(!self.room.is_filled_by(self.lines.len(), self.bytes))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = clip(context.bytes(), 0);
        match (context.kind(), self.lines.last_mut()) {
            (SinkContextKind::After, Some(last)) => {
                self.bytes += LINE_OVERHEAD_BYTES + line.len();
                last.after.push(line);
            }
            (SinkContextKind::Before, _) => self.before.push(line),
            (SinkContextKind::After | SinkContextKind::Other, _) => {}
        }
        Ok(true)
    }
}

/// Returns `line` without its line ending. Cuts a long line to the text around the byte offset
/// `at`.
pub(crate) fn clip(line: &[u8], at: usize) -> String {
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
    let lead = if from > 0 { "…" } else { "" };
    let tail = if to < line.len() { "…" } else { "" };
    format!("{lead}{}{tail}", String::from_utf8_lossy(&line[from..to]))
}
