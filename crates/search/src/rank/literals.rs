//! Finds the names and paths that a query spells out, and how exactly a chunk matches them.

use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::words;

use super::{ChunkCandidate, WeightedQuery};
use crate::ChunkSummary;

/// Maximum number of names, and maximum number of paths, that are parsed from one query.
const LITERALS_MAX: usize = 4;
/// Maximum number of words of a query that may be the words of one definition's name.
const NAME_WORDS_MAX: usize = 5;
/// Longest extension, in characters, by which a word of a query is recognized as a file name if the
/// word has no folder.
const EXTENSION_CHARS_MAX: usize = 10;

/// Names and paths that a query spells as code does: `parse_header`, `Session::new`, `src/main.rs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryLiterals {
    /// Names of definitions in the query.
    pub names: Vec<QueryLiteralName>,
    /// Names or paths of files in the query.
    pub paths: Vec<QueryLiteralPath>,
    /// Quoted texts of several words in the query.
    pub phrases: Vec<String>,
    /// True if the query is one name or path and nothing else.
    pub is_whole_query: bool,
    /// The words of the query run together, in lower case, if they may be the words of one name:
    /// `jsonreader` for `json reader`.
    joined_words: Option<String>,
    /// The words of the query with `_` between them, as the name of a definition may have them.
    snake_words: Option<String>,
}

/// A name of a definition in a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryLiteralName {
    /// The name of a definition, as the query spells it.
    pub name: String,
    /// Names before the main name that enclose it: `Session` in `Session::new`.
    pub containers: Vec<String>,
    /// Word under which the index contains the complete name.
    whole_word: Option<String>,
    /// True if the name consists of several words, as `parse_header` does. Such a name seldom
    /// occurs by chance.
    has_parts: bool,
}

/// A name or path of a file in a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryLiteralPath {
    /// The path of the file without `./` before it.
    pub path: String,
    /// True if the query is about this file: it begins with the path or has a colon after it.
    pub is_subject: bool,
}

/// The level at which a chunk matches a name or path of the query. A greater level ranks before
/// every smaller one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ExactMatchLevel {
    /// The chunk matches no name or path of the query exactly.
    #[default]
    Near,
    /// The chunk contains, but does not define, a name of the query that has several words.
    Use,
    /// The name of the chunk's file, without extension and apart from case, is a name of the query.
    FileStem,
    /// The chunk's file has no extension, and its name is a name of the query: `Makefile`.
    FileName,
    /// The query consists of the words of a name that the chunk defines.
    SplitName,
    /// The chunk defines a name of the query, but with other upper-case and lower-case letters.
    OtherCase,
    /// The chunk defines a name of the query, but is no function or type.
    Value,
    /// The chunk is a function or type with a name of the query, but not in the requested
    /// container.
    Definition,
    /// The chunk is a function or type with a name of the query in the requested container.
    ContainedDefinition,
    /// The query is about the chunk's file and names it by the end of its path.
    PathEnd,
    /// The query is about the chunk's file and contains its complete path.
    Path,
}

impl QueryLiterals {
    /// Finds the names of definitions and the paths in `query`.
    pub fn parse(query: &str) -> Self {
        let mut literals = Self::default();
        let tokens: Vec<&str> = query.split_whitespace().collect();
        literals.is_whole_query = tokens.len() == 1;
        literals.phrases = quoted_phrases(query);
        let is_word = |token: &&str| token.chars().all(char::is_alphanumeric);
        if (2..=NAME_WORDS_MAX).contains(&tokens.len()) && tokens.iter().all(is_word) {
            literals.joined_words = Some(tokens.concat().to_lowercase());
            literals.snake_words = Some(tokens.join("_").to_lowercase());
        }
        for (at, token) in tokens.iter().enumerate() {
            let is_subject = at == 0 || token.ends_with(':');
            let bare = token.trim_matches(is_wrapper);
            let bare = if bare.ends_with("()") { bare } else { bare.trim_end_matches(')') };
            let is_quoted = bare.len() + 2 <= token.len() && token.starts_with(['`', '"', '\'']);
            let is_taken = literals.is_whole_query || is_quoted;
            if let Some(name) = QueryLiteralName::parse(bare)
                && (is_taken || name.is_code(bare))
                && literals.names.len() < LITERALS_MAX
            {
                literals.names.push(name);
            }
            // A final dot ends the sentence.
            let path = bare.trim_end_matches('.').trim_start_matches("./");
            let is_path = if is_taken { !path.is_empty() } else { names_a_file(path) };
            let is_address = path.contains("::") || path.contains("//");
            if is_path && !is_address && literals.paths.len() < LITERALS_MAX {
                literals.paths.push(QueryLiteralPath { path: path.to_owned(), is_subject });
            }
        }
        literals
    }

    /// Returns true if the query contains no name and no path.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.paths.is_empty() && self.joined_words.is_none()
    }

    /// Returns the names, in lower case, of definitions that match the query exactly.
    pub fn symbols(&self) -> impl Iterator<Item = String> + '_ {
        let names = self.names.iter().map(|it| it.name.to_lowercase());
        names.chain(self.joined_words.clone()).chain(self.snake_words.clone())
    }

    /// Returns how exactly `candidate` matches a name or path that the query is about.
    pub fn exact_match(
        &self,
        question: &WeightedQuery,
        candidate: &ChunkCandidate,
    ) -> ExactMatchLevel {
        let found = &candidate.summary;
        let subjects = self.paths.iter().filter(|it| it.is_subject);
        let by_path = subjects.map(|it| it.exact_match(&found.path)).max().unwrap_or_default();
        if self.defines_joined_words(found) {
            return ExactMatchLevel::SplitName;
        }
        if !self.is_whole_query {
            // The rest of the query decides among the chunks of the file.
            return if by_path >= ExactMatchLevel::PathEnd {
                by_path
            } else {
                ExactMatchLevel::Near
            };
        }
        let uses = |it: &QueryLiteralName| it.has_parts && it.occurs_in(question, candidate);
        let by_name = self.names.iter().map(|it| match it.definition_match(found) {
            ExactMatchLevel::Near if it.is_stem_of(found) => ExactMatchLevel::FileStem,
            ExactMatchLevel::Near if uses(it) => ExactMatchLevel::Use,
            found => found,
        });
        by_path.max(by_name.max().unwrap_or_default())
    }

    /// Returns true if the chunk `found` is code that defines a name whose words are those of the
    /// query.
    fn defines_joined_words(&self, found: &ChunkSummary) -> bool {
        let Some(joined) = &self.joined_words else { return false };
        let is_code = matches!(found.kind, ChunkKind::Function | ChunkKind::Type | ChunkKind::Code);
        let is_name = |name: &String| name.replace('_', "").to_lowercase() == *joined;
        is_code && found.names.iter().any(is_name)
    }

    /// Returns true if the chunk `found` defines a name of the query in the same case.
    pub fn is_defined_by(&self, found: &ChunkSummary) -> bool {
        self.names.iter().any(|it| found.names.contains(&it.name))
    }

    /// Returns a name of the query that none of the candidates contains, or `None` if the
    /// candidates contain all names.
    pub fn unknown_name(
        &self,
        question: &WeightedQuery,
        candidates: &[ChunkCandidate],
    ) -> Option<&QueryLiteralName> {
        let is_known = |it: &QueryLiteralName, candidate: &ChunkCandidate| {
            it.occurs_in(question, candidate)
                || it.definition_match(&candidate.summary) != ExactMatchLevel::Near
                || self.names_path(&candidate.summary.path)
        };
        self.names.iter().find(|it| {
            let is_searched = it.concept(question).is_some();
            is_searched && !candidates.iter().any(|candidate| is_known(it, candidate))
        })
    }

    /// Returns true if the query names the file at `path` by its path or the end of it.
    pub fn names_path(&self, path: &str) -> bool {
        self.paths.iter().any(|it| it.matches(path))
    }
}

impl QueryLiteralName {
    /// Parses the name of a definition with its containers. `None` if `text` has characters that
    /// names do not have.
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix("()").unwrap_or(text);
        let is_identifier = |part: &&str| {
            part.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
                && part.chars().next().is_some_and(|c| !c.is_numeric())
        };
        let mut parts: Vec<&str> = text.split("::").flat_map(|it| it.split(['.', '#'])).collect();
        if !parts.iter().all(is_identifier) {
            return None;
        }
        let name = parts.pop()?.to_owned();
        let mut spelled = 0;
        let mut last = None;
        words(&name, |word| {
            spelled += 1;
            last = Some(word.to_owned());
        });
        let containers = parts.into_iter().map(str::to_owned).collect();
        Some(Self { containers, whole_word: last, has_parts: spelled > 1, name })
    }

    /// Returns true if `text`, from which this name of a definition was parsed, is spelled as code
    /// and not as prose.
    fn is_code(&self, text: &str) -> bool {
        let chars: Vec<char> = self.name.chars().collect();
        let has_hump = chars.windows(2).any(|it| it[0].is_lowercase() && it[1].is_uppercase());
        let has_underscore = self.name.trim_matches('_').contains('_');
        has_hump || has_underscore || text.ends_with("()") || text.contains("::")
    }

    /// Returns the index of the complete name among the words of the query. `None` if the name is
    /// not one of these words.
    fn concept(&self, question: &WeightedQuery) -> Option<usize> {
        question.concept_index(self.whole_word.as_deref()?)
    }

    /// Returns true if `candidate` contains the complete name as an indexed word.
    fn occurs_in(&self, question: &WeightedQuery, candidate: &ChunkCandidate) -> bool {
        let counts = self.concept(question).and_then(|at| candidate.counts.get(at));
        counts.is_some_and(|counts| counts.iter().any(|count| *count > 0))
    }

    fn definition_match(&self, found: &ChunkSummary) -> ExactMatchLevel {
        let is_definition = matches!(found.kind, ChunkKind::Function | ChunkKind::Type);
        match found.kind {
            ChunkKind::Section | ChunkKind::Text => return ExactMatchLevel::Near,
            ChunkKind::Function | ChunkKind::Type | ChunkKind::Code | ChunkKind::Key => {}
        }
        if found.names.contains(&self.name) {
            return match is_definition {
                true if self.is_contained_in(found) => ExactMatchLevel::ContainedDefinition,
                true => ExactMatchLevel::Definition,
                false => ExactMatchLevel::Value,
            };
        }
        let folded = self.name.to_lowercase();
        match found.names.iter().any(|it| it.to_lowercase() == folded) {
            true => ExactMatchLevel::OtherCase,
            false => ExactMatchLevel::Near,
        }
    }

    fn is_contained_in(&self, found: &ChunkSummary) -> bool {
        let path = found.path.to_lowercase();
        self.containers.iter().all(|wanted| {
            let folded = wanted.to_lowercase();
            let is_part = |it: &str| it == folded;
            found.within.iter().any(|it| it.to_lowercase().contains(&folded))
                || path.split(['/', '.']).any(is_part)
        })
    }

    /// Returns true if the chunk `found` is code in a file with this name, apart from the file's
    /// extension and case.
    fn is_stem_of(&self, found: &ChunkSummary) -> bool {
        let name = file_name(&found.path);
        let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
        matches!(found.kind, ChunkKind::Function | ChunkKind::Type | ChunkKind::Code)
            && self.containers.is_empty()
            && stem.to_lowercase() == self.name.to_lowercase()
    }
}

impl QueryLiteralPath {
    /// Returns true if `path` equals the path in the query or ends with it.
    pub fn matches(&self, path: &str) -> bool {
        let before = path.strip_suffix(self.path.as_str());
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    fn exact_match(&self, path: &str) -> ExactMatchLevel {
        let is_bare = !names_a_file(&self.path);
        match path == self.path {
            _ if !self.matches(path) => ExactMatchLevel::Near,
            // A word that is no file elsewhere, such as `Makefile`, may also be a definition.
            _ if is_bare => ExactMatchLevel::FileName,
            true => ExactMatchLevel::Path,
            false => ExactMatchLevel::PathEnd,
        }
    }
}

/// Returns the texts of several words that are between backticks or double quotes in `query`.
fn quoted_phrases(query: &str) -> Vec<String> {
    let mut phrases = Vec::new();
    for mark in ['`', '"'] {
        let parts: Vec<&str> = query.split(mark).collect();
        // The last part has no mark after it.
        let quoted = parts.iter().take(parts.len() - 1).skip(1).step_by(2).map(|it| it.trim());
        phrases.extend(quoted.filter(|it| it.contains(char::is_whitespace)).map(str::to_owned));
    }
    phrases.truncate(LITERALS_MAX);
    phrases
}

/// Returns true if `c` is punctuation around a word of a query, such as a quote or a bracket.
fn is_wrapper(c: char) -> bool {
    matches!(
        c,
        '`' | '"' | '\'' | '(' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ';' | ':' | '?' | '!'
    )
}

/// Returns true if `text` is spelled as a path, or as a file name with an extension.
fn names_a_file(text: &str) -> bool {
    let name = file_name(text);
    let has_extension = name.rsplit_once('.').is_some_and(|(_, extension)| {
        extension.chars().count() <= EXTENSION_CHARS_MAX
            && extension.chars().next().is_some_and(char::is_alphabetic)
            && extension.chars().all(char::is_alphanumeric)
    });
    !name.is_empty() && (has_extension || text.contains('/'))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, names: &[&str], paths: &[&str]) {
        let found = QueryLiterals::parse(query);
        let found_names: Vec<String> = found
            .names
            .iter()
            .map(|it| [&it.containers[..], std::slice::from_ref(&it.name)].concat().join("::"))
            .collect();
        let found_paths: Vec<&str> = found.paths.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(
            (found_names, found_paths),
            (names.iter().map(|&it| it.to_owned()).collect(), paths.to_vec()),
            "{query}"
        );
    }

    #[test]
    fn names_and_paths_are_found_by_their_spelling() {
        check("where is the session stored?", &[], &[]);
        check("how does parse_header work", &["parse_header"], &[]);
        check("Fix the JsonReader, again", &["JsonReader"], &[]);
        check("what calls `open`?", &["open"], &["open"]);
        check("Session::new() fails", &["Session::new"], &[]);
        check("aix.c: stub for the linker", &[], &["aix.c"]);
        check("see ./src/unix/aix.c.", &[], &["src/unix/aix.c"]);
        check("Sends it to version 1.2 of the API.", &[], &[]);
        check("Router", &["Router"], &["Router"]);
        check("https://example.org/a", &[], &[]);
    }

    #[test]
    fn the_words_of_a_short_query_may_be_those_of_one_name() {
        let symbols = |query: &str| QueryLiterals::parse(query).symbols().collect::<Vec<_>>();
        assert_eq!(symbols("Json reader"), ["jsonreader", "json_reader"]);
        assert!(symbols("where is the session stored now").is_empty());
        assert!(symbols("read, then close").is_empty());
    }

    #[test]
    fn a_phrase_is_a_quoted_text_of_several_words() {
        let phrases = |query: &str| QueryLiterals::parse(query).phrases;
        assert_eq!(phrases("who logs \"no such file\"?"), ["no such file"]);
        assert_eq!(phrases("`let it = 1` and `open` and `a b`"), ["let it = 1", "a b"]);
        assert!(phrases("a 6\" screen").is_empty());
        assert!(phrases("").is_empty());
    }

    #[test]
    fn a_path_is_the_subject_if_the_query_begins_with_it_or_puts_a_colon_after_it() {
        let is_subject = |query: &str| QueryLiterals::parse(query).paths[0].is_subject;
        assert!(is_subject("aix.c stub for the linker"));
        assert!(is_subject("in src/aix.c: the stub"));
        assert!(!is_subject("writes settings to package.json"));
    }

    #[test]
    fn a_path_matches_only_at_a_folder_boundary() {
        let path = QueryLiteralPath { path: "unix/aix.c".to_owned(), is_subject: true };
        assert_eq!(path.exact_match("unix/aix.c"), ExactMatchLevel::Path);
        assert_eq!(path.exact_match("src/unix/aix.c"), ExactMatchLevel::PathEnd);
        assert_eq!(path.exact_match("src/posunix/aix.c"), ExactMatchLevel::Near);
        assert_eq!(path.exact_match("unix/aix.cc"), ExactMatchLevel::Near);
    }
}
