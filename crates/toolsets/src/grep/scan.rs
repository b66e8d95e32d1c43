//! Searches the content of files, one after another, in a reused buffer.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use grep_matcher::LineTerminator;
use grep_regex::RegexMatcher;
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch,
};

use super::MultilineMatching;
use crate::text_encoding::ByteOrder;
use toolgate_world::root::{DiskWorkMonitor, WorkspaceFile};

/// The maximum size of a file that is read completely into memory before it is searched, in bytes.
/// Such a search is faster than reading in chunks.
const WHOLE_BYTES_MAX: u64 = 1 << 20;
/// The maximum length of a line that is searched, in bytes. This limit bounds how much of a file is
/// in memory.
const LINE_BYTES_MAX: usize = 16 << 20;

/// A searcher that searches files one after another in a reused buffer.
pub(crate) struct FileScanner {
    searcher: Searcher,
    text: Vec<u8>,
    /// The number of bytes in `text` that belong to the file that was scanned last.
    text_len: usize,
}

/// The outcome of searching one file for a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileMatchOutcome {
    /// The file was searched, completely or until the sink stopped the search.
    Searched,
    /// The file contains binary data.
    Binary,
    /// The file no longer exists or could not be read.
    Unreadable,
    /// The file was not searched completely, because a line is too long, or because the file is too
    /// large for a search over several lines.
    TooLong,
}

impl FileScanner {
    /// Creates a scanner that numbers lines and reports `context` lines before and after each
    /// match. `span` is the number of lines that a match may cover.
    pub(crate) fn with_line_numbers(context: usize, span: MultilineMatching) -> Self {
        Self::new(context, span, true)
    }

    /// Creates a scanner that reports no line numbers and no context lines, which is faster. `span`
    /// is the number of lines that a match may cover.
    pub(crate) fn without_line_numbers(span: MultilineMatching) -> Self {
        Self::new(0, span, false)
    }

    fn new(context: usize, span: MultilineMatching, numbers: bool) -> Self {
        let mut builder = SearcherBuilder::new();
        match span {
            MultilineMatching::SingleLine => builder.line_terminator(LineTerminator::crlf()),
            MultilineMatching::MultiLine => builder.multi_line(true),
        };
        let searcher = builder
            .line_number(numbers)
            .before_context(context)
            .after_context(context)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LINE_BYTES_MAX))
            .build();
        Self { searcher, text: Vec::new(), text_len: 0 }
    }

    /// Searches `file` with `matcher`, and sends each match to `sink`, until `sink` stops the
    /// search or `watch` reports that the call was cancelled.
    pub(crate) fn scan<S: Sink<Error = io::Error>>(
        &mut self,
        matcher: &RegexMatcher,
        file: WorkspaceFile,
        watch: &DiskWorkMonitor,
        sink: &mut S,
    ) -> FileMatchOutcome {
        let bytes = file.meta().size();
        let mut flagged = BinaryDetectingSink { sink, binary: false };
        let searched = if bytes <= WHOLE_BYTES_MAX {
            self.text_len = 0;
            let Ok(read) = file.read_whole(&mut self.text) else {
                return FileMatchOutcome::Unreadable;
            };
            drop(file);
            self.text_len = read;
            let text = &self.text[..read];
            if let Some(order) = ByteOrder::detect(text) {
                // Otherwise the searcher decodes it, and replaces what is invalid.
                if let Ok(decoded) = order.decode(text) {
                    self.text_len = decoded.len();
                    self.text = decoded.into_bytes();
                }
            } else if memchr::memchr(0, text).is_some() {
                return FileMatchOutcome::Binary;
            }
            self.searcher.search_slice(matcher, &self.text[..self.text_len], &mut flagged)
        } else {
            self.text_len = 0;
            let file = fs::File::from(OwnedFd::from(file)).take(bytes);
            self.searcher.search_reader(matcher, CancelableReader { file, watch }, &mut flagged)
        };
        match searched {
            Ok(()) if flagged.binary => FileMatchOutcome::Binary,
            Ok(()) => FileMatchOutcome::Searched,
            Err(err)
                if err
                    .get_ref()
                    .is_some_and(|err| err.to_string().contains("allocation limit")) =>
            {
                FileMatchOutcome::TooLong
            }
            Err(_) => FileMatchOutcome::Unreadable,
        }
    }

    /// Returns the text of the file that was scanned last. Returns an empty slice if the file was
    /// not read completely into memory.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text[..self.text_len]
    }
}

/// A file reader that fails as soon as the call is cancelled.
struct CancelableReader<'w> {
    file: io::Take<fs::File>,
    watch: &'w DiskWorkMonitor,
}

impl Read for CancelableReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.watch.check_cancelled().map_err(|err| io::Error::other(err.message))?;
        self.file.read(into)
    }
}

/// A sink that forwards matches, and records whether the search stopped at binary data.
struct BinaryDetectingSink<'s, S> {
    sink: &'s mut S,
    binary: bool,
}

impl<S: Sink<Error = io::Error>> Sink for BinaryDetectingSink<'_, S> {
    type Error = io::Error;

    fn matched(&mut self, searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.sink.matched(searcher, found)
    }

    fn context(&mut self, searcher: &Searcher, around: &SinkContext<'_>) -> io::Result<bool> {
        self.sink.context(searcher, around)
    }

    fn finish(&mut self, searcher: &Searcher, finish: &SinkFinish) -> io::Result<()> {
        self.binary = finish.binary_byte_offset().is_some();
        self.sink.finish(searcher, finish)
    }
}
