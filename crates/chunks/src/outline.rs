//! Outline of a text: the definitions in it, their lines and their nesting.

use std::ops::Range;

/// A definition or a section in the outline of a text, with the comments and attributes above it.
#[derive(Debug, Clone)]
pub(crate) struct OutlinePart {
    /// First line of the definition (from 0), including the comments and attributes above the
    /// definition.
    pub(crate) first: usize,
    /// Line at which the definition itself begins (from 0), after its comments and attributes.
    pub(crate) start: usize,
    /// Last line of the definition (from 0).
    pub(crate) last: usize,
    pub(crate) kind: OutlinePartKind,
    /// Names that the definition has, the main name first.
    pub(crate) names: Vec<String>,
    /// Enclosing names that are no definitions in the outline: `Server` in `func (s *Server)
    /// Serve()`.
    pub(crate) outer_names: Vec<String>,
    /// Names that the definition adds to the enclosing names of definitions inside it.
    pub(crate) scope: Vec<String>,
    pub(crate) head: String,
    pub(crate) doc: String,
    pub(crate) doc_bytes: Vec<Range<usize>>,
    /// Indexes of the definitions inside this definition, in order.
    pub(crate) inner: Vec<usize>,
    /// Index of the definition that contains this definition.
    pub(crate) outer: Option<usize>,
}

/// Kind of a definition or a section in the outline of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutlinePartKind {
    Function,
    Type,
    /// Definition that only contains other definitions, such as an `impl` or a namespace.
    Scope,
    /// Definition of a constant or a variable, or declaration of a function or type without a body.
    Value,
    Section,
    Key,
}

impl OutlinePart {
    pub(crate) fn new(
        kind: OutlinePartKind,
        first: usize,
        last: usize,
        names: Vec<String>,
    ) -> Self {
        Self {
            first,
            start: first,
            last,
            kind,
            scope: names.first().cloned().into_iter().collect(),
            names,
            outer_names: Vec::new(),
            head: String::new(),
            doc: String::new(),
            doc_bytes: Vec::new(),
            inner: Vec::new(),
            outer: None,
        }
    }

    pub(crate) fn line_count(&self) -> usize {
        self.last + 1 - self.first
    }
}

/// Outline of a text: its definitions or sections (parts) and how they are nested.
///
/// Parts are in order. A part lies within the lines of its container. It begins after the
/// container's first line, unless the container is an [`OutlinePartKind::Scope`]. A part shares no
/// line with its neighbours.
#[derive(Debug, Default)]
pub(crate) struct TextOutline {
    pub(crate) parts: Vec<OutlinePart>,
    /// Indexes of the parts (definitions or sections) that are not inside other parts.
    pub(crate) top_level: Vec<usize>,
    /// Nesting depth of the syntax node that begins with each line, or [`NO_DEPTH`] if no node
    /// does. Empty if unknown.
    pub(crate) line_depths: Vec<u8>,
}

/// Marker for a line at which no syntax node begins.
pub(crate) const NO_DEPTH: u8 = u8::MAX;
/// Deepest nesting of parts (such as definitions) in an outline. Parts nested deeper are dropped.
const DEPTH_MAX: usize = 16;
/// Maximum number of names of an outline's part, with the names of parts that share its first line.
const NAMES_MAX: usize = 8;
/// Maximum number of enclosing names of a definition or section in an outline.
const WITHIN_MAX: usize = 16;
/// Maximum number of bytes of all enclosing names of a definition or section in an outline.
const WITHIN_BYTES_MAX: usize = 1 << 10;
/// Maximum number of definitions or sections in an outline. Only generated code has more: its
/// remaining lines are cut by size.
pub(crate) const PARTS_MAX: usize = 1 << 15;
/// Minimum number of lines of a function whose inner definitions are outlined.
pub(crate) const LONG_FUNCTION_LINES: usize = 60;

impl TextOutline {
    /// Builds the outline from `parts`, which may be in any order. `borders` becomes
    /// [`TextOutline::line_depths`].
    pub(crate) fn new(mut parts: Vec<OutlinePart>, borders: Vec<u8>) -> Self {
        parts.sort_by(|one, two| one.first.cmp(&two.first).then(two.last.cmp(&one.last)));
        let mut outline = Self { parts: Vec::new(), top_level: Vec::new(), line_depths: borders };
        let mut open: Vec<usize> = Vec::new();
        for part in parts {
            outline.add_part(part, &mut open);
        }
        outline
    }

    fn add_part(&mut self, mut part: OutlinePart, open: &mut Vec<usize>) {
        let is_past = |outline: &Self, at: usize, line: usize| outline.parts[at].last < line;
        while open.last().is_some_and(|&at| is_past(self, at, part.first)) {
            open.pop();
        }
        // For `} function next() {`, the shared line belongs to the part that ends there.
        while let Some(&at) = open.last()
            && self.parts[at].last < part.last
        {
            part.first = self.parts[at].last + 1;
            part.start = part.start.max(part.first);
            open.pop();
        }
        if let Some(&at) = open.last() {
            let outer = &mut self.parts[at];
            let is_closed = outer.kind == OutlinePartKind::Function
                && outer.line_count() <= LONG_FUNCTION_LINES;
            if is_closed || open.len() >= DEPTH_MAX {
                return;
            }
            let shares_first = part.first <= outer.first && outer.kind != OutlinePartKind::Scope;
            if shares_first || part.last < outer.first {
                let free = NAMES_MAX.saturating_sub(outer.names.len());
                outer.names.extend(part.names.drain(..).take(free));
                return;
            }
            part.first = part.first.max(outer.first);
            part.start = part.start.max(part.first);
            part.outer = Some(at);
        }
        let at = self.parts.len();
        match part.outer {
            Some(outer) => self.parts[outer].inner.push(at),
            None => self.top_level.push(at),
        }
        self.parts.push(part);
        open.push(at);
    }

    /// Returns the names that enclose the part (a definition or a section) at the index `at`, from
    /// the outermost.
    pub(crate) fn enclosing_names(&self, at: usize) -> Vec<String> {
        let part = &self.parts[at];
        let mut within = match part.outer {
            Some(outer) => self.names_inside(outer),
            None => Vec::new(),
        };
        for name in &part.outer_names {
            if within.last() != Some(name) {
                within.push(name.clone());
            }
        }
        limit_names(within)
    }

    /// Returns the names that enclose the direct inner parts of the part at the index `at`, from
    /// the outermost: the names that enclose that part, then its `scope`.
    pub(crate) fn names_inside(&self, at: usize) -> Vec<String> {
        let mut within = self.enclosing_names(at);
        within.extend(self.parts[at].scope.iter().cloned());
        limit_names(within)
    }
}

/// Shortens the enclosing names `within` to the innermost ones, within the limits on number and
/// bytes.
pub(crate) fn limit_names(mut within: Vec<String>) -> Vec<String> {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += name.len();
        bytes <= WITHIN_BYTES_MAX
    };
    let count = within.iter().rev().take(WITHIN_MAX).take_while(fits).count();
    within.drain(..within.len() - count);
    within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: usize, last: usize, name: &str) -> OutlinePart {
        OutlinePart::new(OutlinePartKind::Type, first, last, vec![name.to_owned()])
    }

    #[test]
    fn parts_that_share_lines_are_separated() {
        let parts = vec![part(3, 6, "b"), part(0, 3, "a"), part(4, 5, "in"), part(4, 4, "too")];
        let outline = TextOutline::new(parts, Vec::new());
        let lines: Vec<_> = outline.parts.iter().map(|it| (it.first, it.last, it.outer)).collect();
        assert_eq!(lines, [(0, 3, None), (4, 6, None)]);
        assert_eq!(outline.parts[1].names, ["b", "in", "too"]);
    }
}
