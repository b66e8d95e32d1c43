//! Rules for finding definitions in Rust.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "rust",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::MarkedOrInner,
    roles: &[
        ("function_item", SyntaxNodeRole::Function),
        ("function_signature_item", SyntaxNodeRole::Function),
        ("macro_definition", SyntaxNodeRole::Function),
        ("struct_item", SyntaxNodeRole::Type),
        ("enum_item", SyntaxNodeRole::Type),
        ("union_item", SyntaxNodeRole::Type),
        ("trait_item", SyntaxNodeRole::Type),
        ("impl_item", SyntaxNodeRole::Scope),
        ("mod_item", SyntaxNodeRole::Scope),
        ("foreign_mod_item", SyntaxNodeRole::Scope),
        ("type_item", SyntaxNodeRole::Value),
        ("associated_type", SyntaxNodeRole::Value),
        ("const_item", SyntaxNodeRole::Value),
        ("static_item", SyntaxNodeRole::Value),
        ("attribute_item", SyntaxNodeRole::Attribute),
        ("line_comment", SyntaxNodeRole::Comment),
        ("block_comment", SyntaxNodeRole::Comment),
        ("macro_invocation", SyntaxNodeRole::Tokens),
        ("use_declaration", SyntaxNodeRole::Opaque),
        ("inner_attribute_item", SyntaxNodeRole::Opaque),
    ],
};
