//! Which passages are likeliest meant: BM25 over the fields of a passage, then a closer look.

use std::collections::HashSet;
use std::sync::Arc;

use toolgate_contract::ToolError;

use super::index::{Chunk, Index, Text};
use super::language::Kind;
use super::vectors::Vector;
use super::words::{Concept, Term, distinct};
use crate::world::root::Watch;

/// How soon a term that comes again counts no more.
const K1: f32 = 1.2;
/// How much a long passage is held against its terms.
const LENGTH: f32 = 0.6;
/// What a term counts in the names that a passage defines.
const IN_NAMES: f32 = 3.0;
/// And in the path of its file.
const IN_PATH: f32 = 1.5;
/// What another word for a term counts.
const SYNONYM: f32 = 0.4;

/// What the closer look is called.
pub(super) const RERANK: &str = "features-1";
/// How many passages are looked at more closely.
const CLOSER: usize = 200;
/// After how many passages it is asked whether anybody still wants to know.
const CHECKED_EVERY: usize = 1_000;

/// What the closer look adds, as parts of what a perfect match of terms has.
const NAMED: f32 = 0.5;
const NAMED_EXACTLY: f32 = 0.5;
const FILE_NAMED: f32 = 0.2;
const ALL_THERE: f32 = 0.3;
/// The most a passage can have.
const BEST: f32 = 1.0 + NAMED + NAMED_EXACTLY + FILE_NAMED + ALL_THERE;

/// What tests, examples and documents keep where code is not asked to be one of them.
const TEST: f32 = 0.7;
const EXAMPLE: f32 = 0.8;
const DOCS: f32 = 0.85;
/// What each further passage of one file keeps of what the last kept.
const SAME_FILE: f32 = 0.92;

/// A passage and how well it matches.
pub(super) struct Ranked {
    pub(super) text: Arc<Text>,
    pub(super) chunk: usize,
    pub(super) score: f32,
}

impl Ranked {
    pub(super) fn passage(&self) -> &Chunk {
        &self.text.chunks[self.chunk]
    }
}

/// A question in words.
pub(super) struct Question {
    concepts: Vec<Weighed>,
    /// The terms of the concepts and their synonyms.
    asked: HashSet<Term>,
    /// What the concepts weigh together.
    weight: f32,
    /// The query in small letters, digits and letters alone.
    bare: String,
    wants_tests: bool,
    wants_examples: bool,
}

struct Weighed {
    concept: Concept,
    rarity: f32,
    /// The rarity of each synonym.
    synonyms: Vec<f32>,
}

impl Question {
    pub(super) fn new(query: &str, concepts: Vec<Concept>, index: &Index) -> Self {
        let weigh = |concept: Concept| Weighed {
            rarity: index.rarity(concept.term),
            synonyms: concept.synonyms.iter().map(|term| index.rarity(*term)).collect(),
            concept,
        };
        let concepts: Vec<Weighed> = concepts.into_iter().map(weigh).collect();
        let asks = |words: &str| {
            let words = distinct(words);
            concepts.iter().any(|it| words.contains(&it.concept.term))
        };
        Self {
            weight: concepts.iter().map(|it| it.rarity).sum(),
            asked: concepts.iter().flat_map(|it| it.concept.all()).collect(),
            bare: bare(query),
            wants_tests: asks("test tests testing spec"),
            wants_examples: asks("example demo sample"),
            concepts,
        }
    }

    /// BM25F, as a part of what can be had.
    fn terms(&self, text: &Text, chunk: &Chunk, average: f32) -> f32 {
        #[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
        let long = 1.0 - LENGTH + LENGTH * chunk.length as f32 / average;
        let count = |term: Term| {
            let (in_text, in_names) = chunk.counts(term).unwrap_or_default();
            let in_path = f32::from(u8::from(text.path_terms.binary_search(&term).is_ok()));
            let count = in_text / long + IN_NAMES * in_names + IN_PATH * in_path;
            count * (K1 + 1.0) / (K1 + count)
        };
        let score = |it: &Weighed| {
            let named = it.rarity * count(it.concept.term);
            let others = it.concept.synonyms.iter().zip(&it.synonyms);
            // A rare synonym does not outweigh the word itself.
            others.fold(named, |best, (term, rarity)| {
                best.max(SYNONYM * rarity.min(it.rarity) * count(*term))
            })
        };
        self.concepts.iter().map(score).sum::<f32>() / (self.weight * (K1 + 1.0)).max(f32::EPSILON)
    }

    /// What part of the question `has`, by weight; synonyms count less.
    fn covered(&self, has: impl Fn(Term) -> bool) -> f32 {
        let part = |it: &Weighed| {
            if has(it.concept.term) {
                it.rarity
            } else if it.concept.synonyms.iter().any(|term| has(*term)) {
                it.rarity * SYNONYM
            } else {
                0.0
            }
        };
        self.concepts.iter().map(part).sum::<f32>() / self.weight.max(f32::EPSILON)
    }

    /// The closer look: what stands in the question's words, and where.
    fn features(&self, text: &Text, chunk: &Chunk) -> f32 {
        let mut score = 0.0;
        let mut named: f32 = 0.0;
        for name in &chunk.names {
            let terms = distinct(name);
            let asked = terms.iter().filter(|term| self.asked.contains(term)).count();
            #[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
            let part = asked as f32 / terms.len().max(1) as f32;
            let covered = self.covered(|term| terms.binary_search(&term).is_ok());
            named = named.max(covered * (0.5 + 0.5 * part));
        }
        score += NAMED * named;
        if !self.bare.is_empty() && chunk.names.iter().any(|name| bare(name) == self.bare) {
            score += NAMED_EXACTLY;
        }
        score += FILE_NAMED * self.covered(|term| text.name_terms.binary_search(&term).is_ok());
        let there =
            |term| chunk.counts(term).is_some() || text.path_terms.binary_search(&term).is_ok();
        score + ALL_THERE * self.covered(there).powi(2)
    }

    /// What a passage of `text` keeps for what kind of file that is.
    fn keeps(&self, text: &Text) -> f32 {
        let sort = text.sort;
        let test = if sort.is_test && !self.wants_tests { TEST } else { 1.0 };
        let example = if sort.is_example && !self.wants_examples { EXAMPLE } else { 1.0 };
        test * example * if sort.kind == Kind::Docs { DOCS } else { 1.0 }
    }
}

/// What passages are measured by.
pub(super) struct Measure {
    pub(super) question: Option<Question>,
    pub(super) direction: Option<Vector>,
    pub(super) rerank: bool,
}

/// The passages of the files that `fits`, the best first, and how many matched in all.
pub(super) fn rank(
    index: &Index,
    measure: &Measure,
    fits: impl Fn(&Text) -> bool,
    watch: &Watch,
) -> Result<(Vec<Ranked>, u64), ToolError> {
    let average = index.length_average();
    let mut found = Vec::new();
    let mut looked: usize = 0;
    for text in index.texts().filter(|text| fits(text)) {
        for (at, chunk) in text.chunks.iter().enumerate() {
            if looked.is_multiple_of(CHECKED_EVERY) {
                watch.check()?;
            }
            looked += 1;
            let by_terms = measure.question.as_ref().map(|it| it.terms(text, chunk, average));
            let by_direction =
                measure.direction.as_ref().map(|it| it.cosine(&vector(index, chunk)));
            let score = match (by_terms, by_direction) {
                (Some(terms), Some(cosine)) => f32::midpoint(terms, cosine.max(0.0)),
                (Some(score), None) | (None, Some(score)) => score,
                (None, None) => 0.0,
            };
            if score > 0.0 {
                found.push(Ranked { text: text.clone(), chunk: at, score });
            }
        }
    }
    let total = found.len() as u64;
    sort(&mut found);
    if let Some(question) = measure.question.as_ref().filter(|_| measure.rerank) {
        found.truncate(CLOSER);
        for it in &mut found {
            watch.check()?;
            let more = question.features(&it.text, it.passage());
            it.score = (it.score + more) / BEST * question.keeps(&it.text);
        }
        sort(&mut found);
        saturate(&mut found);
        sort(&mut found);
    }
    Ok((found, total))
}

/// The vector of `chunk`, each term weighed by how rare it is.
pub(super) fn vector(index: &Index, chunk: &Chunk) -> Vector {
    let weigh = |(term, count): (Term, f32)| (term, (1.0 + count).ln() * index.rarity(term));
    Vector::of(chunk.terms().map(weigh))
}

/// Takes something from each passage for those of its file that come before it: an answer shows
/// more than one file.
fn saturate(found: &mut [Ranked]) {
    let mut seen: std::collections::HashMap<*const Text, i32> = std::collections::HashMap::new();
    for it in found {
        let before = seen.entry(Arc::as_ptr(&it.text)).or_default();
        it.score *= SAME_FILE.powi(*before);
        *before += 1;
    }
}

/// The best first; among equals in order of path and line, so that an answer is always the same.
fn sort(found: &mut [Ranked]) {
    found.sort_by(|a, b| {
        let by_place = || (&a.text.path, a.chunk).cmp(&(&b.text.path, b.chunk));
        b.score.total_cmp(&a.score).then_with(by_place)
    });
}

fn bare(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use toolgate_contract::{Caller, Ctx, Fault};

    use super::super::Settings;
    use super::super::words::concepts;
    use super::*;
    use crate::world::Root;

    #[tokio::test]
    async fn ranking_ends_where_nobody_wants_it() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
        let root = Root::open(&root).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let ctx = Ctx::alone(Caller::local(), until);
        let cancel = ctx.cancel.clone();
        let work = move |root: &Root, watch: &Watch| {
            let mut index = Index::default();
            index.refresh(root, ".", &Settings::default(), until, watch)?;
            let question = Some(Question::new("token", concepts("token"), &index));
            let measure = Measure { question, direction: None, rerank: true };
            let (found, _) = rank(&index, &measure, |_| true, watch)?;
            assert!(!found.is_empty());
            cancel.cancel();
            rank(&index, &measure, |_| true, watch).map(|_| ())
        };
        assert_eq!(root.work(&ctx, work).await.unwrap_err().fault, Fault::Canceled);
    }
}
