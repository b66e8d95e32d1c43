//! Cuts a text into chunks along its outline. Each large definition or section becomes one chunk.
//! Small definitions are joined with their neighbours, and very long ones are split.

use std::ops::Range;

use crate::chunk::{BYTES_MAX, ChunkKind, HEAD_BYTES_MAX, LINES_MAX, TextChunk};
use crate::docs;
use crate::join::{
    ChunkLineRange, ChunkMergeRule, NAMES_MAX, add_doc, add_names, join_small, limit_pieces,
};
use crate::lines::LineIndexedText;
use crate::outline::{NO_DEPTH, OutlinePart, OutlinePartKind, TextOutline};

/// Minimum number of lines of a chunk that was cut from a longer definition or section, if
/// possible.
const LINES_MIN: usize = 20;
/// Longest type that is one chunk together with its small methods, in lines.
const WHOLE_TYPE_LINES_MAX: usize = 20;

/// Cuts the text of `lines` into chunks. Lines outside of all parts of `outline` become chunks of
/// the kind `loose`.
pub(crate) fn cut_chunks(
    lines: &LineIndexedText<'_>,
    outline: &TextOutline,
    loose: ChunkKind,
) -> Vec<TextChunk> {
    let mut cutter = TextChunker { lines, outline, loose_kind: loose, pieces: Vec::new() };
    cutter.cut_all();
    limit_pieces(lines, join_small(lines, cutter.pieces))
        .into_iter()
        .map(|piece| to_chunk(lines, piece))
        .collect()
}

/// Builder of a text's chunks, which cuts the text along its outline.
struct TextChunker<'c, 't> {
    lines: &'c LineIndexedText<'t>,
    outline: &'c TextOutline,
    loose_kind: ChunkKind,
    pieces: Vec<ChunkLineRange>,
}

impl TextChunker<'_, '_> {
    fn cut_all(&mut self) {
        let mut next = 0;
        for &at in &self.outline.top_level {
            self.add_between(None, next, self.outline.parts[at].first, false);
            self.add_part(at);
            next = self.outline.parts[at].last + 1;
        }
        self.add_between(None, next, self.lines.len(), true);
    }

    /// Adds the pieces into which the outline's part (a definition or a section) at the index `at`
    /// is cut.
    fn add_part(&mut self, at: usize) {
        let outline = self.outline;
        let part = &outline.parts[at];
        if part.inner.is_empty() || self.is_kept_whole(at) {
            return self.add_whole(at);
        }
        let mut next = part.first;
        for &inner in &part.inner {
            let to = outline.parts[inner].first;
            if next == part.first {
                self.add_opening(at, to);
            } else {
                self.add_between(Some(at), next, to, false);
            }
            self.add_part(inner);
            next = outline.parts[inner].last + 1;
        }
        self.add_between(Some(at), next, part.last + 1, true);
    }

    /// Returns true if the outline's part (a definition or a section) at the index `at` is so small
    /// that it becomes one chunk.
    fn is_kept_whole(&self, at: usize) -> bool {
        let part = &self.outline.parts[at];
        let is_small = |&inner: &usize| {
            let inner = &self.outline.parts[inner];
            is_small(inner) && inner.inner.is_empty()
        };
        matches!(part.kind, OutlinePartKind::Type | OutlinePartKind::Value)
            && part.line_count() <= WHOLE_TYPE_LINES_MAX
            && part.inner.iter().all(is_small)
    }

    fn add_whole(&mut self, at: usize) {
        let part = &self.outline.parts[at];
        let mut piece = self.new_piece(at);
        for inner in part.inner.iter().map(|&inner| &self.outline.parts[inner]) {
            add_names(&mut piece.names, &inner.names);
            add_doc(&mut piece, &inner.doc, &inner.doc_bytes);
        }
        piece.join_rule =
            if is_small(part) { ChunkMergeRule::Neighbours } else { ChunkMergeRule::Alone };
        self.push_split(piece);
    }

    /// Adds the lines of the outline's part (a definition or a section) at the index `at` before
    /// its first inner part, which begins at line `to`.
    fn add_opening(&mut self, at: usize, to: usize) {
        let part = &self.outline.parts[at];
        let Some(last) = to.checked_sub(1).filter(|&last| last >= part.first) else { return };
        let Some((first, last)) = self.lines.trim_blank(part.first, last) else { return };
        let mut piece = ChunkLineRange { first, last, opened_part: Some(at), ..self.new_piece(at) };
        let is_short = last - first < 3 && part.doc.is_empty();
        piece.join_rule = match part.kind {
            OutlinePartKind::Scope | OutlinePartKind::Section if is_short => {
                // The enclosing names of the next piece contain them.
                piece.names.clear();
                piece.head.clear();
                piece.container = Some(at);
                ChunkMergeRule::Next
            }
            OutlinePartKind::Value | OutlinePartKind::Key if is_short => ChunkMergeRule::Next,
            OutlinePartKind::Section if last - first < 3 => ChunkMergeRule::Neighbours,
            OutlinePartKind::Function
            | OutlinePartKind::Type
            | OutlinePartKind::Scope
            | OutlinePartKind::Value
            | OutlinePartKind::Section
            | OutlinePartKind::Key => ChunkMergeRule::Alone,
        };
        self.push_split(piece);
    }

    /// Adds the lines from `from` up to `to`, which belong to the outline's part `outer` (a
    /// definition or a section) but to no part inside it. `is_end` is true after the last inner
    /// part.
    fn add_between(&mut self, outer: Option<usize>, from: usize, to: usize, is_end: bool) {
        let Some(last) = to.checked_sub(1).filter(|&last| last >= from) else { return };
        let Some((first, last)) = self.lines.trim_blank(from, last) else { return };
        let mut piece = match outer {
            // The remaining lines of a long function belong to that function.
            Some(at) if self.outline.parts[at].kind == OutlinePartKind::Function => {
                self.new_piece_without_doc(at)
            }
            Some(_) | None => ChunkLineRange {
                first,
                last,
                kind: self.loose_kind,
                names: Vec::new(),
                within: outer.map_or_else(Vec::new, |at| self.outline.names_inside(at)),
                head: String::new(),
                doc: String::new(),
                doc_bytes: Vec::new(),
                join_rule: ChunkMergeRule::Neighbours,
                container: outer,
                opened_part: None,
            },
        };
        (piece.first, piece.last) = (first, last);
        let has_text = |line| self.lines.line(line).chars().any(char::is_alphanumeric);
        let may_close = outer.is_some() || self.loose_kind == ChunkKind::Code;
        let is_little = last - first < 2;
        let closes = may_close && !(first..=last).any(has_text);
        // The end of unfinished code is indented further than the next definition.
        let ends = !is_end && is_little && self.lines.indent(first) > self.lines.indent(to);
        // Front matter is not part of the first section.
        let is_front_matter = first == 0
            && matches!(self.loose_kind, ChunkKind::Section | ChunkKind::Text)
            && self.lines.line(0).trim_end() == "---";
        piece.join_rule = if is_front_matter {
            ChunkMergeRule::Alone
        } else if closes || ends || (is_end && last == first) {
            ChunkMergeRule::Previous
        } else if !is_end && is_little {
            ChunkMergeRule::Next
        } else if piece.kind == ChunkKind::Function {
            ChunkMergeRule::Alone
        } else {
            ChunkMergeRule::Neighbours
        };
        self.push_split(piece);
    }

    fn new_piece(&self, at: usize) -> ChunkLineRange {
        let part = &self.outline.parts[at];
        let doc = part.doc.clone();
        let doc_bytes = part.doc_bytes.clone();
        ChunkLineRange { doc, doc_bytes, ..self.new_piece_without_doc(at) }
    }

    fn new_piece_without_doc(&self, at: usize) -> ChunkLineRange {
        let part = &self.outline.parts[at];
        ChunkLineRange {
            first: part.first,
            last: part.last,
            kind: match part.kind {
                OutlinePartKind::Function => ChunkKind::Function,
                OutlinePartKind::Type | OutlinePartKind::Scope => ChunkKind::Type,
                OutlinePartKind::Value => ChunkKind::Code,
                OutlinePartKind::Section => ChunkKind::Section,
                OutlinePartKind::Key => ChunkKind::Key,
            },
            names: part.names.clone(),
            within: self.outline.enclosing_names(at),
            head: part.head.clone(),
            doc: String::new(),
            doc_bytes: Vec::new(),
            join_rule: ChunkMergeRule::Alone,
            container: part.outer,
            opened_part: None,
        }
    }

    /// Adds `piece` to the chunks, split if it is too long.
    fn push_split(&mut self, piece: ChunkLineRange) {
        let Some((first, last)) = self.lines.trim_blank(piece.first, piece.last) else { return };
        let mut from = first;
        while from <= last {
            let to = self.chunk_end(from, last);
            let Some((first, last_said)) = self.lines.trim_blank(from, to) else { break };
            if first == piece.first && last_said == piece.last && piece.is_doc_inside(self.lines) {
                self.pieces.push(piece);
                return;
            }
            let (doc, doc_bytes) = self.doc_in_lines(&piece.doc_bytes, first, last_said);
            self.pieces.push(ChunkLineRange {
                first,
                last: last_said,
                kind: piece.kind,
                names: piece.names.clone(),
                within: piece.within.clone(),
                head: piece.head.clone(),
                doc,
                doc_bytes,
                join_rule: ChunkMergeRule::Alone,
                container: piece.container,
                opened_part: None,
            });
            from = to + 1;
        }
    }

    /// Returns the text and the positions of a doc comment between the lines `first` and `last`.
    /// `all` contains the positions of the complete comment.
    fn doc_in_lines(
        &self,
        all: &[Range<usize>],
        first: usize,
        last: usize,
    ) -> (String, Vec<Range<usize>>) {
        let bytes = self.lines.bytes(first, last);
        let from = all.partition_point(|doc| doc.end <= bytes.start);
        let mut docs: Vec<String> = Vec::new();
        let mut here = Vec::new();
        for doc in all[from..].iter().take_while(|doc| doc.start < bytes.end) {
            let doc = doc.start.max(bytes.start)..doc.end.min(bytes.end);
            let text = docs::piece_text(&self.lines.text[doc.clone()]);
            if !text.is_empty() {
                docs.push(text);
                here.push(doc);
            }
        }
        (docs.join("\n"), here)
    }

    /// Returns the last line of a chunk that starts at `from`, within the lines up to `last`.
    fn chunk_end(&self, from: usize, last: usize) -> usize {
        let begins = self.lines.start(from);
        let fits =
            |line: usize| line - from < LINES_MAX && self.lines.end(line) - begins <= BYTES_MAX;
        if from == last || fits(last) {
            return last;
        }
        let reach = (from + 1..=last).find(|&line| !fits(line)).unwrap_or(last);
        // The next chunk may start after a third of this one, and both must keep some lines.
        let least = from + LINES_MIN.min((reach - from) / 3).max(1);
        let most = reach.min(last.saturating_sub(4)).max(least);
        let best = (least..=most).min_by_key(|&line| (self.split_cost(line), last - line));
        best.map_or(reach, |line| line.min(reach)) - 1
    }

    /// Returns the cost of splitting a long text at `line`. A lower cost is better.
    fn split_cost(&self, line: usize) -> (u8, bool, usize) {
        let is_close = line > 0 && !self.lines.is_blank(line - 1);
        if self.lines.is_blank(line) {
            return (NO_DEPTH, true, usize::MAX);
        }
        match self.outline.line_depths.get(line) {
            Some(&depth) => (depth, is_close, 0),
            None => (u8::from(is_close), is_close, self.lines.indent(line)),
        }
    }
}

/// Returns true if the definition `part` is too small for a separate chunk.
fn is_small(part: &OutlinePart) -> bool {
    let code = part.last + 1 - part.start;
    let all = part.line_count();
    match part.kind {
        OutlinePartKind::Function | OutlinePartKind::Type | OutlinePartKind::Scope => {
            code < 4 && all < 6
        }
        OutlinePartKind::Value => all < 6,
        OutlinePartKind::Section | OutlinePartKind::Key => all < 4,
    }
}

fn to_chunk(lines: &LineIndexedText<'_>, mut piece: ChunkLineRange) -> TextChunk {
    piece.names.truncate(NAMES_MAX);
    piece.head.truncate(piece.head.floor_char_boundary(HEAD_BYTES_MAX));
    let number = |line: usize| u32::try_from(line + 1).unwrap_or(u32::MAX);
    TextChunk {
        first: number(piece.first),
        last: number(piece.last),
        bytes: lines.bytes(piece.first, piece.last),
        kind: piece.kind,
        names: piece.names,
        within: piece.within,
        head: piece.head,
        doc: piece.doc,
        doc_bytes: piece.doc_bytes,
    }
}
