//! TypeScript, with and without JSX.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "typescript",
    grammar: || tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
    letters: Letters::All,
    docs: Docs::Above,
    roles: &ROLES,
};

/// Language of files whose names end with `tsx`.
pub(super) const TSX: Rules =
    Rules { lang: "tsx", grammar: || tree_sitter_typescript::LANGUAGE_TSX.into(), ..RULES };

const ROLES: [(&str, Role); 29] = [
    ("function_declaration", Role::Function),
    ("generator_function_declaration", Role::Function),
    ("function_expression", Role::Function),
    ("function_signature", Role::Function),
    ("method_definition", Role::Function),
    ("method_signature", Role::Function),
    ("abstract_method_signature", Role::Function),
    ("class_declaration", Role::Type),
    ("abstract_class_declaration", Role::Type),
    ("class", Role::Type),
    ("interface_declaration", Role::Type),
    ("enum_declaration", Role::Type),
    ("type_alias_declaration", Role::Type),
    ("internal_module", Role::Scope),
    ("module", Role::Scope),
    ("ambient_declaration", Role::Wrap),
    ("variable_declarator", Role::Assigned),
    ("assignment_expression", Role::AssignedFunction),
    ("pair", Role::AssignedFunction),
    ("public_field_definition", Role::AssignedFunction),
    ("export_statement", Role::Wrap),
    ("expression_statement", Role::Wrap),
    ("lexical_declaration", Role::Wrap),
    ("variable_declaration", Role::Wrap),
    ("decorator", Role::Attribute),
    ("comment", Role::Comment),
    ("import_statement", Role::Closed),
    ("template_string", Role::Closed),
    ("string", Role::Closed),
];
