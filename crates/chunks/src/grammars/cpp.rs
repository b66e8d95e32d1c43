//! C++.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "cpp",
    grammar: || tree_sitter_cpp::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_definition", NodeRole::Function),
        ("preproc_function_def", NodeRole::Function),
        ("class_specifier", NodeRole::TypeIfBody),
        ("struct_specifier", NodeRole::TypeIfBody),
        ("union_specifier", NodeRole::TypeIfBody),
        ("enum_specifier", NodeRole::TypeIfBody),
        ("type_definition", NodeRole::Type),
        ("concept_definition", NodeRole::Type),
        ("alias_declaration", NodeRole::Value),
        ("declaration", NodeRole::Prototype),
        ("field_declaration", NodeRole::Prototype),
        ("preproc_def", NodeRole::Value),
        ("namespace_definition", NodeRole::Scope),
        ("template_declaration", NodeRole::Wrapper),
        ("template_parameter_list", NodeRole::Opaque),
        ("comment", NodeRole::Comment),
        ("preproc_include", NodeRole::Opaque),
        ("using_declaration", NodeRole::Opaque),
    ],
};
