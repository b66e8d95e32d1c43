//! One file after the other, read and searched with the same memory.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use grep_matcher::LineTerminator;
use grep_regex::RegexMatcher;
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch,
};

use super::Reach;
use crate::world::root::{File, Watch};

/// Up to this size a file is read at once, which is faster.
const WHOLE_BYTES_MAX: u64 = 1 << 20;
/// A longer line is not searched: no more than this is held of a file.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Reads files and searches them.
pub(crate) struct Scanner {
    searcher: Searcher,
    text: Vec<u8>,
    /// How much of `text` is the file searched last.
    read: usize,
}

/// How a file turned out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was searched, or as much of it as was wanted.
    Searched,
    /// It is not text.
    Binary,
    /// It vanished, or reading it failed.
    Unreadable,
    /// It has a line too long to search, or is too long to be searched over lines.
    TooLong,
}

impl Scanner {
    /// One that numbers lines and shows `context` of them around a match.
    pub(crate) fn numbering(context: usize, reach: Reach) -> Self {
        Self::new(context, reach, true)
    }

    /// One that shows matches only, which is faster.
    pub(crate) fn counting(reach: Reach) -> Self {
        Self::new(0, reach, false)
    }

    fn new(context: usize, reach: Reach, numbers: bool) -> Self {
        let mut builder = SearcherBuilder::new();
        match reach {
            Reach::Line => builder.line_terminator(LineTerminator::crlf()),
            Reach::Lines => builder.multi_line(true),
        };
        let searcher = builder
            .line_number(numbers)
            .before_context(context)
            .after_context(context)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LINE_BYTES_MAX))
            .build();
        Self { searcher, text: Vec::new(), read: 0 }
    }

    /// Gives what matches in `file` to `sink`, until that wants no more.
    pub(crate) fn scan<S: Sink<Error = io::Error>>(
        &mut self,
        matcher: &RegexMatcher,
        file: File,
        watch: &Watch,
        sink: &mut S,
    ) -> Outcome {
        let bytes = file.meta().size();
        let mut noting = Noting { sink, binary: false };
        let searched = if bytes <= WHOLE_BYTES_MAX {
            self.read = 0;
            let Ok(read) = file.read_whole(&mut self.text) else { return Outcome::Unreadable };
            drop(file);
            self.read = read;
            let text = &self.text[..read];
            if memchr::memchr(0, text).is_some() && !is_wide(text) {
                return Outcome::Binary;
            }
            self.searcher.search_slice(matcher, text, &mut noting)
        } else {
            self.read = 0;
            let file = fs::File::from(OwnedFd::from(file)).take(bytes);
            self.searcher.search_reader(matcher, Watched { file, watch }, &mut noting)
        };
        match searched {
            Ok(()) if noting.binary => Outcome::Binary,
            Ok(()) => Outcome::Searched,
            Err(err)
                if err
                    .get_ref()
                    .is_some_and(|err| err.to_string().contains("allocation limit")) =>
            {
                Outcome::TooLong
            }
            Err(_) => Outcome::Unreadable,
        }
    }

    /// The text of the file searched last; empty where it was not read at once.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text[..self.read]
    }
}

/// Whether `text` says that it is of two bytes a character.
fn is_wide(text: &[u8]) -> bool {
    text.starts_with(&[0xff, 0xfe]) || text.starts_with(&[0xfe, 0xff])
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

/// Notes whether the search ended at what is not text.
struct Noting<'s, S> {
    sink: &'s mut S,
    binary: bool,
}

impl<S: Sink<Error = io::Error>> Sink for Noting<'_, S> {
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
