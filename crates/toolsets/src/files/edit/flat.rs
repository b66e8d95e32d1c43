//! Text of a file with `\n` for every line ending, and the mapping back to the bytes of the file.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memmem};

/// The size in bytes of the blocks for which the number of preceding newlines is stored.
const BLOCK_BYTES: usize = 4 << 10;
/// The byte order mark in UTF-8. It precedes the first line of a file and is not part of that line.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The text of a file with `\r\n` replaced by `\n`.
pub(super) struct LfNormalizedText<'f> {
    pub(super) text: Cow<'f, [u8]>,
    /// Byte offsets of the newlines in `text` that are `\r\n` in the file.
    crlf_newlines: Vec<usize>,
    /// The number of newlines before each block of the text. The last element is the total number.
    newlines_before_block: Vec<usize>,
}

/// Returns `bytes` with `\r\n` replaced by `\n`.
pub(super) fn normalize_newlines(bytes: &[u8]) -> Cow<'_, [u8]> {
    LfNormalizedText::new(bytes).text
}

impl<'f> LfNormalizedText<'f> {
    pub(super) fn new(bytes: &'f [u8]) -> Self {
        let mut flat = Vec::new();
        let mut crlf_newlines = Vec::new();
        let mut from = 0;
        for at in memmem::find_iter(bytes, b"\r\n") {
            flat.extend_from_slice(&bytes[from..at]);
            crlf_newlines.push(flat.len());
            from = at + 1;
        }
        let text = if crlf_newlines.is_empty() {
            Cow::Borrowed(bytes)
        } else {
            flat.extend_from_slice(&bytes[from..]);
            Cow::Owned(flat)
        };
        let mut newlines_before_block = vec![0];
        let mut newlines = 0;
        for block in text.chunks(BLOCK_BYTES) {
            newlines += memchr_iter(b'\n', block).count();
            newlines_before_block.push(newlines);
        }
        Self { text, crlf_newlines, newlines_before_block }
    }

    /// Converts `at`, a byte offset in the normalized text, to a byte offset in the file.
    pub(super) fn file_offset(&self, at: usize) -> usize {
        at + self.crlf_newlines.partition_point(|&newline| newline < at)
    }

    /// Converts `at`, a byte offset in the file, to a byte offset in the normalized text.
    pub(super) fn text_offset(&self, at: usize) -> usize {
        let passed = |before: usize| self.crlf_newlines[before] + before < at;
        let mut low = 0;
        let mut high = self.crlf_newlines.len();
        while low < high {
            let middle = low.midpoint(high);
            if passed(middle) { low = middle + 1 } else { high = middle }
        }
        at - low
    }

    /// Returns the number of lines in the text.
    pub(super) fn line_count(&self) -> u64 {
        self.newline_count() as u64 + u64::from(self.lacks_final_newline())
    }

    /// Returns true if the text does not end with a newline.
    pub(super) fn lacks_final_newline(&self) -> bool {
        self.text[self.first_line_start()..].last().is_some_and(|&last| last != b'\n')
    }

    /// Returns the number, from 1, of the line that contains the byte offset `at`.
    pub(super) fn line_of(&self, at: usize) -> u64 {
        self.newlines_before(at) as u64 + 1
    }

    /// Returns the byte offset at which line number `line`, from 1, starts. Returns the end of the
    /// text if there are fewer lines.
    pub(super) fn line_start(&self, line: u64) -> usize {
        let Some(before) = line.checked_sub(2) else { return self.first_line_start() };
        let nth = usize::try_from(before).unwrap_or(usize::MAX);
        self.nth_newline(nth).map_or(self.text.len(), |at| at + 1)
    }

    /// Returns the byte offset of the first line, after any byte order mark.
    pub(super) fn first_line_start(&self) -> usize {
        if self.text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 }
    }

    fn newline_count(&self) -> usize {
        self.newlines_before_block.last().copied().unwrap_or(0)
    }

    fn newlines_before(&self, at: usize) -> usize {
        let block = at / BLOCK_BYTES;
        self.newlines_before_block[block]
            + memchr_iter(b'\n', &self.text[block * BLOCK_BYTES..at]).count()
    }

    /// Returns the byte offset of newline number `nth`, counted from 0. Returns `None` if there are
    /// fewer newlines.
    fn nth_newline(&self, nth: usize) -> Option<usize> {
        if nth >= self.newline_count() {
            return None;
        }
        let block = self.newlines_before_block.partition_point(|&before| before <= nth) - 1;
        let from = block * BLOCK_BYTES;
        memchr_iter(b'\n', &self.text[from..])
            .nth(nth - self.newlines_before_block[block])
            .map(|at| from + at)
    }

    /// Returns `new` as complete lines, to replace the text from offset `from` to `to`.
    ///
    /// Adds or removes a final newline, so that the edited file ends with a newline if and only if
    /// the original file does.
    pub(super) fn as_lines(&self, from: usize, to: usize, new: &[u8]) -> Vec<u8> {
        let mut lines = normalize_newlines(new).into_owned();
        if lines.is_empty() {
            return lines;
        }
        if lines.last() != Some(&b'\n') {
            lines.push(b'\n');
        }
        if self.lacks_final_newline() && to == self.text.len() {
            lines.pop();
            if from == to {
                lines.insert(0, b'\n');
            }
        }
        lines
    }

    /// Returns `new` with the line endings of the text between the offsets `from` and `to`, which
    /// `new` replaces.
    pub(super) fn with_original_endings<'n>(
        &self,
        from: usize,
        to: usize,
        new: &'n [u8],
    ) -> Cow<'n, [u8]> {
        // A second byte order mark would be an invisible character.
        let marked = from == BYTE_ORDER_MARK.len() && self.first_line_start() == from;
        let new = if marked { new.strip_prefix(BYTE_ORDER_MARK).unwrap_or(new) } else { new };
        if self.newline_count() == 0 || memchr(b'\n', new).is_none() {
            return Cow::Borrowed(new);
        }
        let new = normalize_newlines(new);
        if self.crlf_newlines.is_empty() {
            return new;
        }
        let old: Vec<&[u8]> = self.text[from..to].split_inclusive(|&byte| byte == b'\n').collect();
        let lines: Vec<&[u8]> = new.split_inclusive(|&byte| byte == b'\n').collect();
        let most = old.len().min(lines.len());
        let same = old.iter().zip(&lines).take_while(|(old, new)| old == new).count();
        let tail = old.iter().rev().zip(lines.iter().rev());
        let same_tail = tail.take(most - same).take_while(|(old, new)| old == new).count();
        let newlines: Vec<usize> =
            memchr_iter(b'\n', &self.text[from..to]).map(|at| from + at).collect();
        let around = self.is_crlf_near(from);
        let ended = apply_line_endings(&new, |line| {
            let line = if line + same_tail >= lines.len() {
                Some(line + old.len() - lines.len())
            } else {
                Some(line).filter(|line| line + same_tail < old.len())
            };
            line.and_then(|line| newlines.get(line)).map_or(around, |at| self.is_crlf(*at))
        });
        Cow::Owned(ended)
    }

    fn is_crlf(&self, newline: usize) -> bool {
        self.crlf_newlines.binary_search(&newline).is_ok()
    }

    /// Returns true if the line that contains the offset `at` ends with `\r\n` in the file. If this
    /// line has no newline, the line before it decides.
    fn is_crlf_near(&self, at: usize) -> bool {
        let before = self.newlines_before(at);
        self.nth_newline(before)
            .or_else(|| self.nth_newline(before.checked_sub(1)?))
            .is_some_and(|newline| self.is_crlf(newline))
    }
}

/// Returns `text` with `\r\n` instead of `\n` at the newlines for which `is_return` returns true.
/// The argument of `is_return` is the newline's number, from 0.
fn apply_line_endings(text: &[u8], is_return: impl Fn(usize) -> bool) -> Vec<u8> {
    let mut ended = Vec::with_capacity(text.len() + text.len() / 16);
    for (line, piece) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
        match piece.strip_suffix(b"\n") {
            Some(bare) if is_return(line) => {
                ended.extend_from_slice(bare);
                ended.extend_from_slice(b"\r\n");
            }
            Some(_) | None => ended.extend_from_slice(piece),
        }
    }
    ended
}
