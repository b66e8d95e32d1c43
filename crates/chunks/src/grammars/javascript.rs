//! JavaScript, with JSX.

use super::{Docs, Letters, Role, Rules};

pub(super) const RULES: Rules = Rules {
    lang: "javascript",
    grammar: || tree_sitter_javascript::LANGUAGE.into(),
    letters: Letters::All,
    docs: Docs::Above,
    roles: &ROLES,
};

const ROLES: [(&str, Role); 19] = [
    ("function_declaration", Role::Function),
    ("generator_function_declaration", Role::Function),
    ("function_expression", Role::Function),
    ("method_definition", Role::Function),
    ("class_declaration", Role::Type),
    ("class", Role::Type),
    ("variable_declarator", Role::Assigned),
    ("assignment_expression", Role::AssignedFunction),
    ("pair", Role::AssignedFunction),
    ("field_definition", Role::AssignedFunction),
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
