//! An outline made into chunks: what is large alone, what is small with its neighbours, what is too
//! long in parts.

use std::ops::Range;

use crate::chunk::{Chunk, ChunkKind, HEAD_BYTES_MAX};
use crate::docs;
use crate::lines::Lines;
use crate::outline::{NO_BORDER, Outline, Part, PartKind};

/// A part of a text that is cut has no more lines,
const LINES_MAX: usize = 60;
/// nor more bytes, if it has more than one line,
const BYTES_MAX: usize = 8 << 10;
/// and no fewer lines if it can be helped.
const LINES_MIN: usize = 20;
/// What is joined to a chunk because it is too little to stand alone makes it no longer than this.
const JOINED_LINES_MAX: usize = LINES_MAX + 6;
/// Small neighbours of one kind share a chunk of so many lines.
const ALIKE_LINES_MAX: usize = 24;
/// Those of several kinds share a smaller one.
const MIXED_LINES_MAX: usize = 12;
/// What defines nothing is cut less often.
const LOOSE_LINES_MAX: usize = 40;
/// A type that is no longer than this is one chunk with its small methods.
const WHOLE_TYPE_LINES_MAX: usize = 20;
/// A chunk tells no more names.
const NAMES_MAX: usize = 8;

/// What becomes a chunk, alone or with others.
#[derive(Debug, Clone)]
struct Piece {
    first: usize,
    last: usize,
    kind: ChunkKind,
    names: Vec<String>,
    within: Vec<String>,
    head: String,
    doc: String,
    doc_bytes: Vec<Range<usize>>,
    join: Join,
    /// What it stands in: only what stands in the same is merged.
    group: Option<usize>,
    /// Of what it is the beginning: constants and fields that come next are merged with it.
    opens: Option<usize>,
}

impl Piece {
    fn is_doc_inside(&self, lines: &Lines<'_>) -> bool {
        let bytes = lines.bytes(self.first, self.last);
        let (first, last) = (self.doc_bytes.first(), self.doc_bytes.last());
        first.is_none_or(|doc| bytes.start <= doc.start)
            && last.is_none_or(|doc| doc.end <= bytes.end)
    }
}

/// With what a piece shares its chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    /// With nothing.
    Alone,
    /// With pieces as small as it.
    Neighbours,
    /// With what comes after it, which it opens or speaks of.
    Next,
    /// With what comes before it, which it closes.
    Previous,
}

/// The chunks of the text of `lines`. What no part of `outline` holds is `loose`.
pub(crate) fn cut(lines: &Lines<'_>, outline: &Outline, loose: ChunkKind) -> Vec<Chunk> {
    let mut cutter = Cutter { lines, outline, loose, pieces: Vec::new() };
    cutter.all();
    join(lines, cutter.pieces).into_iter().map(|piece| chunk(lines, piece)).collect()
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

    /// The pieces of the part at `at`.
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

    /// Whether the part at `at` is so small that what stands in it stays in it.
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

    /// What stands in the part at `at` before the first that stands in it, which begins at `to`.
    fn opening(&mut self, at: usize, to: usize) {
        let part = &self.outline.parts[at];
        let Some(last) = to.checked_sub(1).filter(|&last| last >= part.first) else { return };
        let Some((first, last)) = self.lines.trimmed(part.first, last) else { return };
        let mut piece = Piece { first, last, opens: Some(at), ..self.piece(at) };
        let is_short = last - first < 3 && part.doc.is_empty();
        piece.join = match part.kind {
            PartKind::Scope | PartKind::Section if is_short => {
                // They are told by what the next stands in.
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

    /// What stands in `outer` from line `from` to before `to`, and in nothing else.
    fn between(&mut self, outer: Option<usize>, from: usize, to: usize, is_end: bool) {
        let Some(last) = to.checked_sub(1).filter(|&last| last >= from) else { return };
        let Some((first, last)) = self.lines.trimmed(from, last) else { return };
        let mut piece = match outer {
            // The rest of a long function is still that function.
            Some(at) if self.outline.parts[at].kind == PartKind::Function => {
                Piece { doc: String::new(), doc_bytes: Vec::new(), ..self.piece(at) }
            }
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
        // The end of something half typed is set in farther than what comes next.
        let ends = !is_end && is_little && self.lines.indent(first) > self.lines.indent(to);
        // Settings before a document are no part of its first section.
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
            doc: part.doc.clone(),
            doc_bytes: part.doc_bytes.clone(),
            join: Join::Alone,
            group: part.outer,
            opens: None,
        }
    }

    /// Keeps `piece`, in parts if it is too long.
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

    /// What of the docs at `all` is said in the lines from `first` to `last`, and where.
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

    /// The last line of a chunk from `from` on, of lines that go to `last`.
    fn end(&self, from: usize, last: usize) -> usize {
        let begins = self.lines.start(from);
        let fits =
            |line: usize| line - from < LINES_MAX && self.lines.end(line) - begins <= BYTES_MAX;
        if from == last || fits(last) {
            return last;
        }
        let reach = (from + 1..=last).find(|&line| !fits(line)).unwrap_or(last);
        // A line may begin the next chunk from a third of this on, and leaves it some lines.
        let least = from + LINES_MIN.min((reach - from) / 3).max(1);
        let most = reach.min(last.saturating_sub(4)).max(least);
        let best = (least..=most).min_by_key(|&line| (self.border(line), last - line));
        best.map_or(reach, |line| line.min(reach)) - 1
    }

    /// How bad it would be to begin a chunk with `line`.
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

/// Whether `part` is too little for a chunk of its own.
fn is_small(part: &Part) -> bool {
    let (code, all) = (part.last + 1 - part.start, part.lines());
    match part.kind {
        PartKind::Function | PartKind::Type | PartKind::Scope => code < 4 && all < 6,
        PartKind::Value => all < 6,
        PartKind::Section | PartKind::Key => all < 4,
    }
}

/// `pieces` with those joined that are too little to stand alone.
fn join(lines: &Lines<'_>, pieces: Vec<Piece>) -> Vec<Piece> {
    let fits = |first: usize, last: usize, most: usize| {
        last - first < most && lines.end(last) - lines.start(first) <= BYTES_MAX
    };
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    let mut opening: Option<Piece> = None;
    for mut piece in pieces {
        if let Some(before) = opening.take() {
            if fits(before.first, piece.last, JOINED_LINES_MAX) {
                piece = open(before, piece);
            } else {
                joined.push(before);
            }
        }
        match (piece.join, joined.last_mut()) {
            // What follows the head of a file belongs to it: its imports.
            (Join::Next, Some(last))
                if last.names.is_empty()
                    && is_neighbour(last, &piece)
                    && fits(last.first, piece.last, MIXED_LINES_MAX) =>
            {
                merge(last, piece);
            }
            (Join::Next, _) => opening = Some(piece),
            (Join::Previous, Some(last)) if fits(last.first, piece.last, JOINED_LINES_MAX) => {
                last.last = piece.last;
            }
            (Join::Neighbours, Some(last)) if is_neighbour(last, &piece) => {
                let most = lines_max(last, &piece);
                if fits(last.first, piece.last, most) {
                    merge(last, piece);
                } else {
                    joined.push(piece);
                }
            }
            (Join::Alone | Join::Neighbours | Join::Previous, _) => joined.push(piece),
        }
    }
    match (opening, joined.last_mut()) {
        (Some(piece), Some(last)) if fits(last.first, piece.last, JOINED_LINES_MAX) => {
            add_names(&mut last.names, &piece.names);
            last.last = piece.last;
        }
        (Some(piece), _) => joined.push(piece),
        (None, _) => {}
    }
    joined
}

fn is_neighbour(last: &Piece, piece: &Piece) -> bool {
    let are_beside = last.join == Join::Neighbours && last.group == piece.group;
    let is_of_type = last.opens.is_some() && last.opens == piece.group;
    (are_beside || is_of_type && piece.kind == ChunkKind::Code)
        && last.names.len() + piece.names.len() <= NAMES_MAX
}

/// How many lines `last` and `piece` may have together.
fn lines_max(last: &Piece, piece: &Piece) -> usize {
    if last.opens.is_some() {
        ALIKE_LINES_MAX
    } else if last.names.is_empty() && piece.names.is_empty() {
        LOOSE_LINES_MAX
    } else if last.kind == piece.kind && last.names.is_empty() == piece.names.is_empty() {
        ALIKE_LINES_MAX
    } else {
        MIXED_LINES_MAX
    }
}

/// `piece` with `before`, which only opens it or speaks of it.
fn open(before: Piece, mut piece: Piece) -> Piece {
    if piece.names.is_empty() && !before.names.is_empty() {
        (piece.kind, piece.head) = (before.kind, before.head);
    }
    add_names(&mut piece.names, &before.names);
    piece.first = before.first;
    let (doc, doc_bytes) = (std::mem::take(&mut piece.doc), std::mem::take(&mut piece.doc_bytes));
    (piece.doc, piece.doc_bytes) = (before.doc, before.doc_bytes);
    add_doc(&mut piece, &doc, &doc_bytes);
    if piece.join == Join::Previous {
        piece.join = before.join;
    }
    piece
}

/// Adds the lines of `piece` to `last`: the first function or type of them is what they are.
fn merge(last: &mut Piece, piece: Piece) {
    let defines = |kind| matches!(kind, ChunkKind::Function | ChunkKind::Type);
    let is_main = defines(piece.kind) && !defines(last.kind)
        || last.names.is_empty() && !piece.names.is_empty();
    if is_main {
        let others = std::mem::replace(&mut last.names, piece.names);
        add_names(&mut last.names, &others);
        (last.kind, last.head) = (piece.kind, piece.head);
    } else {
        add_names(&mut last.names, &piece.names);
    }
    last.last = piece.last;
    add_doc(last, &piece.doc, &piece.doc_bytes);
}

fn add_names(names: &mut Vec<String>, more: &[String]) {
    for name in more {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
}

fn add_doc(piece: &mut Piece, doc: &str, doc_bytes: &[Range<usize>]) {
    if !doc.is_empty() {
        if !piece.doc.is_empty() {
            piece.doc.push('\n');
        }
        piece.doc.push_str(doc);
        piece.doc_bytes.extend_from_slice(doc_bytes);
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
