//! Explains why a text is not in a file: finds the most similar text and describes the difference.
//!
//! Both texts are compared without whitespace, with plain quotes and dashes, and in canonical
//! decomposition. Binary search finds the longest start (or end) of the text that the file
//! contains. The time is therefore bounded by a few passes over the file.

use memchr::{memchr, memmem, memrchr};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::{decompose_canonical, is_combining_mark};

use super::flat::LfNormalizedText;
use super::numbered::unnumbered;
use toolgate_world::root::quoted_path;

/// The maximum size of a file that is searched for text similar to a missing text, in bytes.
const FILE_BYTES_MAX: usize = 2 << 20;
/// The maximum length of a text that the advice quotes, in bytes. For a longer text, the advice
/// says only what to change.
const ADVICE_BYTES_MAX: usize = 2 << 10;
/// The maximum length of a line that the advice quotes completely, in bytes.
const LINE_BYTES_MAX: usize = 200;
/// The minimum number of equal bytes at which a text counts as similar.
const COMMON_BYTES_MIN: usize = 8;

/// Explains why the text `old` is not in the file at `path`, and suggests a fix. `flat` is the
/// content of the file.
pub(super) fn explain_missing(flat: &LfNormalizedText<'_>, old: &[u8], path: &str) -> String {
    let path = quoted_path(path);
    let without = std::str::from_utf8(old).map(unnumbered).unwrap_or_default();
    let is_there = |text: &&String| memmem::find(&flat.text, text.as_bytes()).is_some();
    if let Some(without) = without.iter().find(is_there) {
        let advice = match without.len() <= ADVICE_BYTES_MAX {
            true => format!("use as old: {}", escape_json(without.as_bytes())),
            false => "remove them".to_owned(),
        };
        return format!(
            "the text to replace is not in {path}: the text contains line numbers, and the file \
             does not; {advice}"
        );
    }
    if flat.text.len() > FILE_BYTES_MAX {
        return format!(
            "the text to replace is not in {path}, and the file is too large to search for \
             similar text; read that part again and copy the text"
        );
    }
    let file = ComparableText::new(&flat.text);
    let text = ComparableText::new(old);
    if text.bytes.is_empty() {
        return format!(
            "the text to replace is only whitespace, and {path} does not contain it; use line \
             numbers"
        );
    }
    let start = longest_common(&text.bytes, |len| memmem::find(&file.bytes, &text.bytes[..len]));
    if start.len == text.bytes.len() {
        return describe_near_match(
            "whitespace, quotes or Unicode normalization",
            flat,
            old,
            &file,
            start,
            &path,
        );
    }
    if let Some(at) = memmem::find(&file.lowercase_bytes(), &text.lowercase_bytes()) {
        let all = CommonSubstring { len: text.bytes.len(), at };
        return describe_near_match("letter case", flat, old, &file, all, &path);
    }
    let tail = |len| memmem::find(&file.bytes, &text.bytes[text.bytes.len() - len..]);
    let end = longest_common(&text.bytes, tail);
    if start.len.max(end.len) < COMMON_BYTES_MIN.min(text.bytes.len().div_ceil(2)) {
        return format!(
            "the text to replace is not in {path}, and the file has no similar text; read the file \
             again"
        );
    }
    let begins_alike = start.len >= end.len;
    let (in_file, in_old) = if begins_alike {
        (file.origin(start.at + start.len), text.origin(start.len))
    } else {
        (file.origin_before(end.at), text.origin_before(text.bytes.len() - end.len))
    };
    let Some(in_file) = in_file else {
        return match begins_alike {
            true => format!(
                "the text to replace is not in {path}: the start of `old` matches the end of the \
                 file, but `old` has more text after it"
            ),
            false => format!(
                "the text to replace is not in {path}: the end of `old` matches the start of the \
                 file, but `old` has more text before it"
            ),
        };
    };
    let line = flat.line_of(in_file);
    let side = if begins_alike { "up to" } else { "after" };
    let in_old = in_old.unwrap_or(old.len());
    format!(
        "the text to replace is not in {path}; the most similar text is the same {side} line \
         {line}, where the file has {} and `old` has {}",
        quote_line_at(&flat.text, in_file),
        quote_line_at(old, in_old)
    )
}

/// Describes how the most similar text in the file differs from `old`, and suggests a fix. `what`
/// names the kind of difference, such as `letter case`.
fn describe_near_match(
    what: &str,
    flat: &LfNormalizedText<'_>,
    old: &[u8],
    file: &ComparableText,
    common: CommonSubstring,
    path: &str,
) -> String {
    let last = common.at + common.len - 1;
    let mut from = file.origin_starts[common.at];
    let mut to = file.origin_ends[last];
    if old.first().is_some_and(u8::is_ascii_whitespace) {
        let blank = |byte: &&u8| matches!(byte, b' ' | b'\t');
        from -= flat.text[..from].iter().rev().take_while(blank).count();
    }
    if old.last().is_some_and(u8::is_ascii_whitespace) {
        let blanks = flat.text[to..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let newline = old.ends_with(b"\n") && flat.text.get(to + blanks) == Some(&b'\n');
        to += blanks + usize::from(newline);
    }
    // A text that must start or end a line does not match inside a line.
    let breaks = |text: Option<&u8>| text.is_none_or(|byte| *byte == b'\n');
    let is_begun =
        !old.starts_with(b"\n") || breaks(from.checked_sub(1).and_then(|at| flat.text.get(at)));
    let is_ended =
        !old.ends_with(b"\n") || flat.text[..to].ends_with(b"\n") || breaks(flat.text.get(to));
    if !is_begun || !is_ended {
        let line = flat.line_of(from);
        let side = if is_begun { "continues" } else { "begins earlier" };
        return format!(
            "the text to replace is not in {path}; the most similar text is in line {line}, which \
             {side}: {}",
            quote_line_at(&flat.text, from)
        );
    }
    let found = &flat.text[from..to];
    let line = flat.line_of(from);
    let end = flat.line_of(to.saturating_sub(1).max(from));
    let pairs = found.split(|&byte| byte == b'\n').zip(old.split(|&byte| byte == b'\n'));
    let differing = pairs.enumerate().find(|(_, (found, old))| found != old);
    let how = differing.map_or_else(
        || "the line breaks differ".to_owned(),
        |(at, (found, old))| {
            let what = describe_difference(found, old);
            let line = line + at as u64;
            let same = found.iter().zip(old).take_while(|(found, old)| found == old).count();
            format!(
                "{what} at line {line}: the file has {}, old has {}",
                quote_line_at(found, same),
                quote_line_at(old, same)
            )
        },
    );
    let advice = match std::str::from_utf8(found) {
        Ok(_) if found.len() <= ADVICE_BYTES_MAX => format!("use as old: {}", escape_json(found)),
        Ok(_) | Err(_) => format!("use start_line: {line} and end_line: {end} instead"),
    };
    format!(
        "the text to replace is not in {path}; the text at line {line} differs only in {what}: \
         {how}; {advice}"
    )
}

/// Names the type of difference between `found` and `old` in a few words.
fn describe_difference(found: &[u8], old: &[u8]) -> &'static str {
    let indent = |line: &[u8]| line.len() - line.trim_ascii_start().len();
    let a = &found[..indent(found)];
    let b = &old[..indent(old)];
    let bare_a = found.trim_ascii();
    let bare_b = old.trim_ascii();
    if a != b && (a.contains(&b'\t') != b.contains(&b'\t')) {
        "one side is indented with tabs, the other with spaces,"
    } else if a != b {
        "the indentation differs"
    } else if bare_a == bare_b {
        "trailing whitespace differs"
    } else if bare_a.eq_ignore_ascii_case(bare_b) {
        "letter case differs"
    } else if differs_in_normalization(bare_a, bare_b) {
        "the Unicode normalization differs (NFC or NFD)"
    } else if without_blanks(bare_a).eq(without_blanks(bare_b)) {
        "whitespace differs"
    } else {
        "quotes, dashes or unusual whitespace differ"
    }
}

fn without_blanks(text: &[u8]) -> impl Iterator<Item = u8> {
    text.iter().copied().filter(|byte| !byte.is_ascii_whitespace())
}

/// Returns true if `found` and `old` differ only in their Unicode normalization.
fn differs_in_normalization(found: &[u8], old: &[u8]) -> bool {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let (Some(found), Some(old)) = (text(found), text(old)) else { return false };
    found.nfd().eq(old.nfd())
}

/// A substring that a missing text and the file have in common: its length, and its offset in the
/// file.
#[derive(Clone, Copy)]
struct CommonSubstring {
    len: usize,
    at: usize,
}

/// Returns the greatest length up to that of `text` for which `find` succeeds, and the offset that
/// `find` returns for it. If `find` succeeds for a length, it must succeed for every shorter
/// length.
fn longest_common(text: &[u8], find: impl Fn(usize) -> Option<usize>) -> CommonSubstring {
    let mut best = CommonSubstring { len: 0, at: 0 };
    let mut low = 1;
    let mut high = text.len();
    // Most often the whole text is found, or nothing.
    if let Some(at) = find(high) {
        return CommonSubstring { len: high, at };
    }
    while low <= high {
        let len = low.midpoint(high);
        match find(len) {
            Some(at) => {
                best = CommonSubstring { len, at };
                low = len + 1;
            }
            None => high = len - 1,
        }
    }
    best
}

/// A text for comparison: without whitespace, with plain quotes and dashes, and with decomposed
/// letters. Each byte has its offset in the original text.
struct ComparableText {
    bytes: Vec<u8>,
    origin_starts: Vec<usize>,
    origin_ends: Vec<usize>,
}

impl ComparableText {
    fn new(text: &[u8]) -> Self {
        let mut loose = Self {
            bytes: Vec::with_capacity(text.len()),
            origin_starts: Vec::new(),
            origin_ends: Vec::new(),
        };
        let mut at = 0;
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                let mut buffer = [0; 4];
                let to = at + c.len_utf8();
                if c.is_ascii() {
                    loose.push(comparable_form(c, &mut buffer), at, to);
                } else {
                    decompose_canonical(c, |c| loose.push(comparable_form(c, &mut buffer), at, to));
                }
                at += c.len_utf8();
            }
            for byte in chunk.invalid() {
                loose.push(&[*byte], at, at + 1);
                at += 1;
            }
        }
        loose
    }

    fn push(&mut self, bytes: &[u8], from: usize, to: usize) {
        for byte in bytes {
            self.bytes.push(*byte);
            self.origin_starts.push(from);
            self.origin_ends.push(to);
        }
    }

    /// Returns the bytes of the comparable text with ASCII letters in lower case.
    fn lowercase_bytes(&self) -> Vec<u8> {
        self.bytes.to_ascii_lowercase()
    }

    /// Returns the offset in the original text of the comparable text's byte at index `at`. Returns
    /// `None` if there is no such byte.
    fn origin(&self, at: usize) -> Option<usize> {
        self.origin_starts.get(at).copied()
    }

    /// Returns the offset in the original text of the comparable text's byte before index `at`.
    /// Returns `None` if there is no such byte.
    fn origin_before(&self, at: usize) -> Option<usize> {
        at.checked_sub(1).and_then(|at| self.origin(at))
    }
}

/// Returns the bytes that represent `c` in comparisons: for example, `"` for a typographic quote.
/// Returns no bytes for whitespace and invisible characters.
fn comparable_form(c: char, buffer: &mut [u8; 4]) -> &[u8] {
    match c {
        c if c.is_whitespace() => b"",
        '\u{200b}'..='\u{200d}' | '\u{feff}' | '\u{ad}' => b"",
        '\u{2018}'..='\u{201b}' | '\u{2032}' => b"'",
        '\u{201c}'..='\u{201f}' | '\u{2033}' => b"\"",
        '\u{2010}'..='\u{2015}' | '\u{2212}' => b"-",
        '\u{2026}' => b"...",
        c => c.encode_utf8(buffer).as_bytes(),
    }
}

/// Returns the line of `text` that contains the offset `at`, as an escaped string. Cuts a long line
/// to the text around `at`.
fn quote_line_at(text: &[u8], at: usize) -> String {
    let at = at.min(text.len());
    let from = memrchr(b'\n', &text[..at]).map_or(0, |newline| newline + 1);
    let to = memchr(b'\n', &text[at..]).map_or(text.len(), |newline| at + newline);
    if to - from <= LINE_BYTES_MAX {
        return escape_json(&text[from..to]);
    }
    let part = at.saturating_sub(LINE_BYTES_MAX / 2).max(from);
    let end = (part + LINE_BYTES_MAX).min(to);
    let lead = if part > from { "…" } else { "" };
    let tail = if end < to { "…" } else { "" };
    format!("{lead}{}{tail}", escape_json(&text[part..end]))
}

/// Returns `text` as a JSON string, with unusual whitespace and combining marks escaped.
fn escape_json(text: &[u8]) -> String {
    let mut escaped = String::from("\"");
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            ' ' => escaped.push(' '),
            c if c.is_whitespace()
                || c.is_control()
                || is_combining_mark(c)
                || comparable_form(c, &mut [0; 4]).is_empty() =>
            {
                escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => escaped.push(c),
        }
    }
    escaped.push('"');
    escaped
}
