//! Lists the definitions in a text, for example to find the definition that contains a line.

use crate::chunk::ChunkKind;
use crate::chunker::outline_of;
use crate::definitions::guess_definition;
use crate::guess;
use crate::language::{FileClassification, FilePurpose};
use crate::lines::LineIndexedText;
use crate::outline::OutlinePartKind;

/// A definition in a text, such as a function or a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeSymbol {
    /// First line of the definition, counted from 1, including the comments and attributes above
    /// the definition.
    pub first: u32,
    /// Line at which the definition itself begins, counted from 1, after its comments and
    /// attributes.
    pub line: u32,
    /// Last line of the definition, counted from 1.
    pub last: u32,
    /// Kind of the definition, such as a function or a type.
    pub kind: ChunkKind,
    /// Main name of the definition.
    pub name: String,
    /// Names that enclose the definition, from the outermost.
    pub within: Vec<String>,
    /// Signature of the definition up to the body. Empty if there is none.
    pub head: String,
}

/// Method by which definitions are found in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymbolDetectionMethod {
    /// Parses the text by the grammar of its language, if there is one.
    Grammar,
    /// Guesses definitions from single lines, which is faster and sometimes wrong.
    LineByLine,
}

/// Lists the definitions in `text`, the content of the file at `path`, in the order of their first
/// lines. A container comes before its content. `care` selects how definitions are detected.
pub fn list_symbols(path: &str, text: &str, care: SymbolDetectionMethod) -> Vec<CodeSymbol> {
    let lines = LineIndexedText::new(text);
    let outline = match care {
        SymbolDetectionMethod::LineByLine
            if FileClassification::for_path(path).kind == FilePurpose::Code =>
        {
            guess::outline(&lines)
        }
        SymbolDetectionMethod::LineByLine | SymbolDetectionMethod::Grammar => {
            outline_of(path, &lines).0
        }
    };
    let number = |line: usize| u32::try_from(line + 1).unwrap_or(u32::MAX);
    let named = outline.parts.iter().enumerate().filter_map(|(at, part)| {
        let kind = match part.kind {
            OutlinePartKind::Function => ChunkKind::Function,
            OutlinePartKind::Type => ChunkKind::Type,
            OutlinePartKind::Value => ChunkKind::Code,
            OutlinePartKind::Section => ChunkKind::Section,
            OutlinePartKind::Key => ChunkKind::Key,
            // A scope defines nothing: an `impl` belongs to a type defined elsewhere.
            OutlinePartKind::Scope => return None,
        };
        Some(CodeSymbol {
            first: number(part.first),
            line: number(part.start),
            last: number(part.last),
            kind,
            name: part.names.first()?.clone(),
            within: outline.enclosing_names(at),
            head: part.head.clone(),
        })
    });
    named.collect()
}

/// Guesses the names that `line` defines, from this line alone.
pub fn guess_names(line: &str) -> Vec<String> {
    let found = guess_definition(line).filter(|found| found.kind != OutlinePartKind::Scope);
    found.map(|found| found.names).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "use std::fmt;\n\n/// Keeps.\npub struct Store {\n    at: u32,\n}\n\nimpl Store {\n    /// Opens.\n    fn open(&self) -> u32 {\n        self.at\n    }\n}\n";

    fn shown(care: SymbolDetectionMethod) -> Vec<String> {
        let symbols = list_symbols("a.rs", TEXT, care);
        let shown = symbols.iter().map(|it| {
            let CodeSymbol { first, line, last, kind, name, within, head } = it;
            format!("{first} {line} {last} {kind:?} {name} in {}: {head}", within.join("."))
        });
        shown.collect()
    }

    #[test]
    fn each_definition_is_listed_with_its_enclosing_names() {
        let expected = [
            "3 4 6 Type Store in : pub struct Store",
            "9 10 12 Function open in Store: fn open(&self) -> u32",
        ];
        assert_eq!(shown(SymbolDetectionMethod::Grammar), expected);
        assert_eq!(shown(SymbolDetectionMethod::LineByLine), expected);
    }

    #[test]
    fn an_impl_defines_nothing() {
        assert_eq!(guess_names("impl Store {"), Vec::<String>::new());
        assert_eq!(guess_names("pub fn open(path: &Path) -> Store {"), ["open"]);
    }
}
