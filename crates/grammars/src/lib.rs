//! The grammars that parse code, one for each language. Each grammar is a large C file.
//!
//! In a build of `toolgate`, no library depends on this crate, so Cargo compiles the C files and the
//! libraries at the same time. The program passes [`find_grammar`] to the libraries.

use tree_sitter_language::LanguageFn;

/// Returns the grammar of the language `lang`, such as `rust`. Returns `None` if there is no such
/// grammar.
pub fn find_grammar(lang: &str) -> Option<LanguageFn> {
    Some(match lang {
        "c" => tree_sitter_c::LANGUAGE,
        "cpp" => tree_sitter_cpp::LANGUAGE,
        "csharp" => tree_sitter_c_sharp::LANGUAGE,
        "go" => tree_sitter_go::LANGUAGE,
        "java" => tree_sitter_java::LANGUAGE,
        "javascript" => tree_sitter_javascript::LANGUAGE,
        "python" => tree_sitter_python::LANGUAGE,
        "ruby" => tree_sitter_ruby::LANGUAGE,
        "rust" => tree_sitter_rust::LANGUAGE,
        "shell" => tree_sitter_bash::LANGUAGE,
        "tsx" => tree_sitter_typescript::LANGUAGE_TSX,
        "typescript" => tree_sitter_typescript::LANGUAGE_TYPESCRIPT,
        _ => return None,
    })
}
