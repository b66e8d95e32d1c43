//! Outlines code by its syntax tree, and walks the tree no deeper than necessary.

use std::ops::Range;

use tree_sitter::{Node, Tree, TreeCursor};

use super::parsed_code::ParsedDefinitions;
use crate::docs;
use crate::grammars::{DocCommentPlacement, LoadedGrammar, SyntaxNodeRole};
use crate::guess;
use crate::lines::LineIndexedText;
use crate::memory::ParseMemoryCounter;
use crate::outline::{
    LONG_FUNCTION_LINES, NO_DEPTH, OutlinePart, OutlinePartKind, PARTS_MAX, limit_names,
};
use comments::{LeadingComments, docstring, extend_lead};
use parse::parse;

mod names;
mod comments;
mod parse;

/// Deepest nesting of the syntax tree that is searched for definitions.
const DEPTH_MAX: u32 = 4000;

/// Parses the code in `lines` in this process. Returns `None` if the code is too complex.
pub(super) fn parse_code(
    lines: &LineIndexedText<'_>,
    grammar: &'static LoadedGrammar,
) -> Option<ParsedDefinitions> {
    let memory = ParseMemoryCounter::start(lines.text.len());
    let tree = parse(lines.text, grammar, &memory)?;
    let mut walk = OutlineBuilder {
        lines,
        grammar,
        parts: Vec::new(),
        line_depths: vec![NO_DEPTH; lines.len()],
        package: None,
        unparsed: Vec::new(),
        lines_left: lines.len() * 4,
    };
    walk.walk_all(&tree);
    walk.guess_unparsed();
    let OutlineBuilder { parts, line_depths, package, .. } = walk;
    Some(ParsedDefinitions { parts, line_depths, package })
}

/// Builder of a text's outline, which walks through the syntax tree of the text.
struct OutlineBuilder<'w, 't> {
    lines: &'w LineIndexedText<'t>,
    grammar: &'static LoadedGrammar,
    parts: Vec<OutlinePart>,
    line_depths: Vec<u8>,
    /// A namespace or package declaration that applies to the rest of the file: its line and its
    /// names.
    package: Option<(usize, Vec<String>)>,
    /// Ranges of lines that the grammar could not parse.
    unparsed: Vec<Range<usize>>,
    /// Number of lines that may still be searched for definitions inside broken functions.
    lines_left: usize,
}

/// State of the search through the syntax tree, for the children of one node.
#[derive(Default)]
struct SyntaxTreeLevel {
    /// Index of the definition that contains the children of the node.
    outer: Option<usize>,
    lead: Option<LeadingComments>,
    /// Position of a wrapper around the node's children, such as `export`. The wrapper belongs to
    /// the first definition among the children.
    wrapper: Option<DefinitionWrapperPosition>,
    /// Last line of the previous child node that is not a comment.
    last_line: Option<usize>,
}

/// Position of a wrapper around a definition, such as `export`.
#[derive(Clone, Copy)]
struct DefinitionWrapperPosition {
    /// Byte position in the text at which the wrapper, such as `export`, starts.
    start: usize,
    /// Byte position in the text of the wrapper, such as `export`, after its attributes.
    head: usize,
}

impl<'t> OutlineBuilder<'_, 't> {
    fn walk_all(&mut self, tree: &Tree) {
        let root = tree.root_node();
        let mut cursor = root.walk();
        let mut levels = vec![SyntaxTreeLevel::default()];
        self.record_error(root);
        if self.grammar.rules.docs == DocCommentPlacement::Docstrings {
            self.add_module_doc(root);
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

    /// Processes the syntax node at `cursor`, whose ancestors have the states `levels`. Returns the
    /// state for the node's children, or `None` if they need no visit.
    fn visit(
        &mut self,
        cursor: &TreeCursor<'_>,
        levels: &mut [SyntaxTreeLevel],
    ) -> Option<SyntaxTreeLevel> {
        let node = cursor.node();
        let level = levels.last_mut()?;
        let role = self.grammar.role(node.kind_id());
        if !node.is_named() {
            return None;
        }
        self.record_error(node);
        self.record_depth(node, cursor.depth(), level);
        let (first, last) = self.line_span(node);
        let outer = level.outer;
        if role == SyntaxNodeRole::Comment {
            self.add_comment(node, level);
            return None;
        }
        if role == SyntaxNodeRole::Attribute {
            match &mut level.wrapper {
                Some(wrap) => wrap.head = node.end_byte(),
                None => extend_lead(&mut level.lead, first, last),
            }
            return None;
        }
        if role == SyntaxNodeRole::Opaque && level.wrapper.is_some() {
            return None;
        }
        level.last_line = Some(last);
        let wrap = level.wrapper;
        let lead = level.lead.take();
        let lead = lead.filter(|lead| wrap.is_some() || lead.last + 1 >= first);
        let inside_function =
            outer.is_some_and(|at| self.parts[at].kind == OutlinePartKind::Function);
        let inside_type = outer.is_some_and(|at| self.parts[at].kind == OutlinePartKind::Type);
        let no_values = inside_function || inside_type;
        let kind = match role {
            SyntaxNodeRole::Function => Some(OutlinePartKind::Function),
            SyntaxNodeRole::Type => Some(OutlinePartKind::Type),
            SyntaxNodeRole::TypeIfBody => {
                node.child_by_field_name("body").map(|_| OutlinePartKind::Type)
            }
            SyntaxNodeRole::Scope => Some(OutlinePartKind::Scope),
            SyntaxNodeRole::Prototype if names::is_prototype(node) && !inside_function => {
                Some(OutlinePartKind::Function)
            }
            SyntaxNodeRole::Prototype if node.kind() == "field_declaration" => None,
            SyntaxNodeRole::Value | SyntaxNodeRole::Prototype => {
                (!no_values).then_some(OutlinePartKind::Value)
            }
            SyntaxNodeRole::Assignment => {
                let assigned = names::assigned_kind(node);
                assigned.or((!no_values).then_some(OutlinePartKind::Value))
            }
            SyntaxNodeRole::FunctionAssignment => names::assigned_kind(node),
            SyntaxNodeRole::Package => {
                if node.kind() == "file_scoped_namespace_declaration" {
                    let named = names::definition_names(node, self.lines.text);
                    self.package =
                        Some((first, limit_names([named.outer_names, named.names].concat())));
                }
                Some(OutlinePartKind::Value)
            }
            SyntaxNodeRole::Tokens => {
                if last > first + 2 && !inside_function {
                    self.unparsed.push(first..last + 1);
                }
                return None;
            }
            SyntaxNodeRole::Opaque => return None,
            SyntaxNodeRole::Wrapper => {
                let start = node.start_byte();
                return Some(SyntaxTreeLevel {
                    outer,
                    lead,
                    wrapper: Some(wrap.unwrap_or(DefinitionWrapperPosition { start, head: start })),
                    last_line: None,
                });
            }
            SyntaxNodeRole::Comment | SyntaxNodeRole::Attribute | SyntaxNodeRole::Other => None,
        };
        let looks_in = last > first || node.is_error();
        let Some(kind) = kind else {
            if wrap.is_some() {
                level.lead = lead;
            }
            return looks_in.then(|| SyntaxTreeLevel { outer, ..SyntaxTreeLevel::default() });
        };
        let Some(at) = self.add_definition(node, kind, lead, wrap) else {
            return looks_in.then(|| SyntaxTreeLevel { outer, ..SyntaxTreeLevel::default() });
        };
        level.wrapper = None;
        let looks_in = looks_in
            && (kind != OutlinePartKind::Function
                || last - first >= LONG_FUNCTION_LINES
                || node.has_error());
        looks_in.then(|| SyntaxTreeLevel { outer: Some(at), ..SyntaxTreeLevel::default() })
    }

    /// Records the lines of an error node in the syntax tree, which the grammar could not parse.
    fn record_error(&mut self, node: Node<'_>) {
        if node.is_error() {
            let (first, last) = self.line_span(node);
            self.unparsed.push(first..last + 1);
        }
    }

    /// Returns the first and the last line of the syntax node `node`. A node that ends with a line
    /// break does not extend to the next line.
    fn line_span(&self, node: Node<'_>) -> (usize, usize) {
        let start = node.start_position();
        let end = node.end_position();
        let last = if end.column == 0 && end.row > start.row { end.row - 1 } else { end.row };
        let most = self.lines.len().saturating_sub(1);
        (start.row.min(most), last.min(most))
    }

    /// Records `depth` for the line that `node` begins, unless another syntax node begins that
    /// line. A node after comments that belong to it is one level deeper.
    fn record_depth(&mut self, node: Node<'_>, depth: u32, level: &SyntaxTreeLevel) {
        let start = node.start_position();
        let Some(border) = self.line_depths.get_mut(start.row) else { return };
        if *border != NO_DEPTH {
            return;
        }
        let before = self.lines.line(start.row).get(..start.column).unwrap_or_default();
        if before.trim().is_empty() {
            // A comment stays with the definition below it.
            let is_led = level.lead.as_ref().is_some_and(|lead| lead.last + 1 == start.row);
            let depth = depth + u32::from(is_led);
            *border = u8::try_from(depth.min(u32::from(NO_DEPTH) - 1)).unwrap_or(NO_DEPTH - 1);
        }
    }

    /// Adds the definition in the syntax node `node` to the outline, and returns its index. Returns
    /// `None` if the definition has no name or the outline is full.
    fn add_definition(
        &mut self,
        node: Node<'_>,
        kind: OutlinePartKind,
        lead: Option<LeadingComments>,
        wrap: Option<DefinitionWrapperPosition>,
    ) -> Option<usize> {
        let named = names::definition_names(node, self.lines.text);
        if named.names.is_empty() || self.parts.len() >= PARTS_MAX {
            return None;
        }
        let (_, mut last) = self.line_span(node);
        let start = self.lines.line_at_byte(wrap.map_or(node.start_byte(), |wrap| wrap.start));
        let first = lead.as_ref().map_or(start, |lead| lead.first.min(start));
        if kind == OutlinePartKind::Function
            && node.has_error()
            && let Some(next) = self.find_swallowed(start, last)
        {
            self.unparsed.push(next..last + 1);
            last = next - 1;
        }
        let mut part = OutlinePart {
            start,
            scope: named.scope,
            outer_names: named.outer_names,
            ..OutlinePart::new(kind, first, last, named.names)
        };
        // In Go's `type ( ... )`, the wrapper contains several definitions.
        let text = |head: usize| &self.lines.text[head..node.start_byte().max(head)];
        let head = wrap.map(|wrap| wrap.head).filter(|&head| !text(head).trim_end().ends_with('('));
        part.head = names::head(node, self.grammar, self.lines.text, head);
        let comments = lead.map(|lead| lead.comments).unwrap_or_default();
        (part.doc, part.doc_bytes) = self.doc_text(comments);
        if part.doc.is_empty()
            && self.grammar.rules.docs == DocCommentPlacement::Docstrings
            && let Some(string) = node.child_by_field_name("body").and_then(docstring)
        {
            part.doc = docs::string_text(&self.lines.text[string.byte_range()]);
            part.doc_bytes = vec![string.byte_range()];
        }
        self.parts.push(part);
        Some(self.parts.len() - 1)
    }

    /// Returns the first line after `first`, up to `last`, that defines something and is not
    /// indented further than line `first`. Such a line cannot be inside the definition that begins
    /// at `first`, so a closing bracket is missing before it. `None` if there is no such line.
    fn find_swallowed(&mut self, first: usize, last: usize) -> Option<usize> {
        self.lines_left = self.lines_left.checked_sub(last - first)?;
        let indent = self.lines.indent(first);
        let defines = |&line: &usize| {
            self.lines.indent(line) <= indent
                && !self.lines.is_blank(line)
                && guess::begins_definition(self.lines.line(line))
        };
        let line = (first + 1..=last).find(defines)?;
        let is_lead = |&line: &usize| guess::is_leading_line(self.lines.line(line).trim());
        Some((first + 1..line).rev().take_while(is_lead).last().unwrap_or(line))
    }

    /// Guesses the definitions in the lines that the grammar could not parse.
    fn guess_unparsed(&mut self) {
        let mut unread = std::mem::take(&mut self.unparsed);
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
            let last = if part.kind == OutlinePartKind::Function { part.last } else { part.start };
            known[part.first..=last.max(part.first)].fill(true);
        }
        for range in unread {
            for part in guess::guess_parts(self.lines, range) {
                if !known[part.start] {
                    known[part.first..=part.last].fill(true);
                    self.parts.push(part);
                }
            }
        }
    }
}
