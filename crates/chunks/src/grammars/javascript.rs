//! JavaScript, with JSX.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "javascript",
    grammar: || tree_sitter_javascript::LANGUAGE.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Above,
    roles: &ROLES,
};

const ROLES: [(&str, NodeRole); 19] = [
    ("function_declaration", NodeRole::Function),
    ("generator_function_declaration", NodeRole::Function),
    ("function_expression", NodeRole::Function),
    ("method_definition", NodeRole::Function),
    ("class_declaration", NodeRole::Type),
    ("class", NodeRole::Type),
    ("variable_declarator", NodeRole::Assignment),
    ("assignment_expression", NodeRole::FunctionAssignment),
    ("pair", NodeRole::FunctionAssignment),
    ("field_definition", NodeRole::FunctionAssignment),
    ("export_statement", NodeRole::Wrapper),
    ("expression_statement", NodeRole::Wrapper),
    ("lexical_declaration", NodeRole::Wrapper),
    ("variable_declaration", NodeRole::Wrapper),
    ("decorator", NodeRole::Attribute),
    ("comment", NodeRole::Comment),
    ("import_statement", NodeRole::Opaque),
    ("template_string", NodeRole::Opaque),
    ("string", NodeRole::Opaque),
];
