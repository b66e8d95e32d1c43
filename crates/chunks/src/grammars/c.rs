//! C.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "c",
    grammar: || tree_sitter_c::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Above,
    roles: &[
        ("function_definition", Role::Function),
        ("preproc_function_def", Role::Function),
        ("struct_specifier", Role::TypeIfBody),
        ("union_specifier", Role::TypeIfBody),
        ("enum_specifier", Role::TypeIfBody),
        ("type_definition", Role::Type),
        ("declaration", Role::Prototype),
        ("preproc_def", Role::Value),
        ("linkage_specification", Role::Other),
        ("comment", Role::Comment),
        ("preproc_include", Role::Closed),
    ],
};
