//! Parts of a chunk that a search covers.

/// Part of a chunk that is searched for words. Each part has its own word counts and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum ChunkField {
    /// Names that the chunk defines, such as that of a function.
    Name = 0,
    /// Names that enclose the chunk: types, modules, headings.
    Within = 1,
    /// Field with the path of the chunk's file.
    Path = 2,
    /// Field with the signature of the chunk's definition.
    Head = 3,
    /// Field with the doc comment of the chunk's definition.
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
