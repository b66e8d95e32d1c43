//! Collects candidates: the best chunks by words, static vectors and model vectors, each once.

use std::collections::{BTreeMap, BTreeSet};

use tantivy::DocId;

use super::allowed::Allowed;
use super::lexical::{self, Best, Worths};
use super::snapshot::{NO_SLOT, Snapshot, Which, key};
use super::{IndexError, guarded};
use crate::Filter;
use crate::rank::{Candidate, Question};
use crate::vectors::{Query, Vectors};

/// Vectors and limits of a search, in addition to its words.
#[derive(Debug, Clone, Copy)]
pub struct Sought<'s> {
    /// Static vector of the query.
    pub near: Option<&'s [f32]>,
    /// Model vector of the query; ignored if no model is configured.
    pub model: Option<&'s [f32]>,
    /// Filter on documents, applied before the best are selected.
    pub filter: &'s Filter,
    /// Most candidates from each kind of search.
    pub limit: usize,
}

/// Candidates of a search.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Distinct candidates, in no order.
    pub candidates: Vec<Candidate>,
    /// Number of chunks with any word of the query.
    pub total: u64,
}

/// Number of candidates built between two checks for cancellation.
const TOLD_AT_ONCE: usize = 64;

impl Snapshot {
    /// Returns the union of the best chunks by words and by each kind of vector, with all their
    /// scores.
    ///
    /// The search is canceled once `wanted` returns false.
    pub fn candidates(
        &self,
        question: Option<&Question>,
        sought: &Sought<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Found, IndexError> {
        guarded(|| self.find(question, sought, wanted))
    }

    fn find(
        &self,
        question: Option<&Question>,
        sought: &Sought<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Found, IndexError> {
        let inner = &*self.inner;
        let allowed = |part| Allowed::of(part, inner.fields, sought.filter);
        let allowed: Vec<Allowed> =
            inner.parts.iter().map(|it| allowed(it)).collect::<Result<_, _>>()?;
        let mut best = Best::new(sought.limit);
        if let Some(question) = question {
            let worths = Worths::of(&self.averages());
            for (at, (part, allowed)) in inner.parts.iter().zip(&allowed).enumerate() {
                let part = (at, &**part, inner.fields);
                lexical::find(&mut best, part, question, &worths, allowed, wanted)?;
            }
        }
        let total = best.total;
        let mut keys: BTreeSet<(usize, DocId)> = best.found().collect();
        let near = self.query(Which::Static, sought.near)?;
        let model = self.query(Which::Model, sought.model)?;
        for (which, asked) in [(Which::Static, &near), (Which::Model, &model)] {
            if let Some((vectors, query)) = asked {
                let sought_live;
                let live = if *sought.filter == Filter::default() {
                    inner.all_live(which)
                } else {
                    sought_live = inner.live(which, |part, doc| allowed[part].has(doc));
                    &sought_live
                };
                let found = vectors.nearest(query, live, sought.limit, wanted)?;
                self.add(&mut keys, which, &found, &allowed);
            }
        }
        let candidates = self.tell(question, &keys, near.as_ref(), model.as_ref(), wanted)?;
        Ok(Found { candidates, total })
    }

    fn query(
        &self,
        which: Which,
        vector: Option<&[f32]>,
    ) -> Result<Option<(&Vectors, Query)>, IndexError> {
        let (Some(vectors), Some(vector)) = (self.inner.vectors(which), vector) else {
            return Ok(None);
        };
        Ok(Some((vectors, vectors.query(vector)?)))
    }

    /// Adds the chunks with the slots `found`, best first. Chunks of equal text share a slot.
    fn add(
        &self,
        keys: &mut BTreeSet<(usize, DocId)>,
        which: Which,
        found: &[(u32, f32)],
        allowed: &[Allowed],
    ) {
        let mut of: BTreeMap<u32, Vec<(usize, DocId)>> = BTreeMap::new();
        let mut sought =
            crate::vectors::Slots::none(self.inner.vectors(which).map_or(0, Vectors::len));
        for (slot, _) in found {
            sought.insert(*slot);
        }
        for (part, slots) in self.inner.slots(which).iter().enumerate() {
            for (doc, slot) in (0..).zip(slots) {
                if *slot != NO_SLOT && sought.contains(*slot) && allowed[part].has(doc) {
                    of.entry(*slot).or_default().push((part, doc));
                }
            }
        }
        let in_order = found.iter().filter_map(|(slot, _)| of.get(slot)).flatten();
        keys.extend(in_order.take(found.len()));
    }

    fn tell(
        &self,
        question: Option<&Question>,
        keys: &BTreeSet<(usize, DocId)>,
        near: Option<&(&Vectors, Query)>,
        model: Option<&(&Vectors, Query)>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<Candidate>, IndexError> {
        let like = |which: Which, asked: Option<&(&Vectors, Query)>, part: usize, doc: DocId| {
            let (vectors, query) = asked?;
            let slot = self.inner.slots(which)[part][doc as usize];
            if slot == NO_SLOT { None } else { vectors.cosine(query, slot) }
        };
        let mut candidates = Vec::with_capacity(keys.len());
        for (at, part) in self.inner.parts.iter().enumerate() {
            let of_part = keys.range((at, 0)..=(at, DocId::MAX));
            let docs: Vec<DocId> = of_part.map(|(_, doc)| *doc).collect();
            let mut counts = match question {
                Some(question) => lexical::count(part, self.inner.fields, question, &docs)?,
                None => vec![Vec::new(); docs.len()],
            };
            let mut file = None;
            for (number, (doc, counts)) in docs.iter().zip(&mut counts).enumerate() {
                if number % TOLD_AT_ONCE == 0 && !wanted() {
                    return Err(IndexError::Canceled);
                }
                let file_at = part.file_of(*doc)?;
                let file = match &mut file {
                    Some((at, file)) if *at == file_at => file,
                    other => &mut other.insert((file_at, part.file(file_at)?)).1,
                };
                candidates.push(Candidate {
                    key: key(at, *doc),
                    counts: std::mem::take(counts),
                    lengths: lexical::lengths(part, *doc),
                    near: like(Which::Static, near, at, *doc).unwrap_or_default(),
                    model: like(Which::Model, model, at, *doc),
                    shown: part.chunk(*doc)?.shown(file),
                });
            }
        }
        Ok(candidates)
    }
}
