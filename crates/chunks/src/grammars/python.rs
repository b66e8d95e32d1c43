//! Python.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "python",
    grammar: || tree_sitter_python::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Docstrings,
    roles: &[
        ("function_definition", NodeRole::Function),
        ("class_definition", NodeRole::Type),
        ("decorated_definition", NodeRole::Wrapper),
        ("expression_statement", NodeRole::Wrapper),
        ("assignment", NodeRole::Value),
        ("type_alias_statement", NodeRole::Value),
        ("decorator", NodeRole::Attribute),
        ("comment", NodeRole::Comment),
        ("string", NodeRole::Opaque),
        ("import_statement", NodeRole::Opaque),
        ("import_from_statement", NodeRole::Opaque),
        ("future_import_statement", NodeRole::Opaque),
    ],
};
