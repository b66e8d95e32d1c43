//! Query for tools, split into words and clauses.

use std::collections::HashSet;

use toolgate_chunks::words::concepts;

/// Words of a query that say nothing about the wanted tool, such as `please` or `would`. They are
/// in addition to the stop words of code search.
const EMPTY_WORDS: [&str; 63] = [
    "also", "but", "he", "help", "her", "here", "his", "i'd", "i'll", "i'm", "i've", "if", "just",
    "kindly", "let", "like", "may", "might", "more", "most", "must", "need", "no", "not", "now",
    "one", "only", "other", "out", "over", "own", "please", "same", "she", "tell", "than", "there",
    "their", "them", "they", "too", "two", "under", "up", "us", "use", "using", "very", "want",
    "wants", "will", "would", "yes", "you", "you'd", "you'll", "you're", "your", "yours", "could",
    "should", "its", "it's",
];

/// Minimum number of words of a query's clause. A shorter clause is joined with the clause after
/// it, because a few words match tools by chance.
const CLAUSE_WORDS_MIN: usize = 5;
/// Minimum number of words of a query's last clause, which has no clause after it.
const LAST_CLAUSE_WORDS_MIN: usize = 2;
/// Maximum number of clauses of a query that are ranked separately.
const CLAUSES_MAX: usize = 12;
/// Longest query that is read, in bytes.
const QUESTION_BYTES_MAX: usize = 4 << 10;

/// A query for tools, split into words and clauses for the ranking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSearchQuery {
    /// Query as the caller wrote it, cut at 4 KiB.
    pub text: String,
    /// Distinct words of the whole query, stemmed, without stop words.
    pub words: Vec<String>,
    /// Distinct words of each clause of the query, with short clauses joined. Empty if there are
    /// fewer than two clauses.
    pub clauses: Vec<Vec<String>>,
}

impl ToolSearchQuery {
    /// Splits the query `text` into words and clauses.
    pub fn new(text: &str) -> Self {
        let text = truncate(text.trim());
        let words = meaningful_words(text);
        let mut clauses = join_short(clauses(text).map(meaningful_words));
        clauses.retain(|clause| clause.len() >= LAST_CLAUSE_WORDS_MIN);
        clauses.dedup();
        clauses.truncate(CLAUSES_MAX);
        if clauses.len() < 2 {
            clauses.clear();
        }
        Self { text: text.to_owned(), words, clauses }
    }
}

/// Returns the start of the query `text`, at most 4 KiB.
fn truncate(text: &str) -> &str {
    let end = (0..=QUESTION_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

/// Splits the query `text` at punctuation, and at words that join two requests.
fn clauses(text: &str) -> impl Iterator<Item = &str> {
    let sentences = text.split(['.', ',', ';', ':', '!', '?', '\n']);
    sentences.flat_map(|sentence| sentence.split(" and ")).flat_map(|part| part.split(" then "))
}

/// Joins each clause of a query that has too few words with the clauses after it.
fn join_short(clauses: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let mut joined: Vec<Vec<String>> = Vec::new();
    for words in clauses.filter(|words| !words.is_empty()) {
        match joined.last_mut().filter(|last| last.len() < CLAUSE_WORDS_MIN) {
            Some(last) => {
                last.extend(words);
                keep_distinct(last);
            }
            None => joined.push(words),
        }
    }
    joined
}

fn meaningful_words(text: &str) -> Vec<String> {
    let is_empty = |word: &&str| {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        EMPTY_WORDS.contains(&bare.as_str())
    };
    let kept: Vec<&str> = text.split_whitespace().filter(|word| !is_empty(word)).collect();
    let mut found: Vec<String> =
        concepts(&kept.join(" ")).into_iter().map(|concept| concept.word).collect();
    if found.is_empty() {
        // A question of such words alone is taken literally.
        found = concepts(text).into_iter().map(|concept| concept.word).collect();
    }
    keep_distinct(&mut found);
    found
}

fn keep_distinct(words: &mut Vec<String>) {
    let mut known = HashSet::new();
    words.retain(|word| known.insert(word.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_asking_are_left_out_unless_nothing_else_is_left() {
        assert_eq!(
            ToolSearchQuery::new("Please help me resize a picture").words,
            ["resiz", "pictur"]
        );
        assert!(!ToolSearchQuery::new("help").words.is_empty());
        assert!(ToolSearchQuery::new(" ?! ").words.is_empty());
    }

    #[test]
    fn a_question_of_several_requests_has_clauses() {
        let question =
            ToolSearchQuery::new("Book a flight to Oslo, then send a mail and close the issue");
        assert_eq!(question.clauses.len(), 2, "{:?}", question.clauses);
        assert!(ToolSearchQuery::new("book a flight").clauses.is_empty());
    }

    #[test]
    fn short_clauses_are_joined_with_the_clause_after_them() {
        let question = ToolSearchQuery::new("Ada, Bob and Eve. Send a mail about the broken build");
        assert!(question.clauses.is_empty(), "{:?}", question.clauses);
        let question =
            ToolSearchQuery::new("Find cheap direct flights to Oslo, Bergen. Send a mail to Ada");
        let expected = ["find cheap direct flight oslo", "bergen send mail ada"];
        let clauses: Vec<String> = question.clauses.iter().map(|words| words.join(" ")).collect();
        assert_eq!(clauses, expected);
    }

    #[test]
    fn a_long_question_is_cut_at_a_character() {
        let question = ToolSearchQuery::new(&"ä".repeat(10_000));
        assert!(question.text.len() <= QUESTION_BYTES_MAX);
    }
}
