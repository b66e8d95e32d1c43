//! Parts of a chunk that are searched.

/// Parts of a chunk that are searched for words, each with its own counts and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum ChunkField {
    /// Names that it defines.
    Name = 0,
    /// Names that enclose it: types, modules, headings.
    Within = 1,
    /// Path of its file.
    Path = 2,
    /// Signature of its definition.
    Head = 3,
    /// Doc comment.
    Doc = 4,
    /// Text without the doc comment, but with the signature.
    Body = 5,
}

/// Number of fields.
pub const FIELDS: usize = 6;

/// All fields, in order.
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
