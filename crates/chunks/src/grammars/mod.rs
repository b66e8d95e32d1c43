//! The languages whose grammars we know: for each what its nodes mean, a file a language.

use std::sync::OnceLock;

use tree_sitter::Language;

use crate::memory;

mod c;
mod cpp;
mod csharp;
mod go;
mod java;
mod javascript;
mod python;
mod ruby;
mod rust;
mod shell;
mod typescript;

/// A language as it is written down, one a file.
pub(crate) struct Rules {
    /// What [`Sort`](crate::Sort) calls it.
    pub(crate) lang: &'static str,
    pub(crate) grammar: fn() -> Language,
    pub(crate) letters: Letters,
    /// What the grammar's nodes are; of the others it is only looked at what stands in them.
    pub(crate) roles: &'static [(&'static str, Role)],
    pub(crate) docs: Docs,
}

/// Which letters a grammar reads. Nothing is named by others where it reads only some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Letters {
    All,
    /// Only those of ASCII; others are read as letters of it.
    Ascii,
}

/// Where a language says what something is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Docs {
    /// In comments that are marked for it, above: `///`, `/**`.
    Marked,
    /// In such, and as well in those inside that speak of what they stand in: `//!`.
    MarkedOrInner,
    /// In any comment directly above, though rather in a marked one.
    Above,
    /// In a string that the body begins with.
    Strings,
}

/// What a node of a grammar is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Function,
    /// A function if it says how it is called, else a value: C's declarations.
    Prototype,
    Type,
    /// A type if it has a body, else the use of one.
    TypeIfBody,
    /// What only holds others: an `impl`, a namespace.
    Scope,
    Value,
    /// A function or a type if that is what is assigned, else a value.
    Assigned,
    /// A function or a type if that is what is assigned, else nothing.
    AssignedFunction,
    /// What is around a definition and belongs to it: `export`, `template <class T>`.
    Wrap,
    Comment,
    /// What stands above a definition and belongs to it.
    Attribute,
    /// The name of the package that the file is in.
    Package,
    /// What the grammar cannot look into: the body of a macro's call.
    Tokens,
    /// What holds nothing that we want to know of.
    Closed,
    /// Anything else.
    Other,
}

/// A language, ready to parse.
pub(crate) struct Grammar {
    pub(crate) rules: &'static Rules,
    pub(crate) language: Language,
    /// The role of each kind of node, by its number.
    roles: Vec<Role>,
}

const ALL: [&Rules; 12] = [
    &rust::RULES,
    &python::RULES,
    &typescript::RULES,
    &typescript::TSX,
    &javascript::RULES,
    &go::RULES,
    &java::RULES,
    &c::RULES,
    &cpp::RULES,
    &csharp::RULES,
    &ruby::RULES,
    &shell::RULES,
];

static READY: [OnceLock<Grammar>; ALL.len()] = [const { OnceLock::new() }; ALL.len()];

impl Grammar {
    /// The grammar of the language that is called `lang`, if we know it.
    pub(crate) fn of(lang: &str) -> Option<&'static Self> {
        memory::count();
        let at = ALL.iter().position(|rules| rules.lang == lang)?;
        Some(READY[at].get_or_init(|| Self::new(ALL[at])))
    }

    fn new(rules: &'static Rules) -> Self {
        let language = (rules.grammar)();
        let kinds = u16::try_from(language.node_kind_count()).unwrap_or(u16::MAX);
        let role = |kind| {
            let name =
                language.node_kind_for_id(kind).filter(|_| language.node_kind_is_named(kind));
            let known = rules.roles.iter().find(|(known, _)| Some(*known) == name);
            known.map_or(Role::Other, |&(_, role)| role)
        };
        Self { rules, roles: (0..kinds).map(role).collect(), language: language.clone() }
    }

    /// What the nodes of `kind` are.
    pub(crate) fn role(&self, kind: u16) -> Role {
        self.roles.get(usize::from(kind)).copied().unwrap_or(Role::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_is_that_of_a_node_that_the_grammar_knows() {
        for rules in ALL {
            let language = (rules.grammar)();
            for (kind, _) in rules.roles {
                assert_ne!(language.id_for_node_kind(kind, true), 0, "{}: {kind}", rules.lang);
            }
        }
    }
}
