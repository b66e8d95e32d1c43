//! Ruby.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "ruby",
    grammar: || tree_sitter_ruby::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Above,
    roles: &[
        ("method", Role::Function),
        ("singleton_method", Role::Function),
        ("class", Role::Type),
        ("module", Role::Scope),
        ("singleton_class", Role::Scope),
        ("assignment", Role::Value),
        ("comment", Role::Comment),
        ("heredoc_body", Role::Closed),
        ("string", Role::Closed),
    ],
};
