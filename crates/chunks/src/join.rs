//! Joins pieces that are too small for a separate chunk with their neighbours.

use std::ops::Range;

use crate::chunk::{BYTES_MAX, ChunkKind, LINES_MAX};
use crate::lines::LineIndexedText;

/// Maximum number of lines of a chunk after a small piece of text was joined to it.
const JOINED_LINES_MAX: usize = LINES_MAX + 6;
/// Maximum number of lines of a chunk that consists of small neighbouring pieces of the same kind.
const ALIKE_LINES_MAX: usize = 24;
/// Maximum number of lines of a chunk that consists of small neighbouring pieces of different
/// kinds.
const MIXED_LINES_MAX: usize = 12;
/// Maximum number of lines of a chunk that defines nothing.
const LOOSE_LINES_MAX: usize = 40;
/// Maximum number of names that a chunk has.
pub(crate) const NAMES_MAX: usize = 8;
/// Maximum number of chunks into which a text is split.
const PIECES_MAX: usize = 4000;

/// A range of lines in a text that becomes a chunk, alone or joined with others.
#[derive(Debug, Clone)]
pub(crate) struct ChunkLineRange {
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) kind: ChunkKind,
    pub(crate) names: Vec<String>,
    pub(crate) within: Vec<String>,
    pub(crate) head: String,
    pub(crate) doc: String,
    pub(crate) doc_bytes: Vec<Range<usize>>,
    pub(crate) join_rule: ChunkMergeRule,
    /// Index of the outline's part (a definition or a section) that contains the piece. Only pieces
    /// with the same container are merged.
    pub(crate) container: Option<usize>,
    /// Index of the outline's part (a definition or a section) whose first lines are this piece.
    /// Constants and fields that follow are merged with the piece.
    pub(crate) opened_part: Option<usize>,
}

impl ChunkLineRange {
    pub(crate) fn is_doc_inside(&self, lines: &LineIndexedText<'_>) -> bool {
        let bytes = lines.bytes(self.first, self.last);
        let first = self.doc_bytes.first();
        let last = self.doc_bytes.last();
        first.is_none_or(|doc| bytes.start <= doc.start)
            && last.is_none_or(|doc| doc.end <= bytes.end)
    }
}

/// Rule that decides with which neighbours a piece of text is joined to a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkMergeRule {
    /// The piece of text is never joined with its neighbours.
    Alone,
    /// The piece of text is joined with other small pieces.
    Neighbours,
    /// The piece of text introduces the next piece and is joined with it.
    Next,
    /// The piece of text closes the previous piece and is joined with it.
    Previous,
}

/// Joins small pieces of text with their neighbours.
pub(crate) fn join_small(
    lines: &LineIndexedText<'_>,
    pieces: Vec<ChunkLineRange>,
) -> Vec<ChunkLineRange> {
    let fits = |first: usize, last: usize, most: usize| {
        last - first < most && lines.end(last) - lines.start(first) <= BYTES_MAX
    };
    let mut joined: Vec<ChunkLineRange> = Vec::with_capacity(pieces.len());
    let mut opening: Option<ChunkLineRange> = None;
    for mut piece in pieces {
        if let Some(before) = opening.take() {
            if fits(before.first, piece.last, JOINED_LINES_MAX) {
                piece = prepend_piece(before, piece);
            } else {
                joined.push(before);
            }
        }
        match (piece.join_rule, joined.last_mut()) {
            // Imports belong to the head of the file above them.
            (ChunkMergeRule::Next, Some(last))
                if last.names.is_empty()
                    && can_merge(last, &piece)
                    && fits(last.first, piece.last, MIXED_LINES_MAX) =>
            {
                append_piece(last, piece);
            }
            (ChunkMergeRule::Next, _) => opening = Some(piece),
            (ChunkMergeRule::Previous, Some(last))
                if fits(last.first, piece.last, JOINED_LINES_MAX) =>
            {
                last.last = piece.last;
            }
            (ChunkMergeRule::Neighbours, Some(last)) if can_merge(last, &piece) => {
                let most = merged_lines_max(last, &piece);
                if fits(last.first, piece.last, most) {
                    append_piece(last, piece);
                } else {
                    joined.push(piece);
                }
            }
            (ChunkMergeRule::Alone | ChunkMergeRule::Neighbours | ChunkMergeRule::Previous, _) => {
                joined.push(piece);
            }
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

/// Returns the `pieces` of a text, merged with their neighbours if there are more than
/// [`PIECES_MAX`].
pub(crate) fn limit_pieces(
    lines: &LineIndexedText<'_>,
    pieces: Vec<ChunkLineRange>,
) -> Vec<ChunkLineRange> {
    let mut pieces = pieces;
    let mut together = pieces.len().div_ceil(PIECES_MAX);
    while pieces.len() > PIECES_MAX {
        pieces = merge_groups(together, lines, pieces);
        together = 2;
    }
    pieces
}

/// Merges up to `together` neighbouring pieces at a time. A merged piece may have as many lines and
/// bytes as a long chunk, or more in a very long text.
fn merge_groups(
    together: usize,
    lines: &LineIndexedText<'_>,
    pieces: Vec<ChunkLineRange>,
) -> Vec<ChunkLineRange> {
    // If every chunk had this size, the text would have half of the chunks allowed.
    let most = |of: usize, least: usize| least.max((of * 4).div_ceil(PIECES_MAX));
    let lines_max = most(lines.len(), LINES_MAX);
    let bytes_max = most(lines.text.len(), BYTES_MAX);
    let mut joined: Vec<ChunkLineRange> = Vec::with_capacity(pieces.len().div_ceil(together));
    let mut of_last = 0;
    for piece in pieces {
        let fits = |last: &&mut ChunkLineRange| {
            of_last < together
                && piece.last - last.first < lines_max
                && lines.end(piece.last) - lines.start(last.first) <= bytes_max
        };
        match joined.last_mut().filter(fits) {
            Some(last) => {
                let shared = last.within.iter().zip(&piece.within).take_while(|(a, b)| a == b);
                last.within.truncate(shared.count());
                append_piece(last, piece);
                last.names.truncate(NAMES_MAX);
                of_last += 1;
            }
            None => {
                joined.push(piece);
                of_last = 1;
            }
        }
    }
    joined
}

fn can_merge(last: &ChunkLineRange, piece: &ChunkLineRange) -> bool {
    let are_beside =
        last.join_rule == ChunkMergeRule::Neighbours && last.container == piece.container;
    let is_of_type = last.opened_part.is_some() && last.opened_part == piece.container;
    (are_beside || is_of_type && piece.kind == ChunkKind::Code)
        && last.names.len() + piece.names.len() <= NAMES_MAX
}

/// Returns the maximum number of lines that `last` and `piece` may have together after a merge.
fn merged_lines_max(last: &ChunkLineRange, piece: &ChunkLineRange) -> usize {
    if last.opened_part.is_some() {
        ALIKE_LINES_MAX
    } else if last.names.is_empty() && piece.names.is_empty() {
        LOOSE_LINES_MAX
    } else if last.kind == piece.kind && last.names.is_empty() == piece.names.is_empty() {
        ALIKE_LINES_MAX
    } else {
        MIXED_LINES_MAX
    }
}

/// Prepends the piece `before`, which introduces `piece`, to `piece`.
fn prepend_piece(before: ChunkLineRange, mut piece: ChunkLineRange) -> ChunkLineRange {
    if piece.names.is_empty() && !before.names.is_empty() {
        (piece.kind, piece.head) = (before.kind, before.head);
    }
    add_names(&mut piece.names, &before.names);
    piece.first = before.first;
    let doc = std::mem::take(&mut piece.doc);
    let doc_bytes = std::mem::take(&mut piece.doc_bytes);
    (piece.doc, piece.doc_bytes) = (before.doc, before.doc_bytes);
    add_doc(&mut piece, &doc, &doc_bytes);
    if piece.join_rule == ChunkMergeRule::Previous {
        piece.join_rule = before.join_rule;
    }
    piece
}

/// Appends the lines of `piece` to `last`. The first function or type among them names the chunk.
fn append_piece(last: &mut ChunkLineRange, piece: ChunkLineRange) {
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

pub(crate) fn add_names(names: &mut Vec<String>, more: &[String]) {
    for name in more {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
}

pub(crate) fn add_doc(piece: &mut ChunkLineRange, doc: &str, doc_bytes: &[Range<usize>]) {
    // A guessed doc comment may be inside a docstring that was already added.
    let doc_end = piece.doc_bytes.last().map_or(0, |last| last.end);
    let is_new = doc_bytes.first().is_none_or(|first| first.start >= doc_end);
    if !doc.is_empty() && is_new {
        if !piece.doc.is_empty() {
            piece.doc.push('\n');
        }
        piece.doc.push_str(doc);
        piece.doc_bytes.extend_from_slice(doc_bytes);
    }
}
