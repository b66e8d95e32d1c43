//! Rules for finding definitions in C++.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "cpp",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_definition", SyntaxNodeRole::Function),
        ("preproc_function_def", SyntaxNodeRole::Function),
        ("class_specifier", SyntaxNodeRole::TypeIfBody),
        ("struct_specifier", SyntaxNodeRole::TypeIfBody),
        ("union_specifier", SyntaxNodeRole::TypeIfBody),
        ("enum_specifier", SyntaxNodeRole::TypeIfBody),
        ("type_definition", SyntaxNodeRole::Type),
        ("concept_definition", SyntaxNodeRole::Type),
        ("alias_declaration", SyntaxNodeRole::Value),
        ("declaration", SyntaxNodeRole::Prototype),
        ("field_declaration", SyntaxNodeRole::Prototype),
        ("preproc_def", SyntaxNodeRole::Value),
        ("namespace_definition", SyntaxNodeRole::Scope),
        ("template_declaration", SyntaxNodeRole::Wrapper),
        ("template_parameter_list", SyntaxNodeRole::Opaque),
        ("comment", SyntaxNodeRole::Comment),
        ("preproc_include", SyntaxNodeRole::Opaque),
        ("using_declaration", SyntaxNodeRole::Opaque),
    ],
};
