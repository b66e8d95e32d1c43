//! Parses the output of build tools and test runners, line by line as it arrives.

mod found;
mod located;
mod cargo;
mod libtest;
mod scripts;
mod tap;
mod pytest;
mod go;
mod others;

use std::borrow::Cow;
use std::collections::VecDeque;

use toolgate_contract::Stream;

use super::kind::{Kind, Verb};
use super::report::{Failure, Summary};
use crate::exec::plain;

use found::Found;

/// The most bytes of one line. A longer line is read in pieces.
const LINE_BYTES_MAX: usize = 4 << 20;

/// A parser of one program's output.
trait Reader: Send {
    /// Reads a line of `stream`, without its line break. Returns the text to show for it, if any.
    fn line<'l>(
        &mut self,
        stream: Stream,
        line: &'l str,
        found: &mut Found,
    ) -> Option<Cow<'l, str>>;

    /// Ends the output.
    fn end(&mut self, found: &mut Found);
}

/// The state of parsing a program's output.
pub(super) struct Reading {
    reader: Box<dyn Reader>,
    found: Found,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The end of the shown text.
    tail: VecDeque<u8>,
    tail_bytes_max: usize,
    is_cut: bool,
}

impl Reading {
    /// Creates the parser for a program that performs `verb` on a project of `kind`.
    pub(super) fn new(kind: Kind, verb: Verb, failures_max: usize, output_bytes: usize) -> Self {
        let reader: Box<dyn Reader> = match kind {
            Kind::Cargo => Box::new(cargo::Reader::new(verb)),
            Kind::Go => Box::new(go::Reader::default()),
            Kind::Pytest => Box::new(pytest::Reader::default()),
            Kind::Npm | Kind::Pnpm | Kind::Yarn => Box::new(scripts::Reader::default()),
            Kind::Dotnet | Kind::Gradle | Kind::Maven | Kind::Make => {
                Box::new(others::Reader::default())
            }
        };
        Self {
            reader,
            found: Found::new(failures_max),
            stdout: Vec::new(),
            stderr: Vec::new(),
            tail: VecDeque::new(),
            tail_bytes_max: output_bytes,
            is_cut: false,
        }
    }

    /// Reads a piece of `stream`. Returns the text to show.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let waiting = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        waiting.extend_from_slice(bytes);
        let end = match waiting.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if waiting.len() > LINE_BYTES_MAX => waiting.len(),
            None => return Vec::new(),
        };
        let lines: Vec<u8> = waiting.drain(..end).collect();
        self.lines(stream, &lines)
    }

    /// Ends the output. Returns the counts, the failures, the number of dropped failures, the end
    /// of the shown text, and `true` if that text is complete.
    pub(super) fn end(mut self) -> (Summary, Vec<Failure>, usize, String, bool) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = match stream {
                Stream::Stdout => std::mem::take(&mut self.stdout),
                Stream::Stderr => std::mem::take(&mut self.stderr),
            };
            if !rest.is_empty() {
                self.lines(stream, &rest);
            }
        }
        self.reader.end(&mut self.found);
        let tail: Vec<u8> = self.tail.into();
        let mut tail = String::from_utf8_lossy(&tail).into_owned();
        if self.is_cut {
            // Start with a whole line.
            let begin = tail.find('\n').map_or(0, |at| at + 1);
            tail.drain(..begin);
        }
        let Found { failures, left_out, summary, .. } = self.found;
        (summary, failures, left_out, tail, !self.is_cut)
    }

    fn lines(&mut self, stream: Stream, lines: &[u8]) -> Vec<u8> {
        let mut shown = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = String::from_utf8_lossy(line);
            let line: Cow<'_, str> = if line.contains('\u{1b}') {
                plain(&line).collect::<String>().into()
            } else {
                line
            };
            if let Some(line) = self.reader.line(stream, &line, &mut self.found) {
                shown.extend_from_slice(line.as_bytes());
                if !line.ends_with('\n') {
                    shown.push(b'\n');
                }
            }
        }
        self.tail.extend(&shown);
        let over = self.tail.len().saturating_sub(self.tail_bytes_max);
        self.is_cut |= over > 0;
        self.tail.drain(..over);
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::report::Severity;

    /// What is found in `printed` to standard output, however it is cut into pieces.
    pub(super) fn read(kind: Kind, verb: Verb, printed: &str) -> (Summary, Vec<Failure>, String) {
        let whole = in_pieces(kind, verb, printed, usize::MAX);
        for size in [1, 7, 64] {
            let pieces = in_pieces(kind, verb, printed, size);
            assert_eq!((&pieces.0, &pieces.1), (&whole.0, &whole.1), "in pieces of {size}");
        }
        whole
    }

    fn in_pieces(
        kind: Kind,
        verb: Verb,
        printed: &str,
        size: usize,
    ) -> (Summary, Vec<Failure>, String) {
        let mut reading = Reading::new(kind, verb, 50, 1 << 20);
        for piece in printed.as_bytes().chunks(size.min(printed.len().max(1))) {
            reading.take(Stream::Stdout, piece);
        }
        let (summary, failures, _, output, _) = reading.end();
        (summary, failures, output)
    }

    #[test]
    fn the_end_of_what_is_shown_begins_with_a_whole_line() {
        let mut reading = Reading::new(Kind::Make, Verb::Build, 50, 10);
        reading.take(Stream::Stdout, b"one\ntwo\nthr");
        reading.take(Stream::Stderr, b"\x1b[31mred\x1b[0m\n");
        let (.., output, is_all) = reading.end();
        assert_eq!((output.as_str(), is_all), ("red\nthr\n", false));
    }

    #[test]
    fn failures_beyond_the_most_are_counted() {
        let mut reading = Reading::new(Kind::Make, Verb::Build, 2, 1000);
        for line in 1..=5 {
            let text = format!("a.c:{line}:1: error: no\n");
            reading.take(Stream::Stderr, text.as_bytes());
        }
        let (summary, failures, left_out, ..) = reading.end();
        assert_eq!((failures.len(), left_out, summary.errors), (2, 3, Some(5)));
        assert_eq!(failures[0].severity, Severity::Error);
    }
}
