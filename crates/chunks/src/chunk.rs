//! A chunk: whole lines of a text that belong together, and what is known of them.

use std::ops::Range;

use crate::cut::cut;
use crate::grammars::Grammar;
use crate::language::{Kind, Sort};
use crate::lines::Lines;
use crate::outline::Outline;
use crate::{code, guess, sections, settings};

/// Whole lines that belong together: a function, a type, a section, a paragraph.
///
/// Chunks of one text are in order and never overlap; what lies between two is blank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its first line, from 1.
    pub first: u32,
    /// Its last line.
    pub last: u32,
    /// Where it stands in the text, in bytes, without the end of the last line.
    pub bytes: Range<usize>,
    /// What it is.
    pub kind: ChunkKind,
    /// The names it defines, the main one first; of a section its heading, of a table its key.
    pub names: Vec<String>,
    /// What its definitions stand in, from the outermost: modules, types, headings above.
    pub within: Vec<String>,
    /// How its main definition reads up to its body: `fn parse(text: &str) -> Result<Ast, Error>`.
    /// Empty where there is none. At most 512 bytes.
    pub head: String,
    /// The doc comment of its definitions, without comment marks. Empty where there is none.
    pub doc: String,
    /// Where the doc comments stand in the text, in order, by whole lines or the literal of a
    /// docstring: `doc` again, as bytes.
    pub doc_bytes: Vec<Range<usize>>,
}

/// A longer head is cut.
pub(crate) const HEAD_BYTES_MAX: usize = 512;

/// What a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ChunkKind {
    /// A function, a method, a macro.
    Function = 0,
    /// A type, an interface, a module's own head.
    Type = 1,
    /// Other code: imports, constants, statements.
    Code = 2,
    /// A section of a document.
    Section = 3,
    /// A table or key of a configuration.
    Key = 4,
    /// Anything else.
    Text = 5,
}

/// The chunks of `text`, which is in the file at `path`.
pub fn chunks(path: &str, text: &str) -> Vec<Chunk> {
    let lines = Lines::of(text);
    let (outline, loose) = outline_of(path, &lines);
    cut(&lines, &outline, loose)
}

/// What the text of `lines` defines, which is in the file at `path`, and what the rest of it is.
pub(crate) fn outline_of(path: &str, lines: &Lines<'_>) -> (Outline, ChunkKind) {
    let text = lines.text;
    let sort = Sort::of(path);
    let lang = sort.lang.or_else(|| interpreter(text)).unwrap_or_default();
    let kind = if sort.lang.is_none() && !lang.is_empty() { Kind::Code } else { sort.kind };
    match kind {
        Kind::Code => {
            let grammar = Grammar::of(dialect(path, lang, text));
            let outline = grammar.and_then(|grammar| code::outline(lines, grammar));
            (outline.unwrap_or_else(|| guess::outline(lines)), ChunkKind::Code)
        }
        Kind::Docs => (sections::outline(lines, lang), ChunkKind::Text),
        Kind::Config => (settings::outline(lines, lang), ChunkKind::Key),
        Kind::Other => (Outline::default(), ChunkKind::Text),
    }
}

/// Whose grammar a file in `lang` is read by.
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

/// The language of a file that says by which program it is run.
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
