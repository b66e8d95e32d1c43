//! What a text defines, each definition by itself: by what a line can be told to stand in.

use crate::chunk::{ChunkKind, outline_of};
use crate::definitions::definition;
use crate::guess;
use crate::language::{Kind, Sort};
use crate::lines::Lines;
use crate::outline::PartKind;

/// Something defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its first line, from 1, comments and attributes above it among them.
    pub first: u32,
    /// The line its definition begins in.
    pub line: u32,
    /// Its last line.
    pub last: u32,
    /// What it is.
    pub kind: ChunkKind,
    /// Its main name.
    pub name: String,
    /// What it stands in, from the outermost.
    pub within: Vec<String>,
    /// How it reads up to its body; empty where there is nothing to be read so.
    pub head: String,
}

/// How closely a text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// By the grammar of its language, where there is one.
    Parsed,
    /// By its lines alone, which is faster and now and then wrong.
    Guessed,
}

/// What `text`, which is in the file at `path`, defines, in order of where it begins; what stands
/// in something comes after it.
pub fn symbols(path: &str, text: &str, care: Care) -> Vec<Symbol> {
    let lines = Lines::of(text);
    let outline = match care {
        Care::Guessed if Sort::of(path).kind == Kind::Code => guess::outline(&lines),
        Care::Guessed | Care::Parsed => outline_of(path, &lines).0,
    };
    let number = |line: usize| u32::try_from(line + 1).unwrap_or(u32::MAX);
    let named = outline.parts.iter().enumerate().filter_map(|(at, part)| {
        let kind = match part.kind {
            PartKind::Function => ChunkKind::Function,
            PartKind::Type => ChunkKind::Type,
            PartKind::Value => ChunkKind::Code,
            PartKind::Section => ChunkKind::Section,
            PartKind::Key => ChunkKind::Key,
            // It defines nothing of its own: an `impl` is of a type that is defined elsewhere.
            PartKind::Scope => return None,
        };
        Some(Symbol {
            first: number(part.first),
            line: number(part.start),
            last: number(part.last),
            kind,
            name: part.names.first()?.clone(),
            within: outline.within(at),
            head: part.head.clone(),
        })
    });
    named.collect()
}

/// The names that `line` defines, told by the line alone, if it looks as if it defined any.
pub fn defined(line: &str) -> Vec<String> {
    let found = definition(line).filter(|found| found.kind != PartKind::Scope);
    found.map(|found| found.names).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "use std::fmt;\n\n/// Keeps.\npub struct Store {\n    at: u32,\n}\n\nimpl Store {\n    /// Opens.\n    fn open(&self) -> u32 {\n        self.at\n    }\n}\n";

    fn shown(care: Care) -> Vec<String> {
        let symbols = symbols("a.rs", TEXT, care);
        let shown = symbols.iter().map(|it| {
            let Symbol { first, line, last, kind, name, within, head } = it;
            format!("{first} {line} {last} {kind:?} {name} in {}: {head}", within.join("."))
        });
        shown.collect()
    }

    #[test]
    fn each_definition_is_told_by_itself_with_what_it_stands_in() {
        let expected = [
            "3 4 6 Type Store in : pub struct Store",
            "9 10 12 Function open in Store: fn open(&self) -> u32",
        ];
        assert_eq!(shown(Care::Parsed), expected);
        assert_eq!(shown(Care::Guessed), expected);
    }

    #[test]
    fn an_impl_defines_nothing() {
        assert_eq!(defined("impl Store {"), Vec::<String>::new());
        assert_eq!(defined("pub fn open(path: &Path) -> Store {"), ["open"]);
    }
}
