//! Go.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "go",
    grammar: || tree_sitter_go::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Above,
    roles: &[
        ("function_declaration", Role::Function),
        ("method_declaration", Role::Function),
        ("type_declaration", Role::Wrap),
        ("type_spec", Role::Type),
        ("type_alias", Role::Value),
        ("const_declaration", Role::Value),
        ("var_declaration", Role::Value),
        ("package_clause", Role::Package),
        ("import_declaration", Role::Closed),
        ("comment", Role::Comment),
    ],
};
