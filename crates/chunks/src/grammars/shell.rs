//! Shell, in the Bash dialect.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "shell",
    grammar: || tree_sitter_bash::LANGUAGE.into(),
    // The scanner uses C's `isalpha` table of 256 entries, and would read outside of it for others.
    letters: Letters::Ascii,
    docs: Docs::Above,
    roles: &[
        ("function_definition", Role::Function),
        ("variable_assignment", Role::Value),
        ("declaration_command", Role::Wrap),
        ("comment", Role::Comment),
        ("heredoc_body", Role::Closed),
        ("string", Role::Closed),
    ],
};
