//! Assigns comments and docstrings to the code that they document.

use std::ops::Range;

use tree_sitter::Node;

use super::{Level, Walk};
use crate::docs::{self, Mark};
use crate::grammars::Docs;
use crate::outline::{PARTS_MAX, Part, PartKind};

/// Comments and attributes whose definition has not been reached yet.
pub(super) struct Lead {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) comments: Vec<(Range<usize>, Mark)>,
}

impl Walk<'_, '_> {
    /// Processes the comment `node`: it documents its container or the next definition.
    pub(super) fn comment(&mut self, node: Node<'_>, level: &mut Level) {
        let (first, last) = self.span(node);
        if level.ended == Some(first) {
            return;
        }
        let text = &self.lines.text[node.byte_range()];
        let mark = Mark::of(text, self.grammar.rules.docs == Docs::MarkedOrInner);
        let bytes = self.comment_bytes(node, first, last);
        if mark == Mark::Inner {
            return self.inner_doc(level.outer, first, last, bytes);
        }
        extend(&mut level.lead, first, last);
        if let Some(lead) = &mut level.lead {
            lead.comments.push((bytes, mark));
        }
    }

    /// Returns the bytes of the comment's whole lines, or of the comment alone if it shares them.
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

    /// Adds a comment to the doc of the part that contains it.
    fn inner_doc(&mut self, outer: Option<usize>, first: usize, last: usize, bytes: Range<usize>) {
        let text = docs::text(&self.lines.text[bytes.clone()]);
        let part = match outer {
            Some(at) => &mut self.parts[at],
            None => {
                let is_next = |part: &Part| part.names.is_empty() && part.last + 1 == first;
                if !self.parts.last().is_some_and(is_next) {
                    if self.parts.len() >= PARTS_MAX {
                        return;
                    }
                    self.parts.push(Part::new(PartKind::Type, first, last, Vec::new()));
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

    /// Adds the docstring of a module.
    pub(super) fn module_doc(&mut self, root: Node<'_>) {
        let Some(string) = docstring(root) else { return };
        let (first, last) = self.span(string);
        let mut part = Part::new(PartKind::Type, first, last, Vec::new());
        part.doc = docs::string_text(&self.lines.text[string.byte_range()]);
        part.doc_bytes = vec![string.byte_range()];
        self.parts.push(part);
    }

    /// Returns the doc text in `comments` above a definition, and its position.
    pub(super) fn doc(&self, comments: Vec<(Range<usize>, Mark)>) -> (String, Vec<Range<usize>>) {
        let marked = comments.iter().any(|(_, mark)| *mark == Mark::Doc);
        let wanted = match (self.grammar.rules.docs, marked) {
            (Docs::Marked | Docs::MarkedOrInner | Docs::Above, true) => Mark::Doc,
            (Docs::Above, false) => Mark::Plain,
            (Docs::Marked | Docs::MarkedOrInner, false) | (Docs::Strings, _) => {
                return (String::new(), Vec::new());
            }
        };
        let mut text = String::new();
        let mut bytes = Vec::new();
        for (range, _) in comments.into_iter().filter(|(_, mark)| *mark == wanted) {
            let said = docs::text(&self.lines.text[range.clone()]);
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&said);
            bytes.push(range);
        }
        (docs::without_tags(text.trim()), bytes)
    }
}

/// Extends `lead` by the lines from `first` to `last`, or restarts it if they are not adjacent.
pub(super) fn extend(lead: &mut Option<Lead>, first: usize, last: usize) {
    match lead {
        Some(lead) if lead.last + 1 >= first => lead.last = lead.last.max(last),
        Some(_) | None => *lead = Some(Lead { first, last, comments: Vec::new() }),
    }
}

/// Returns the string at the start of `body`, if it is a docstring.
pub(super) fn docstring(body: Node<'_>) -> Option<Node<'_>> {
    let mut cursor = body.walk();
    let first = body.named_children(&mut cursor).find(|it| it.kind() != "comment")?;
    let string = match first.kind() {
        "expression_statement" if first.named_child_count() == 1 => first.named_child(0)?,
        _statement => first,
    };
    (string.kind() == "string").then_some(string)
}
