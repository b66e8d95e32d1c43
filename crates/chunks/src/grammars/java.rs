//! Java.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "java",
    grammar: || tree_sitter_java::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Marked,
    roles: &[
        ("method_declaration", Role::Function),
        ("constructor_declaration", Role::Function),
        ("compact_constructor_declaration", Role::Function),
        ("annotation_type_element_declaration", Role::Function),
        ("class_declaration", Role::Type),
        ("interface_declaration", Role::Type),
        ("enum_declaration", Role::Type),
        ("record_declaration", Role::Type),
        ("annotation_type_declaration", Role::Type),
        ("annotation", Role::Attribute),
        ("marker_annotation", Role::Attribute),
        ("line_comment", Role::Comment),
        ("block_comment", Role::Comment),
        ("package_declaration", Role::Closed),
        ("import_declaration", Role::Closed),
    ],
};
