//! Rules for finding definitions in JavaScript, including JSX.

use super::{DocCommentPlacement, IdentifierCharset, LanguageDefinition, SyntaxNodeRole};

pub(super) const RULES: LanguageDefinition = LanguageDefinition {
    lang: "javascript",
    letters: IdentifierCharset::All,
    docs: DocCommentPlacement::Above,
    roles: &ROLES,
};

const ROLES: [(&str, SyntaxNodeRole); 19] = [
    ("function_declaration", SyntaxNodeRole::Function),
    ("generator_function_declaration", SyntaxNodeRole::Function),
    ("function_expression", SyntaxNodeRole::Function),
    ("method_definition", SyntaxNodeRole::Function),
    ("class_declaration", SyntaxNodeRole::Type),
    ("class", SyntaxNodeRole::Type),
    ("variable_declarator", SyntaxNodeRole::Assignment),
    ("assignment_expression", SyntaxNodeRole::FunctionAssignment),
    ("pair", SyntaxNodeRole::FunctionAssignment),
    ("field_definition", SyntaxNodeRole::FunctionAssignment),
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
