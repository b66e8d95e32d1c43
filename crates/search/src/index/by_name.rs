//! Finds definitions by name.

use std::collections::BTreeSet;

use tantivy::postings::{SegmentPostings, TermInfo};
use tantivy::schema::{IndexRecordOption, Term};
use tantivy::{DocId, DocSet, TERMINATED};
use toolgate_chunks::ChunkKind;
use toolgate_chunks::words::{distinct_words, identifier_parts};

use super::allowed_documents::AllowedDocuments;
use super::schema::normalize_name;
use super::segment::IndexSegment;
use super::snapshot::IndexSnapshot;
use super::{IndexError, catch_panics};
use crate::{ChunkSummary, DocumentFilter};

/// Kind of match between the name of a definition and the query, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameMatchKind {
    /// The name of the definition equals the query.
    Exact,
    /// The name of the definition equals the query except for case.
    CaseInsensitive,
    /// The name of the definition starts with the query.
    Prefix,
    /// The name of the definition contains all words of the query.
    Words,
    /// The name differs from the query by one or two letters.
    Misspelled,
}

/// A definition that was found by name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedDefinition {
    /// Description of the definition's chunk for search results.
    pub summary: ChunkSummary,
    /// Name of the definition that matched.
    pub name: String,
    /// Kind of match between the name and the query.
    pub match_kind: NameMatchKind,
}

/// Maximum number of definitions that are examined in each index segment for each kind of match.
const EXAMINED_MAX: usize = 2_000;
/// Length of a name in characters from which one letter may be misspelled. From twice this length,
/// two letters may be.
const MISSPELLED_CHARS_MIN: usize = 4;

impl IndexSnapshot {
    /// Finds up to `limit` definitions in the index with a name like `query`, best first. The order
    /// is by [`NameMatchKind`], then functions and types first, then code before tests, then short
    /// names first. In `Session::new` or `session.new`, the text before the last name is the
    /// container. Definitions in this container come first. Fails if the index is unreadable.
    pub fn find_named(
        &self,
        query: &str,
        filter: &DocumentFilter,
        limit: usize,
    ) -> Result<Vec<NamedDefinition>, IndexError> {
        catch_panics(|| {
            let Some(parsed) = NameQuery::parse(query) else { return Ok(Vec::new()) };
            let found = self.find_definitions(&parsed, filter, SpellingTolerance::Exact)?;
            let found = parsed.best_matches(found, limit);
            // After an equal name, misspellings are not searched.
            if found.first().is_some_and(|it| it.match_kind <= NameMatchKind::CaseInsensitive) {
                return Ok(found);
            }
            Ok(parsed.best_matches(
                self.find_definitions(&parsed, filter, SpellingTolerance::Similar)?,
                limit,
            ))
        })
    }

    fn find_definitions(
        &self,
        query: &NameQuery,
        filter: &DocumentFilter,
        spelt: SpellingTolerance,
    ) -> Result<Vec<ChunkSummary>, IndexError> {
        let mut found = Vec::new();
        for part in &self.inner.segments {
            let allowed = AllowedDocuments::for_filter(part, self.inner.fields, filter)?;
            let mut docs = self.find_similar(part, &allowed, query)?;
            match spelt {
                SpellingTolerance::Exact => {}
                SpellingTolerance::Similar => add_misspelled(&mut docs, part, &allowed, query)?,
            }
            for doc in docs {
                found.push(part.chunk_summary(doc)?);
            }
        }
        Ok(found)
    }

    /// Returns the allowed chunks of the index segment `part` that define the requested name, a
    /// name that begins with it, or a name with all its words. Upper and lower case count as equal.
    /// Fails if the index is unreadable.
    fn find_similar(
        &self,
        part: &IndexSegment,
        allowed: &AllowedDocuments,
        query: &NameQuery,
    ) -> Result<BTreeSet<DocId>, IndexError> {
        let fields = self.inner.fields;
        let mut docs = BTreeSet::new();
        let exact = Term::from_field_text(fields.symbol, &query.symbol);
        let exact = part.symbols.read_postings(&exact, IndexRecordOption::Basic)?;
        exact.into_iter().for_each(|it| add_postings(&mut docs, it, allowed));
        let begins = query.symbol.as_bytes();
        let mut terms = part.symbols.terms().range().ge(begins).into_stream()?;
        while terms.advance() && terms.key().starts_with(begins) && docs.len() < EXAMINED_MAX {
            add_postings(&mut docs, term_postings(part, terms.value())?, allowed);
        }
        self.add_with_words(part, allowed, query, &mut docs)?;
        Ok(docs)
    }

    /// Adds to `docs` the allowed chunks of the index segment `part` that have a name with all
    /// words of the requested name. Fails if the index is unreadable.
    fn add_with_words(
        &self,
        part: &IndexSegment,
        allowed: &AllowedDocuments,
        query: &NameQuery,
        docs: &mut BTreeSet<DocId>,
    ) -> Result<(), IndexError> {
        let field = self.inner.fields.words[0];
        let index = &part.words[0];
        let mut postings = Vec::new();
        for word in &query.words {
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
        while doc != TERMINATED && taken < EXAMINED_MAX {
            let has = |it: &mut SegmentPostings| {
                (if it.doc() < doc { it.seek(doc) } else { it.doc() }) == doc
            };
            if others.iter_mut().all(has) && allowed.contains(doc) {
                docs.insert(doc);
                taken += 1;
            }
            doc = rarest.advance();
        }
        Ok(())
    }
}

/// Adds to `docs` the allowed chunks of the index segment `part` that define a name with a small
/// spelling difference from the requested name. Fails if the index is unreadable.
fn add_misspelled(
    docs: &mut BTreeSet<DocId>,
    part: &IndexSegment,
    allowed: &AllowedDocuments,
    query: &NameQuery,
) -> Result<(), IndexError> {
    if query.edits_max == 0 {
        return Ok(());
    }
    let most = docs.len() + EXAMINED_MAX;
    let mut terms = part.symbols.terms().stream()?;
    while terms.advance() && docs.len() < most {
        let name = std::str::from_utf8(terms.key());
        if name.is_ok_and(|name| query.distance(name).is_some()) {
            add_postings(docs, term_postings(part, terms.value())?, allowed);
        }
    }
    Ok(())
}

fn term_postings(part: &IndexSegment, term: &TermInfo) -> Result<SegmentPostings, IndexError> {
    Ok(part.symbols.read_postings_from_terminfo(term, IndexRecordOption::Basic)?)
}

fn add_postings(
    docs: &mut BTreeSet<DocId>,
    mut postings: SegmentPostings,
    allowed: &AllowedDocuments,
) {
    let mut taken = 0;
    while postings.doc() != TERMINATED && taken < EXAMINED_MAX {
        if allowed.contains(postings.doc()) {
            docs.insert(postings.doc());
            taken += 1;
        }
        postings.advance();
    }
}

/// Spellings that a search by name accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpellingTolerance {
    /// The search accepts only names with exactly the requested spelling.
    Exact,
    /// The search accepts names with the requested spelling and similar names.
    Similar,
}

/// Sort key of a definition that matches a name query. The smallest key comes first.
type NameMatchSortKey = (NameMatchKind, usize, bool, bool, bool, usize, String, u32);

/// A parsed query for definitions by name.
#[derive(Debug, Clone)]
pub struct NameQuery {
    /// Requested name of a definition, in the spelling of the query.
    name: String,
    /// Requested name in lower case, as the index stores names.
    symbol: String,
    /// Words of the requested name.
    words: Vec<String>,
    /// Names of the requested containers (such as types or modules), in lower case.
    containers: Vec<String>,
    /// Number of letters by which a found name may differ from the requested name.
    edits_max: usize,
}

/// Returns the distinct words of the requested name `name`, but not the complete name, so that a
/// name with these words in a different order matches as well.
fn distinct_parts(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    identifier_parts(name, |word| words.push(word.to_owned()));
    words.sort_unstable();
    words.dedup();
    words
}

impl NameQuery {
    /// Parses the name query `query`. Returns `None` if it contains no name.
    pub fn parse(query: &str) -> Option<Self> {
        let is_between = |c: char| c.is_whitespace() || matches!(c, ':' | '.' | '#' | '/' | '\\');
        // A name with a wildcard is a prefix.
        let query = query.trim().trim_end_matches(['(', ')', ';', '!', '?', '*']);
        let query = query.trim_start_matches('*');
        // Spaces separate the words of one name. Other separators divide containers and name.
        let mut parts: Vec<&str> = query
            .split(|c| is_between(c) && !char::is_whitespace(c))
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect();
        let name = parts.pop()?.to_owned();
        let length = name.chars().count();
        Some(Self {
            symbol: normalize_name(&name),
            words: distinct_parts(&name),
            containers: parts.into_iter().map(normalize_name).collect(),
            edits_max: match length {
                0..MISSPELLED_CHARS_MIN => 0,
                _ => 1 + usize::from(length >= 2 * MISSPELLED_CHARS_MIN),
            },
            name,
        })
    }

    /// Returns the requested name in lower case.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Returns the words of the requested name.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Returns the number of letters by which a name may differ from the requested name and still
    /// match.
    pub fn edits_max(&self) -> usize {
        self.edits_max
    }

    /// Returns up to `limit` matching definitions of `found`, in the order of
    /// [`IndexSnapshot::find_named`].
    pub fn best_matches(
        &self,
        found: impl IntoIterator<Item = ChunkSummary>,
        limit: usize,
    ) -> Vec<NamedDefinition> {
        let named = |shown: ChunkSummary| {
            let (how, distance, name) = self.best_name(&shown.names)?;
            let named = NamedDefinition { name: name.clone(), match_kind: how, summary: shown };
            Some((self.sort_key(&named, distance), named))
        };
        let mut found: Vec<(NameMatchSortKey, NamedDefinition)> =
            found.into_iter().filter_map(named).collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.truncate(limit);
        found.into_iter().map(|(_, named)| named).collect()
    }

    /// Returns the edit distance between the requested name and the lower-case `name` (optimal
    /// string alignment), or `None` if it is too large.
    pub fn distance(&self, name: &str) -> Option<usize> {
        if name.len().abs_diff(self.symbol.len()) > 4 * self.edits_max {
            return None;
        }
        let distance = strsim::osa_distance(name, &self.symbol);
        (distance <= self.edits_max).then_some(distance)
    }

    /// Returns the best match of the query among `names`: its kind, edit distance and name. `None`
    /// if no name matches.
    fn best_name<'n>(&self, names: &'n [String]) -> Option<(NameMatchKind, usize, &'n String)> {
        let how = |name: &'n String| {
            let kept = normalize_name(name);
            let (how, distance) = if *name == self.name {
                (NameMatchKind::Exact, 0)
            } else if kept == self.symbol {
                (NameMatchKind::CaseInsensitive, 0)
            } else if kept.starts_with(&self.symbol) {
                (NameMatchKind::Prefix, 0)
            } else if self.has_words(name) {
                (NameMatchKind::Words, 0)
            } else {
                (NameMatchKind::Misspelled, self.distance(&kept)?)
            };
            Some((how, distance, name))
        };
        names.iter().filter_map(how).min_by_key(|(how, distance, _)| (*how, *distance))
    }

    fn has_words(&self, name: &str) -> bool {
        let has = distinct_words(name);
        !self.words.is_empty() && self.words.iter().all(|word| has.contains(word))
    }

    fn sort_key(&self, named: &NamedDefinition, distance: usize) -> NameMatchSortKey {
        let NamedDefinition { summary: shown, name, match_kind: how } = named;
        let is_definition = matches!(shown.kind, ChunkKind::Function | ChunkKind::Type);
        let stands_in = |wanted: &String| {
            let is = |it: &String| normalize_name(it).contains(wanted.as_str());
            shown.within.iter().any(is) || normalize_name(&shown.path).contains(wanted.as_str())
        };
        let stands_there = self.containers.iter().all(stands_in);
        let is_test = shown.tags.iter().any(|tag| tag == "test");
        let path = shown.path.clone();
        let length = name.len();
        (*how, distance, !stands_there, !is_definition, is_test, length, path, shown.first)
    }
}
