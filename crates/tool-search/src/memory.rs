//! Remembers queries that led to a call of a tool. Search treats these queries as an additional
//! field of the tool.

use std::collections::{BTreeMap, VecDeque};

use crate::ToolSearchQuery;

/// Maximum number of queries that are remembered for one tool.
const QUESTIONS_PER_TOOL: usize = 10;
/// Maximum number of tools for which queries are remembered.
const TOOLS_MAX: usize = 64;
/// Maximum number of words of a query that are remembered.
const WORDS_MAX: usize = 32;
/// Longest start of a query that is remembered as text, in characters.
const TEXT_CHARS_MAX: usize = 100;
/// Maximum number of remembered queries in a tool's search hint.
const HINT_QUESTIONS_MAX: usize = 3;

/// Queries that led to calls, by the id of the called tool.
#[derive(Debug, Clone, Default)]
pub struct RememberedToolQueries {
    by_tool: BTreeMap<String, VecDeque<RememberedToolQuery>>,
}

/// Query that led to a call, as tool search remembers it.
#[derive(Debug, Clone)]
struct RememberedToolQuery {
    words: Vec<String>,
    /// Start of the query in one line.
    text: String,
}

impl RememberedToolQueries {
    /// Remembers that the query `question` led to a call of the tool `id`. Keeps the newest ten
    /// queries of each tool. A repeated query is kept once.
    pub fn remember(&mut self, id: &str, question: &ToolSearchQuery) {
        if question.words.is_empty()
            || (self.by_tool.len() >= TOOLS_MAX && !self.by_tool.contains_key(id))
        {
            return;
        }
        let known = self.by_tool.entry(id.to_owned()).or_default();
        let words = &question.words[..question.words.len().min(WORDS_MAX)];
        if known.iter().any(|it| it.words == words) {
            return;
        }
        if known.len() >= QUESTIONS_PER_TOOL {
            known.pop_front();
        }
        let line = question.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = line.chars().take(TEXT_CHARS_MAX).collect();
        known.push_back(RememberedToolQuery { words: words.to_vec(), text });
    }

    /// Returns the newest queries that led to calls of the tool `id` in one line, newest first.
    /// `None` if no query is remembered for the tool.
    pub fn hint(&self, id: &str) -> Option<String> {
        let questions = self.by_tool.get(id)?.iter().rev().take(HINT_QUESTIONS_MAX);
        let texts: Vec<&str> = questions.map(|question| question.text.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Forgets the queries that led to calls of tools for whose id `is_known` returns false.
    pub fn forget_unknown(&mut self, is_known: impl Fn(&str) -> bool) {
        self.by_tool.retain(|id, _| is_known(id));
    }

    /// Returns true if queries are remembered for a tool for whose id `is_known` returns false.
    pub fn has_unknown(&self, is_known: impl Fn(&str) -> bool) -> bool {
        self.by_tool.keys().any(|id| !is_known(id))
    }

    /// Returns true if no queries are remembered.
    pub fn is_empty(&self) -> bool {
        self.by_tool.is_empty()
    }

    /// Returns the number of remembered queries for the tool `id` that contain `word`.
    pub(crate) fn counts(&self, id: &str, word: &str) -> usize {
        let questions = self.by_tool.get(id).into_iter().flatten();
        questions.filter(|question| question.words.iter().any(|it| it == word)).count()
    }

    /// Returns the ids of the tools for which queries are remembered.
    pub(crate) fn tools(&self) -> impl Iterator<Item = &str> {
        self.by_tool.keys().map(String::as_str)
    }
}
