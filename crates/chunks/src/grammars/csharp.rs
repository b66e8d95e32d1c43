//! C#.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "csharp",
    grammar: || tree_sitter_c_sharp::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Marked,
    roles: &[
        ("method_declaration", NodeRole::Function),
        ("constructor_declaration", NodeRole::Function),
        ("destructor_declaration", NodeRole::Function),
        ("operator_declaration", NodeRole::Function),
        ("conversion_operator_declaration", NodeRole::Function),
        ("indexer_declaration", NodeRole::Function),
        ("property_declaration", NodeRole::Function),
        ("event_declaration", NodeRole::Function),
        ("delegate_declaration", NodeRole::Value),
        ("local_function_statement", NodeRole::Function),
        ("class_declaration", NodeRole::Type),
        ("struct_declaration", NodeRole::Type),
        ("interface_declaration", NodeRole::Type),
        ("enum_declaration", NodeRole::Type),
        ("record_declaration", NodeRole::Type),
        ("namespace_declaration", NodeRole::Scope),
        ("file_scoped_namespace_declaration", NodeRole::Package),
        ("attribute_list", NodeRole::Attribute),
        ("comment", NodeRole::Comment),
        ("using_directive", NodeRole::Opaque),
    ],
};
