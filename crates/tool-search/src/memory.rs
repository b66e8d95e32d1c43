//! Questions that led to a call of a tool. They are an additional field of the tool.

use std::collections::{BTreeMap, VecDeque};

use crate::Question;

/// Most questions that are remembered for one tool.
const QUESTIONS_PER_TOOL: usize = 10;
/// Most tools for which questions are remembered.
const TOOLS_MAX: usize = 64;
/// Most words of a question that are remembered.
const WORDS_MAX: usize = 32;

/// Questions that led to calls, by the id of the called tool.
#[derive(Debug, Clone, Default)]
pub struct RememberedQuestions {
    by_tool: BTreeMap<String, VecDeque<Vec<String>>>,
}

impl RememberedQuestions {
    /// Remembers that `question` led to a call of the tool `id`. The oldest of more than ten
    /// questions is forgotten, and so is one that is repeated.
    pub fn remember(&mut self, id: &str, question: &Question) {
        if question.words.is_empty()
            || (self.by_tool.len() >= TOOLS_MAX && !self.by_tool.contains_key(id))
        {
            return;
        }
        let known = self.by_tool.entry(id.to_owned()).or_default();
        let words = &question.words[..question.words.len().min(WORDS_MAX)];
        if known.iter().any(|it| it == words) {
            return;
        }
        if known.len() >= QUESTIONS_PER_TOOL {
            known.pop_front();
        }
        known.push_back(words.to_vec());
    }

    /// Returns true if nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_tool.is_empty()
    }

    /// Returns how many remembered questions of the tool `id` contain `word`.
    pub(crate) fn counts(&self, id: &str, word: &str) -> usize {
        let questions = self.by_tool.get(id).into_iter().flatten();
        questions.filter(|words| words.iter().any(|it| it == word)).count()
    }

    /// Returns the ids of the tools with remembered questions.
    pub(crate) fn tools(&self) -> impl Iterator<Item = &str> {
        self.by_tool.keys().map(String::as_str)
    }
}
