//! C.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "c",
    grammar: || tree_sitter_c::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_definition", NodeRole::Function),
        ("preproc_function_def", NodeRole::Function),
        ("struct_specifier", NodeRole::TypeIfBody),
        ("union_specifier", NodeRole::TypeIfBody),
        ("enum_specifier", NodeRole::TypeIfBody),
        ("type_definition", NodeRole::Type),
        ("declaration", NodeRole::Prototype),
        ("preproc_def", NodeRole::Value),
        ("linkage_specification", NodeRole::Other),
        ("comment", NodeRole::Comment),
        ("preproc_include", NodeRole::Opaque),
    ],
};
