//! Rules for finding definitions in Ruby.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "ruby",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("method", SyntaxNodeRole::Function),
        ("singleton_method", SyntaxNodeRole::Function),
        ("class", SyntaxNodeRole::Type),
        ("module", SyntaxNodeRole::Scope),
        ("singleton_class", SyntaxNodeRole::Scope),
        ("assignment", SyntaxNodeRole::Value),
        ("comment", SyntaxNodeRole::Comment),
        ("heredoc_body", SyntaxNodeRole::Opaque),
        ("string", SyntaxNodeRole::Opaque),
    ],
};
