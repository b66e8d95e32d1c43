//! An open tantivy segment: an immutable part of an index.

use std::sync::Arc;

use tantivy::columnar::{BytesColumn, ColumnValues, StrColumn};
use tantivy::fieldnorm::FieldNormReader;
use tantivy::schema::Value as _;
use tantivy::store::StoreReader;
use tantivy::{DocId, InvertedIndexReader, Segment, SegmentReader, TantivyDocument};

use super::IndexError;
use super::IndexedDocumentVersion;
use super::schema::{
    HASH_FIELD, IndexSchemaFields, KNOWN_FIELD, NUMBER_FIELD, PATH_FIELD, StoredChunkMetadata,
    StoredFileMetadata,
};
use crate::rank::FIELDS;
use crate::{ChunkHash, ChunkSummary};

/// Maximum number of decompressed blocks of stored metadata that are cached for each index segment.
const BLOCKS_CACHED_MAX: usize = 16;

/// A segment: a part of the word index on disk. A `DocId` in it identifies a file or a chunk, which
/// may be deleted.
pub(super) struct IndexSegment {
    reader: SegmentReader,
    fields: IndexSchemaFields,
    /// Inverted index of words in the segment, by field of a chunk.
    pub(super) words: [Arc<InvertedIndexReader>; FIELDS],
    /// Number of words in each field of each chunk, encoded approximately in one byte.
    pub(super) lengths: [FieldNormReader; FIELDS],
    pub(super) tags: Arc<InvertedIndexReader>,
    pub(super) symbols: Arc<InvertedIndexReader>,
    /// Paths of the segment's documents. `None` only in a segment without documents.
    pub(super) paths: Option<StrColumn>,
    known: Option<BytesColumn>,
    hashes: Arc<dyn ColumnValues<u64>>,
    numbers: Arc<dyn ColumnValues<u64>>,
    store: StoreReader,
}

impl IndexSegment {
    pub(super) fn open(segment: &Segment, fields: IndexSchemaFields) -> Result<Self, IndexError> {
        let reader = SegmentReader::open(segment)?;
        let fast = reader.fast_fields();
        let mut words = Vec::with_capacity(FIELDS);
        let mut lengths = Vec::with_capacity(FIELDS);
        for field in fields.words {
            words.push(reader.inverted_index(field)?);
            lengths.push(reader.get_fieldnorms_reader(field)?);
        }
        let missing = |_| IndexError::Damaged("some fields are missing".to_owned());
        Ok(Self {
            words: words.try_into().map_err(missing)?,
            lengths: lengths.try_into().map_err(|_| missing(Vec::new()))?,
            tags: reader.inverted_index(fields.tag)?,
            symbols: reader.inverted_index(fields.symbol)?,
            paths: fast.str(PATH_FIELD)?,
            known: fast.bytes(KNOWN_FIELD)?,
            hashes: fast.u64(HASH_FIELD)?.values,
            numbers: fast.u64(NUMBER_FIELD)?.values,
            store: reader.get_store_reader(BLOCKS_CACHED_MAX)?,
            reader,
            fields,
        })
    }

    /// Returns true if this value represents the tantivy segment `segment` with the same deletions.
    pub(super) fn is_same_as(&self, segment: &Segment) -> bool {
        let meta = segment.meta();
        self.reader.segment_id() == meta.id()
            && self.reader.delete_opstamp() == meta.delete_opstamp()
    }

    /// Returns the number of documents in the segment, including deleted ones.
    pub(super) fn len(&self) -> u32 {
        self.reader.max_doc()
    }

    pub(super) fn is_alive(&self, doc: DocId) -> bool {
        !self.reader.is_deleted(doc)
    }

    /// Returns true if no document of the segment is deleted.
    pub(super) fn is_whole(&self) -> bool {
        !self.reader.has_deletes()
    }

    /// Iterates over the segment's files and chunks that are not deleted: the document id of each,
    /// and its number within its file (0 for the file itself).
    pub(super) fn live_entries(&self) -> impl Iterator<Item = (DocId, u64)> + '_ {
        let alive = (0..self.len()).filter(|doc| self.is_alive(*doc));
        alive.map(|doc| (doc, self.numbers.get_val(doc)))
    }

    /// Returns true if the document `doc` is a chunk, deleted or not.
    pub(super) fn is_chunk(&self, doc: DocId) -> bool {
        self.numbers.get_val(doc) > 0
    }

    /// Lists the segment's chunks that are not deleted.
    pub(super) fn chunks(&self) -> impl Iterator<Item = DocId> + '_ {
        self.live_entries().filter(|(_, number)| *number > 0).map(|(doc, _)| doc)
    }

    pub(super) fn hash(&self, doc: DocId) -> ChunkHash {
        ChunkHash(self.hashes.get_val(doc))
    }

    /// Calls `each` with the path, fingerprint and etag of each file in the segment. Fails if the
    /// segment is unreadable.
    pub(super) fn for_each_document(
        &self,
        mut each: impl FnMut(String, IndexedDocumentVersion),
    ) -> Result<(), IndexError> {
        let (Some(paths), Some(known)) = (&self.paths, &self.known) else { return Ok(()) };
        let damaged = || IndexError::Damaged("a file has no path or fingerprint".to_owned());
        // All terms are read at once, because single lookups would search a block for each.
        let all_paths = column_terms(paths)?;
        let all_known = column_terms(known)?;
        for (doc, _) in self.live_entries().filter(|(_, number)| *number == 0) {
            let path = column_term(paths, doc, &all_paths)
                .and_then(|it| String::from_utf8(it.clone()).ok());
            let known = column_term(known, doc, &all_known)
                .and_then(|it| IndexedDocumentVersion::decode(it));
            each(path.ok_or_else(damaged)?, known.ok_or_else(damaged)?);
        }
        Ok(())
    }

    /// Returns the stored metadata of the file with the document id `doc`. Fails if the segment is
    /// unreadable.
    pub(super) fn file(&self, doc: DocId) -> Result<StoredFileMetadata, IndexError> {
        self.read_stored(doc)
    }

    /// Returns the stored metadata of the chunk with the document id `doc`. Fails if the segment is
    /// unreadable.
    pub(super) fn chunk(&self, doc: DocId) -> Result<StoredChunkMetadata, IndexError> {
        self.read_stored(doc)
    }

    /// Returns the document id of the file that contains the chunk `doc`. Fails if the segment is
    /// damaged.
    pub(super) fn file_of(&self, doc: DocId) -> Result<DocId, IndexError> {
        let number = u32::try_from(self.numbers.get_val(doc)).ok();
        number
            .and_then(|number| doc.checked_sub(number))
            .ok_or_else(|| IndexError::Damaged("a chunk belongs to no file".to_owned()))
    }

    /// Returns the description of the chunk with the document id `doc`. Fails if the segment is
    /// unreadable.
    pub(super) fn chunk_summary(&self, doc: DocId) -> Result<ChunkSummary, IndexError> {
        Ok(self.chunk(doc)?.into_summary(&self.file(self.file_of(doc)?)?))
    }

    fn read_stored<T: serde::de::DeserializeOwned>(&self, doc: DocId) -> Result<T, IndexError> {
        let document: TantivyDocument = self.store.get(doc)?;
        let bytes = document.get_first(self.fields.stored).and_then(|it| it.as_value().as_bytes());
        let bytes =
            bytes.ok_or_else(|| IndexError::Damaged("a stored value is missing".to_owned()))?;
        serde_json::from_slice(bytes).map_err(|err| IndexError::Damaged(err.to_string()))
    }
}

/// Returns all terms of an index column, in order. Fails if the column is unreadable.
fn column_terms(column: &BytesColumn) -> Result<Vec<Vec<u8>>, IndexError> {
    let mut terms = Vec::with_capacity(column.num_terms());
    let mut all = column.dictionary().stream()?;
    while all.advance() {
        terms.push(all.key().to_owned());
    }
    Ok(terms)
}

/// Returns the term of the document `doc` in the index column `column`, whose terms are `all`.
/// `None` if the document has no term in this column.
fn column_term<'t>(column: &BytesColumn, doc: DocId, all: &'t [Vec<u8>]) -> Option<&'t Vec<u8>> {
    let place = usize::try_from(column.ords().first(doc)?).ok()?;
    all.get(place)
}
