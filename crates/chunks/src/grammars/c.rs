//! Rules for finding definitions in C.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "c",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_definition", SyntaxNodeRole::Function),
        ("preproc_function_def", SyntaxNodeRole::Function),
        ("struct_specifier", SyntaxNodeRole::TypeIfBody),
        ("union_specifier", SyntaxNodeRole::TypeIfBody),
        ("enum_specifier", SyntaxNodeRole::TypeIfBody),
        ("type_definition", SyntaxNodeRole::Type),
        ("declaration", SyntaxNodeRole::Prototype),
        ("preproc_def", SyntaxNodeRole::Value),
        ("linkage_specification", SyntaxNodeRole::Other),
        ("comment", SyntaxNodeRole::Comment),
        ("preproc_include", SyntaxNodeRole::Opaque),
    ],
};
