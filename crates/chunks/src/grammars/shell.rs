//! Shell, in the Bash dialect.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "shell",
    grammar: || tree_sitter_bash::LANGUAGE.into(),
    // The scanner uses C's `isalpha` table of 256 entries, and would read outside of it for others.
    letters: AcceptedLetters::Ascii,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_definition", NodeRole::Function),
        ("variable_assignment", NodeRole::Value),
        ("declaration_command", NodeRole::Wrapper),
        ("comment", NodeRole::Comment),
        ("heredoc_body", NodeRole::Opaque),
        ("string", NodeRole::Opaque),
    ],
};
