//! Rust.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "rust",
    grammar: || tree_sitter_rust::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::MarkedOrInner,
    roles: &[
        ("function_item", NodeRole::Function),
        ("function_signature_item", NodeRole::Function),
        ("macro_definition", NodeRole::Function),
        ("struct_item", NodeRole::Type),
        ("enum_item", NodeRole::Type),
        ("union_item", NodeRole::Type),
        ("trait_item", NodeRole::Type),
        ("impl_item", NodeRole::Scope),
        ("mod_item", NodeRole::Scope),
        ("foreign_mod_item", NodeRole::Scope),
        ("type_item", NodeRole::Value),
        ("associated_type", NodeRole::Value),
        ("const_item", NodeRole::Value),
        ("static_item", NodeRole::Value),
        ("attribute_item", NodeRole::Attribute),
        ("line_comment", NodeRole::Comment),
        ("block_comment", NodeRole::Comment),
        ("macro_invocation", NodeRole::Tokens),
        ("use_declaration", NodeRole::Opaque),
        ("inner_attribute_item", NodeRole::Opaque),
    ],
};
