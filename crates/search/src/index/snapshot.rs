//! One moment of an index, and what can be asked of it.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError};

use tantivy::directory::{Directory, META_LOCK};
use tantivy::schema::{IndexRecordOption, Term};
use tantivy::{DocId, Segment};

use super::folder::Stamp;
use super::part::Part;
use super::schema::Fields;
use super::{Index, IndexError, guarded};
use crate::ChunkHash;
use crate::rank::{Averages, FIELDS, Question};
use crate::vectors::{Slots, Vectors};

/// One moment of an index. Cheap to clone; what is written later does not change it.
#[derive(Clone)]
pub struct Snapshot {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) fields: Fields,
    pub(super) parts: Vec<Arc<Part>>,
    pub(super) statics: Vectors,
    pub(super) model: Option<Vectors>,
    averages: Averages,
    counts: OnceLock<Counts>,
    slots: [OnceLock<Vec<Vec<u32>>>; 2],
    /// The slots that any chunk has.
    all_live: [OnceLock<Slots>; 2],
    /// By what it is known that another was committed since: `None` where that is not known.
    stamp: Option<Stamp>,
}

/// How much is in an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Documents, those without chunks too.
    pub documents: u64,
    /// Their chunks.
    pub chunks: u64,
    /// Chunks that have a vector by the model.
    pub with_vectors: u64,
}

/// By what the owner of a document knows it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// As it was put.
    pub stamp: Vec<u8>,
    /// As it was put.
    pub etag: String,
}

/// A chunk without a vector by the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unembedded {
    /// What it says.
    pub hash: ChunkHash,
    /// Its document.
    pub path: String,
    /// Its first line, from 1.
    pub first: u32,
    /// Its last line.
    pub last: u32,
}

/// Whose vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Which {
    /// Those that are built in.
    Static = 0,
    /// The configured model's.
    Model = 1,
}

/// Instead of a slot: there is no vector.
pub(super) const NO_SLOT: u32 = u32::MAX;

impl Snapshot {
    /// Its documents, as last put, by path.
    pub fn documents(&self) -> Result<BTreeMap<String, Known>, IndexError> {
        guarded(|| {
            let mut documents = BTreeMap::new();
            for part in &self.inner.parts {
                part.documents(|path, known| {
                    documents.insert(path, known);
                })?;
            }
            Ok(documents)
        })
    }

    /// How much is in it.
    pub fn counts(&self) -> Counts {
        *self.inner.counts.get_or_init(|| {
            let mut counts = Counts::default();
            for part in &self.inner.parts {
                for (doc, number) in part.numbered() {
                    if number == 0 {
                        counts.documents += 1;
                        continue;
                    }
                    counts.chunks += 1;
                    let model = self.inner.model.as_ref();
                    let has = model.is_some_and(|it| it.slot_of(part.hash(doc)).is_some());
                    counts.with_vectors += u64::from(has);
                }
            }
            counts
        })
    }

    /// What a word weighs here, and how long fields are on average. Chunks that were deleted count
    /// until their segment is written anew.
    pub fn averages(&self) -> Averages {
        self.inner.averages
    }

    /// What `text` asks for, weighed by how many chunks have each word: in the field where most
    /// have it, which is about as many as have it in any.
    pub fn question(&self, text: &str) -> Result<Question, IndexError> {
        guarded(|| {
            let mut failed = None;
            let chunks = self.inner.averages.chunks;
            let question = Question::new(text, chunks, |word| match self.holding(word) {
                Ok(holding) => holding,
                Err(err) => {
                    failed = Some(err);
                    0
                }
            });
            failed.map_or(Ok(question), Err)
        })
    }

    /// The vector of the candidate with this key.
    pub fn vector(&self, key: u64, which: Which) -> Option<Vec<f32>> {
        let (part, doc) = unkey(key);
        let part = self.inner.parts.get(part).filter(|it| doc < it.len())?;
        let vectors = self.inner.vectors(which)?;
        vectors.vector(vectors.slot_of(part.hash(doc))?)
    }

    /// Up to `most` chunks that have no vector by the model, of each hash one; those put last come
    /// about first.
    pub fn unembedded(&self, most: usize) -> Result<Vec<Unembedded>, IndexError> {
        let Some(model) = &self.inner.model else { return Ok(Vec::new()) };
        guarded(|| {
            let mut told = HashSet::new();
            let mut found = Vec::new();
            // What was written last is in the last segment, at its end.
            for part in self.inner.parts.iter().rev() {
                for doc in (0..part.len()).rev() {
                    if found.len() == most {
                        return Ok(found);
                    }
                    let hash = part.hash(doc);
                    let is_chunk = part.is_alive(doc) && part.file_of(doc)? != doc;
                    if is_chunk && model.slot_of(hash).is_none() && told.insert(hash) {
                        let (first, last) = part.chunk(doc)?.lines();
                        let path = part.file(part.file_of(doc)?)?.path;
                        found.push(Unembedded { hash, path, first, last });
                    }
                }
            }
            Ok(found)
        })
    }

    /// The newest moment of `index`.
    pub(super) fn newest(index: &Index) -> Result<Self, IndexError> {
        let mut latest = index.inner.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = index.inner.folder.as_ref().map(|(_, folder)| folder);
        let stamp = folder.and_then(|folder| folder.stamp().ok());
        if let Some(model) = &index.inner.model {
            model.refresh()?;
        }
        let is_same = |it: &&Self| it.inner.stamp.is_some() && it.inner.stamp == stamp;
        let next = match latest.as_ref().filter(is_same) {
            Some(same) => {
                let model = index.inner.model.as_ref().map(crate::vectors::Store::now);
                if model.as_ref().map(Vectors::len) == same.inner.model.as_ref().map(Vectors::len) {
                    return Ok(same.clone());
                }
                Self::of(index, same.inner.parts.clone(), stamp)
            }
            None => {
                let known = latest.as_ref().map_or(&[][..], |it| &it.inner.parts);
                match open_parts(index, known) {
                    Ok(parts) => {
                        // After the words: vectors are written before them.
                        index.inner.statics.refresh()?;
                        Self::of(index, parts, stamp)
                    }
                    // Another process makes it anew just now: the last moment is still readable.
                    Err(_) if stamp.is_none() && folder.is_some() => match latest.as_ref() {
                        Some(last) => return Ok(last.clone()),
                        None => return Err(IndexError::Damaged("it has no head".to_owned())),
                    },
                    Err(err) => return Err(err),
                }
            }
        };
        *latest = Some(next.clone());
        Ok(next)
    }

    fn of(index: &Index, parts: Vec<Arc<Part>>, stamp: Option<Stamp>) -> Self {
        Self {
            inner: Arc::new(Inner {
                fields: index.inner.fields,
                averages: averages(&parts),
                parts,
                statics: index.inner.statics.now(),
                model: index.inner.model.as_ref().map(crate::vectors::Store::now),
                counts: OnceLock::new(),
                slots: Default::default(),
                all_live: Default::default(),
                stamp,
            }),
        }
    }

    /// What all chunks say.
    pub(super) fn hashes(&self) -> HashSet<ChunkHash> {
        let of = |part: &Arc<Part>| part.chunks().map(|doc| part.hash(doc)).collect::<Vec<_>>();
        self.inner.parts.iter().flat_map(of).collect()
    }

    fn holding(&self, word: &str) -> Result<u64, IndexError> {
        let mut most = 0;
        for (at, field) in self.inner.fields.words.into_iter().enumerate() {
            let term = Term::from_field_text(field, word);
            let mut holding = 0;
            for part in &self.inner.parts {
                holding += u64::from(part.words[at].doc_freq(&term)?);
            }
            most = most.max(holding);
        }
        Ok(most)
    }
}

impl Inner {
    pub(super) fn vectors(&self, which: Which) -> Option<&Vectors> {
        match which {
            Which::Static => Some(&self.statics),
            Which::Model => self.model.as_ref(),
        }
    }

    /// Of each part the slot of each of its chunks among these vectors, [`NO_SLOT`] where there is
    /// none.
    pub(super) fn slots(&self, which: Which) -> &[Vec<u32>] {
        self.slots[which as usize].get_or_init(|| {
            let Some(vectors) = self.vectors(which) else { return Vec::new() };
            let of = |part: &Arc<Part>| {
                let mut slots = vec![NO_SLOT; part.len() as usize];
                for doc in part.chunks() {
                    slots[doc as usize] = vectors.slot_of(part.hash(doc)).unwrap_or(NO_SLOT);
                }
                slots
            };
            self.parts.iter().map(of).collect()
        })
    }

    /// The slots that any chunk has.
    pub(super) fn all_live(&self, which: Which) -> &Slots {
        self.all_live[which as usize].get_or_init(|| self.live(which, |_, _| true))
    }

    /// The slots that a chunk has for which `is_sought`.
    pub(super) fn live(&self, which: Which, is_sought: impl Fn(usize, DocId) -> bool) -> Slots {
        let mut live = Slots::none(self.vectors(which).map_or(0, Vectors::len));
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

/// A candidate's key: which part, and which document of it.
pub(super) fn key(part: usize, doc: DocId) -> u64 {
    (part as u64) << 32 | u64::from(doc)
}

/// What [`key`] was made of.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of it")]
pub(super) fn unkey(key: u64) -> (usize, DocId) {
    ((key >> 32) as usize, key as DocId)
}

fn open_parts(index: &Index, known: &[Arc<Part>]) -> Result<Vec<Arc<Part>>, IndexError> {
    // While it is held no file is removed between being listed and being opened.
    let locked = match &index.inner.folder {
        Some((_, folder)) => folder.acquire_lock(&META_LOCK),
        None => index.inner.words.directory().acquire_lock(&META_LOCK),
    };
    let _locked = locked.map_err(|err| IndexError::Failed(err.to_string()))?;
    let metas = index.inner.words.load_metas()?;
    if metas.schema != index.inner.words.schema() {
        let told = "another version of this program has made it anew";
        return Err(IndexError::Failed(told.to_owned()));
    }
    let open = |segment: Segment| match known.iter().find(|it| it.is_of(&segment)) {
        Some(known) => Ok(Arc::clone(known)),
        None => Part::open(&segment, index.inner.fields).map(Arc::new),
    };
    let segments = metas.segments.into_iter().map(|meta| index.inner.words.segment(meta));
    segments.map(open).collect()
}

#[allow(clippy::cast_precision_loss, reason = "an average is no count")]
fn averages(parts: &[Arc<Part>]) -> Averages {
    let mut words = [0_u64; FIELDS];
    let mut chunks = 0;
    for part in parts {
        // Deleted ones too: their words are counted as well until they are merged away.
        chunks += (0..part.len()).filter(|doc| part.is_chunk(*doc)).count() as u64;
        for (sum, field) in words.iter_mut().zip(&part.words) {
            *sum += field.total_num_tokens();
        }
    }
    Averages { chunks, lengths: words.map(|it| it as f32 / chunks.max(1) as f32) }
}

/// What is read of postings: in which documents, and how often.
pub(super) const COUNTED: IndexRecordOption = IndexRecordOption::WithFreqs;
