//! An open tantivy segment.

use std::sync::Arc;

use tantivy::columnar::{BytesColumn, ColumnValues, StrColumn};
use tantivy::fieldnorm::FieldNormReader;
use tantivy::schema::Value as _;
use tantivy::store::StoreReader;
use tantivy::{DocId, InvertedIndexReader, Segment, SegmentReader, TantivyDocument};

use super::IndexError;
use super::Known;
use super::schema::{ChunkKept, Fields, FileKept, HASH, KNOWN, NUMBER, PATH};
use crate::rank::FIELDS;
use crate::{ChunkHash, Shown};

/// Number of decompressed blocks of the document store that are cached for each segment.
const BLOCKS_HELD: usize = 16;

/// A segment. A `DocId` in it is a file or a chunk, possibly deleted.
pub(super) struct Part {
    reader: SegmentReader,
    fields: Fields,
    /// Inverted index of words, by field.
    pub(super) words: [Arc<InvertedIndexReader>; FIELDS],
    /// Number of words in each field, encoded approximately in one byte.
    pub(super) lengths: [FieldNormReader; FIELDS],
    pub(super) tags: Arc<InvertedIndexReader>,
    pub(super) symbols: Arc<InvertedIndexReader>,
    /// Paths; `None` only in a segment without documents.
    pub(super) paths: Option<StrColumn>,
    known: Option<BytesColumn>,
    hashes: Arc<dyn ColumnValues<u64>>,
    numbers: Arc<dyn ColumnValues<u64>>,
    kept: StoreReader,
}

impl Part {
    pub(super) fn open(segment: &Segment, fields: Fields) -> Result<Self, IndexError> {
        let reader = SegmentReader::open(segment)?;
        let fast = reader.fast_fields();
        let mut words = Vec::with_capacity(FIELDS);
        let mut lengths = Vec::with_capacity(FIELDS);
        for field in fields.words {
            words.push(reader.inverted_index(field)?);
            lengths.push(reader.get_fieldnorms_reader(field)?);
        }
        let missing = |_| IndexError::Damaged("fields of it are missing".to_owned());
        Ok(Self {
            words: words.try_into().map_err(missing)?,
            lengths: lengths.try_into().map_err(|_| missing(Vec::new()))?,
            tags: reader.inverted_index(fields.tag)?,
            symbols: reader.inverted_index(fields.symbol)?,
            paths: fast.str(PATH)?,
            known: fast.bytes(KNOWN)?,
            hashes: fast.u64(HASH)?.values,
            numbers: fast.u64(NUMBER)?.values,
            kept: reader.get_store_reader(BLOCKS_HELD)?,
            reader,
            fields,
        })
    }

    /// Returns true if this is the given segment with the same deletions.
    pub(super) fn is_of(&self, segment: &Segment) -> bool {
        let meta = segment.meta();
        self.reader.segment_id() == meta.id()
            && self.reader.delete_opstamp() == meta.delete_opstamp()
    }

    /// Returns the number of documents, including deleted ones.
    pub(super) fn len(&self) -> u32 {
        self.reader.max_doc()
    }

    pub(super) fn is_alive(&self, doc: DocId) -> bool {
        !self.reader.is_deleted(doc)
    }

    /// Returns true if no document is deleted.
    pub(super) fn is_whole(&self) -> bool {
        !self.reader.has_deletes()
    }

    /// Lists the files and chunks with their positions, without deleted ones.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (DocId, u64)> + '_ {
        let alive = (0..self.len()).filter(|doc| self.is_alive(*doc));
        alive.map(|doc| (doc, self.numbers.get_val(doc)))
    }

    /// Returns true if `doc` is a chunk, deleted or not.
    pub(super) fn is_chunk(&self, doc: DocId) -> bool {
        self.numbers.get_val(doc) > 0
    }

    /// Lists the chunks, without deleted ones.
    pub(super) fn chunks(&self) -> impl Iterator<Item = DocId> + '_ {
        self.numbered().filter(|(_, number)| *number > 0).map(|(doc, _)| doc)
    }

    pub(super) fn hash(&self, doc: DocId) -> ChunkHash {
        ChunkHash(self.hashes.get_val(doc))
    }

    /// Calls `each` with the path and fingerprint of each file.
    pub(super) fn documents(&self, mut each: impl FnMut(String, Known)) -> Result<(), IndexError> {
        let (Some(paths), Some(known)) = (&self.paths, &self.known) else { return Ok(()) };
        let damaged = || IndexError::Damaged("a file has no path or no stamp".to_owned());
        // All terms are read at once, because single lookups would search a block for each.
        let all_paths = terms(paths)?;
        let all_known = terms(known)?;
        for (doc, _) in self.numbered().filter(|(_, number)| *number == 0) {
            let path = at(paths, doc, &all_paths).and_then(|it| String::from_utf8(it.clone()).ok());
            let known = at(known, doc, &all_known).and_then(|it| Known::read(it));
            each(path.ok_or_else(damaged)?, known.ok_or_else(damaged)?);
        }
        Ok(())
    }

    /// Returns the stored metadata of the file at `doc`.
    pub(super) fn file(&self, doc: DocId) -> Result<FileKept, IndexError> {
        self.read(doc)
    }

    /// Returns the stored metadata of the chunk at `doc`.
    pub(super) fn chunk(&self, doc: DocId) -> Result<ChunkKept, IndexError> {
        self.read(doc)
    }

    /// Returns the document of the file that contains the chunk at `doc`.
    pub(super) fn file_of(&self, doc: DocId) -> Result<DocId, IndexError> {
        let number = u32::try_from(self.numbers.get_val(doc)).ok();
        number
            .and_then(|number| doc.checked_sub(number))
            .ok_or_else(|| IndexError::Damaged("a chunk is of no file".to_owned()))
    }

    /// Returns the description of the chunk at `doc`.
    pub(super) fn shown(&self, doc: DocId) -> Result<Shown, IndexError> {
        Ok(self.chunk(doc)?.shown(&self.file(self.file_of(doc)?)?))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, doc: DocId) -> Result<T, IndexError> {
        let document: TantivyDocument = self.kept.get(doc)?;
        let bytes = document.get_first(self.fields.kept).and_then(|it| it.as_value().as_bytes());
        let bytes = bytes.ok_or_else(|| IndexError::Damaged("nothing is kept".to_owned()))?;
        serde_json::from_slice(bytes).map_err(|err| IndexError::Damaged(err.to_string()))
    }
}

/// Returns all terms of a column, in order.
fn terms(column: &BytesColumn) -> Result<Vec<Vec<u8>>, IndexError> {
    let mut terms = Vec::with_capacity(column.num_terms());
    let mut all = column.dictionary().stream()?;
    while all.advance() {
        terms.push(all.key().to_owned());
    }
    Ok(terms)
}

/// Returns the term of `doc` in `column`, out of `all` its terms.
fn at<'t>(column: &BytesColumn, doc: DocId, all: &'t [Vec<u8>]) -> Option<&'t Vec<u8>> {
    let place = usize::try_from(column.ords().first(doc)?).ok()?;
    all.get(place)
}
