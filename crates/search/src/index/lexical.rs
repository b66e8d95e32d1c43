//! First stage of a search: scores chunks by their words with BM25F.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tantivy::fieldnorm::FieldNormReader;
use tantivy::postings::Postings;
use tantivy::schema::Term;
use tantivy::{DocId, DocSet, TERMINATED};

use super::IndexError;
use super::allowed_documents::AllowedDocuments;
use super::schema::IndexSchemaFields;
use super::segment::IndexSegment;
use super::snapshot::WORD_COUNTS;
use crate::ChunkHash;
use crate::rank::bm25f::{field_weights, saturate};
use crate::rank::{FIELDS, IndexStatistics, WeightedQuery};

/// Weight of one word occurrence in each field of a chunk, for each encoded field length.
pub(super) struct WordWeightTable([[f32; 256]; FIELDS]);

impl WordWeightTable {
    pub(super) fn new(averages: &IndexStatistics) -> Self {
        let mut all = [[0.0; 256]; FIELDS];
        for id in 0..=u8::MAX {
            let length = FieldNormReader::id_to_fieldnorm(id);
            for (worths, worth) in all.iter_mut().zip(field_weights(averages, &[length; FIELDS])) {
                worths[usize::from(id)] = worth;
            }
        }
        Self(all)
    }
}

/// The best chunks of a search by words.
pub(super) struct BestWordMatches {
    limit: usize,
    heap: BinaryHeap<Reverse<ScoredChunk>>,
    /// Number of all chunks that the search matched.
    pub(super) total: u64,
}

/// Score of a found chunk, and its sort key among equal scores. The hash comes first, because it
/// does not depend on the segment.
type ScoredChunk = (ChunkScore, Reverse<ChunkHash>, Reverse<(usize, DocId)>);

/// A chunk's score, with a total order for sorting.
#[derive(Clone, Copy, PartialEq)]
struct ChunkScore(f32);

impl Eq for ChunkScore {}

impl Ord for ChunkScore {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for ChunkScore {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl BestWordMatches {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, heap: BinaryHeap::new(), total: 0 }
    }

    /// Returns the best chunks of the search, in no particular order: the number of the index
    /// segment and the document id of each.
    pub(super) fn into_chunks(self) -> impl Iterator<Item = (usize, DocId)> {
        self.heap.into_iter().map(|Reverse((_, _, Reverse(found)))| found)
    }

    fn offer(&mut self, (at, part): (usize, &IndexSegment), doc: DocId, score: f32) {
        self.total += 1;
        let is_full = self.heap.len() >= self.limit;
        if is_full && self.heap.peek().is_none_or(|Reverse((least, ..))| ChunkScore(score) < *least)
        {
            return;
        }
        let offered = Reverse((ChunkScore(score), Reverse(part.hash(doc)), Reverse((at, doc))));
        self.heap.push(offered);
        if is_full {
            self.heap.pop();
        }
    }
}

/// Scores the chunks of the index segment `part` that contain a word of `question`, and adds the
/// best of them to `best`. Fails if the index is unreadable or `wanted` returns false.
pub(super) fn score_chunks(
    best: &mut BestWordMatches,
    (at, part, fields): (usize, &IndexSegment, IndexSchemaFields),
    question: &WeightedQuery,
    worths: &WordWeightTable,
    allowed: &AllowedDocuments,
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
            let Some(mut postings) = part.words[number].read_block_postings(&term, WORD_COUNTS)?
            else {
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
                    *sum += limit_count(*count) * worth;
                }
                postings.advance();
            }
        }
        for doc in touched.drain(..) {
            let count = std::mem::take(&mut counts[doc as usize]);
            scores[doc as usize] += concept.rarity * saturate(count);
        }
    }
    for (doc, score) in (0..).zip(scores) {
        if score > 0.0 && allowed.contains(doc) {
            best.offer((at, part), doc, score);
        }
    }
    Ok(())
}

/// Returns how often each word of `question` occurs in each field of the chunks `docs`, which must
/// be sorted. Fails if the index is unreadable.
pub(super) fn count_in_docs(
    part: &IndexSegment,
    fields: IndexSchemaFields,
    question: &WeightedQuery,
    docs: &[DocId],
) -> Result<Vec<Vec<[u16; FIELDS]>>, IndexError> {
    let mut counts = vec![vec![[0; FIELDS]; question.concepts.len()]; docs.len()];
    for (which, concept) in question.concepts.iter().enumerate() {
        for (number, field) in fields.words.into_iter().enumerate() {
            let term = Term::from_field_text(field, &concept.word);
            let Some(mut postings) = part.words[number].read_postings(&term, WORD_COUNTS)? else {
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

/// Caps the number `count` of a word's occurrences at 65,535, as [`crate::rank::count_words`] does.
fn limit_count(count: u32) -> f32 {
    f32::from(u16::try_from(count).unwrap_or(u16::MAX))
}

/// Returns the approximate number of words in each field of the chunk `doc`.
pub(super) fn field_lengths(part: &IndexSegment, doc: DocId) -> [u32; FIELDS] {
    part.lengths.each_ref().map(|it| it.fieldnorm(doc))
}
