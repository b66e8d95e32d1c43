//! Rules for finding definitions in TypeScript, with and without JSX.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "typescript",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Above,
    roles: &ROLES,
};

/// Rules of the language `tsx`, for files whose names end with `tsx`.
pub(super) const TSX: LanguageDefinition = LanguageDefinition { lang: "tsx", ..RULES };

const ROLES: [(&str, SyntaxNodeRole); 29] = [
    ("function_declaration", SyntaxNodeRole::Function),
    ("generator_function_declaration", SyntaxNodeRole::Function),
    ("function_expression", SyntaxNodeRole::Function),
    ("function_signature", SyntaxNodeRole::Function),
    ("method_definition", SyntaxNodeRole::Function),
    ("method_signature", SyntaxNodeRole::Function),
    ("abstract_method_signature", SyntaxNodeRole::Function),
    ("class_declaration", SyntaxNodeRole::Type),
    ("abstract_class_declaration", SyntaxNodeRole::Type),
    ("class", SyntaxNodeRole::Type),
    ("interface_declaration", SyntaxNodeRole::Type),
    ("enum_declaration", SyntaxNodeRole::Type),
    ("type_alias_declaration", SyntaxNodeRole::Type),
    ("internal_module", SyntaxNodeRole::Scope),
    ("module", SyntaxNodeRole::Scope),
    ("ambient_declaration", SyntaxNodeRole::Wrapper),
    ("variable_declarator", SyntaxNodeRole::Assignment),
    ("assignment_expression", SyntaxNodeRole::FunctionAssignment),
    ("pair", SyntaxNodeRole::FunctionAssignment),
    ("public_field_definition", SyntaxNodeRole::FunctionAssignment),
    ("export_statement", SyntaxNodeRole::Wrapper),
    ("expression_statement", SyntaxNodeRole::Wrapper),
    ("lexical_declaration", SyntaxNodeRole::Wrapper),
    ("variable_declaration", SyntaxNodeRole::Wrapper),
    ("decorator", SyntaxNodeRole::Attribute),
    ("comment", SyntaxNodeRole::Comment),
    ("import_statement", SyntaxNodeRole::Opaque),
    ("template_string", SyntaxNodeRole::Opaque),
    ("string", SyntaxNodeRole::Opaque),
];
