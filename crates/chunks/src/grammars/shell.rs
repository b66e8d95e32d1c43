//! Rules for finding definitions in shell scripts, in the Bash dialect.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "shell",
    // The scanner uses C's `isalpha` table of 256 entries, and would read outside of it for others.
    letters: IdentifierCharset::Ascii,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_definition", SyntaxNodeRole::Function),
        ("variable_assignment", SyntaxNodeRole::Value),
        ("declaration_command", SyntaxNodeRole::Wrapper),
        ("comment", SyntaxNodeRole::Comment),
        ("heredoc_body", SyntaxNodeRole::Opaque),
        ("string", SyntaxNodeRole::Opaque),
    ],
};
