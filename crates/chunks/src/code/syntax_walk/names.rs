//! Names and signatures of definitions.

use std::ops::Range;

use tree_sitter::Node;

use crate::chunk::HEAD_BYTES_MAX;
use crate::grammars::{LoadedGrammar, SyntaxNodeRole};
use crate::outline::OutlinePartKind;

/// Names of a definition, and the names that enclose it.
#[derive(Debug, Default)]
pub(super) struct DefinitionNames {
    /// Names that the definition defines, the main name first.
    pub(super) names: Vec<String>,
    /// Enclosing names that the definition itself contains: `Server` in `void Server::serve()`.
    pub(super) outer_names: Vec<String>,
    /// Names that the definition adds to the enclosing names of definitions inside it.
    pub(super) scope: Vec<String>,
}

/// Maximum number of names of one definition.
const NAMES_MAX: usize = 8;
/// Longest name of a definition, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// Maximum number of names that enclose a definition.
const ABOVE_MAX: usize = 8;
/// Maximum number of declarators of a declaration in C or C++, and their greatest nesting depth.
const DECLARATORS_MAX: usize = 32;

/// Returns the names that the syntax node `node` defines, possibly none.
pub(super) fn definition_names(node: Node<'_>, text: &str) -> DefinitionNames {
    let mut named = DefinitionNames::default();
    match node.kind() {
        "impl_item" => {
            let types = ["type", "trait"].map(|field| node.child_by_field_name(field));
            named.names.extend(types.into_iter().flatten().filter_map(|it| type_name(it, text)));
            named.scope = named.names.clone();
            return named;
        }
        "foreign_mod_item" => named.names.push("extern".to_owned()),
        "singleton_class" => named.names.push("self".to_owned()),
        "method_declaration" => {
            let receiver = node.child_by_field_name("receiver");
            named.outer_names.extend(receiver.and_then(|it| type_name(it, text)));
        }
        _kind => {}
    }
    if named.names.is_empty() {
        collect_field_names(node, text, &mut named);
    }
    named.names.truncate(NAMES_MAX);
    named.outer_names.drain(..named.outer_names.len().saturating_sub(ABOVE_MAX));
    if named.scope.is_empty() && !matches!(node.kind(), "foreign_mod_item" | "singleton_class") {
        named.scope = named.names.first().cloned().into_iter().collect();
    }
    named
}

/// Adds the names in the fields of the syntax node `node` to `named`.
fn collect_field_names(node: Node<'_>, text: &str, named: &mut DefinitionNames) {
    for field in ["name", "property", "key", "left"] {
        if let Some(name) = node.child_by_field_name(field) {
            return collect_name(name, text, named);
        }
    }
    let mut cursor = node.walk();
    let declarators = node.children_by_field_name("declarator", &mut cursor);
    for declarator in declarators.take(DECLARATORS_MAX) {
        collect_declared(declarator, text, named);
    }
    if !named.names.is_empty() {
        return;
    }
    match node.kind() {
        "operator_declaration" => {
            let operator = node.child_by_field_name("operator").map(|it| &text[it.byte_range()]);
            named.names.extend(operator.map(|it| format!("operator {it}")));
        }
        "conversion_operator_declaration" => named.names.push("operator".to_owned()),
        "indexer_declaration" => named.names.push("this".to_owned()),
        "package_clause" => {
            if let Some(name) = node.named_child(0) {
                collect_name(name, text, named);
            }
        }
        // Go's `const ( ... )` declares each of its entries.
        "const_declaration" | "var_declaration" | "var_spec_list" => {
            let mut cursor = node.walk();
            for spec in node.named_children(&mut cursor).take(NAMES_MAX) {
                match spec.kind() {
                    "const_spec" | "var_spec" => collect_field_names(spec, text, named),
                    "var_spec_list" => {
                        let mut cursor = spec.walk();
                        for spec in spec.named_children(&mut cursor).take(NAMES_MAX) {
                            collect_field_names(spec, text, named);
                        }
                    }
                    _comment => {}
                }
            }
        }
        _kind => {}
    }
}

/// Adds the defined `name`, which is a plain or a qualified identifier, to `named`.
fn collect_name(name: Node<'_>, text: &str, named: &mut DefinitionNames) {
    let name_text = &text[name.byte_range()];
    match name.kind() {
        "object_pattern"
        | "array_pattern"
        | "pattern_list"
        | "tuple_pattern"
        | "list_pattern"
        | "subscript"
        | "subscript_expression"
        | "computed_property_name"
        | "attribute"
        | "instance_variable"
        | "call"
        | "element_reference"
        | "left_assignment_list" => {}
        "member_expression" => {
            let parts: Vec<&str> = name_text.split('.').map(str::trim).collect();
            if parts.iter().all(|part| is_name(part))
                && let [above @ .., name] = &parts[..]
            {
                let is_named =
                    |it: &&&str| !matches!(**it, "this" | "exports" | "module" | "prototype");
                push_outer(&mut named.outer_names, above.iter().filter(is_named));
                push_name(&mut named.names, name);
            }
        }
        "qualified_identifier"
        | "nested_namespace_specifier"
        | "qualified_name"
        | "scope_resolution"
        | "nested_identifier"
        | "scoped_identifier"
        | "template_type" => {
            let bare = name_text.split('<').next().unwrap_or_default();
            let parts: Vec<&str> =
                bare.split([':', '.']).map(str::trim).filter(|it| !it.is_empty()).collect();
            if let [above @ .., name] = &parts[..] {
                push_outer(&mut named.outer_names, above.iter());
                push_name(&mut named.names, name);
            }
        }
        // Variables of objects in Ruby and Python are not definitions; constants are.
        "identifier"
        | "constant"
        | "field_identifier"
        | "type_identifier"
        | "property_identifier"
        | "word"
        | "variable_name" => push_name(&mut named.names, name_text),
        _literal => push_name(&mut named.names, name_text.trim_matches(['"', '\'', '`', '#'])),
    }
}

/// Adds the name that the declarator `node` of C or C++ declares to `named`.
fn collect_declared(node: Node<'_>, text: &str, named: &mut DefinitionNames) {
    let mut node = node;
    for _ in 0..DECLARATORS_MAX {
        match node.kind() {
            "identifier" | "field_identifier" | "type_identifier" | "destructor_name"
            | "operator_name" => return push_name(&mut named.names, &text[node.byte_range()]),
            "operator_cast" => return push_name(&mut named.names, "operator"),
            "qualified_identifier" => {
                if let Some(scope) = node.child_by_field_name("scope") {
                    let scope = text[scope.byte_range()].split('<').next().unwrap_or_default();
                    push_name(&mut named.outer_names, scope);
                }
                let Some(name) = node.child_by_field_name("name") else { return };
                node = name;
            }
            "template_function" | "template_method" => {
                let Some(name) = node.child_by_field_name("name") else { return };
                node = name;
            }
            _declarator => {
                let next = node.child_by_field_name("declarator").or_else(|| {
                    let mut cursor = node.walk();
                    let is_named = |it: &Node<'_>| {
                        it.kind().ends_with("declarator") || it.kind().ends_with("identifier")
                    };
                    node.named_children(&mut cursor).find(is_named)
                });
                let next = next.or_else(|| node.child_by_field_name("name"));
                let Some(next) = next else { return };
                node = next;
            }
        }
    }
}

/// Returns the bare name of a type, such as `Etag` for `&mut fmt::Etag<T>`. `None` if the type has
/// no name.
fn type_name(node: Node<'_>, text: &str) -> Option<String> {
    let type_text = text[node.byte_range()].trim_start_matches('(');
    // A Go receiver has a name before its type.
    let type_text = match node.kind() {
        "parameter_list" => {
            type_text.trim_end_matches(')').rsplit([' ', '*']).find(|it| !it.is_empty())?
        }
        _type => type_text,
    };
    let bare = type_text.split(['<', '[']).next().unwrap_or_default();
    let mut words = bare.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let skips = ["mut", "dyn", "const", "unsafe", "fn", "for"];
    let name = words.rfind(|it| !it.is_empty() && !skips.contains(it));
    let name = name.or_else(|| (!type_text.is_empty()).then_some(type_text))?;
    (name.len() <= NAME_BYTES_MAX).then(|| name.to_owned())
}

/// Appends the innermost of the enclosing names `parts` to `above`, in the order from the
/// outermost.
fn push_outer<'t>(above: &mut Vec<String>, parts: impl DoubleEndedIterator<Item = &'t &'t str>) {
    let fitting = parts.filter(|it| it.len() <= NAME_BYTES_MAX);
    let mut last: Vec<String> = fitting.rev().take(ABOVE_MAX).map(|it| (*it).to_owned()).collect();
    last.reverse();
    above.append(&mut last);
}

fn push_name(names: &mut Vec<String>, name: &str) {
    let name = name.trim();
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains('\n');
    if fits && !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '#'))
}

/// Returns true if the declaration `node` declares a function.
pub(super) fn is_prototype(node: Node<'_>) -> bool {
    let mut next = node.child_by_field_name("declarator");
    for _ in 0..DECLARATORS_MAX {
        match next {
            // `int (*callback)(int)` declares a variable.
            Some(it) if it.kind() == "function_declarator" => {
                let inner = it.child_by_field_name("declarator");
                return inner.is_some_and(|it| it.kind() != "parenthesized_declarator");
            }
            Some(it) if it.kind() == "reference_declarator" => next = it.named_child(0),
            Some(it) => next = it.child_by_field_name("declarator"),
            None => return false,
        }
    }
    false
}

/// Returns the kind of the value that the assignment `node` assigns, if that is a function or a
/// class.
pub(super) fn assigned_kind(node: Node<'_>) -> Option<OutlinePartKind> {
    let value = ["value", "right"].into_iter().find_map(|field| node.child_by_field_name(field))?;
    match value.kind() {
        "arrow_function" | "function_expression" | "generator_function" => {
            Some(OutlinePartKind::Function)
        }
        "class" => Some(OutlinePartKind::Type),
        _value => None,
    }
}

/// Returns the signature of the definition `node` on one line: from the byte `from` (by default the
/// start of `node`) up to the body.
pub(super) fn head(
    node: Node<'_>,
    grammar: &LoadedGrammar,
    text: &str,
    from: Option<usize>,
) -> String {
    let from = from.unwrap_or(node.start_byte());
    let to = head_end(node, text).max(from);
    let mut left_out: Vec<Range<usize>> = Vec::new();
    collect_left_out(node, grammar, to, &mut left_out);
    let mut head = String::new();
    let mut at = from;
    for range in left_out {
        if range.start >= at {
            push_collapsed(&text[at..range.start], &mut head);
            at = range.end.min(to).max(at);
        }
    }
    push_collapsed(&text[at.min(to)..to], &mut head);
    let bare = head.trim_end_matches([' ', '{', ';', ',', '\\']);
    let bare = bare.strip_suffix("=>").or(bare.strip_suffix('=')).unwrap_or(bare).trim_end();
    let bare = bare.strip_suffix(':').filter(|it| !it.ends_with(':')).unwrap_or(bare).trim_end();
    bare[..bare.floor_char_boundary(HEAD_BYTES_MAX)].to_owned()
}

/// Returns the byte position at which the signature of the definition `node` ends: the start of the
/// body.
fn head_end(node: Node<'_>, text: &str) -> usize {
    let value = ["value", "right"].into_iter().find_map(|field| node.child_by_field_name(field));
    if let Some(body) = node.child_by_field_name("body") {
        return body.start_byte();
    }
    if let Some(value) = value {
        if let Some(body) = value.child_by_field_name("body") {
            return body.start_byte();
        }
        let is_long = value.end_position().row > node.start_position().row;
        return if is_long { value.start_byte() } else { node.end_byte() };
    }
    let end = node.end_byte();
    let code = &text[node.start_byte()..end];
    let lines = node.end_position().row - node.start_position().row;
    let until = match code.find('{') {
        Some(at) => at,
        None if lines > 4 => code.find('\n').unwrap_or(code.len()),
        None => code.len(),
    };
    node.start_byte() + until
}

/// Appends to `into` the byte ranges of attributes and comments in the definition `node` before the
/// byte `to`, in order.
fn collect_left_out(
    node: Node<'_>,
    grammar: &LoadedGrammar,
    to: usize,
    into: &mut Vec<Range<usize>>,
) {
    let mut cursor = node.walk();
    if !cursor.goto_first_child() {
        return;
    }
    loop {
        let child = cursor.node();
        if child.start_byte() >= to {
            return;
        }
        if matches!(
            grammar.role(child.kind_id()),
            SyntaxNodeRole::Attribute | SyntaxNodeRole::Comment
        ) {
            into.push(child.byte_range());
        } else if child.kind() == "modifiers" {
            collect_left_out(child, grammar, to, into);
        }
        if !cursor.goto_next_sibling() {
            return;
        }
    }
}

/// Appends `text` to the signature `head`, with each run of whitespace as one space.
fn push_collapsed(text: &str, head: &mut String) {
    for c in text.chars() {
        if head.len() > HEAD_BYTES_MAX {
            return;
        }
        if !c.is_whitespace() {
            head.push(c);
        } else if !head.is_empty() && !head.ends_with(' ') {
            head.push(' ');
        }
    }
}
