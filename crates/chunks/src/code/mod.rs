//! Outlines code by its grammar: walks the syntax tree no deeper than necessary.

use std::ops::Range;

use tree_sitter::{Node, Tree, TreeCursor};

use crate::docs;
use crate::grammars::{Docs, Grammar, Role};
use crate::guess;
use crate::lines::Lines;
use crate::memory::Memory;
use crate::outline::{LONG_LINES, NO_BORDER, Outline, PARTS_MAX, Part, PartKind, innermost};
use comments::{Lead, docstring, extend};
use parse::parse;

mod names;
mod comments;
mod parse;

/// Longest code that is parsed, in bytes. Longer code is outlined line by line.
const BYTES_MAX: usize = 1 << 20;
/// Deepest nesting that the walk enters.
const DEPTH_MAX: u32 = 4000;

/// Returns the outline of the code in `lines`, or `None` if it is too long or too complex to parse.
pub(crate) fn outline(lines: &Lines<'_>, grammar: &'static Grammar) -> Option<Outline> {
    if lines.text.len() > BYTES_MAX {
        return None;
    }
    let memory = Memory::of(lines.text.len());
    let tree = parse(lines.text, grammar, &memory)?;
    let mut walk = Walk {
        lines,
        grammar,
        parts: Vec::new(),
        borders: vec![NO_BORDER; lines.len()],
        package: None,
        unread: Vec::new(),
        looks: lines.len() * 4,
    };
    walk.all(&tree);
    walk.guess();
    let Walk { parts, borders, package, .. } = walk;
    let mut outline = Outline::new(parts, borders);
    for &at in &outline.outermost {
        let part = &mut outline.parts[at];
        if let Some((line, names)) = &package
            && part.start > *line
        {
            part.above = [&names[..], &part.above[..]].concat();
        }
    }
    Some(outline)
}

struct Walk<'w, 't> {
    lines: &'w Lines<'t>,
    grammar: &'static Grammar,
    parts: Vec<Part>,
    borders: Vec<u8>,
    /// Line of a namespace declaration for the rest of the file, and the names in it.
    package: Option<(usize, Vec<String>)>,
    /// Lines that the grammar could not parse.
    unread: Vec<Range<usize>>,
    /// Number of lines that may still be searched for definitions inside broken functions.
    looks: usize,
}

/// State for the children of one node.
#[derive(Default)]
struct Level {
    /// Index of the part that contains them.
    outer: Option<usize>,
    lead: Option<Lead>,
    /// Wrapper around them that belongs to the first definition.
    wrap: Option<Wrap>,
    /// Last line of the previous child that is not a comment.
    ended: Option<usize>,
}

#[derive(Clone, Copy)]
struct Wrap {
    /// Start in the text.
    start: usize,
    /// Start in the text, after its attributes.
    head: usize,
}

impl<'t> Walk<'_, 't> {
    fn all(&mut self, tree: &Tree) {
        let root = tree.root_node();
        let mut cursor = root.walk();
        let mut levels = vec![Level::default()];
        self.see(root);
        if self.grammar.rules.docs == Docs::Strings {
            self.module_doc(root);
        }
        if !cursor.goto_first_child() {
            return;
        }
        loop {
            if let Some(level) = self.visit(&cursor, &mut levels)
                && cursor.depth() < DEPTH_MAX
                && cursor.goto_first_child()
            {
                levels.push(level);
                continue;
            }
            while !cursor.goto_next_sibling() {
                if !cursor.goto_parent() || cursor.depth() == 0 {
                    return;
                }
                levels.pop();
            }
        }
    }

    /// Processes the node at `cursor`. Returns the state for its children, or `None` if they need
    /// no visit.
    fn visit(&mut self, cursor: &TreeCursor<'_>, levels: &mut [Level]) -> Option<Level> {
        let node = cursor.node();
        let level = levels.last_mut()?;
        let role = self.grammar.role(node.kind_id());
        if !node.is_named() {
            return None;
        }
        self.see(node);
        self.border(node, cursor.depth(), level);
        let (first, last) = self.span(node);
        let outer = level.outer;
        if role == Role::Comment {
            self.comment(node, level);
            return None;
        }
        if role == Role::Attribute {
            match &mut level.wrap {
                Some(wrap) => wrap.head = node.end_byte(),
                None => extend(&mut level.lead, first, last),
            }
            return None;
        }
        if role == Role::Closed && level.wrap.is_some() {
            return None;
        }
        level.ended = Some(last);
        let wrap = level.wrap;
        let lead = level.lead.take();
        let lead = lead.filter(|lead| wrap.is_some() || lead.last + 1 >= first);
        let inside_function = outer.is_some_and(|at| self.parts[at].kind == PartKind::Function);
        let inside_type = outer.is_some_and(|at| self.parts[at].kind == PartKind::Type);
        let no_values = inside_function || inside_type;
        let kind = match role {
            Role::Function => Some(PartKind::Function),
            Role::Type => Some(PartKind::Type),
            Role::TypeIfBody => node.child_by_field_name("body").map(|_| PartKind::Type),
            Role::Scope => Some(PartKind::Scope),
            Role::Prototype if names::is_prototype(node) && !inside_function => {
                Some(PartKind::Function)
            }
            Role::Prototype if node.kind() == "field_declaration" => None,
            Role::Value | Role::Prototype => (!no_values).then_some(PartKind::Value),
            Role::Assigned => {
                let assigned = names::assigned(node);
                assigned.or((!no_values).then_some(PartKind::Value))
            }
            Role::AssignedFunction => names::assigned(node),
            Role::Package => {
                if node.kind() == "file_scoped_namespace_declaration" {
                    let named = names::of(node, self.lines.text);
                    self.package = Some((first, innermost([named.above, named.names].concat())));
                }
                Some(PartKind::Value)
            }
            Role::Tokens => {
                if last > first + 2 && !inside_function {
                    self.unread.push(first..last + 1);
                }
                return None;
            }
            Role::Closed => return None,
            Role::Wrap => {
                let start = node.start_byte();
                return Some(Level {
                    outer,
                    lead,
                    wrap: Some(wrap.unwrap_or(Wrap { start, head: start })),
                    ended: None,
                });
            }
            Role::Comment | Role::Attribute | Role::Other => None,
        };
        let looks_in = last > first || node.is_error();
        let Some(kind) = kind else {
            if wrap.is_some() {
                level.lead = lead;
            }
            return looks_in.then(|| Level { outer, ..Level::default() });
        };
        let Some(at) = self.define(node, kind, lead, wrap) else {
            return looks_in.then(|| Level { outer, ..Level::default() });
        };
        level.wrap = None;
        let looks_in = looks_in
            && (kind != PartKind::Function || last - first >= LONG_LINES || node.has_error());
        looks_in.then(|| Level { outer: Some(at), ..Level::default() })
    }

    /// Records the lines of an error node, which the grammar could not parse.
    fn see(&mut self, node: Node<'_>) {
        if node.is_error() {
            let (first, last) = self.span(node);
            self.unread.push(first..last + 1);
        }
    }

    /// Returns the lines of `node`. A node that ends with a line break does not extend to the next
    /// line.
    fn span(&self, node: Node<'_>) -> (usize, usize) {
        let start = node.start_position();
        let end = node.end_position();
        let last = if end.column == 0 && end.row > start.row { end.row - 1 } else { end.row };
        let most = self.lines.len().saturating_sub(1);
        (start.row.min(most), last.min(most))
    }

    /// Records the depth of the first node that begins a line.
    fn border(&mut self, node: Node<'_>, depth: u32, level: &Level) {
        let start = node.start_position();
        let Some(border) = self.borders.get_mut(start.row) else { return };
        if *border != NO_BORDER {
            return;
        }
        let before = self.lines.line(start.row).get(..start.column).unwrap_or_default();
        if before.trim().is_empty() {
            // A comment stays with the definition below it.
            let is_led = level.lead.as_ref().is_some_and(|lead| lead.last + 1 == start.row);
            let depth = depth + u32::from(is_led);
            *border = u8::try_from(depth.min(u32::from(NO_BORDER) - 1)).unwrap_or(NO_BORDER - 1);
        }
    }

    /// Adds the definition in `node` to the outline, if it has a name.
    fn define(
        &mut self,
        node: Node<'_>,
        kind: PartKind,
        lead: Option<Lead>,
        wrap: Option<Wrap>,
    ) -> Option<usize> {
        let named = names::of(node, self.lines.text);
        if named.names.is_empty() || self.parts.len() >= PARTS_MAX {
            return None;
        }
        let (_, mut last) = self.span(node);
        let start = self.lines.of_byte(wrap.map_or(node.start_byte(), |wrap| wrap.start));
        let first = lead.as_ref().map_or(start, |lead| lead.first.min(start));
        if kind == PartKind::Function
            && node.has_error()
            && let Some(next) = self.swallowed(start, last)
        {
            self.unread.push(next..last + 1);
            last = next - 1;
        }
        let mut part = Part {
            start,
            scope: named.scope,
            above: named.above,
            ..Part::new(kind, first, last, named.names)
        };
        // In Go's `type ( ... )`, the wrapper contains several definitions.
        let text = |head: usize| &self.lines.text[head..node.start_byte().max(head)];
        let head = wrap.map(|wrap| wrap.head).filter(|&head| !text(head).trim_end().ends_with('('));
        part.head = names::head(node, self.grammar, self.lines.text, head);
        let comments = lead.map(|lead| lead.comments).unwrap_or_default();
        (part.doc, part.doc_bytes) = self.doc(comments);
        if part.doc.is_empty()
            && self.grammar.rules.docs == Docs::Strings
            && let Some(string) = node.child_by_field_name("body").and_then(docstring)
        {
            part.doc = docs::string_text(&self.lines.text[string.byte_range()]);
            part.doc_bytes = vec![string.byte_range()];
        }
        self.parts.push(part);
        Some(self.parts.len() - 1)
    }

    /// Finds the first line up to `last` that defines something without being indented further than
    /// line `first`. Such a line cannot be inside it, so a closing bracket is missing before.
    fn swallowed(&mut self, first: usize, last: usize) -> Option<usize> {
        self.looks = self.looks.checked_sub(last - first)?;
        let indent = self.lines.indent(first);
        let defines = |&line: &usize| {
            self.lines.indent(line) <= indent
                && !self.lines.is_blank(line)
                && guess::defines(self.lines.line(line))
        };
        let line = (first + 1..=last).find(defines)?;
        let is_lead = |&line: &usize| guess::is_lead(self.lines.line(line).trim());
        Some((first + 1..line).rev().take_while(is_lead).last().unwrap_or(line))
    }

    /// Guesses the definitions in the lines that the grammar could not parse.
    fn guess(&mut self) {
        let mut unread = std::mem::take(&mut self.unread);
        if unread.is_empty() {
            return;
        }
        unread.sort_by_key(|range| range.start);
        unread.dedup_by(|next, range| {
            let meets = next.start <= range.end;
            if meets {
                range.end = range.end.max(next.end);
            }
            meets
        });
        let mut known = vec![false; self.lines.len()];
        for part in &self.parts {
            let last = if part.kind == PartKind::Function { part.last } else { part.start };
            known[part.first..=last.max(part.first)].fill(true);
        }
        for range in unread {
            for part in guess::parts(self.lines, range) {
                if !known[part.start] {
                    known[part.first..=part.last].fill(true);
                    self.parts.push(part);
                }
            }
        }
    }
}
