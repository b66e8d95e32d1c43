//! Go.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "go",
    grammar: || tree_sitter_go::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_declaration", NodeRole::Function),
        ("method_declaration", NodeRole::Function),
        ("type_declaration", NodeRole::Wrapper),
        ("type_spec", NodeRole::Type),
        ("type_alias", NodeRole::Value),
        ("const_declaration", NodeRole::Value),
        ("var_declaration", NodeRole::Value),
        ("package_clause", NodeRole::Package),
        ("import_declaration", NodeRole::Opaque),
        ("comment", NodeRole::Comment),
    ],
};
