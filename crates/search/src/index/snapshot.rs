//! Snapshot of an index, and its queries.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError};

use tantivy::directory::{Directory, META_LOCK};
use tantivy::schema::{IndexRecordOption, Term};
use tantivy::{DocId, Segment};

use super::directory::IndexCommitStamp;
use super::schema::IndexSchemaFields;
use super::segment::IndexSegment;
use super::{IndexError, SearchIndex, catch_panics};
use crate::ChunkHash;
use crate::rank::{FIELDS, IndexStatistics, WeightedQuery};
use crate::vectors::{VectorSlotSet, VectorSnapshot};

/// Snapshot of an index, which later writes do not change. Clones are cheap.
#[derive(Clone)]
pub struct IndexSnapshot {
    pub(super) inner: Arc<IndexSnapshotInner>,
}

pub(super) struct IndexSnapshotInner {
    pub(super) fields: IndexSchemaFields,
    pub(super) segments: Vec<Arc<IndexSegment>>,
    pub(super) static_vectors: VectorSnapshot,
    pub(super) model_vectors: Option<VectorSnapshot>,
    statistics: IndexStatistics,
    counts: OnceLock<IndexCounts>,
    slots: [OnceLock<Vec<Vec<u32>>>; 2],
    /// Slots that belong to at least one chunk, for each source of vectors. A slot is the number of
    /// a vector.
    all_live_slots: [OnceLock<VectorSlotSet>; 2],
    /// Identity of the index's last commit, to detect newer commits. `None` if unknown.
    stamp: Option<IndexCommitStamp>,
}

/// Numbers of documents, chunks and vectors in an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexCounts {
    /// Number of documents in the index, including those without chunks.
    pub documents: u64,
    /// Number of chunks in the index.
    pub chunks: u64,
    /// Number of chunks with a vector of the configured model.
    pub with_vectors: u64,
}

/// Fingerprint and etag of a document, with which the owner of the index detects changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedDocumentVersion {
    /// Fingerprint that the owner of the index supplied.
    pub fingerprint: Vec<u8>,
    /// Etag that the owner of the index supplied.
    pub etag: String,
}

/// A chunk without a vector of the configured model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnembeddedChunk {
    /// Hash of the chunk's texts.
    pub hash: ChunkHash,
    /// Path of the chunk's document.
    pub path: String,
    /// First line of the chunk, counted from 1.
    pub first: u32,
    /// Last line of the chunk, counted from 1.
    pub last: u32,
}

/// Source of vectors: the model that makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum VectorSource {
    /// Static model that is built in.
    Static = 0,
    /// Embedding model that the settings name.
    Model = 1,
}

/// Value that stands for the missing slot (vector number) of a chunk without a vector.
pub(super) const NO_SLOT: u32 = u32::MAX;

impl IndexSnapshot {
    /// Returns the fingerprint and etag of each document, by path. Fails if the index is
    /// unreadable.
    pub fn documents(&self) -> Result<BTreeMap<String, IndexedDocumentVersion>, IndexError> {
        catch_panics(|| {
            let mut documents = BTreeMap::new();
            for part in &self.inner.segments {
                part.for_each_document(|path, known| {
                    documents.insert(path, known);
                })?;
            }
            Ok(documents)
        })
    }

    /// Returns the numbers of documents, chunks and vectors in the index.
    pub fn counts(&self) -> IndexCounts {
        *self.inner.counts.get_or_init(|| {
            let mut counts = IndexCounts::default();
            for part in &self.inner.segments {
                for (doc, number) in part.live_entries() {
                    if number == 0 {
                        counts.documents += 1;
                        continue;
                    }
                    counts.chunks += 1;
                    let model = self.inner.model_vectors.as_ref();
                    let has = model.is_some_and(|it| it.slot_of(part.hash(doc)).is_some());
                    counts.with_vectors += u64::from(has);
                }
            }
            counts
        })
    }

    /// Returns the statistics from which word weights are computed. Deleted chunks count until
    /// their segment is rewritten.
    pub fn statistics(&self) -> IndexStatistics {
        self.inner.statistics
    }

    /// Parses `text` and weighs its words by the number of chunks that contain them. The number is
    /// an estimate: that of the field in which most chunks contain the word. Fails if the index is
    /// unreadable.
    pub fn weigh_question(&self, text: &str) -> Result<WeightedQuery, IndexError> {
        catch_panics(|| {
            let mut failed = None;
            let chunks = self.inner.statistics.chunks;
            let question =
                WeightedQuery::new(text, chunks, |word| match self.chunks_with_word(word) {
                    Ok(holding) => holding,
                    Err(err) => {
                        failed = Some(err);
                        0
                    }
                });
            failed.map_or(Ok(question), Err)
        })
    }

    /// Returns the vector by the model `which` of the candidate with the key `key`. `None` if the
    /// candidate has no vector by this model.
    pub fn vector(&self, key: u64, which: VectorSource) -> Option<Vec<f32>> {
        let (part, doc) = split_key(key);
        let part = self.inner.segments.get(part).filter(|it| doc < it.len())?;
        let vectors = self.inner.vectors(which)?;
        vectors.vector(vectors.slot_of(part.hash(doc))?)
    }

    /// Returns up to `most` chunks of the index without a vector of the configured model, one chunk
    /// for each hash, roughly the newest first. Fails if the index is unreadable.
    pub fn unembedded(&self, most: usize) -> Result<Vec<UnembeddedChunk>, IndexError> {
        let Some(model) = &self.inner.model_vectors else { return Ok(Vec::new()) };
        catch_panics(|| {
            let mut seen = HashSet::new();
            let mut found = Vec::new();
            // The newest chunks are at the end of the last segment.
            for part in self.inner.segments.iter().rev() {
                for doc in (0..part.len()).rev() {
                    if found.len() == most {
                        return Ok(found);
                    }
                    let hash = part.hash(doc);
                    let is_chunk = part.is_alive(doc) && part.file_of(doc)? != doc;
                    if is_chunk && model.slot_of(hash).is_none() && seen.insert(hash) {
                        let (first, last) = part.chunk(doc)?.lines();
                        let path = part.file(part.file_of(doc)?)?.path;
                        found.push(UnembeddedChunk { hash, path, first, last });
                    }
                }
            }
            Ok(found)
        })
    }

    /// Returns the newest snapshot of `index`. Fails if the index is damaged or unreadable.
    pub(super) fn newest(index: &SearchIndex) -> Result<Self, IndexError> {
        let mut latest = index.inner.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = index.inner.folder.as_ref().map(|(_, folder)| folder);
        let stamp = folder.and_then(|folder| folder.commit_stamp().ok());
        if let Some(model) = &index.inner.model_vectors {
            model.refresh()?;
        }
        let is_same = |it: &&Self| it.inner.stamp.is_some() && it.inner.stamp == stamp;
        let next = match latest.as_ref().filter(is_same) {
            Some(same) => {
                let model =
                    index.inner.model_vectors.as_ref().map(crate::vectors::VectorStore::snapshot);
                if model.as_ref().map(VectorSnapshot::len)
                    == same.inner.model_vectors.as_ref().map(VectorSnapshot::len)
                {
                    return Ok(same.clone());
                }
                Self::new(index, same.inner.segments.clone(), stamp)
            }
            None => {
                let known = latest.as_ref().map_or(&[][..], |it| &it.inner.segments);
                match open_segments(index, known) {
                    Ok(parts) => {
                        // Vectors are written before the words, so they must be read after them.
                        index.inner.static_vectors.refresh()?;
                        Self::new(index, parts, stamp)
                    }
                    // Another process is rebuilding the index. The previous snapshot stays
                    // readable.
                    Err(_) if stamp.is_none() && folder.is_some() => match latest.as_ref() {
                        Some(last) => return Ok(last.clone()),
                        None => {
                            return Err(IndexError::Damaged("its header is missing".to_owned()));
                        }
                    },
                    Err(err) => return Err(err),
                }
            }
        };
        *latest = Some(next.clone());
        Ok(next)
    }

    fn new(
        index: &SearchIndex,
        parts: Vec<Arc<IndexSegment>>,
        stamp: Option<IndexCommitStamp>,
    ) -> Self {
        Self {
            inner: Arc::new(IndexSnapshotInner {
                fields: index.inner.fields,
                statistics: index_statistics(&parts),
                segments: parts,
                static_vectors: index.inner.static_vectors.snapshot(),
                model_vectors: index
                    .inner
                    .model_vectors
                    .as_ref()
                    .map(crate::vectors::VectorStore::snapshot),
                counts: OnceLock::new(),
                slots: Default::default(),
                all_live_slots: Default::default(),
                stamp,
            }),
        }
    }

    /// Returns the hashes of all chunks in the index.
    pub(super) fn chunk_hashes(&self) -> HashSet<ChunkHash> {
        let of =
            |part: &Arc<IndexSegment>| part.chunks().map(|doc| part.hash(doc)).collect::<Vec<_>>();
        self.inner.segments.iter().flat_map(of).collect()
    }

    fn chunks_with_word(&self, word: &str) -> Result<u64, IndexError> {
        let mut most = 0;
        for (at, field) in self.inner.fields.words.into_iter().enumerate() {
            let term = Term::from_field_text(field, word);
            let mut holding = 0;
            for part in &self.inner.segments {
                holding += u64::from(part.words[at].doc_freq(&term)?);
            }
            most = most.max(holding);
        }
        Ok(most)
    }
}

impl IndexSnapshotInner {
    pub(super) fn vectors(&self, which: VectorSource) -> Option<&VectorSnapshot> {
        match which {
            VectorSource::Static => Some(&self.static_vectors),
            VectorSource::Model => self.model_vectors.as_ref(),
        }
    }

    /// Returns the slot (vector number) of each chunk for the model `which`, by segment, or
    /// [`NO_SLOT`] for a chunk without a vector.
    pub(super) fn slots(&self, which: VectorSource) -> &[Vec<u32>] {
        self.slots[which as usize].get_or_init(|| {
            let Some(vectors) = self.vectors(which) else { return Vec::new() };
            let of = |part: &Arc<IndexSegment>| {
                let mut slots = vec![NO_SLOT; part.len() as usize];
                for doc in part.chunks() {
                    slots[doc as usize] = vectors.slot_of(part.hash(doc)).unwrap_or(NO_SLOT);
                }
                slots
            };
            self.segments.iter().map(of).collect()
        })
    }

    /// Returns the slots (vector numbers) of the model `which` that belong to at least one chunk.
    pub(super) fn all_live_slots(&self, which: VectorSource) -> &VectorSlotSet {
        self.all_live_slots[which as usize].get_or_init(|| self.live_slots(which, |_, _| true))
    }

    /// Returns the slots (vector numbers) of the model `which` that belong to a chunk for which
    /// `is_sought` returns true. The arguments of `is_sought` are a segment's number and a document
    /// id.
    pub(super) fn live_slots(
        &self,
        which: VectorSource,
        is_sought: impl Fn(usize, DocId) -> bool,
    ) -> VectorSlotSet {
        let mut live = VectorSlotSet::empty(self.vectors(which).map_or(0, VectorSnapshot::len));
        for (part, slots) in self.slots(which).iter().enumerate() {
            for (doc, slot) in (0..).zip(slots) {
                if *slot != NO_SLOT && is_sought(part, doc) {
                    live.insert(*slot);
                }
            }
        }
        live
    }
}

/// Encodes the number of an index segment and a document id in it as the key of a candidate.
pub(super) fn candidate_key(part: usize, doc: DocId) -> u64 {
    (part as u64) << 32 | u64::from(doc)
}

/// Decodes a candidate's key to the number of its index segment and its document id.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of it")]
pub(super) fn split_key(key: u64) -> (usize, DocId) {
    ((key >> 32) as usize, key as DocId)
}

fn open_segments(
    index: &SearchIndex,
    known: &[Arc<IndexSegment>],
) -> Result<Vec<Arc<IndexSegment>>, IndexError> {
    // While this lock is held, no file is deleted between listing and opening.
    let locked = match &index.inner.folder {
        Some((_, folder)) => folder.acquire_lock(&META_LOCK),
        None => index.inner.words.directory().acquire_lock(&META_LOCK),
    };
    let _locked = locked.map_err(|err| IndexError::Failed(err.to_string()))?;
    let metas = index.inner.words.load_metas()?;
    if metas.schema != index.inner.words.schema() {
        let why = "another version of toolgate has rebuilt it";
        return Err(IndexError::Failed(why.to_owned()));
    }
    let open = |segment: Segment| match known.iter().find(|it| it.is_same_as(&segment)) {
        Some(known) => Ok(Arc::clone(known)),
        None => IndexSegment::open(&segment, index.inner.fields).map(Arc::new),
    };
    let segments = metas.segments.into_iter().map(|meta| index.inner.words.segment(meta));
    segments.map(open).collect()
}

#[allow(clippy::cast_precision_loss, reason = "an average is no count")]
fn index_statistics(parts: &[Arc<IndexSegment>]) -> IndexStatistics {
    let mut words = [0_u64; FIELDS];
    let mut chunks = 0;
    for part in parts {
        // Deleted chunks count, too, because their words count until they are merged away.
        chunks += (0..part.len()).filter(|doc| part.is_chunk(*doc)).count() as u64;
        for (sum, field) in words.iter_mut().zip(&part.words) {
            *sum += field.total_num_tokens();
        }
    }
    IndexStatistics { chunks, lengths: words.map(|it| it as f32 / chunks.max(1) as f32) }
}

/// Level of detail at which the word lists of the index are read: document ids and word counts,
/// without the positions of words.
pub(super) const WORD_COUNTS: IndexRecordOption = IndexRecordOption::WithFreqs;
