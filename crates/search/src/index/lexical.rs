//! First stage of a search: scores chunks by their words with BM25F, word by word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tantivy::fieldnorm::FieldNormReader;
use tantivy::postings::Postings;
use tantivy::schema::Term;
use tantivy::{DocId, DocSet, TERMINATED};

use super::IndexError;
use super::allowed::Allowed;
use super::part::Part;
use super::schema::Fields;
use super::snapshot::COUNTED;
use crate::ChunkHash;
use crate::rank::bm25f::{saturated, worths};
use crate::rank::{Averages, FIELDS, Question};

/// Weight of a word in each field, for each encoded field length.
pub(super) struct Worths([[f32; 256]; FIELDS]);

impl Worths {
    pub(super) fn of(averages: &Averages) -> Self {
        let mut all = [[0.0; 256]; FIELDS];
        for id in 0..=u8::MAX {
            let length = FieldNormReader::id_to_fieldnorm(id);
            for (worths, worth) in all.iter_mut().zip(worths(averages, &[length; FIELDS])) {
                worths[usize::from(id)] = worth;
            }
        }
        Self(all)
    }
}

/// The best chunks by their words.
pub(super) struct Best {
    most: usize,
    heap: BinaryHeap<Reverse<Entry>>,
    /// Number of all chunks that matched.
    pub(super) total: u64,
}

/// Score of a chunk. Ties are broken by hash first, because that does not depend on the segment.
type Entry = (Score, Reverse<ChunkHash>, Reverse<(usize, DocId)>);

/// A score with a total order.
#[derive(Clone, Copy, PartialEq)]
struct Score(f32);

impl Eq for Score {}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Best {
    pub(super) fn new(most: usize) -> Self {
        Self { most, heap: BinaryHeap::new(), total: 0 }
    }

    /// Returns the best chunks, in no order.
    pub(super) fn found(self) -> impl Iterator<Item = (usize, DocId)> {
        self.heap.into_iter().map(|Reverse((_, _, Reverse(found)))| found)
    }

    fn offer(&mut self, (at, part): (usize, &Part), doc: DocId, score: f32) {
        self.total += 1;
        let is_full = self.heap.len() >= self.most;
        if is_full && self.heap.peek().is_none_or(|Reverse((least, ..))| Score(score) < *least) {
            return;
        }
        let offered = Reverse((Score(score), Reverse(part.hash(doc)), Reverse((at, doc))));
        self.heap.push(offered);
        if is_full {
            self.heap.pop();
        }
    }
}

/// Offers to `best` the chunks of `part` that contain a word of `question`.
pub(super) fn find(
    best: &mut Best,
    (at, part, fields): (usize, &Part, Fields),
    question: &Question,
    worths: &Worths,
    allowed: &Allowed,
    wanted: &dyn Fn() -> bool,
) -> Result<(), IndexError> {
    let len = part.len() as usize;
    let mut scores = vec![0.0_f32; len];
    let mut counts = vec![0.0_f32; len];
    let mut touched: Vec<DocId> = Vec::new();
    for concept in &question.concepts {
        if !wanted() {
            return Err(IndexError::Canceled);
        }
        for (number, field) in fields.words.into_iter().enumerate() {
            let term = Term::from_field_text(field, &concept.word);
            let Some(mut postings) = part.words[number].read_block_postings(&term, COUNTED)? else {
                continue;
            };
            let worths = &worths.0[number];
            let lengths = &part.lengths[number];
            while !postings.docs().is_empty() {
                for (doc, count) in postings.docs().iter().zip(postings.freqs()) {
                    let sum = &mut counts[*doc as usize];
                    if *sum == 0.0 {
                        touched.push(*doc);
                    }
                    let worth = worths[usize::from(lengths.fieldnorm_id(*doc))];
                    *sum += limited(*count) * worth;
                }
                postings.advance();
            }
        }
        for doc in touched.drain(..) {
            let count = std::mem::take(&mut counts[doc as usize]);
            scores[doc as usize] += concept.rarity * saturated(count);
        }
    }
    for (doc, score) in (0..).zip(scores) {
        if score > 0.0 && allowed.has(doc) {
            best.offer((at, part), doc, score);
        }
    }
    Ok(())
}

/// Counts the words of `question` in each field of `docs`, which must be sorted.
pub(super) fn count(
    part: &Part,
    fields: Fields,
    question: &Question,
    docs: &[DocId],
) -> Result<Vec<Vec<[u16; FIELDS]>>, IndexError> {
    let mut counts = vec![vec![[0; FIELDS]; question.concepts.len()]; docs.len()];
    for (which, concept) in question.concepts.iter().enumerate() {
        for (number, field) in fields.words.into_iter().enumerate() {
            let term = Term::from_field_text(field, &concept.word);
            let Some(mut postings) = part.words[number].read_postings(&term, COUNTED)? else {
                continue;
            };
            for (doc, counts) in docs.iter().zip(&mut counts) {
                let at = if postings.doc() < *doc { postings.seek(*doc) } else { postings.doc() };
                if at == *doc {
                    counts[which][number] = u16::try_from(postings.term_freq()).unwrap_or(u16::MAX);
                }
                if at == TERMINATED {
                    break;
                }
            }
        }
    }
    Ok(counts)
}

/// Limits a count as [`crate::rank::count`] does.
fn limited(count: u32) -> f32 {
    f32::from(u16::try_from(count).unwrap_or(u16::MAX))
}

/// Returns the approximate number of words in each field of `doc`.
pub(super) fn lengths(part: &Part, doc: DocId) -> [u32; FIELDS] {
    part.lengths.each_ref().map(|it| it.fieldnorm(doc))
}
