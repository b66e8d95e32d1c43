//! Finds definitions by name.

use std::collections::BTreeSet;

use tantivy::postings::{SegmentPostings, TermInfo};
use tantivy::schema::{IndexRecordOption, Term};
use tantivy::{DocId, DocSet, TERMINATED};
use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::{distinct, parts};

use super::allowed::Allowed;
use super::part::Part;
use super::schema::symbol;
use super::snapshot::Snapshot;
use super::{IndexError, guarded};
use crate::{Filter, Shown};

/// Match between a name and the query, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum How {
    /// Equal.
    Exact,
    /// Equal without case.
    Case,
    /// The name starts with the query.
    Prefix,
    /// The name contains all words of the query.
    Words,
    /// The name differs by one or two letters.
    Misspelt,
}

/// A definition that was found by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// Description for search results.
    pub shown: Shown,
    /// Name that matched.
    pub name: String,
    /// Kind of match.
    pub how: How,
}

/// Most definitions examined in each segment by each kind of match.
const LOOKED_AT_MAX: usize = 2_000;
/// Shortest name, in characters, that may be misspelled by one letter. From twice this length, it
/// may be by two.
const MISSPELT_BYTES_MIN: usize = 4;

impl Snapshot {
    /// Finds up to `limit` definitions with a name like `query`, best first. They are ordered by
    /// [`How`], then functions and types first, then short names first. In `Session::new` or
    /// `session.new`, the part before the last name is the container, and definitions in it come
    /// first.
    pub fn named(
        &self,
        query: &str,
        filter: &Filter,
        limit: usize,
    ) -> Result<Vec<Named>, IndexError> {
        guarded(|| {
            let Some(asked) = Asked::of(query) else { return Ok(Vec::new()) };
            let found = self.look(&asked, filter, Spelt::Right)?;
            let found = asked.likeliest(found, limit);
            // After an equal name, misspellings are not searched.
            if found.first().is_some_and(|it| it.how <= How::Case) {
                return Ok(found);
            }
            Ok(asked.likeliest(self.look(&asked, filter, Spelt::Anyhow)?, limit))
        })
    }

    fn look(&self, asked: &Asked, filter: &Filter, spelt: Spelt) -> Result<Vec<Shown>, IndexError> {
        let mut found = Vec::new();
        for part in &self.inner.parts {
            let allowed = Allowed::of(part, self.inner.fields, filter)?;
            let mut docs = self.like(part, &allowed, asked)?;
            match spelt {
                Spelt::Right => {}
                Spelt::Anyhow => misspelt(&mut docs, part, &allowed, asked)?,
            }
            for doc in docs {
                found.push(part.shown(doc)?);
            }
        }
        Ok(found)
    }

    /// Returns chunks of `part` that may define the requested name.
    fn like(
        &self,
        part: &Part,
        allowed: &Allowed,
        asked: &Asked,
    ) -> Result<BTreeSet<DocId>, IndexError> {
        let fields = self.inner.fields;
        let mut docs = BTreeSet::new();
        let exact = Term::from_field_text(fields.symbol, &asked.symbol);
        let exact = part.symbols.read_postings(&exact, IndexRecordOption::Basic)?;
        exact.into_iter().for_each(|it| take(&mut docs, it, allowed));
        let begins = asked.symbol.as_bytes();
        let mut terms = part.symbols.terms().range().ge(begins).into_stream()?;
        while terms.advance() && terms.key().starts_with(begins) && docs.len() < LOOKED_AT_MAX {
            take(&mut docs, with_term(part, terms.value())?, allowed);
        }
        self.with_words(part, allowed, asked, &mut docs)?;
        Ok(docs)
    }

    /// Adds chunks whose names contain all words of the requested name.
    fn with_words(
        &self,
        part: &Part,
        allowed: &Allowed,
        asked: &Asked,
        docs: &mut BTreeSet<DocId>,
    ) -> Result<(), IndexError> {
        let field = self.inner.fields.words[0];
        let index = &part.words[0];
        let mut postings = Vec::new();
        for word in &asked.words {
            let term = Term::from_field_text(field, word);
            match index.read_postings(&term, IndexRecordOption::Basic)? {
                Some(found) => postings.push(found),
                None => return Ok(()),
            }
        }
        postings.sort_by_key(SegmentPostings::doc_freq);
        let Some((rarest, others)) = postings.split_first_mut() else { return Ok(()) };
        let mut taken = 0;
        let mut doc = rarest.doc();
        while doc != TERMINATED && taken < LOOKED_AT_MAX {
            let has = |it: &mut SegmentPostings| {
                (if it.doc() < doc { it.seek(doc) } else { it.doc() }) == doc
            };
            if others.iter_mut().all(has) && allowed.has(doc) {
                docs.insert(doc);
                taken += 1;
            }
            doc = rarest.advance();
        }
        Ok(())
    }
}

/// Adds chunks of `part` that define a name with a small spelling difference.
fn misspelt(
    docs: &mut BTreeSet<DocId>,
    part: &Part,
    allowed: &Allowed,
    asked: &Asked,
) -> Result<(), IndexError> {
    if asked.misspelt == 0 {
        return Ok(());
    }
    let most = docs.len() + LOOKED_AT_MAX;
    let mut terms = part.symbols.terms().stream()?;
    while terms.advance() && docs.len() < most {
        let name = std::str::from_utf8(terms.key());
        if name.is_ok_and(|name| asked.distance(name).is_some()) {
            take(docs, with_term(part, terms.value())?, allowed);
        }
    }
    Ok(())
}

fn with_term(part: &Part, term: &TermInfo) -> Result<SegmentPostings, IndexError> {
    Ok(part.symbols.read_postings_from_terminfo(term, IndexRecordOption::Basic)?)
}

fn take(docs: &mut BTreeSet<DocId>, mut postings: SegmentPostings, allowed: &Allowed) {
    let mut taken = 0;
    while postings.doc() != TERMINATED && taken < LOOKED_AT_MAX {
        if allowed.has(postings.doc()) {
            docs.insert(postings.doc());
            taken += 1;
        }
        postings.advance();
    }
}

/// Spellings that a search considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelt {
    /// The requested spelling.
    Right,
    /// Similar spellings, too.
    Anyhow,
}

/// Sort key of a match; smaller comes first.
type Order = (How, usize, bool, bool, usize, String, u32);

/// A parsed name query.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Requested name, as written.
    name: String,
    /// Requested name in lower case, as the index stores names.
    symbol: String,
    /// Words of the name.
    words: Vec<String>,
    /// Names of the requested containers, in lower case.
    within: Vec<String>,
    /// Number of letters that may differ.
    misspelt: usize,
}

/// Returns the distinct words of a name, without the whole name, so that their order does not
/// matter.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    parts(name, |word| words.push(word.to_owned()));
    words.sort_unstable();
    words.dedup();
    words
}

impl Asked {
    /// Parses `query`; `None` if it contains no name.
    pub fn of(query: &str) -> Option<Self> {
        let is_between = |c: char| c.is_whitespace() || matches!(c, ':' | '.' | '#' | '/' | '\\');
        let query = query.trim().trim_end_matches(['(', ')', ';', '!', '?']);
        // Spaces separate the words of one name. Other separators divide containers and name.
        let mut parts: Vec<&str> = query
            .split(|c| is_between(c) && !char::is_whitespace(c))
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect();
        let name = parts.pop()?.to_owned();
        let length = name.chars().count();
        Some(Self {
            symbol: symbol(&name),
            words: words(&name),
            within: parts.into_iter().map(symbol).collect(),
            misspelt: match length {
                0..MISSPELT_BYTES_MIN => 0,
                _ => 1 + usize::from(length >= 2 * MISSPELT_BYTES_MIN),
            },
            name,
        })
    }

    /// Returns the name in lower case.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Returns the words of the name.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Returns the number of letters by which a name may differ and still match.
    pub fn misspelt(&self) -> usize {
        self.misspelt
    }

    /// Returns up to `limit` of `found` that match, best first, in the order of
    /// [`Snapshot::named`].
    pub fn likeliest(&self, found: impl IntoIterator<Item = Shown>, limit: usize) -> Vec<Named> {
        let named = |shown: Shown| {
            let (how, distance, name) = self.best(&shown.names)?;
            let named = Named { name: name.clone(), how, shown };
            Some((self.order(&named, distance), named))
        };
        let mut found: Vec<(Order, Named)> = found.into_iter().filter_map(named).collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.truncate(limit);
        found.into_iter().map(|(_, named)| named).collect()
    }

    /// Returns the edit distance (optimal string alignment) of the lower-case `name`, or `None` if
    /// it is too large.
    pub fn distance(&self, name: &str) -> Option<usize> {
        if name.len().abs_diff(self.symbol.len()) > 4 * self.misspelt {
            return None;
        }
        let distance = strsim::osa_distance(name, &self.symbol);
        (distance <= self.misspelt).then_some(distance)
    }

    /// Returns the best match among `names`: its kind, edit distance and name.
    fn best<'n>(&self, names: &'n [String]) -> Option<(How, usize, &'n String)> {
        let how = |name: &'n String| {
            let kept = symbol(name);
            let (how, distance) = if *name == self.name {
                (How::Exact, 0)
            } else if kept == self.symbol {
                (How::Case, 0)
            } else if kept.starts_with(&self.symbol) {
                (How::Prefix, 0)
            } else if self.has_words(name) {
                (How::Words, 0)
            } else {
                (How::Misspelt, self.distance(&kept)?)
            };
            Some((how, distance, name))
        };
        names.iter().filter_map(how).min_by_key(|(how, distance, _)| (*how, *distance))
    }

    fn has_words(&self, name: &str) -> bool {
        let has = distinct(name);
        !self.words.is_empty() && self.words.iter().all(|word| has.contains(word))
    }

    fn order(&self, named: &Named, distance: usize) -> Order {
        let Named { shown, name, how } = named;
        let is_definition = matches!(shown.kind, ChunkKind::Function | ChunkKind::Type);
        let stands_in = |wanted: &String| {
            let is = |it: &String| symbol(it).contains(wanted.as_str());
            shown.within.iter().any(is) || symbol(&shown.path).contains(wanted.as_str())
        };
        let stands_there = self.within.iter().all(stands_in);
        let path = shown.path.clone();
        (*how, distance, !stands_there, !is_definition, name.len(), path, shown.first)
    }
}
