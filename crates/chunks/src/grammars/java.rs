//! Java.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "java",
    grammar: || tree_sitter_java::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Marked,
    roles: &[
        ("method_declaration", NodeRole::Function),
        ("constructor_declaration", NodeRole::Function),
        ("compact_constructor_declaration", NodeRole::Function),
        ("annotation_type_element_declaration", NodeRole::Function),
        ("class_declaration", NodeRole::Type),
        ("interface_declaration", NodeRole::Type),
        ("enum_declaration", NodeRole::Type),
        ("record_declaration", NodeRole::Type),
        ("annotation_type_declaration", NodeRole::Type),
        ("annotation", NodeRole::Attribute),
        ("marker_annotation", NodeRole::Attribute),
        ("line_comment", NodeRole::Comment),
        ("block_comment", NodeRole::Comment),
        ("package_declaration", NodeRole::Opaque),
        ("import_declaration", NodeRole::Opaque),
    ],
};
