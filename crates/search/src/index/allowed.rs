//! Applies a filter to documents before the best are selected.

use tantivy::schema::{IndexRecordOption, Term};
use tantivy::{DocId, DocSet, TERMINATED};

use super::IndexError;
use super::part::Part;
use super::schema::{Fields, tag};
use crate::Filter;

/// Documents of a segment that a search considers.
pub(super) enum Allowed {
    /// All documents: there is no filter, and none is deleted.
    All,
    /// Documents whose bit is set.
    Only(Vec<u64>),
}

impl Allowed {
    pub(super) fn of(part: &Part, fields: Fields, filter: &Filter) -> Result<Self, IndexError> {
        if part.is_whole() && *filter == Filter::default() {
            return Ok(Self::All);
        }
        let mut bits = vec![0_u64; (part.len() as usize).div_ceil(64)];
        for doc in (0..part.len()).filter(|doc| part.is_alive(*doc)) {
            set(&mut bits, doc);
        }
        if !filter.prefixes.is_empty() {
            keep(&mut bits, &beginning(part, &filter.prefixes)?);
        }
        for wanted in &filter.tags {
            keep(&mut bits, &tagged(part, &Term::from_field_text(fields.tag, &tag(wanted)))?);
        }
        Ok(Self::Only(bits))
    }

    pub(super) fn has(&self, doc: DocId) -> bool {
        match self {
            Self::All => true,
            Self::Only(bits) => bits[doc as usize / 64] & (1 << (doc % 64)) != 0,
        }
    }
}

fn set(bits: &mut [u64], doc: DocId) {
    bits[doc as usize / 64] |= 1 << (doc % 64);
}

fn keep(bits: &mut [u64], only: &[u64]) {
    for (bits, only) in bits.iter_mut().zip(only) {
        *bits &= only;
    }
}

/// Returns the documents whose path begins with one of `prefixes`. Paths are numbered in order, so
/// each prefix is a range of numbers.
fn beginning(part: &Part, prefixes: &[String]) -> Result<Vec<u64>, IndexError> {
    let mut bits = vec![0_u64; (part.len() as usize).div_ceil(64)];
    let Some(paths) = &part.paths else { return Ok(bits) };
    let dictionary = paths.dictionary();
    let mut ranges = Vec::new();
    for prefix in prefixes {
        let from = dictionary.term_ord_or_next(prefix.as_bytes())?;
        let to = match after(prefix.as_bytes()) {
            Some(after) => first(&dictionary.term_ord_or_next(after)?),
            None => u64::MAX,
        };
        ranges.push(first(&from)..to);
    }
    for doc in 0..part.len() {
        if let Some(path) = paths.ords().first(doc)
            && ranges.iter().any(|it| it.contains(&path))
        {
            set(&mut bits, doc);
        }
    }
    Ok(bits)
}

fn first(hit: &tantivy::columnar::TermOrdHit) -> u64 {
    use tantivy::columnar::TermOrdHit::{Exact, Next};
    match hit {
        Exact(number) | Next(number) => *number,
    }
}

/// Returns the smallest string after all that begin with `prefix`; `None` if there is none.
fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut after = prefix.to_owned();
    while let Some(last) = after.pop() {
        if last < u8::MAX {
            after.push(last + 1);
            return Some(after);
        }
    }
    None
}

fn tagged(part: &Part, tag: &Term) -> Result<Vec<u64>, IndexError> {
    let mut bits = vec![0_u64; (part.len() as usize).div_ceil(64)];
    if let Some(mut postings) = part.tags.read_postings(tag, IndexRecordOption::Basic)? {
        let mut doc = postings.doc();
        while doc != TERMINATED {
            set(&mut bits, doc);
            doc = postings.advance();
        }
    }
    Ok(bits)
}
