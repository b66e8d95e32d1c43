//! Chunks of files, with their kinds and size limits.

use std::ops::Range;

/// Maximum number of bytes of a chunk that was cut from a longer definition or section, unless the
/// chunk is a single line.
pub(crate) const BYTES_MAX: usize = 8 << 10;
/// Maximum number of lines of a chunk that was cut from a longer definition or section.
pub(crate) const LINES_MAX: usize = 60;

/// A range of whole lines that belong together: a function, a type, a section or a paragraph.
///
/// Chunks of one text are in order and never overlap. Only blank lines are between two chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextChunk {
    /// First line of the chunk, counted from 1.
    pub first: u32,
    /// Last line of the chunk, counted from 1.
    pub last: u32,
    /// Position of the chunk in the text, in bytes, without the last line break.
    pub bytes: Range<usize>,
    /// Kind of the chunk, such as a function or a section.
    pub kind: ChunkKind,
    /// Names that the chunk defines, the main name first. For a section its heading, for a table
    /// its key.
    pub names: Vec<String>,
    /// Names that enclose the chunk's definitions, from the outermost: modules, types, headings.
    pub within: Vec<String>,
    /// Signature of the chunk's main definition, up to the body: `fn parse(text: &str) ->
    /// Result<Ast, Error>`. At most 512 bytes. Empty if the chunk defines nothing.
    pub head: String,
    /// Doc comment of the chunk's definitions, without comment marks. Empty if there is none.
    pub doc: String,
    /// Positions of `doc` in the text, in bytes and in order: whole lines, or the literal of a
    /// docstring.
    pub doc_bytes: Vec<Range<usize>>,
}

/// Longest `head` of a chunk, in bytes. A longer signature is cut.
pub(crate) const HEAD_BYTES_MAX: usize = 512;

/// Kind of a chunk's content, such as a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ChunkKind {
    /// A function, a method or a macro.
    Function = 0,
    /// A type, an interface, or the first lines of a module.
    Type = 1,
    /// Code that is no function or type: imports, constants, statements.
    Code = 2,
    /// A section of a document.
    Section = 3,
    /// A table or key of a configuration.
    Key = 4,
    /// Text that is neither code, a section of a document nor a part of a configuration.
    Text = 5,
}
