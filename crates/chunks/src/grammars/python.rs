//! Rules for finding definitions in Python.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "python",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Docstrings,
    roles: &[
        ("function_definition", SyntaxNodeRole::Function),
        ("class_definition", SyntaxNodeRole::Type),
        ("decorated_definition", SyntaxNodeRole::Wrapper),
        ("expression_statement", SyntaxNodeRole::Wrapper),
        ("assignment", SyntaxNodeRole::Value),
        ("type_alias_statement", SyntaxNodeRole::Value),
        ("decorator", SyntaxNodeRole::Attribute),
        ("comment", SyntaxNodeRole::Comment),
        ("string", SyntaxNodeRole::Opaque),
        ("import_statement", SyntaxNodeRole::Opaque),
        ("import_from_statement", SyntaxNodeRole::Opaque),
        ("future_import_statement", SyntaxNodeRole::Opaque),
    ],
};
