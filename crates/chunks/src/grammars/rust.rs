//! Rust.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "rust",
    grammar: || tree_sitter_rust::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::MarkedOrInner,
    roles: &[
        ("function_item", Role::Function),
        ("function_signature_item", Role::Function),
        ("macro_definition", Role::Function),
        ("struct_item", Role::Type),
        ("enum_item", Role::Type),
        ("union_item", Role::Type),
        ("trait_item", Role::Type),
        ("impl_item", Role::Scope),
        ("mod_item", Role::Scope),
        ("foreign_mod_item", Role::Scope),
        ("type_item", Role::Value),
        ("associated_type", Role::Value),
        ("const_item", Role::Value),
        ("static_item", Role::Value),
        ("attribute_item", Role::Attribute),
        ("line_comment", Role::Comment),
        ("block_comment", Role::Comment),
        ("macro_invocation", Role::Tokens),
        ("use_declaration", Role::Closed),
        ("inner_attribute_item", Role::Closed),
    ],
};
