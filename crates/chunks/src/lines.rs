//! Lines of a text, numbered from 0, and their byte positions.

use std::ops::Range;

/// A text with an index of its lines.
pub(crate) struct LineIndexedText<'t> {
    pub(crate) text: &'t str,
    /// Byte position of the start of each line in the text.
    starts: Vec<usize>,
}

impl<'t> LineIndexedText<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        let mut starts = Vec::with_capacity(text.len() / 32 + 1);
        let mut at = 0;
        for whole in text.split_inclusive('\n') {
            starts.push(at);
            at += whole.len();
        }
        Self { text, starts }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns the byte position of the start of `line` (numbered from 0), or of the end of the
    /// text if the text has fewer lines.
    pub(crate) fn start(&self, line: usize) -> usize {
        self.starts.get(line).copied().unwrap_or(self.text.len())
    }

    /// Returns the byte position of the end of `line` (numbered from 0), without its line break.
    pub(crate) fn end(&self, line: usize) -> usize {
        self.start(line) + self.line(line).len()
    }

    /// Returns the text of `line` (numbered from 0), without its line break.
    pub(crate) fn line(&self, line: usize) -> &'t str {
        let whole = &self.text[self.start(line)..self.start(line + 1)];
        let bare = whole.strip_suffix('\n').map(|it| it.strip_suffix('\r').unwrap_or(it));
        bare.unwrap_or(whole)
    }

    pub(crate) fn is_blank(&self, line: usize) -> bool {
        self.line(line).trim().is_empty()
    }

    /// Returns the positions of the lines from `first` to `last` in the text, in bytes.
    pub(crate) fn bytes(&self, first: usize, last: usize) -> Range<usize> {
        self.start(first)..self.end(last)
    }

    /// Shrinks the range of lines to leave out blank lines at both ends. Returns `None` if all are
    /// blank.
    pub(crate) fn trim_blank(&self, first: usize, last: usize) -> Option<(usize, usize)> {
        let last = (first..=last).rev().find(|&line| !self.is_blank(line))?;
        let first = (first..=last).find(|&line| !self.is_blank(line))?;
        Some((first, last))
    }

    /// Returns the number of the line that contains the byte `at`.
    pub(crate) fn line_at_byte(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at).saturating_sub(1)
    }

    /// Returns the indentation of `line` in columns. A tab counts as eight columns.
    pub(crate) fn indent(&self, line: usize) -> usize {
        let blanks = self.line(line).bytes().take_while(|byte| matches!(byte, b' ' | b'\t'));
        blanks.map(|byte| if byte == b'\t' { 8 } else { 1 }).sum()
    }
}
