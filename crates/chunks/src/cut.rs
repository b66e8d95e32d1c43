//! Cuts a text into chunks along its outline: large parts alone, small ones with their neighbours,
//! and long ones in pieces.

use std::ops::Range;

use crate::chunk::{Chunk, ChunkKind, HEAD_BYTES_MAX};
use crate::docs;
use crate::join::{Join, NAMES_MAX, Piece, add_doc, add_names, fewer, join};
use crate::lines::Lines;
use crate::outline::{NO_BORDER, Outline, Part, PartKind};

/// Most lines of a chunk that was cut.
pub(crate) const LINES_MAX: usize = 60;
/// Most bytes of a chunk that was cut, if it has more than one line.
pub(crate) const BYTES_MAX: usize = 8 << 10;
/// Fewest lines of a chunk that was cut, if possible.
const LINES_MIN: usize = 20;
/// Longest type, in lines, that is one chunk with its small methods.
const WHOLE_TYPE_LINES_MAX: usize = 20;

/// Cuts the text of `lines` into chunks. Lines outside of any part of `outline` have the kind
/// `loose`.
pub(crate) fn cut(lines: &Lines<'_>, outline: &Outline, loose: ChunkKind) -> Vec<Chunk> {
    let mut cutter = Cutter { lines, outline, loose, pieces: Vec::new() };
    cutter.all();
    fewer(lines, join(lines, cutter.pieces)).into_iter().map(|piece| chunk(lines, piece)).collect()
}

struct Cutter<'c, 't> {
    lines: &'c Lines<'t>,
    outline: &'c Outline,
    loose: ChunkKind,
    pieces: Vec<Piece>,
}

impl Cutter<'_, '_> {
    fn all(&mut self) {
        let mut next = 0;
        for &at in &self.outline.outermost {
            self.between(None, next, self.outline.parts[at].first, false);
            self.part(at);
            next = self.outline.parts[at].last + 1;
        }
        self.between(None, next, self.lines.len(), true);
    }

    /// Adds the pieces of the part at `at`.
    fn part(&mut self, at: usize) {
        let outline = self.outline;
        let part = &outline.parts[at];
        if part.inner.is_empty() || self.is_whole(at) {
            return self.whole(at);
        }
        let mut next = part.first;
        for &inner in &part.inner {
            let to = outline.parts[inner].first;
            if next == part.first {
                self.opening(at, to);
            } else {
                self.between(Some(at), next, to, false);
            }
            self.part(inner);
            next = outline.parts[inner].last + 1;
        }
        self.between(Some(at), next, part.last + 1, true);
    }

    /// Returns true if the part at `at` is so small that it is kept whole.
    fn is_whole(&self, at: usize) -> bool {
        let part = &self.outline.parts[at];
        let is_small = |&inner: &usize| {
            let inner = &self.outline.parts[inner];
            is_small(inner) && inner.inner.is_empty()
        };
        matches!(part.kind, PartKind::Type | PartKind::Value)
            && part.lines() <= WHOLE_TYPE_LINES_MAX
            && part.inner.iter().all(is_small)
    }

    fn whole(&mut self, at: usize) {
        let part = &self.outline.parts[at];
        let mut piece = self.piece(at);
        for inner in part.inner.iter().map(|&inner| &self.outline.parts[inner]) {
            add_names(&mut piece.names, &inner.names);
            add_doc(&mut piece, &inner.doc, &inner.doc_bytes);
        }
        piece.join = if is_small(part) { Join::Neighbours } else { Join::Alone };
        self.split(piece);
    }

    /// Adds the lines of the part at `at` before its first inner part, which begins at `to`.
    fn opening(&mut self, at: usize, to: usize) {
        let part = &self.outline.parts[at];
        let Some(last) = to.checked_sub(1).filter(|&last| last >= part.first) else { return };
        let Some((first, last)) = self.lines.trimmed(part.first, last) else { return };
        let mut piece = Piece { first, last, opens: Some(at), ..self.piece(at) };
        let is_short = last - first < 3 && part.doc.is_empty();
        piece.join = match part.kind {
            PartKind::Scope | PartKind::Section if is_short => {
                // The enclosing names of the next piece contain them.
                piece.names.clear();
                piece.head.clear();
                piece.group = Some(at);
                Join::Next
            }
            PartKind::Value | PartKind::Key if is_short => Join::Next,
            PartKind::Section if last - first < 3 => Join::Neighbours,
            PartKind::Function
            | PartKind::Type
            | PartKind::Scope
            | PartKind::Value
            | PartKind::Section
            | PartKind::Key => Join::Alone,
        };
        self.split(piece);
    }

    /// Adds the lines from `from` up to `to` that only `outer` contains.
    fn between(&mut self, outer: Option<usize>, from: usize, to: usize, is_end: bool) {
        let Some(last) = to.checked_sub(1).filter(|&last| last >= from) else { return };
        let Some((first, last)) = self.lines.trimmed(from, last) else { return };
        let mut piece = match outer {
            // The remaining lines of a long function belong to that function.
            Some(at) if self.outline.parts[at].kind == PartKind::Function => self.undocumented(at),
            Some(_) | None => Piece {
                first,
                last,
                kind: self.loose,
                names: Vec::new(),
                within: outer.map_or_else(Vec::new, |at| self.outline.inside(at)),
                head: String::new(),
                doc: String::new(),
                doc_bytes: Vec::new(),
                join: Join::Neighbours,
                group: outer,
                opens: None,
            },
        };
        (piece.first, piece.last) = (first, last);
        let says = |line| self.lines.line(line).chars().any(char::is_alphanumeric);
        let may_close = outer.is_some() || self.loose == ChunkKind::Code;
        let is_little = last - first < 2;
        let closes = may_close && !(first..=last).any(says);
        // The end of unfinished code is indented further than the next definition.
        let ends = !is_end && is_little && self.lines.indent(first) > self.lines.indent(to);
        // Front matter is not part of the first section.
        let is_front_matter = first == 0
            && matches!(self.loose, ChunkKind::Section | ChunkKind::Text)
            && self.lines.line(0).trim_end() == "---";
        piece.join = if is_front_matter {
            Join::Alone
        } else if closes || ends || (is_end && last == first) {
            Join::Previous
        } else if !is_end && is_little {
            Join::Next
        } else if piece.kind == ChunkKind::Function {
            Join::Alone
        } else {
            Join::Neighbours
        };
        self.split(piece);
    }

    fn piece(&self, at: usize) -> Piece {
        let part = &self.outline.parts[at];
        let doc = part.doc.clone();
        let doc_bytes = part.doc_bytes.clone();
        Piece { doc, doc_bytes, ..self.undocumented(at) }
    }

    fn undocumented(&self, at: usize) -> Piece {
        let part = &self.outline.parts[at];
        Piece {
            first: part.first,
            last: part.last,
            kind: match part.kind {
                PartKind::Function => ChunkKind::Function,
                PartKind::Type | PartKind::Scope => ChunkKind::Type,
                PartKind::Value => ChunkKind::Code,
                PartKind::Section => ChunkKind::Section,
                PartKind::Key => ChunkKind::Key,
            },
            names: part.names.clone(),
            within: self.outline.within(at),
            head: part.head.clone(),
            doc: String::new(),
            doc_bytes: Vec::new(),
            join: Join::Alone,
            group: part.outer,
            opens: None,
        }
    }

    /// Adds `piece`, split if it is too long.
    fn split(&mut self, piece: Piece) {
        let Some((first, last)) = self.lines.trimmed(piece.first, piece.last) else { return };
        let mut from = first;
        while from <= last {
            let to = self.end(from, last);
            let Some((first, last_said)) = self.lines.trimmed(from, to) else { break };
            if first == piece.first && last_said == piece.last && piece.is_doc_inside(self.lines) {
                self.pieces.push(piece);
                return;
            }
            let (doc, doc_bytes) = self.doc_of(&piece.doc_bytes, first, last_said);
            self.pieces.push(Piece {
                first,
                last: last_said,
                kind: piece.kind,
                names: piece.names.clone(),
                within: piece.within.clone(),
                head: piece.head.clone(),
                doc,
                doc_bytes,
                join: Join::Alone,
                group: piece.group,
                opens: None,
            });
            from = to + 1;
        }
    }

    /// Returns the part of the docs at `all` in the lines from `first` to `last`, and its position.
    fn doc_of(
        &self,
        all: &[Range<usize>],
        first: usize,
        last: usize,
    ) -> (String, Vec<Range<usize>>) {
        let bytes = self.lines.bytes(first, last);
        let from = all.partition_point(|doc| doc.end <= bytes.start);
        let mut said: Vec<String> = Vec::new();
        let mut here = Vec::new();
        for doc in all[from..].iter().take_while(|doc| doc.start < bytes.end) {
            let doc = doc.start.max(bytes.start)..doc.end.min(bytes.end);
            let text = docs::said(&self.lines.text[doc.clone()]);
            if !text.is_empty() {
                said.push(text);
                here.push(doc);
            }
        }
        (said.join("\n"), here)
    }

    /// Returns the last line of a chunk that starts at `from`, within the lines up to `last`.
    fn end(&self, from: usize, last: usize) -> usize {
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
        let best = (least..=most).min_by_key(|&line| (self.border(line), last - line));
        best.map_or(reach, |line| line.min(reach)) - 1
    }

    /// Returns the cost of starting a chunk at `line`; lower is better.
    fn border(&self, line: usize) -> (u8, bool, usize) {
        let is_close = line > 0 && !self.lines.is_blank(line - 1);
        if self.lines.is_blank(line) {
            return (NO_BORDER, true, usize::MAX);
        }
        match self.outline.borders.get(line) {
            Some(&depth) => (depth, is_close, 0),
            None => (u8::from(is_close), is_close, self.lines.indent(line)),
        }
    }
}

/// Returns true if `part` is too small for a chunk of its own.
fn is_small(part: &Part) -> bool {
    let code = part.last + 1 - part.start;
    let all = part.lines();
    match part.kind {
        PartKind::Function | PartKind::Type | PartKind::Scope => code < 4 && all < 6,
        PartKind::Value => all < 6,
        PartKind::Section | PartKind::Key => all < 4,
    }
}

fn chunk(lines: &Lines<'_>, mut piece: Piece) -> Chunk {
    piece.names.truncate(NAMES_MAX);
    piece.head.truncate(piece.head.floor_char_boundary(HEAD_BYTES_MAX));
    let number = |line: usize| u32::try_from(line + 1).unwrap_or(u32::MAX);
    Chunk {
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
