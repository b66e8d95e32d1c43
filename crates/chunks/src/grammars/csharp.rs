//! Rules for finding definitions in C#.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "csharp",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Marked,
    roles: &[
        ("method_declaration", SyntaxNodeRole::Function),
        ("constructor_declaration", SyntaxNodeRole::Function),
        ("destructor_declaration", SyntaxNodeRole::Function),
        ("operator_declaration", SyntaxNodeRole::Function),
        ("conversion_operator_declaration", SyntaxNodeRole::Function),
        ("indexer_declaration", SyntaxNodeRole::Function),
        ("property_declaration", SyntaxNodeRole::Function),
        ("event_declaration", SyntaxNodeRole::Function),
        ("delegate_declaration", SyntaxNodeRole::Value),
        ("local_function_statement", SyntaxNodeRole::Function),
        ("class_declaration", SyntaxNodeRole::Type),
        ("struct_declaration", SyntaxNodeRole::Type),
        ("interface_declaration", SyntaxNodeRole::Type),
        ("enum_declaration", SyntaxNodeRole::Type),
        ("record_declaration", SyntaxNodeRole::Type),
        ("namespace_declaration", SyntaxNodeRole::Scope),
        ("file_scoped_namespace_declaration", SyntaxNodeRole::Package),
        ("attribute_list", SyntaxNodeRole::Attribute),
        ("comment", SyntaxNodeRole::Comment),
        ("using_directive", SyntaxNodeRole::Opaque),
    ],
};
