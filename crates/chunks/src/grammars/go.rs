//! Rules for finding definitions in Go.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "go",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Above,
    roles: &[
        ("function_declaration", SyntaxNodeRole::Function),
        ("method_declaration", SyntaxNodeRole::Function),
        ("type_declaration", SyntaxNodeRole::Wrapper),
        ("type_spec", SyntaxNodeRole::Type),
        ("type_alias", SyntaxNodeRole::Value),
        ("const_declaration", SyntaxNodeRole::Value),
        ("var_declaration", SyntaxNodeRole::Value),
        ("package_clause", SyntaxNodeRole::Package),
        ("import_declaration", SyntaxNodeRole::Opaque),
        ("comment", SyntaxNodeRole::Comment),
    ],
};
