//! Known grammars: one file per language, which assigns roles to the grammar's nodes.

use std::sync::OnceLock;

use tree_sitter::Language;
use tree_sitter_language::LanguageFn;

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

/// Rules for finding the definitions in code of one language.
pub(crate) struct LanguageDefinition {
    /// Name of the language, as in [`FileClassification`](crate::FileClassification).
    pub(crate) lang: &'static str,
    pub(crate) letters: IdentifierCharset,
    /// Roles of the grammar's node kinds. A node of any other kind defines nothing itself, but its
    /// children are searched.
    pub(crate) roles: &'static [(&'static str, SyntaxNodeRole)],
    pub(crate) docs: DocCommentPlacement,
}

/// Letters that a grammar accepts in names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdentifierCharset {
    All,
    /// The grammar accepts ASCII letters only. The parser receives an ASCII letter instead of each
    /// other letter.
    Ascii,
}

/// Position of the comments that document a definition in a language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocCommentPlacement {
    /// Marked comments above the definition: `///`, `/**`.
    Marked,
    /// Marked comments above the definition, and marked comments (`//!`) inside the item that they
    /// document.
    MarkedOrInner,
    /// Comments directly above the definition. A marked comment (such as `///`) is preferred.
    Above,
    /// A string at the start of the definition's body.
    Docstrings,
}

/// Role of a grammar's node in finding definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyntaxNodeRole {
    Function,
    /// A declaration as in C. It defines a function if it declares one, and otherwise a value.
    Prototype,
    Type,
    /// A node that defines a type if it has a body. Otherwise it only mentions a type.
    TypeIfBody,
    /// Node that only contains other definitions, such as an `impl` or a namespace.
    Scope,
    Value,
    /// An assignment. It defines a function or a type if it assigns one, and otherwise a value.
    Assignment,
    /// An assignment. It defines a function or a type if it assigns one, and otherwise nothing.
    FunctionAssignment,
    /// A wrapper that belongs to the definition inside it, such as `export` or `template <class
    /// T>`.
    Wrapper,
    Comment,
    /// An attribute above a definition, which belongs to the definition.
    Attribute,
    /// Node that declares the package or namespace of its file.
    Package,
    /// Node of tokens that the grammar does not parse, such as the arguments of a macro call.
    Tokens,
    /// A node that is not searched, because it contains no definitions or comments.
    Opaque,
    /// A node with no role of its own, which may contain definitions.
    Other,
}

/// Grammar of a language, loaded and ready to parse.
pub(crate) struct LoadedGrammar {
    pub(crate) rules: &'static LanguageDefinition,
    pub(crate) language: Language,
    /// Role of each node kind of the grammar, by the id of the kind.
    roles: Vec<SyntaxNodeRole>,
}

const ALL_RULES: [&LanguageDefinition; 12] = [
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

/// Function that returns the grammar of a language, such as `rust`. It returns `None` if there is no
/// grammar for the language.
pub type GrammarLookup = fn(&str) -> Option<LanguageFn>;

/// Grammars of this program. Not set if the program has not called [`set_grammars`].
static PROGRAM_GRAMMARS: OnceLock<Option<GrammarLookup>> = OnceLock::new();

static LOADED_GRAMMARS: [OnceLock<LoadedGrammar>; ALL_RULES.len()] =
    [const { OnceLock::new() }; ALL_RULES.len()];

/// Sets the grammars of this program. With `None`, this process cannot parse code, even if this crate
/// was built with the feature `grammars`. Only the first call has an effect.
pub fn set_grammars(grammars: Option<GrammarLookup>) {
    let _ = PROGRAM_GRAMMARS.set(grammars);
}

/// Returns `true` if this program contains grammars, and can parse code by itself.
pub fn has_grammars() -> bool {
    grammar_lookup().is_some()
}

fn grammar_lookup() -> Option<GrammarLookup> {
    #[cfg(feature = "grammars")]
    const LINKED: Option<GrammarLookup> = Some(toolgate_grammars::find_grammar);
    #[cfg(not(feature = "grammars"))]
    const LINKED: Option<GrammarLookup> = None;
    PROGRAM_GRAMMARS.get().copied().unwrap_or(LINKED)
}

impl LoadedGrammar {
    /// Returns the grammar of the language `lang`. `None` if there is no such grammar.
    pub(crate) fn for_language(lang: &str) -> Option<&'static Self> {
        memory::install_allocator();
        let at = ALL_RULES.iter().position(|rules| rules.lang == lang)?;
        let language = grammar_lookup()?(lang)?.into();
        Some(LOADED_GRAMMARS[at].get_or_init(|| Self::new(ALL_RULES[at], language)))
    }

    /// Returns the known grammar that `number` selects. Every number selects a grammar.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn for_number(number: u8) -> &'static Self {
        let rules = ALL_RULES[usize::from(number) % ALL_RULES.len()];
        Self::for_language(rules.lang).expect("each language has a name")
    }

    fn new(rules: &'static LanguageDefinition, language: Language) -> Self {
        let kinds = u16::try_from(language.node_kind_count()).unwrap_or(u16::MAX);
        let role = |kind| {
            let name =
                language.node_kind_for_id(kind).filter(|_| language.node_kind_is_named(kind));
            let known = rules.roles.iter().find(|(known, _)| Some(*known) == name);
            known.map_or(SyntaxNodeRole::Other, |&(_, role)| role)
        };
        Self { rules, roles: (0..kinds).map(role).collect(), language }
    }

    /// Returns the role of the grammar's nodes whose kind has the id `kind`.
    pub(crate) fn role(&self, kind: u16) -> SyntaxNodeRole {
        self.roles.get(usize::from(kind)).copied().unwrap_or(SyntaxNodeRole::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::is_parsed_language;

    #[test]
    fn every_grammar_belongs_to_a_language_that_is_parsed() {
        for rules in ALL_RULES {
            assert!(is_parsed_language(rules.lang), "{}", rules.lang);
        }
    }

    #[test]
    fn every_role_belongs_to_a_node_of_the_grammar() {
        for rules in ALL_RULES {
            let grammar = LoadedGrammar::for_language(rules.lang).expect(rules.lang);
            for (kind, _) in rules.roles {
                assert_ne!(
                    grammar.language.id_for_node_kind(kind, true),
                    0,
                    "{}: {kind}",
                    rules.lang
                );
            }
        }
    }
}
