//! Collects candidates: the best chunks by words, by static vectors and by model vectors, without
//! duplicates.

use std::collections::{BTreeMap, BTreeSet};

use tantivy::DocId;

use super::allowed_documents::AllowedDocuments;
use super::lexical::{self, BestWordMatches, WordWeightTable};
use super::snapshot::{IndexSnapshot, NO_SLOT, VectorSource, candidate_key};
use super::{IndexError, catch_panics};
use crate::DocumentFilter;
use crate::rank::{ChunkCandidate, WeightedQuery};
use crate::vectors::{QuantizedQueryVector, VectorSnapshot};

/// The vectors, the filter and the limit of a search in addition to its words.
#[derive(Debug, Clone, Copy)]
pub struct CandidateSearchQuery<'s> {
    /// Vector of the query by the built-in model.
    pub static_vector: Option<&'s [f32]>,
    /// Vector of the query by the configured model. Ignored if no model is configured.
    pub model_vector: Option<&'s [f32]>,
    /// Filter on the searched documents, which is applied before the best chunks are selected.
    pub filter: &'s DocumentFilter,
    /// Maximum number of candidates from each kind of search: by words and by each kind of vector.
    pub limit: usize,
}

/// Chunks of an index that may match a query.
#[derive(Debug, Clone, Default)]
pub struct FoundCandidates {
    /// Distinct chunks that may match, in no particular order.
    pub candidates: Vec<ChunkCandidate>,
    /// Number of chunks with any word of the query.
    pub total: u64,
}

/// Number of candidates that are built between two checks for cancellation.
const CANDIDATES_PER_CHECK: usize = 64;

impl IndexSnapshot {
    /// Returns the chunks that may match a query: the best by words, the best by each source of
    /// vectors, and those that the query names exactly, with all their scores.
    ///
    /// Fails if the index is unreadable, or once `wanted` returns false, which cancels the search.
    pub fn candidates(
        &self,
        question: Option<&WeightedQuery>,
        sought: &CandidateSearchQuery<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<FoundCandidates, IndexError> {
        catch_panics(|| self.find_candidates(question, sought, wanted))
    }

    fn find_candidates(
        &self,
        question: Option<&WeightedQuery>,
        sought: &CandidateSearchQuery<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<FoundCandidates, IndexError> {
        let inner = &*self.inner;
        let allowed = |part| AllowedDocuments::for_filter(part, inner.fields, sought.filter);
        let allowed: Vec<AllowedDocuments> =
            inner.segments.iter().map(|it| allowed(it)).collect::<Result<_, _>>()?;
        let mut best = BestWordMatches::new(sought.limit);
        let worths = WordWeightTable::new(&self.statistics());
        if let Some(question) = question {
            for (at, (part, allowed)) in inner.segments.iter().zip(&allowed).enumerate() {
                let part = (at, &**part, inner.fields);
                lexical::score_chunks(&mut best, part, question, &worths, allowed, wanted)?;
            }
        }
        let total = best.total;
        let mut keys: BTreeSet<(usize, DocId)> = best.into_chunks().collect();
        if let Some(question) = question {
            self.add_literal_chunks(&mut keys, question, &allowed, &worths, wanted)?;
        }
        let near = self.prepare_query(VectorSource::Static, sought.static_vector)?;
        let model = self.prepare_query(VectorSource::Model, sought.model_vector)?;
        for (which, asked) in [(VectorSource::Static, &near), (VectorSource::Model, &model)] {
            if let Some((vectors, query)) = asked {
                let sought_live;
                let live = if *sought.filter == DocumentFilter::default() {
                    inner.all_live_slots(which)
                } else {
                    sought_live = inner.live_slots(which, |part, doc| allowed[part].contains(doc));
                    &sought_live
                };
                let found = vectors.nearest(query, live, sought.limit, wanted)?;
                self.add_chunks(&mut keys, which, &found, &allowed);
            }
        }
        let candidates =
            self.build_candidates(question, &keys, near.as_ref(), model.as_ref(), wanted)?;
        Ok(FoundCandidates { candidates, total })
    }

    fn prepare_query(
        &self,
        which: VectorSource,
        vector: Option<&[f32]>,
    ) -> Result<Option<(&VectorSnapshot, QuantizedQueryVector)>, IndexError> {
        let (Some(vectors), Some(vector)) = (self.inner.vectors(which), vector) else {
            return Ok(None);
        };
        Ok(Some((vectors, vectors.prepare_query(vector)?)))
    }

    /// Adds to `keys` the allowed chunks whose vectors have the slots (vector numbers) in `found`,
    /// best first. Chunks with the same text share a slot.
    fn add_chunks(
        &self,
        keys: &mut BTreeSet<(usize, DocId)>,
        which: VectorSource,
        found: &[(u32, f32)],
        allowed: &[AllowedDocuments],
    ) {
        let mut of: BTreeMap<u32, Vec<(usize, DocId)>> = BTreeMap::new();
        let mut sought = crate::vectors::VectorSlotSet::empty(
            self.inner.vectors(which).map_or(0, VectorSnapshot::len),
        );
        for (slot, _) in found {
            sought.insert(*slot);
        }
        for (part, slots) in self.inner.slots(which).iter().enumerate() {
            for (doc, slot) in (0..).zip(slots) {
                if *slot != NO_SLOT && sought.contains(*slot) && allowed[part].contains(doc) {
                    of.entry(*slot).or_default().push((part, doc));
                }
            }
        }
        let in_order = found.iter().filter_map(|(slot, _)| of.get(slot)).flatten();
        keys.extend(in_order.take(found.len()));
    }

    fn build_candidates(
        &self,
        question: Option<&WeightedQuery>,
        keys: &BTreeSet<(usize, DocId)>,
        near: Option<&(&VectorSnapshot, QuantizedQueryVector)>,
        model: Option<&(&VectorSnapshot, QuantizedQueryVector)>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<ChunkCandidate>, IndexError> {
        let like = |which: VectorSource,
                    asked: Option<&(&VectorSnapshot, QuantizedQueryVector)>,
                    part: usize,
                    doc: DocId| {
            let (vectors, query) = asked?;
            let slot = self.inner.slots(which)[part][doc as usize];
            if slot == NO_SLOT { None } else { vectors.cosine(query, slot) }
        };
        let mut candidates = Vec::with_capacity(keys.len());
        for (at, part) in self.inner.segments.iter().enumerate() {
            let of_part = keys.range((at, 0)..=(at, DocId::MAX));
            let docs: Vec<DocId> = of_part.map(|(_, doc)| *doc).collect();
            let mut counts = match question {
                Some(question) => lexical::count_in_docs(part, self.inner.fields, question, &docs)?,
                None => vec![Vec::new(); docs.len()],
            };
            let mut file = None;
            for (number, (doc, counts)) in docs.iter().zip(&mut counts).enumerate() {
                if number % CANDIDATES_PER_CHECK == 0 && !wanted() {
                    return Err(IndexError::Canceled);
                }
                let file_at = part.file_of(*doc)?;
                let file = match &mut file {
                    Some((at, file)) if *at == file_at => file,
                    other => &mut other.insert((file_at, part.file(file_at)?)).1,
                };
                candidates.push(ChunkCandidate {
                    key: candidate_key(at, *doc),
                    counts: std::mem::take(counts),
                    lengths: lexical::field_lengths(part, *doc),
                    static_cosine: like(VectorSource::Static, near, at, *doc).unwrap_or_default(),
                    model_cosine: like(VectorSource::Model, model, at, *doc),
                    summary: part.chunk(*doc)?.into_summary(file),
                });
            }
        }
        Ok(candidates)
    }
}
