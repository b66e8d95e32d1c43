//! Python.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "python",
    grammar: || tree_sitter_python::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Strings,
    roles: &[
        ("function_definition", Role::Function),
        ("class_definition", Role::Type),
        ("decorated_definition", Role::Wrap),
        ("expression_statement", Role::Wrap),
        ("assignment", Role::Value),
        ("type_alias_statement", Role::Value),
        ("decorator", Role::Attribute),
        ("comment", Role::Comment),
        ("string", Role::Closed),
        ("import_statement", Role::Closed),
        ("import_from_statement", Role::Closed),
        ("future_import_statement", Role::Closed),
    ],
};
