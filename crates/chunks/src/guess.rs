//! Guesses the outline of code line by line, for languages without a usable grammar.

use std::ops::Range;

use crate::chunk::HEAD_BYTES_MAX;
use crate::definitions::guess_definition;
pub(crate) use crate::definitions::is_leading_line;
use crate::docs;
use crate::lines::LineIndexedText;
use crate::outline::{OutlinePart, OutlinePartKind, PARTS_MAX, TextOutline};

/// Longest line of code that is searched for a definition, in bytes.
const LINE_BYTES_MAX: usize = 2 << 10;

/// Guesses the outline of the code in `lines` line by line, without a grammar.
pub(crate) fn outline(lines: &LineIndexedText<'_>) -> TextOutline {
    TextOutline::new(guess_parts(lines, 0..lines.len()), Vec::new())
}

/// Guesses the definitions in the lines of `range`. Code that is indented further than a definition
/// is inside it.
pub(crate) fn guess_parts(lines: &LineIndexedText<'_>, range: Range<usize>) -> Vec<OutlinePart> {
    let mut parts: Vec<OutlinePart> = Vec::new();
    // Parts that have not ended yet, each with its indentation.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut free = range.start;
    for at in range {
        let line = lines.line(at);
        if line.trim().is_empty() {
            continue;
        }
        let indent = lines.indent(at);
        let begins = |marks: &[&str]| marks.iter().any(|mark| line.trim_start().starts_with(mark));
        if begins(&["}", ")", "]", "end", "{", "esac", "fi", "done"]) {
            let ends = !begins(&["{"]);
            let least = if ends { indent } else { indent + 1 };
            while open.last().is_some_and(|&(_, its)| its >= least) {
                let Some((part, its)) = open.pop() else { break };
                if its == indent {
                    parts[part].last = at;
                }
            }
            extend_open(&mut parts, &open, at);
            free = at + 1;
            continue;
        }
        while open.last().is_some_and(|&(_, its)| its >= indent) {
            open.pop();
        }
        extend_open(&mut parts, &open, at);
        let looks = line.len() <= LINE_BYTES_MAX && parts.len() < PARTS_MAX;
        let found = Some(line).filter(|_| looks).and_then(guess_definition);
        let Some(found) = found else { continue };
        let first =
            (free..at).rev().take_while(|&above| is_leading_line(lines.line(above).trim())).last();
        let mut part = OutlinePart::new(found.kind, first.unwrap_or(at), at, found.names);
        if part.kind == OutlinePartKind::Scope {
            part.scope = part.names.clone();
        }
        part.outer_names.extend(found.outer_name);
        part.start = at;
        part.head = head(line);
        collect_doc(lines, &mut part);
        open.push((parts.len(), indent));
        parts.push(part);
        free = at + 1;
    }
    parts
}

/// Returns true if `line` begins a function, a type or a container of them.
pub(crate) fn begins_definition(line: &str) -> bool {
    let found = Some(line).filter(|line| line.len() <= LINE_BYTES_MAX).and_then(guess_definition);
    found.is_some_and(|found| match found.kind {
        OutlinePartKind::Function | OutlinePartKind::Type | OutlinePartKind::Scope => true,
        OutlinePartKind::Value | OutlinePartKind::Section | OutlinePartKind::Key => false,
    })
}

/// Extends the definitions in `parts` that enclose line `at` to that line. `open` lists these
/// definitions.
fn extend_open(parts: &mut [OutlinePart], open: &[(usize, usize)], at: usize) {
    // Outer parts end no earlier than inner ones, so extending the innermost suffices.
    for &(part, _) in open.iter().rev().take(DEPTH_MAX) {
        parts[part].last = at;
    }
}

/// Maximum number of nested definitions that are extended to a line.
const DEPTH_MAX: usize = 16;

fn head(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let head = words.join(" ");
    let head = head.trim_end_matches([' ', '{', ';', ',', ':']);
    head[..head.floor_char_boundary(HEAD_BYTES_MAX)].to_owned()
}

/// Collects the comments above the definition of `part` as its documentation.
fn collect_doc(lines: &LineIndexedText<'_>, part: &mut OutlinePart) {
    let mut docs = Vec::new();
    for line in part.first..part.start {
        let text = lines.line(line).trim();
        let is_comment = ["//", "/*", "*", "--", "# "].iter().any(|mark| text.starts_with(mark));
        if is_comment {
            // Each line of a block comment is treated as a comment of its own here.
            let bare = text.trim_start_matches(['/', '*', '#', '-', '!']).trim_end_matches("*/");
            docs.push(docs::comment_text(bare));
            part.doc_bytes.push(lines.bytes(line, line));
        }
    }
    part.doc = docs.join("\n").trim().to_owned();
    if part.doc.is_empty() {
        part.doc_bytes.clear();
    }
}
