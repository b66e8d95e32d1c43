//! Parses the output of build tools and test runners, line by line as it arrives.

mod findings;
mod located;
mod compared_values;
mod cargo;
mod libtest;
mod load_errors;
mod scripts;
mod tap;
mod pytest_summary;
mod pytest;
mod go;
mod compilers;

use std::borrow::Cow;
use std::collections::VecDeque;

use toolgate_contract::OutputStreamKind;

use super::build_tool::{BuildTool, ProjectAction};
use super::report::{CiFailure, CiTestCounts};
use crate::exec::strip_escapes;

use findings::OutputParserFindings;

/// Characters with a special meaning in the regular expressions of Go and JavaScript.
const PATTERN_CHARACTERS: &str = r"\.+*?()|[]{}^$";

/// The maximum size of one line of a program's output, in bytes. A longer line is read in chunks.
const LINE_BYTES_MAX: usize = 4 << 20;

/// A parser of the output of one build tool, line by line.
trait OutputLineParser: Send {
    /// Reads a line of `stream`, without its line break, and adds failures and counts to `found`.
    /// Returns the text to show for the line, if any.
    fn read_line<'l>(
        &mut self,
        stream: OutputStreamKind,
        line: &'l str,
        found: &mut OutputParserFindings,
    ) -> Option<Cow<'l, str>>;

    /// Processes the end of a program's output, and adds the failures and counts that are still
    /// pending to `found`.
    fn finish(&mut self, found: &mut OutputParserFindings);
}

/// State of parsing the output of one build tool.
pub(super) struct OutputParserState {
    reader: Box<dyn OutputLineParser>,
    found: OutputParserFindings,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The last bytes of the output, which the result of the call shows.
    tail: VecDeque<u8>,
    tail_bytes_max: usize,
    is_cut: bool,
}

impl OutputParserState {
    /// Creates the parser for the program that performs the action `verb` on a project of `kind`.
    /// Keeps at most `failures_max` failures and the last `output_bytes` bytes of output.
    pub(super) fn new(
        kind: BuildTool,
        verb: ProjectAction,
        failures_max: usize,
        output_bytes: usize,
    ) -> Self {
        let reader: Box<dyn OutputLineParser> = match kind {
            BuildTool::Cargo => Box::new(cargo::CargoParser::new(verb)),
            BuildTool::Go => Box::new(go::GoParser::default()),
            BuildTool::Pytest => Box::new(pytest::PytestOutputParser::default()),
            BuildTool::Npm | BuildTool::Pnpm | BuildTool::Yarn => {
                Box::new(scripts::JavaScriptOutputParser::default())
            }
            BuildTool::Dotnet | BuildTool::Gradle | BuildTool::Maven | BuildTool::Make => {
                Box::new(compilers::CompilerParser::default())
            }
        };
        Self {
            reader,
            found: OutputParserFindings::new(failures_max),
            stdout: Vec::new(),
            stderr: Vec::new(),
            tail: VecDeque::new(),
            tail_bytes_max: output_bytes,
            is_cut: false,
        }
    }

    /// Reads `bytes`, a piece of the output `stream`, and parses its complete lines. Returns the
    /// bytes of these lines that the caller should see.
    pub(super) fn read(&mut self, stream: OutputStreamKind, bytes: &[u8]) -> Vec<u8> {
        let buffer = match stream {
            OutputStreamKind::Stdout => &mut self.stdout,
            OutputStreamKind::Stderr => &mut self.stderr,
        };
        buffer.extend_from_slice(bytes);
        let end = match buffer.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if buffer.len() > LINE_BYTES_MAX => buffer.len(),
            None => return Vec::new(),
        };
        let lines: Vec<u8> = buffer.drain(..end).collect();
        self.read_lines(stream, &lines)
    }

    /// Processes the end of the output. Returns the counts, the failures, the number of dropped
    /// failures, the end of the shown output, and true if that output is complete.
    pub(super) fn finish(mut self) -> (CiTestCounts, Vec<CiFailure>, usize, String, bool) {
        for stream in [OutputStreamKind::Stdout, OutputStreamKind::Stderr] {
            let rest = match stream {
                OutputStreamKind::Stdout => std::mem::take(&mut self.stdout),
                OutputStreamKind::Stderr => std::mem::take(&mut self.stderr),
            };
            if !rest.is_empty() {
                self.read_lines(stream, &rest);
            }
        }
        self.reader.finish(&mut self.found);
        let tail: Vec<u8> = self.tail.into();
        let mut tail = String::from_utf8_lossy(&tail).into_owned();
        if self.is_cut {
            // Start with a whole line.
            let begin = tail.find('\n').map_or(0, |at| at + 1);
            tail.drain(..begin);
        }
        let OutputParserFindings { failures, dropped, summary, .. } = self.found;
        (summary, failures, dropped, tail, !self.is_cut)
    }

    fn read_lines(&mut self, stream: OutputStreamKind, lines: &[u8]) -> Vec<u8> {
        let mut shown = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = String::from_utf8_lossy(line);
            let line: Cow<'_, str> = if line.contains('\u{1b}') {
                strip_escapes(&line).collect::<String>().into()
            } else {
                line
            };
            if let Some(line) = self.reader.read_line(stream, &line, &mut self.found) {
                shown.extend_from_slice(line.as_bytes());
                if !line.ends_with('\n') {
                    shown.push(b'\n');
                }
            }
        }
        self.tail.extend(&shown);
        let excess = self.tail.len().saturating_sub(self.tail_bytes_max);
        self.is_cut |= excess > 0;
        self.tail.drain(..excess);
        shown
    }
}

/// Returns a regular expression that matches exactly `text`.
fn escape_pattern(text: &str) -> String {
    let mut pattern = String::new();
    for character in text.chars() {
        if PATTERN_CHARACTERS.contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::report::FailureSeverity;

    /// Parses `printed` at once and in pieces of several sizes. Panics unless all give equal counts
    /// and failures.
    pub(super) fn read(
        kind: BuildTool,
        verb: ProjectAction,
        printed: &str,
    ) -> (CiTestCounts, Vec<CiFailure>, String) {
        let whole = in_pieces(kind, verb, printed, usize::MAX);
        for size in [1, 7, 64] {
            let pieces = in_pieces(kind, verb, printed, size);
            assert_eq!((&pieces.0, &pieces.1), (&whole.0, &whole.1), "in pieces of {size}");
        }
        whole
    }

    fn in_pieces(
        kind: BuildTool,
        verb: ProjectAction,
        printed: &str,
        size: usize,
    ) -> (CiTestCounts, Vec<CiFailure>, String) {
        let mut reader = OutputParserState::new(kind, verb, 50, 1 << 20);
        for piece in printed.as_bytes().chunks(size.min(printed.len().max(1))) {
            reader.read(OutputStreamKind::Stdout, piece);
        }
        let (summary, failures, _, output, _) = reader.finish();
        (summary, failures, output)
    }

    #[test]
    fn cut_output_begins_with_a_whole_line() {
        let mut reader = OutputParserState::new(BuildTool::Make, ProjectAction::Build, 50, 10);
        reader.read(OutputStreamKind::Stdout, b"one\ntwo\nthr");
        reader.read(OutputStreamKind::Stderr, b"\x1b[31mred\x1b[0m\n");
        let (.., output, is_all) = reader.finish();
        assert_eq!((output.as_str(), is_all), ("red\nthr\n", false));
    }

    #[test]
    fn failures_beyond_the_limit_are_counted() {
        let mut reader = OutputParserState::new(BuildTool::Make, ProjectAction::Build, 2, 1000);
        for line in 1..=5 {
            let text = format!("a.c:{line}:1: error: no\n");
            reader.read(OutputStreamKind::Stderr, text.as_bytes());
        }
        let (summary, failures, dropped, ..) = reader.finish();
        assert_eq!((failures.len(), dropped, summary.errors), (2, 3, Some(5)));
        assert_eq!(failures[0].severity, FailureSeverity::Error);
    }
}
