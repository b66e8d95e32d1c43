//! Changes of the index that are few enough to be written at once.

use std::collections::HashSet;

use tantivy::index::SegmentId;
use tantivy::indexer::{AddOperation, SegmentWriter};
use tantivy::query::{EmptyScorer, EnableScoring, Explanation, Query, Scorer, TermQuery, Weight};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{DocId, Index, IndexWriter, Score, Segment, SegmentReader, TantivyDocument, Term};

use super::IndexError;

/// Maximum size of the texts that are written at once, in bytes.
const TEXTS_BYTES_MAX: usize = 256 << 10;
/// Memory budget of the writer of a small index segment, in bytes. It sets the size of the table of
/// words, which grows if the texts have more words.
const SEGMENT_MEMORY_BYTES: usize = 1_000_000;

/// A change of the index: the document at a path is replaced or deleted.
pub(super) struct DocumentChange {
    pub(super) path: String,
    /// New entries for this path, each with the size of its text in bytes. Empty if the document is
    /// deleted.
    pub(super) entries: Vec<(TantivyDocument, usize)>,
}

/// The changes since the last commit while they are few, for example after a file is saved.
///
/// Tantivy's writer prepares for many documents: its background thread clears a table of words of
/// 4 MB after each commit, and reads the whole table at the next commit. These changes are therefore
/// written to an index segment of their own on the thread of the caller, with a small table.
#[derive(Default)]
pub(super) struct SmallCommit {
    changes: Vec<DocumentChange>,
    texts_bytes: usize,
}

impl SmallCommit {
    pub(super) fn push(&mut self, change: DocumentChange) {
        let entries = change.entries.iter().map(|(_, bytes)| bytes);
        self.texts_bytes += change.path.len() + entries.sum::<usize>();
        self.changes.push(change);
    }

    /// Returns `true` if there are too many changes for a small commit.
    pub(super) fn is_too_large(&self) -> bool {
        self.texts_bytes > TEXTS_BYTES_MAX
    }

    pub(super) fn into_changes(self) -> Vec<DocumentChange> {
        self.changes
    }

    /// Writes the changes to a segment of the index `index`, which becomes visible with the next
    /// commit of `writer`. `path_field` is the field with the path of a document. Fails if the
    /// segment cannot be written.
    pub(super) fn write<D: tantivy::Document>(
        self,
        index: &Index,
        path_field: Field,
        writer: &IndexWriter<D>,
    ) -> Result<(), IndexError> {
        let last_changes = self.into_last_changes();
        let terms = last_changes.iter().map(|it| Term::from_field_text(path_field, &it.path));
        let terms: Vec<Term> = terms.collect();
        let entries: Vec<TantivyDocument> =
            last_changes.into_iter().flat_map(|it| it.entries).map(|(entry, _)| entry).collect();
        let segment = if entries.is_empty() { None } else { Some(write_segment(index, entries)?) };
        let new_segment = segment.as_ref().map(Segment::id);
        for term in terms {
            writer.delete_query(Box::new(OlderEntriesQuery { term, new_segment }))?;
        }
        if let Some(segment) = segment {
            writer.add_segment(segment.meta().clone())?;
        }
        Ok(())
    }

    /// Returns the last change of each path, in the order of the changes.
    fn into_last_changes(self) -> Vec<DocumentChange> {
        let mut changed = HashSet::new();
        let mut last_changes = Vec::with_capacity(self.changes.len());
        for change in self.changes.into_iter().rev() {
            if changed.insert(change.path.clone()) {
                last_changes.push(change);
            }
        }
        last_changes.reverse();
        last_changes
    }
}

/// Writes the documents `entries` to a new segment of `index`, which is not yet part of the index.
fn write_segment(index: &Index, entries: Vec<TantivyDocument>) -> Result<Segment, IndexError> {
    let segment = index.new_segment();
    let mut writer = SegmentWriter::for_segment(SEGMENT_MEMORY_BYTES, segment.clone())?;
    for document in entries {
        writer.add_document(AddOperation { opstamp: 0, document })?;
    }
    let count = writer.max_doc();
    writer.finalize()?;
    let segment = segment.with_max_doc(count);
    segment.meta().untrack_temp_docstore();
    Ok(segment)
}

/// Query for the entries with the path `term`, except those in the segment `new_segment`.
///
/// Tantivy applies a deletion to all documents of a segment that is added after the deletion.
#[derive(Debug, Clone)]
struct OlderEntriesQuery {
    term: Term,
    new_segment: Option<SegmentId>,
}

impl Query for OlderEntriesQuery {
    fn weight(&self, scoring: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        let entries = TermQuery::new(self.term.clone(), IndexRecordOption::Basic);
        let entries = entries.weight(scoring)?;
        Ok(Box::new(OlderEntriesWeight { entries, new_segment: self.new_segment }))
    }
}

/// The [`OlderEntriesQuery`], prepared for its application to segments.
struct OlderEntriesWeight {
    entries: Box<dyn Weight>,
    new_segment: Option<SegmentId>,
}

impl Weight for OlderEntriesWeight {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        if self.new_segment == Some(reader.segment_id()) {
            return Ok(Box::new(EmptyScorer));
        }
        self.entries.scorer(reader, boost)
    }

    fn explain(&self, reader: &SegmentReader, document: DocId) -> tantivy::Result<Explanation> {
        self.entries.explain(reader, document)
    }
}
