//! BM25 baselines: plain BM25, and BM25 with the best settings for code but without special rules.
//!
//! The baselines split words with their own code, so that a change of word splitting in toolgate's
//! search never changes them.

use std::cell::RefCell;
use std::collections::HashMap;

use rust_stemmers::{Algorithm, Stemmer};

use super::{QuestionScores, STOP_WORDS};
use crate::set::questions::identifier_parts;
use crate::set::{EvalPackage, PackageFunction};

/// Way in which BM25 splits text into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordSplitting {
    /// Words that match `\w+`, in lower case, from the whole text of a function.
    Plain,
    /// Identifiers are split, words are stemmed, and stop words are left out. The function's name
    /// counts three times, its path once.
    Symbols,
}

// The best of five pairs of K1 and B that were tried on the tuning packages.
const K1: f32 = 1.5;
const B: f32 = 0.75;
/// Number of times that the words of a function's name count, in addition to those in its code.
const NAME_COUNT: usize = 3;

/// Index of the functions of a package by their words.
pub struct FunctionBm25Index {
    words: WordSplitting,
    stemmer: Stemmer,
    stems: RefCell<HashMap<String, String>>,
    /// Functions that contain a word, each with the number of occurrences, by word.
    occurrences: HashMap<String, Vec<(u32, f32)>>,
    lengths: Vec<f32>,
}

impl FunctionBm25Index {
    /// Indexes the functions of `package`, with words split as `words` says.
    pub fn new(package: &EvalPackage, words: WordSplitting) -> Self {
        let mut index = Self {
            words,
            stemmer: Stemmer::create(Algorithm::English),
            stems: RefCell::default(),
            occurrences: HashMap::new(),
            lengths: Vec::new(),
        };
        for (unit, number) in package.units.iter().zip(0..) {
            index.add(unit, number);
        }
        index
    }

    /// Returns the score of each function for each question in `questions`.
    pub fn scores<T: AsRef<str>>(&self, questions: &[T]) -> QuestionScores {
        questions.iter().map(|it| self.score(it.as_ref())).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "weights need no exact counts")]
    fn add(&mut self, unit: &PackageFunction, index: u32) {
        let mut words = self.words_of(&unit.body);
        if self.words == WordSplitting::Symbols {
            let name = self.words_of(&unit.name);
            words.extend((0..NAME_COUNT).flat_map(|_| name.clone()));
            words.extend(self.words_of(&unit.path));
        }
        self.lengths.push(words.len() as f32);
        let mut counts: HashMap<String, f32> = HashMap::new();
        for word in words {
            *counts.entry(word).or_default() += 1.0;
        }
        for (word, count) in counts {
            self.occurrences.entry(word).or_default().push((index, count));
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "weights need no exact counts")]
    fn score(&self, question: &str) -> Vec<f32> {
        let units = self.lengths.len() as f32;
        let average = self.lengths.iter().sum::<f32>() / units.max(1.0);
        let mut scores = vec![0.0; self.lengths.len()];
        for word in self.words_of(question) {
            let Some(occurrences) = self.occurrences.get(&word) else { continue };
            let containing = occurrences.len() as f32;
            let rarity = (1.0 + (units - containing + 0.5) / (containing + 0.5)).ln();
            for (index, count) in occurrences {
                let index = *index as usize;
                let length = 1.0 - B + B * self.lengths[index] / average;
                scores[index] += rarity * count * (K1 + 1.0) / (count + K1 * length);
            }
        }
        scores
    }

    fn stem(&self, word: String) -> String {
        let mut stems = self.stems.borrow_mut();
        let stem = |word: &String| self.stemmer.stem(word).into_owned();
        stems.entry(word).or_insert_with_key(stem).clone()
    }

    fn words_of(&self, text: &str) -> Vec<String> {
        let parts = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let parts = parts.filter(|it| !it.is_empty());
        match self.words {
            WordSplitting::Plain => parts.map(str::to_lowercase).collect(),
            WordSplitting::Symbols => parts
                .flat_map(identifier_parts)
                .filter(|it| !STOP_WORDS.contains(&it.as_str()))
                .map(|it| self.stem(it))
                .collect(),
        }
    }
}
