//! Rules for finding definitions in Java.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "java",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Marked,
    roles: &[
        ("method_declaration", SyntaxNodeRole::Function),
        ("constructor_declaration", SyntaxNodeRole::Function),
        ("compact_constructor_declaration", SyntaxNodeRole::Function),
        ("annotation_type_element_declaration", SyntaxNodeRole::Function),
        ("class_declaration", SyntaxNodeRole::Type),
        ("interface_declaration", SyntaxNodeRole::Type),
        ("enum_declaration", SyntaxNodeRole::Type),
        ("record_declaration", SyntaxNodeRole::Type),
        ("annotation_type_declaration", SyntaxNodeRole::Type),
        ("annotation", SyntaxNodeRole::Attribute),
        ("marker_annotation", SyntaxNodeRole::Attribute),
        ("line_comment", SyntaxNodeRole::Comment),
        ("block_comment", SyntaxNodeRole::Comment),
        ("package_declaration", SyntaxNodeRole::Opaque),
        ("import_declaration", SyntaxNodeRole::Opaque),
    ],
};
