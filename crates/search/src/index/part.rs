//! One of tantivy's segments, opened.

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

/// How many blocks of what is kept stay unpacked, of each segment.
const BLOCKS_HELD: usize = 16;

/// A segment. Its `DocId`s are of files and chunks, deleted ones too.
pub(super) struct Part {
    reader: SegmentReader,
    fields: Fields,
    /// Where words stand, by field.
    pub(super) words: [Arc<InvertedIndexReader>; FIELDS],
    /// How many words each field has, as one byte that stands for about so many.
    pub(super) lengths: [FieldNormReader; FIELDS],
    pub(super) tags: Arc<InvertedIndexReader>,
    pub(super) symbols: Arc<InvertedIndexReader>,
    /// `None` only of a segment without documents.
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

    /// By what it is known again: which segment, and with which deletions.
    pub(super) fn is_of(&self, segment: &Segment) -> bool {
        let meta = segment.meta();
        self.reader.segment_id() == meta.id()
            && self.reader.delete_opstamp() == meta.delete_opstamp()
    }

    /// How many documents it has, deleted ones too.
    pub(super) fn len(&self) -> u32 {
        self.reader.max_doc()
    }

    pub(super) fn is_alive(&self, doc: DocId) -> bool {
        !self.reader.is_deleted(doc)
    }

    /// Whether none of its documents is deleted.
    pub(super) fn is_whole(&self) -> bool {
        !self.reader.has_deletes()
    }

    /// The files and chunks in it, with their numbers, without those deleted.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (DocId, u64)> + '_ {
        let alive = (0..self.len()).filter(|doc| self.is_alive(*doc));
        alive.map(|doc| (doc, self.numbers.get_val(doc)))
    }

    /// Whether `doc` is a chunk, deleted or not.
    pub(super) fn is_chunk(&self, doc: DocId) -> bool {
        self.numbers.get_val(doc) > 0
    }

    /// The chunks in it, without those deleted.
    pub(super) fn chunks(&self) -> impl Iterator<Item = DocId> + '_ {
        self.numbered().filter(|(_, number)| *number > 0).map(|(doc, _)| doc)
    }

    pub(super) fn hash(&self, doc: DocId) -> ChunkHash {
        ChunkHash(self.hashes.get_val(doc))
    }

    /// Tells `each` file's path, and by what its owner knows it again.
    pub(super) fn documents(&self, mut each: impl FnMut(String, Known)) -> Result<(), IndexError> {
        let (Some(paths), Some(known)) = (&self.paths, &self.known) else { return Ok(()) };
        let damaged = || IndexError::Damaged("a file has no path or no stamp".to_owned());
        // All at once: one after the other each would be looked for in its block.
        let (all_paths, all_known) = (terms(paths)?, terms(known)?);
        for (doc, _) in self.numbered().filter(|(_, number)| *number == 0) {
            let path = at(paths, doc, &all_paths).and_then(|it| String::from_utf8(it.clone()).ok());
            let known = at(known, doc, &all_known).and_then(|it| Known::read(it));
            each(path.ok_or_else(damaged)?, known.ok_or_else(damaged)?);
        }
        Ok(())
    }

    /// What is kept of the file at `doc`.
    pub(super) fn file(&self, doc: DocId) -> Result<FileKept, IndexError> {
        self.read(doc)
    }

    /// What is kept of the chunk at `doc`.
    pub(super) fn chunk(&self, doc: DocId) -> Result<ChunkKept, IndexError> {
        self.read(doc)
    }

    /// Where the file is that the chunk at `doc` is of.
    pub(super) fn file_of(&self, doc: DocId) -> Result<DocId, IndexError> {
        let number = u32::try_from(self.numbers.get_val(doc)).ok();
        number
            .and_then(|number| doc.checked_sub(number))
            .ok_or_else(|| IndexError::Damaged("a chunk is of no file".to_owned()))
    }

    /// What is told of the chunk at `doc`.
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

/// All that a column says, in order.
fn terms(column: &BytesColumn) -> Result<Vec<Vec<u8>>, IndexError> {
    let mut terms = Vec::with_capacity(column.num_terms());
    let mut all = column.dictionary().stream()?;
    while all.advance() {
        terms.push(all.key().to_owned());
    }
    Ok(terms)
}

/// What `column` says of `doc`, of `all` that it says.
fn at<'t>(column: &BytesColumn, doc: DocId, all: &'t [Vec<u8>]) -> Option<&'t Vec<u8>> {
    let place = usize::try_from(column.ords().first(doc)?).ok()?;
    all.get(place)
}
