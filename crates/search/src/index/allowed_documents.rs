//! Applies a filter to documents before the best are selected.

use tantivy::columnar::TermOrdHit;
use tantivy::schema::{IndexRecordOption, Term};
use tantivy::{DocId, DocSet, TERMINATED};

use super::IndexError;
use super::schema::{IndexSchemaFields, normalize_tag};
use super::segment::IndexSegment;
use crate::DocumentFilter;

/// Documents of an index segment that a search may return.
pub(super) enum AllowedDocuments {
    /// All documents of the segment: there is no filter, and no document is deleted.
    All,
    /// Only the documents of the segment whose bit is set.
    Only(Vec<u64>),
}

impl AllowedDocuments {
    pub(super) fn for_filter(
        part: &IndexSegment,
        fields: IndexSchemaFields,
        filter: &DocumentFilter,
    ) -> Result<Self, IndexError> {
        if part.is_whole() && *filter == DocumentFilter::default() {
            return Ok(Self::All);
        }
        let mut bits = vec![0_u64; (part.len() as usize).div_ceil(64)];
        for doc in (0..part.len()).filter(|doc| part.is_alive(*doc)) {
            set_bit(&mut bits, doc);
        }
        if !filter.prefixes.is_empty() {
            intersect(&mut bits, &with_prefixes(part, &filter.prefixes)?);
        }
        for wanted in &filter.tags {
            intersect(
                &mut bits,
                &with_tag(part, &Term::from_field_text(fields.tag, &normalize_tag(wanted)))?,
            );
        }
        Ok(Self::Only(bits))
    }

    /// Returns the documents with numbers below `end` for which `is_allowed` returns true.
    pub(super) fn only(end: DocId, is_allowed: impl Fn(DocId) -> bool) -> Self {
        let mut bits = vec![0_u64; (end as usize).div_ceil(64)];
        for doc in (0..end).filter(|doc| is_allowed(*doc)) {
            set_bit(&mut bits, doc);
        }
        Self::Only(bits)
    }

    pub(super) fn contains(&self, doc: DocId) -> bool {
        match self {
            Self::All => true,
            Self::Only(bits) => bits[doc as usize / 64] & (1 << (doc % 64)) != 0,
        }
    }
}

fn set_bit(bits: &mut [u64], doc: DocId) {
    bits[doc as usize / 64] |= 1 << (doc % 64);
}

fn intersect(bits: &mut [u64], only: &[u64]) {
    for (bits, only) in bits.iter_mut().zip(only) {
        *bits &= only;
    }
}

/// Returns the documents of the segment at or below a path in `prefixes`, as one bit for each
/// document. Paths are numbered in order, so a file is one number and the content of a folder is a
/// range of numbers. Fails if the index is unreadable.
fn with_prefixes(part: &IndexSegment, prefixes: &[String]) -> Result<Vec<u64>, IndexError> {
    let mut bits = vec![0_u64; (part.len() as usize).div_ceil(64)];
    let Some(paths) = &part.paths else { return Ok(bits) };
    let dictionary = paths.dictionary();
    let mut ranges = Vec::new();
    for prefix in prefixes {
        let mut folder = prefix.clone();
        if !prefix.is_empty() && !prefix.ends_with('/') {
            if let TermOrdHit::Exact(file) = dictionary.term_ord_or_next(prefix.as_bytes())? {
                ranges.push(file..file + 1);
            }
            folder.push('/');
        }
        let from = dictionary.term_ord_or_next(folder.as_bytes())?;
        let to = match prefix_end(folder.as_bytes()) {
            Some(after) => ordinal(&dictionary.term_ord_or_next(after)?),
            None => u64::MAX,
        };
        ranges.push(ordinal(&from)..to);
    }
    for doc in 0..part.len() {
        if let Some(path) = paths.ords().first(doc)
            && ranges.iter().any(|it| it.contains(&path))
        {
            set_bit(&mut bits, doc);
        }
    }
    Ok(bits)
}

fn ordinal(hit: &TermOrdHit) -> u64 {
    match hit {
        TermOrdHit::Exact(number) | TermOrdHit::Next(number) => *number,
    }
}

/// Returns the smallest string after all strings that begin with `prefix`. `None` if there is no
/// such string.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut after = prefix.to_owned();
    while let Some(last) = after.pop() {
        if last < u8::MAX {
            after.push(last + 1);
            return Some(after);
        }
    }
    None
}

fn with_tag(part: &IndexSegment, tag: &Term) -> Result<Vec<u64>, IndexError> {
    let mut bits = vec![0_u64; (part.len() as usize).div_ceil(64)];
    if let Some(mut postings) = part.tags.read_postings(tag, IndexRecordOption::Basic)? {
        let mut doc = postings.doc();
        while doc != TERMINATED {
            set_bit(&mut bits, doc);
            doc = postings.advance();
        }
    }
    Ok(bits)
}
