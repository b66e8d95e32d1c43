//! Shell, as Bash has it.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "shell",
    grammar: || tree_sitter_bash::LANGUAGE.into(),
    // Its scanner looks letters up in C's table of 256, of which it is outside with others.
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
