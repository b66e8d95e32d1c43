//! C#.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "csharp",
    grammar: || tree_sitter_c_sharp::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Marked,
    roles: &[
        ("method_declaration", Role::Function),
        ("constructor_declaration", Role::Function),
        ("destructor_declaration", Role::Function),
        ("operator_declaration", Role::Function),
        ("conversion_operator_declaration", Role::Function),
        ("indexer_declaration", Role::Function),
        ("property_declaration", Role::Function),
        ("event_declaration", Role::Function),
        ("delegate_declaration", Role::Value),
        ("local_function_statement", Role::Function),
        ("class_declaration", Role::Type),
        ("struct_declaration", Role::Type),
        ("interface_declaration", Role::Type),
        ("enum_declaration", Role::Type),
        ("record_declaration", Role::Type),
        ("namespace_declaration", Role::Scope),
        ("file_scoped_namespace_declaration", Role::Package),
        ("attribute_list", Role::Attribute),
        ("comment", Role::Comment),
        ("using_directive", Role::Closed),
    ],
};
