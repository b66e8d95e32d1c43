//! Fields of a chunk in which a search looks for words.

/// Field of a chunk in which a search looks for words. Each field has its own word counts and
/// length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum ChunkField {
    /// Names that the chunk defines, such as that of a function.
    Name = 0,
    /// Names that enclose the chunk: types, modules, headings.
    Within = 1,
    /// Path of the chunk's file.
    Path = 2,
    /// Signature of the chunk's main definition.
    Head = 3,
    /// Doc comment of the chunk's definitions.
    Doc = 4,
    /// Text of the chunk without the doc comment, but with the signature.
    Body = 5,
}

/// Number of fields of a chunk.
pub const FIELDS: usize = 6;

/// All fields of a chunk, in the order of their numbers.
pub const ALL_FIELDS: [ChunkField; FIELDS] = [
    ChunkField::Name,
    ChunkField::Within,
    ChunkField::Path,
    ChunkField::Head,
    ChunkField::Doc,
    ChunkField::Body,
];

/// Texts of a chunk by field, in the order of [`ALL_FIELDS`].
pub type ChunkTexts<'t> = [&'t str; FIELDS];
