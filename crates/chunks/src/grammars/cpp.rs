//! C++.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "cpp",
    grammar: || tree_sitter_cpp::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Above,
    roles: &[
        ("function_definition", Role::Function),
        ("preproc_function_def", Role::Function),
        ("class_specifier", Role::TypeIfBody),
        ("struct_specifier", Role::TypeIfBody),
        ("union_specifier", Role::TypeIfBody),
        ("enum_specifier", Role::TypeIfBody),
        ("type_definition", Role::Type),
        ("concept_definition", Role::Type),
        ("alias_declaration", Role::Value),
        ("declaration", Role::Prototype),
        ("field_declaration", Role::Prototype),
        ("preproc_def", Role::Value),
        ("namespace_definition", Role::Scope),
        ("template_declaration", Role::Wrap),
        ("template_parameter_list", Role::Closed),
        ("comment", Role::Comment),
        ("preproc_include", Role::Closed),
        ("using_declaration", Role::Closed),
    ],
};
