//! Assigns comments and docstrings to the code that they document.

use std::ops::Range;

use tree_sitter::Node;

use super::{OutlineBuilder, SyntaxTreeLevel};
use crate::docs::{self, CommentKind};
use crate::grammars::DocCommentPlacement;
use crate::outline::{OutlinePart, OutlinePartKind, PARTS_MAX};

/// Comments and attributes above a definition that has not been reached yet.
pub(super) struct LeadingComments {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) comments: Vec<(Range<usize>, CommentKind)>,
}

impl OutlineBuilder<'_, '_> {
    /// Adds the comment `node` to the documentation of the definition that contains it, or keeps it
    /// in `level` for the next definition.
    pub(super) fn add_comment(&mut self, node: Node<'_>, level: &mut SyntaxTreeLevel) {
        let (first, last) = self.line_span(node);
        if level.last_line == Some(first) {
            return;
        }
        let text = &self.lines.text[node.byte_range()];
        let mark = CommentKind::classify(
            text,
            self.grammar.rules.docs == DocCommentPlacement::MarkedOrInner,
        );
        let bytes = self.comment_bytes(node, first, last);
        if mark == CommentKind::Inner {
            return self.add_inner_doc(level.outer, first, last, bytes);
        }
        extend_lead(&mut level.lead, first, last);
        if let Some(lead) = &mut level.lead {
            lead.comments.push((bytes, mark));
        }
    }

    /// Returns the bytes of the comment `node` in whole lines. If code shares these lines, returns
    /// the bytes of the comment alone.
    fn comment_bytes(&self, node: Node<'_>, first: usize, last: usize) -> Range<usize> {
        let lines = self.lines.bytes(first, last);
        let is_blank = |range: Range<usize>| {
            self.lines.text.get(range).is_some_and(|text| text.trim().is_empty())
        };
        let start = node.start_byte();
        let end = node.end_byte().min(lines.end);
        let is_alone = is_blank(lines.start..start) && is_blank(end..lines.end);
        if is_alone { lines } else { start..end }
    }

    /// Adds a comment to the documentation of the definition that contains it.
    fn add_inner_doc(
        &mut self,
        outer: Option<usize>,
        first: usize,
        last: usize,
        bytes: Range<usize>,
    ) {
        let text = docs::comment_text(&self.lines.text[bytes.clone()]);
        let part = match outer {
            Some(at) => &mut self.parts[at],
            None => {
                let is_next = |part: &OutlinePart| part.names.is_empty() && part.last + 1 == first;
                if !self.parts.last().is_some_and(is_next) {
                    if self.parts.len() >= PARTS_MAX {
                        return;
                    }
                    self.parts.push(OutlinePart::new(
                        OutlinePartKind::Type,
                        first,
                        last,
                        Vec::new(),
                    ));
                }
                let Some(part) = self.parts.last_mut() else { return };
                part.last = last;
                part
            }
        };
        if !part.doc.is_empty() {
            part.doc.push('\n');
        }
        part.doc.push_str(&text);
        part.doc_bytes.push(bytes);
    }

    /// Adds the docstring at the start of a module, if there is one, to the outline as a definition
    /// without a name. `root` is the root of the syntax tree.
    pub(super) fn add_module_doc(&mut self, root: Node<'_>) {
        let Some(string) = docstring(root) else { return };
        let (first, last) = self.line_span(string);
        let mut part = OutlinePart::new(OutlinePartKind::Type, first, last, Vec::new());
        part.doc = docs::string_text(&self.lines.text[string.byte_range()]);
        part.doc_bytes = vec![string.byte_range()];
        self.parts.push(part);
    }

    /// Returns the documentation in the `comments` above a definition, and its position.
    pub(super) fn doc_text(
        &self,
        comments: Vec<(Range<usize>, CommentKind)>,
    ) -> (String, Vec<Range<usize>>) {
        let marked = comments.iter().any(|(_, mark)| *mark == CommentKind::Doc);
        let wanted = match (self.grammar.rules.docs, marked) {
            (
                DocCommentPlacement::Marked
                | DocCommentPlacement::MarkedOrInner
                | DocCommentPlacement::Above,
                true,
            ) => CommentKind::Doc,
            (DocCommentPlacement::Above, false) => CommentKind::Plain,
            (DocCommentPlacement::Marked | DocCommentPlacement::MarkedOrInner, false)
            | (DocCommentPlacement::Docstrings, _) => {
                return (String::new(), Vec::new());
            }
        };
        let mut text = String::new();
        let mut bytes = Vec::new();
        for (range, _) in comments.into_iter().filter(|(_, mark)| *mark == wanted) {
            let comment = docs::comment_text(&self.lines.text[range.clone()]);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&comment);
            bytes.push(range);
        }
        (docs::without_tags(text.trim()), bytes)
    }
}

/// Extends the comments and attributes in `lead` by the lines from `first` to `last`. Starts a new
/// range of lines if they are not adjacent.
pub(super) fn extend_lead(lead: &mut Option<LeadingComments>, first: usize, last: usize) {
    match lead {
        Some(lead) if lead.last + 1 >= first => lead.last = lead.last.max(last),
        Some(_) | None => *lead = Some(LeadingComments { first, last, comments: Vec::new() }),
    }
}

/// Returns the string at the start of the definition's `body`, if it is a docstring.
pub(super) fn docstring(body: Node<'_>) -> Option<Node<'_>> {
    let mut cursor = body.walk();
    let first = body.named_children(&mut cursor).find(|it| it.kind() != "comment")?;
    let string = match first.kind() {
        "expression_statement" if first.named_child_count() == 1 => first.named_child(0)?,
        _statement => first,
    };
    (string.kind() == "string").then_some(string)
}
