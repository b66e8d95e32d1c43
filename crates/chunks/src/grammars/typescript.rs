//! TypeScript, with and without JSX.

use super::{AcceptedLetters, DocCommentPlacement, GrammarRules, NodeRole};

pub(super) const RULES: GrammarRules = GrammarRules {
    lang: "typescript",
    grammar: || tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
    letters: AcceptedLetters::All,
    docs: DocCommentPlacement::Above,
    roles: &ROLES,
};

/// Rules of the language `tsx`, for files whose names end with `tsx`.
pub(super) const TSX: GrammarRules =
    GrammarRules { lang: "tsx", grammar: || tree_sitter_typescript::LANGUAGE_TSX.into(), ..RULES };

const ROLES: [(&str, NodeRole); 29] = [
    ("function_declaration", NodeRole::Function),
    ("generator_function_declaration", NodeRole::Function),
    ("function_expression", NodeRole::Function),
    ("function_signature", NodeRole::Function),
    ("method_definition", NodeRole::Function),
    ("method_signature", NodeRole::Function),
    ("abstract_method_signature", NodeRole::Function),
    ("class_declaration", NodeRole::Type),
    ("abstract_class_declaration", NodeRole::Type),
    ("class", NodeRole::Type),
    ("interface_declaration", NodeRole::Type),
    ("enum_declaration", NodeRole::Type),
    ("type_alias_declaration", NodeRole::Type),
    ("internal_module", NodeRole::Scope),
    ("module", NodeRole::Scope),
    ("ambient_declaration", NodeRole::Wrapper),
    ("variable_declarator", NodeRole::Assignment),
    ("assignment_expression", NodeRole::FunctionAssignment),
    ("pair", NodeRole::FunctionAssignment),
    ("public_field_definition", NodeRole::FunctionAssignment),
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
