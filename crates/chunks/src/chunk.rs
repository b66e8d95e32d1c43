//! Chunks: whole lines of a text that belong together, with their metadata.

use std::ops::Range;

use crate::cut::cut_chunks;
use crate::grammars::Grammar;
use crate::language::{FileClass, FilePurpose};
use crate::lines::TextLines;
use crate::outline::Outline;
use crate::{code, config_outline, guess, sections};

/// Whole lines that belong together: a function, a type, a section, a paragraph.
///
/// Chunks of one text are in order and never overlap. Only blank lines are between two chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextChunk {
    /// First line, from 1.
    pub first: u32,
    /// Last line.
    pub last: u32,
    /// Position in the text, in bytes, without the last line break.
    pub bytes: Range<usize>,
    /// Kind of chunk.
    pub kind: ChunkKind,
    /// Names that it defines, the main one first. For a section its heading, for a table its key.
    pub names: Vec<String>,
    /// Names that enclose its definitions, from the outermost: modules, types, headings.
    pub within: Vec<String>,
    /// Signature of its main definition, up to the body: `fn parse(text: &str) -> Result<Ast,
    /// Error>`. Empty if there is none. At most 512 bytes.
    pub head: String,
    /// Doc comment of its definitions, without comment marks. Empty if there is none.
    pub doc: String,
    /// Positions of `doc` in the text, in bytes and in order: whole lines, or the literal of a
    /// docstring.
    pub doc_bytes: Vec<Range<usize>>,
}

/// Longest head, in bytes; a longer one is cut.
pub(crate) const HEAD_BYTES_MAX: usize = 512;

/// Kind of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ChunkKind {
    /// A function, a method or a macro.
    Function = 0,
    /// A type, an interface, or a module's own head.
    Type = 1,
    /// Code of other kinds: imports, constants, statements.
    Code = 2,
    /// A section of a document.
    Section = 3,
    /// A table or key of a configuration.
    Key = 4,
    /// Anything else.
    Text = 5,
}

/// Splits `text`, the content of the file at `path`, into chunks.
pub fn chunks(path: &str, text: &str) -> Vec<TextChunk> {
    let lines = TextLines::new(text);
    let (outline, loose) = outline_of(path, &lines);
    cut_chunks(&lines, &outline, loose)
}

/// Returns the outline of the file at `path`, and the kind of its text outside of definitions.
pub(crate) fn outline_of(path: &str, lines: &TextLines<'_>) -> (Outline, ChunkKind) {
    let text = lines.text;
    let sort = FileClass::for_path(path);
    let lang = sort.lang.or_else(|| interpreter(text)).unwrap_or_default();
    let kind = if sort.lang.is_none() && !lang.is_empty() { FilePurpose::Code } else { sort.kind };
    match kind {
        FilePurpose::Code => {
            let grammar = Grammar::for_language(dialect(path, lang, text));
            let outline = grammar.and_then(|grammar| code::outline(lines, grammar));
            (outline.unwrap_or_else(|| guess::outline(lines)), ChunkKind::Code)
        }
        FilePurpose::Docs => (sections::outline(lines, lang), ChunkKind::Text),
        FilePurpose::Config => (config_outline::outline(lines, lang), ChunkKind::Key),
        FilePurpose::Other => (Outline::default(), ChunkKind::Text),
    }
}

/// Returns the language whose grammar parses a file in `lang`.
fn dialect<'l>(path: &str, lang: &'l str, text: &str) -> &'l str {
    let is_cpp = |line: &str| {
        let marks = ["class ", "namespace ", "template", "public:", "private:", "using "];
        marks.iter().any(|mark| line.trim_start().starts_with(mark))
    };
    match lang {
        "typescript" if path.ends_with(".tsx") => "tsx",
        "c" if path.ends_with(".h") && text.lines().any(is_cpp) => "cpp",
        _same => lang,
    }
}

/// Returns the language of the interpreter in the first line (`#!`), if it is a known one.
fn interpreter(text: &str) -> Option<&'static str> {
    let first = text.strip_prefix("#!")?.lines().next()?;
    let program = first.rsplit(['/', ' ']).find(|word| !word.starts_with('-'))?;
    ["sh", "python", "ruby", "node"]
        .into_iter()
        .zip(["shell", "python", "ruby", "javascript"])
        .find(|(name, _)| {
            program.trim_end_matches(|c: char| c == '.' || c.is_numeric()).ends_with(name)
        })
        .map(|(_, lang)| lang)
}
