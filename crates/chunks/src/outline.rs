//! The outline of a text: what it defines, from which line to which, and what stands in what.

use std::ops::Range;

/// What an outline is made of: something defined, with what stands above it that belongs to it.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Its first line, comments and attributes above it among them.
    pub(crate) first: usize,
    /// The line its definition begins in.
    pub(crate) start: usize,
    /// Its last line.
    pub(crate) last: usize,
    pub(crate) kind: PartKind,
    /// The names it defines, the main one first.
    pub(crate) names: Vec<String>,
    /// What is around it and not in the outline: the `Server` of `func (s *Server) Serve()`.
    pub(crate) above: Vec<String>,
    /// What it is called by parts that stand in it.
    pub(crate) scope: Vec<String>,
    pub(crate) head: String,
    pub(crate) doc: String,
    pub(crate) doc_bytes: Vec<Range<usize>>,
    /// The parts that stand in it, in order.
    pub(crate) inner: Vec<usize>,
    /// What it stands in.
    pub(crate) outer: Option<usize>,
}

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartKind {
    Function,
    Type,
    /// What only holds other parts: an `impl`, a namespace.
    Scope,
    /// A constant, a variable, a declaration without a body.
    Value,
    Section,
    Key,
}

impl Part {
    pub(crate) fn new(kind: PartKind, first: usize, last: usize, names: Vec<String>) -> Self {
        Self {
            first,
            start: first,
            last,
            kind,
            scope: names.first().cloned().into_iter().collect(),
            names,
            above: Vec::new(),
            head: String::new(),
            doc: String::new(),
            doc_bytes: Vec::new(),
            inner: Vec::new(),
            outer: None,
        }
    }

    pub(crate) fn lines(&self) -> usize {
        self.last + 1 - self.first
    }
}

/// What a text defines.
///
/// Parts are in order; a part lies within the lines of what it stands in, begins after its first
/// line (a [`PartKind::Scope`] aside) and shares no line with its neighbours.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    pub(crate) parts: Vec<Part>,
    /// The parts that stand in no other.
    pub(crate) outermost: Vec<usize>,
    /// How deep in the text what begins with each line stands: [`NO_BORDER`] where nothing does.
    /// Empty where this is not known.
    pub(crate) borders: Vec<u8>,
}

/// A line that nothing begins with.
pub(crate) const NO_BORDER: u8 = u8::MAX;
/// What is nested deeper is not told apart.
const DEPTH_MAX: usize = 16;
/// No part has more names of its own and of what shares its first line.
const NAMES_MAX: usize = 8;
/// It is not told of more that a part stands in,
const WITHIN_MAX: usize = 16;
/// nor of more than so many bytes of it.
const WITHIN_BYTES_MAX: usize = 1 << 10;
/// A text defines more than this only if a program wrote it: the rest is cut as it comes.
pub(crate) const PARTS_MAX: usize = 1 << 15;
/// A function of so many lines is looked into.
pub(crate) const LONG_LINES: usize = 60;

impl Outline {
    /// The outline of `parts`, which may come in any order.
    pub(crate) fn new(mut parts: Vec<Part>, borders: Vec<u8>) -> Self {
        parts.sort_by(|one, two| one.first.cmp(&two.first).then(two.last.cmp(&one.last)));
        let mut outline = Self { parts: Vec::new(), outermost: Vec::new(), borders };
        let mut open: Vec<usize> = Vec::new();
        for part in parts {
            outline.add(part, &mut open);
        }
        outline
    }

    fn add(&mut self, mut part: Part, open: &mut Vec<usize>) {
        let is_past = |outline: &Self, at: usize, line: usize| outline.parts[at].last < line;
        while open.last().is_some_and(|&at| is_past(self, at, part.first)) {
            open.pop();
        }
        // `} function next() {`: the shared line stays with what it ends.
        while let Some(&at) = open.last()
            && self.parts[at].last < part.last
        {
            part.first = self.parts[at].last + 1;
            part.start = part.start.max(part.first);
            open.pop();
        }
        if let Some(&at) = open.last() {
            let outer = &mut self.parts[at];
            let is_closed = outer.kind == PartKind::Function && outer.lines() <= LONG_LINES;
            if is_closed || open.len() >= DEPTH_MAX {
                return;
            }
            let shares_first = part.first <= outer.first && outer.kind != PartKind::Scope;
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
            None => self.outermost.push(at),
        }
        self.parts.push(part);
        open.push(at);
    }

    /// What the part at `at` stands in, from the outermost.
    pub(crate) fn within(&self, at: usize) -> Vec<String> {
        let part = &self.parts[at];
        let mut within = match part.outer {
            Some(outer) => self.inside(outer),
            None => Vec::new(),
        };
        for name in &part.above {
            if within.last() != Some(name) {
                within.push(name.clone());
            }
        }
        innermost(within)
    }

    /// What stands in the part at `at` stands in.
    pub(crate) fn inside(&self, at: usize) -> Vec<String> {
        let mut within = self.within(at);
        within.extend(self.parts[at].scope.iter().cloned());
        innermost(within)
    }
}

/// As much of `within` as is told, which begins with the outermost.
pub(crate) fn innermost(mut within: Vec<String>) -> Vec<String> {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += name.len();
        bytes <= WITHIN_BYTES_MAX
    };
    let told = within.iter().rev().take(WITHIN_MAX).take_while(fits).count();
    within.drain(..within.len() - told);
    within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: usize, last: usize, name: &str) -> Part {
        Part::new(PartKind::Type, first, last, vec![name.to_owned()])
    }

    #[test]
    fn parts_that_share_lines_are_told_apart() {
        let parts = vec![part(3, 6, "b"), part(0, 3, "a"), part(4, 5, "in"), part(4, 4, "too")];
        let outline = Outline::new(parts, Vec::new());
        let told: Vec<_> = outline.parts.iter().map(|it| (it.first, it.last, it.outer)).collect();
        assert_eq!(told, [(0, 3, None), (4, 6, None)]);
        assert_eq!(outline.parts[1].names, ["b", "in", "too"]);
    }
}
