//! Ruby.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "ruby",
    grammar: || tree_sitter_ruby::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("method", NodeRole::Function),
        ("singleton_method", NodeRole::Function),
        ("class", NodeRole::Type),
        ("module", NodeRole::Scope),
        ("singleton_class", NodeRole::Scope),
        ("assignment", NodeRole::Value),
        ("comment", NodeRole::Comment),
        ("heredoc_body", NodeRole::Opaque),
        ("string", NodeRole::Opaque),
    ],
};
