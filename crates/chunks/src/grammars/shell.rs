//! Shell, as Bash has it.

use super::{Docs, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "shell",
    grammar: || tree_sitter_bash::LANGUAGE.into(),
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
