//! BM25, plain and as good as it gets for code without rules of its own.
//!
//! Its words are not ours: a change of what our search takes for a word never changes it.

use std::cell::RefCell;
use std::collections::HashMap;

use rust_stemmers::{Algorithm, Stemmer};

use super::{SAID_BY_ALL, Scores};
use crate::set::questions::identifier_parts;
use crate::set::{Package, Unit};

/// What counts as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// `\w+` in small letters, of the whole text.
    Plain,
    /// Identifiers taken apart, endings cut, stop words left out; of the name three times, of the
    /// path once.
    Symbols,
}

// Of five pairs of these that were tried on the packages to tune on, the best.
const K1: f32 = 1.5;
const B: f32 = 0.75;
/// How often the words of a name count, besides where they stand.
const NAME: usize = 3;

/// The functions of a package by their words.
pub struct Bm25 {
    words: Words,
    stemmer: Stemmer,
    stems: RefCell<HashMap<String, String>>,
    found: HashMap<String, Vec<(u32, f32)>>,
    lengths: Vec<f32>,
}

impl Bm25 {
    /// That of `package`.
    pub fn new(package: &Package, words: Words) -> Self {
        let mut index = Self {
            words,
            stemmer: Stemmer::create(Algorithm::English),
            stems: RefCell::default(),
            found: HashMap::new(),
            lengths: Vec::new(),
        };
        for (unit, at) in package.units.iter().zip(0..) {
            index.add(unit, at);
        }
        index
    }

    /// What each function is worth for each of `questions`.
    pub fn scores<T: AsRef<str>>(&self, questions: &[T]) -> Scores {
        questions.iter().map(|it| self.score(it.as_ref())).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "weights are no counts")]
    fn add(&mut self, unit: &Unit, at: u32) {
        let mut words = self.words_of(&unit.body);
        if self.words == Words::Symbols {
            let name = self.words_of(&unit.name);
            words.extend((0..NAME).flat_map(|_| name.clone()));
            words.extend(self.words_of(&unit.path));
        }
        self.lengths.push(words.len() as f32);
        let mut counts: HashMap<String, f32> = HashMap::new();
        for word in words {
            *counts.entry(word).or_default() += 1.0;
        }
        for (word, count) in counts {
            self.found.entry(word).or_default().push((at, count));
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "weights are no counts")]
    fn score(&self, question: &str) -> Vec<f32> {
        let units = self.lengths.len() as f32;
        let average = self.lengths.iter().sum::<f32>() / units.max(1.0);
        let mut scores = vec![0.0; self.lengths.len()];
        for word in self.words_of(question) {
            let Some(found) = self.found.get(&word) else { continue };
            let holding = found.len() as f32;
            let rarity = (1.0 + (units - holding + 0.5) / (holding + 0.5)).ln();
            for (at, count) in found {
                let at = *at as usize;
                let long = 1.0 - B + B * self.lengths[at] / average;
                scores[at] += rarity * count * (K1 + 1.0) / (count + K1 * long);
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
            Words::Plain => parts.map(str::to_lowercase).collect(),
            Words::Symbols => parts
                .flat_map(identifier_parts)
                .filter(|it| !SAID_BY_ALL.contains(&it.as_str()))
                .map(|it| self.stem(it))
                .collect(),
        }
    }
}
