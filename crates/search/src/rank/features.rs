//! Computes the features of a candidate that the reranker's network weighs.

use toolgate_chunks::words::parts;

use super::{Averages, Candidate, FIELDS, Field, Question, bm25f};
use crate::static_model::{Row, StaticModel};

/// Number of features per candidate.
pub const FEATURES: usize = 30;
/// Most words of a name or signature that are used.
const WORDS_MAX: usize = 24;

/// Returns the features of all `candidates`, in order.
pub fn features(
    table: &StaticModel,
    question: &Question,
    averages: &Averages,
    candidates: &[Candidate],
) -> Vec<[f32; FEATURES]> {
    let asked: Vec<Option<Row<'_>>> =
        question.concepts.iter().map(|it| table.asked(&it.word)).collect();
    let lexical: Vec<f32> = candidates
        .iter()
        .map(|it| bm25f::score(question, averages, &it.counts, &it.lengths))
        .collect();
    let near: Vec<f32> = candidates.iter().map(|it| it.near).collect();
    let model: Vec<f32> = candidates.iter().map(|it| it.model.unwrap_or(0.0)).collect();
    let best = Best { lexical: most(&lexical), near: most(&near), model: most(&model) };
    let places = [places(&lexical), places(&near), places(&model)];
    let look = Look { table, question, asked: &asked, best };
    candidates
        .iter()
        .enumerate()
        .map(|(at, it)| {
            look.features(it, lexical[at], [places[0][at], places[1][at], places[2][at]])
        })
        .collect()
}

/// Best scores of all candidates.
#[derive(Clone, Copy)]
struct Best {
    lexical: f32,
    near: f32,
    model: f32,
}

struct Look<'l> {
    table: &'l StaticModel,
    question: &'l Question,
    asked: &'l [Option<Row<'l>>],
    best: Best,
}

impl Look<'_> {
    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    fn features(&self, it: &Candidate, lexical: f32, places: [f32; 3]) -> [f32; FEATURES] {
        let covered = |fields: &[Field]| self.covered(it, fields);
        // Of several names, the one that matches the query best is used.
        let names = it.shown.names.iter().map(|name| self.name(name));
        let name = names.max_by(|a, b| a.worth().total_cmp(&b.worth())).unwrap_or_default();
        let within = self.words(&it.shown.within);
        let head = self.words(std::slice::from_ref(&it.shown.head));
        let soft_within = self.soft(&within);
        let soft_head = self.soft(&head);
        let model = it.model.unwrap_or(0.0);
        let all = self.question.concepts.len().max(1) as f32;
        let there = it.counts.iter().filter(|it| it.iter().any(|it| *it > 0)).count() as f32;
        [
            lexical / self.best.lexical.max(1e-6),
            lexical / bm25f::most(self.question).max(1e-6),
            places[0],
            it.near,
            it.near - self.best.near,
            places[1],
            model,
            model - self.best.model,
            places[2],
            name.covered,
            covered(&[Field::Within]),
            covered(&[Field::Path]),
            covered(&[Field::Head]),
            covered(&[Field::Doc, Field::Body]),
            covered(&super::ALL),
            covered(&[Field::Name, Field::Within]),
            name.share,
            2.0 * name.covered * name.share / (name.covered + name.share).max(1e-6),
            name.soft.covered,
            name.soft.share,
            soft_within.covered,
            soft_within.share,
            soft_head.covered,
            name.first.0,
            name.first.1,
            (1.0 + it.lengths[Field::Body as usize] as f32).ln(),
            (1.0 + name.parts).ln(),
            there / all,
            all.ln(),
            f32::from(u8::from(it.shown.within.is_empty())),
        ]
    }

    /// Returns the weighted share of the query's concepts that occur in any of `fields`.
    fn covered(&self, it: &Candidate, fields: &[Field]) -> f32 {
        let mut has = 0.0;
        let mut all = 0.0;
        for (concept, counts) in self.question.concepts.iter().zip(&it.counts) {
            all += concept.rarity;
            if fields.iter().any(|field| counts[*field as usize] > 0) {
                has += concept.rarity;
            }
        }
        has / f32::max(all, 1e-6)
    }

    /// Returns the distinct words of `texts`; identifiers contribute their parts only.
    fn words<T: AsRef<str>>(&self, texts: &[T]) -> Vec<Word<'_>> {
        let mut found: Vec<Word<'_>> = Vec::new();
        for text in texts {
            parts(text.as_ref(), |word| {
                if found.len() < WORDS_MAX && found.iter().all(|it| it.word != word) {
                    found.push(Word {
                        row: self.table.found(word),
                        asked: self.question.at(word),
                        word: word.to_owned(),
                    });
                }
            });
        }
        found
    }

    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    fn name(&self, name: &str) -> Name {
        let words = self.words(&[name]);
        let asked = words.iter().filter_map(|it| it.asked);
        let has: f32 = asked.clone().map(|at| self.question.concepts[at].rarity).sum();
        let all: f32 = self.question.concepts.iter().map(|it| it.rarity).sum();
        Name {
            covered: has / all.max(1e-6),
            share: asked.count() as f32 / words.len().max(1) as f32,
            soft: self.soft(&words),
            first: self.first(&words),
            parts: words.len() as f32,
        }
    }

    /// Matches `words` with the query, counting similar words in proportion to their similarity.
    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    fn soft(&self, words: &[Word<'_>]) -> Soft {
        let mut of_words = vec![0.0_f32; words.len()];
        let mut has = 0.0;
        let mut all = 0.0;
        for (at, concept) in self.question.concepts.iter().enumerate() {
            let mut best = 0.0_f32;
            for (place, word) in words.iter().enumerate() {
                let like = if word.asked == Some(at) { 1.0 } else { self.like(at, word) };
                best = best.max(like);
                of_words[place] = of_words[place].max(like);
            }
            has += best * concept.rarity;
            all += concept.rarity;
        }
        Soft {
            covered: has / f32::max(all, 1e-6),
            share: of_words.iter().sum::<f32>() / words.len().max(1) as f32,
        }
    }

    fn like(&self, concept: usize, word: &Word<'_>) -> f32 {
        match (&self.asked[concept], &word.row) {
            (Some(asked), Some(found)) => asked.cosine(found).max(0.0),
            (Some(_) | None, _) => 0.0,
        }
    }

    /// Compares the first word of the query with the first word of the name, usually a verb.
    /// Returns equality (0 or 1) and similarity.
    fn first(&self, name: &[Word<'_>]) -> (f32, f32) {
        let Some(word) = name.first() else { return (0.0, 0.0) };
        let same = f32::from(u8::from(word.asked == Some(0)));
        let like = if self.asked.is_empty() { 0.0 } else { self.like(0, word) };
        (same, like.max(same))
    }
}

struct Word<'m> {
    word: String,
    row: Option<Row<'m>>,
    asked: Option<usize>,
}

/// Match of a name with the query.
#[derive(Default)]
struct Name {
    /// Weighted share of the query that the name covers.
    covered: f32,
    /// Share of the name's words that are in the query.
    share: f32,
    soft: Soft,
    /// Match of the first words: equality and similarity.
    first: (f32, f32),
    parts: f32,
}

impl Name {
    fn worth(&self) -> f32 {
        self.covered + self.share + self.soft.covered + self.soft.share
    }
}

#[derive(Clone, Copy, Default)]
struct Soft {
    covered: f32,
    share: f32,
}

fn most(all: &[f32]) -> f32 {
    all.iter().copied().fold(0.0, f32::max)
}

/// Returns the reciprocal rank of each number: 1 for the largest, 1/2 for the second, and so on.
/// Numbers that are not positive get 0.
#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn places(all: &[f32]) -> Vec<f32> {
    let mut order: Vec<usize> = (0..all.len()).filter(|at| all[*at] > 0.0).collect();
    order.sort_by(|a, b| all[*b].total_cmp(&all[*a]));
    let mut places = vec![0.0; all.len()];
    for (place, at) in order.into_iter().enumerate() {
        places[at] = 1.0 / (1.0 + place as f32);
    }
    places
}

const _: () = assert!(FIELDS == 6, "the features name each field");
