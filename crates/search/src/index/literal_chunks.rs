//! Finds the chunks that a query names exactly: by the name of a definition, or by the name or path
//! of a file.

use std::collections::BTreeSet;

use tantivy::schema::{IndexRecordOption, Term};
use tantivy::{DocId, DocSet, TERMINATED};

use super::IndexError;
use super::allowed_documents::AllowedDocuments;
use super::lexical::{self, BestWordMatches, WordWeightTable};
use super::segment::IndexSegment;
use super::snapshot::IndexSnapshot;
use crate::rank::{QueryLiterals, WeightedQuery};

/// Maximum number of definitions of one requested name that are added in one index segment.
const DEFINITIONS_MAX: usize = 100;
/// Maximum number of files with a requested name or path in one index segment.
const FILES_MAX: usize = 20;
/// Maximum number of chunks that are added from the files which a query names.
const FILE_CHUNKS_MAX: usize = 50;

impl IndexSnapshot {
    /// Adds to `keys` the chunks that define a name in `question`, where upper and lower case count
    /// as equal. From the files that `question` names, also adds the chunks that match the words of
    /// `question` best. Fails if the index is unreadable or `wanted` returns false.
    pub(super) fn add_literal_chunks(
        &self,
        keys: &mut BTreeSet<(usize, DocId)>,
        question: &WeightedQuery,
        allowed: &[AllowedDocuments],
        worths: &WordWeightTable,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), IndexError> {
        let literals = &question.literals;
        if literals.is_empty() {
            return Ok(());
        }
        let mut best = BestWordMatches::new(FILE_CHUNKS_MAX);
        for (at, (part, allowed)) in self.inner.segments.iter().zip(allowed).enumerate() {
            for symbol in literals.symbols() {
                let term = Term::from_field_text(self.inner.fields.symbol, &symbol);
                let docs = documents_with_term(part, &term, allowed)?;
                keys.extend(docs.into_iter().map(|doc| (at, doc)));
            }
            if let Some(files) = chunks_of_files(part, literals, allowed)? {
                let part = (at, &**part, self.inner.fields);
                lexical::score_chunks(&mut best, part, question, worths, &files, wanted)?;
            }
        }
        keys.extend(best.into_chunks());
        Ok(())
    }
}

fn documents_with_term(
    part: &IndexSegment,
    term: &Term,
    allowed: &AllowedDocuments,
) -> Result<Vec<DocId>, IndexError> {
    let mut docs = Vec::new();
    let Some(mut postings) = part.symbols.read_postings(term, IndexRecordOption::Basic)? else {
        return Ok(docs);
    };
    while postings.doc() != TERMINATED && docs.len() < DEFINITIONS_MAX {
        if allowed.contains(postings.doc()) {
            docs.push(postings.doc());
        }
        postings.advance();
    }
    Ok(docs)
}

/// Returns the allowed chunks of the files that the query's `literals` name. `None` if there are no
/// such files. Fails if the index is unreadable.
fn chunks_of_files(
    part: &IndexSegment,
    literals: &QueryLiterals,
    allowed: &AllowedDocuments,
) -> Result<Option<AllowedDocuments>, IndexError> {
    let Some(paths) = part.paths.as_ref().filter(|_| !literals.paths.is_empty()) else {
        return Ok(None);
    };
    let mut files: Vec<u64> = Vec::new();
    let mut number = 0;
    let mut all = paths.dictionary().stream()?;
    while all.advance() && files.len() < FILES_MAX {
        if std::str::from_utf8(all.key()).is_ok_and(|path| literals.names_path(path)) {
            files.push(number);
        }
        number += 1;
    }
    if files.is_empty() {
        return Ok(None);
    }
    let is_in_file = |doc: DocId| {
        allowed.contains(doc) && paths.ords().first(doc).is_some_and(|it| files.contains(&it))
    };
    Ok(Some(AllowedDocuments::only(part.len(), is_in_file)))
}
