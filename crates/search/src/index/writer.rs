//! Writer of an index.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tantivy::directory::{Directory, META_LOCK};
use tantivy::indexer::{
    IndexWriterOptions, LogMergePolicy, MergePolicy, NoMergePolicy, UserOperation,
};
use tantivy::schema::Field;
use tantivy::schema::document::CompactDocValue;
use tantivy::{FutureResult, IndexWriter, SegmentMeta, TantivyDocument, TantivyError, Term};

use super::schema::PATH_BYTES_MAX;
use super::{Index, IndexError, Right, guarded};
use crate::document::borrowed;
use crate::{ChunkHash, Document, static_model};

/// Memory for words before they are written, in bytes: tantivy's minimum.
const WORDS_BYTES: usize = 15_000_000;
/// Most text that waits for indexing, in bytes.
const QUEUED_BYTES_MAX: usize = 4 << 20;
/// Longest wait for the queue to shrink before it counts as stuck.
const QUEUE_WAIT: Duration = Duration::from_secs(60);
/// Number of static vectors that are written at once.
const VECTORS_HELD: usize = 8_192;
/// Number of segments of similar size that are merged.
const MERGED_AT: usize = 3;
/// Number of documents up to which segments count as similar in size.
const SMALL_DOCUMENTS: u32 = 1_000;
/// Share of deleted documents from which a segment is rewritten.
const DELETED_MAX: f32 = 0.3;

/// Exclusive right to change an index, with the changes since the last commit.
///
/// Background threads run from the first change until [`Writer::rest`].
pub struct Writer {
    // Fields drop in order: the threads must end before the right does.
    working: Option<Working>,
    pub(super) index: Index,
    queue: Arc<Queue>,
    /// Static vectors that are not written yet.
    vectors: Vec<(ChunkHash, Vec<f32>)>,
    is_changed: bool,
    /// Error of a merge after a successful commit.
    unmerged: Option<IndexError>,
    _right: Right,
}

struct Working {
    merging: Option<Pin<Box<Merging>>>,
    writer: IndexWriter<Queued>,
}

type Merging = FutureResult<Option<SegmentMeta>>;

impl Writer {
    pub(super) fn new(index: Index, right: Right) -> Result<Self, IndexError> {
        sweep(&index)?;
        let queue = Arc::default();
        let vectors = Vec::new();
        let working = None;
        let is_changed = false;
        let unmerged = None;
        Ok(Self { working, index, queue, vectors, is_changed, unmerged, _right: right })
    }

    /// Adds `document`, replacing any previous one of the same path.
    pub fn put(&mut self, document: &Document<'_>) -> Result<(), IndexError> {
        if document.path.len() > PATH_BYTES_MAX {
            let told = format!("a path of {} bytes is too long to be kept", document.path.len());
            return Err(IndexError::Refused(told));
        }
        guarded(|| self.try_put(document))
    }

    /// Deletes the document at `path`.
    pub fn remove(&mut self, path: &str) -> Result<(), IndexError> {
        guarded(|| {
            let term = Term::from_field_text(self.index.inner.fields.path, path);
            self.working()?.writer.delete_term(term);
            self.is_changed = true;
            Ok(())
        })
    }

    /// Makes all changes since the last commit visible. If the process is killed, the last commit
    /// stays. If it fails, the changes are lost and none of them becomes visible.
    pub fn commit(&mut self) -> Result<(), IndexError> {
        guarded(|| {
            if let Some(err) = self.unmerged.take() {
                return Err(err);
            }
            if self.is_changed {
                self.write_vectors()?;
                let done = self.working()?.writer.commit();
                if done.is_err() {
                    self.working = None;
                }
                done?;
                self.is_changed = false;
            }
            // The commit succeeded, so a failed merge is reported by the next call.
            self.unmerged = guarded(|| self.merge()).err();
            Ok(())
        })
    }

    /// Adds vectors of the model, for every chunk with one of these hashes. The next snapshot
    /// includes them.
    pub fn give(&mut self, vectors: &[(ChunkHash, Vec<f32>)]) -> Result<(), IndexError> {
        let Some(model) = &self.index.inner.model else {
            let told = "no model is configured that vectors could be by";
            return Err(IndexError::Refused(told.to_owned()));
        };
        guarded(|| Ok(model.append(vectors)?))
    }

    /// Commits, finishes merges and ends the background threads. Call it when no change is expected
    /// soon.
    pub fn rest(&mut self) -> Result<(), IndexError> {
        self.commit()?;
        self.unmerged.take().map_or(Ok(()), Err)?;
        guarded(|| {
            while let Some(working) = &mut self.working {
                match working.merging.take() {
                    Some(merging) => {
                        wait(merging)?;
                        self.merge()?;
                    }
                    None => self.working = None,
                }
            }
            self.forget_vectors()
        })
    }

    /// Returns true if no background thread runs.
    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        self.working.is_none()
    }

    fn try_put(&mut self, document: &Document<'_>) -> Result<(), IndexError> {
        let fields = self.index.inner.fields;
        let known = self.index.inner.statics.now();
        let unwritten = |err: serde_json::Error| IndexError::Failed(err.to_string());
        let delete = Term::from_field_text(fields.path, document.path);
        let mut written = Vec::with_capacity(document.chunks.len() + 2);
        written.push(UserOperation::Delete(delete));
        let file = fields.file(document).map_err(unwritten)?;
        written.push(UserOperation::Add(Queued { document: file, _room: None }));
        let mut waiting = Vec::with_capacity(document.chunks.len());
        let mut number = 0;
        for chunk in document.chunks {
            let texts = document.texts(chunk);
            let texts = borrowed(&texts);
            let hash = ChunkHash::of(&texts);
            if known.slot_of(hash).is_none()
                && let Some(vector) = static_model::chunk(&texts)
            {
                self.vectors.push((hash, vector));
            }
            number += 1;
            let bytes: usize = texts.iter().map(|it| it.len()).sum();
            let chunk = fields.chunk(document, number, chunk, &texts, hash).map_err(unwritten)?;
            waiting.push((chunk, bytes));
        }
        self.queue.wait_for_room(waiting.iter().map(|(_, bytes)| bytes).sum())?;
        written.extend(waiting.into_iter().map(|(document, bytes)| {
            let room = Queue::enter(&self.queue, bytes);
            UserOperation::Add(Queued { document, _room: Some(room) })
        }));
        let sent = self.working()?.writer.run(written);
        if sent.is_err() {
            self.working = None;
        }
        sent?;
        self.is_changed = true;
        if self.vectors.len() >= VECTORS_HELD {
            self.write_vectors()?;
        }
        Ok(())
    }

    fn working(&mut self) -> Result<&mut Working, IndexError> {
        if self.working.is_none() {
            let options = IndexWriterOptions::builder()
                .num_worker_threads(1)
                .num_merge_threads(1)
                .memory_budget_per_thread(WORDS_BYTES)
                .build();
            let writer = self.index.inner.words.writer_with_options(options)?;
            writer.set_merge_policy(Box::new(NoMergePolicy));
            self.working = Some(Working { merging: None, writer });
        }
        self.working.as_mut().ok_or_else(|| IndexError::Failed("nothing writes".to_owned()))
    }

    fn write_vectors(&mut self) -> Result<(), IndexError> {
        if !self.vectors.is_empty() {
            self.index.inner.statics.append(&self.vectors)?;
            self.vectors.clear();
        }
        Ok(())
    }

    /// Merges several segments in the background, if there are too many.
    fn merge(&mut self) -> Result<(), IndexError> {
        let Some(working) = &mut self.working else { return Ok(()) };
        if let Some(merging) = &mut working.merging {
            match merging.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return Ok(()),
                Poll::Ready(merged) => {
                    working.merging = None;
                    settled(merged)?;
                }
            }
        }
        let segments = self.index.inner.words.searchable_segment_metas()?;
        if let Some(few) = policy().compute_merge_candidates(&segments).into_iter().next() {
            working.merging = Some(Box::pin(working.writer.merge(&few.0)));
        }
        Ok(())
    }

    /// Deletes vectors without a chunk, if there are many.
    fn forget_vectors(&self) -> Result<(), IndexError> {
        let snapshot = self.index.snapshot()?;
        let chunks = snapshot.counts().chunks;
        let kept = self.index.inner.statics.now().len();
        if kept as u64 > 2 * chunks + VECTORS_HELD as u64 {
            let said = snapshot.hashes();
            self.index.inner.statics.retain(&|hash| said.contains(&hash))?;
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A merge writes files until it ends, and must not overlap with the next writer.
        if let Some(merging) = self.working.as_mut().and_then(|it| it.merging.take()) {
            drop(guarded(|| wait(merging)));
        }
    }
}

fn wait(mut merging: Pin<Box<Merging>>) -> Result<(), IndexError> {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match merging.as_mut().poll(&mut context) {
            Poll::Ready(merged) => return settled(merged),
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Returns the result of a merge. If all its documents were deleted meanwhile, tantivy does not
/// find the segments, which is no error.
fn settled(merged: tantivy::Result<Option<SegmentMeta>>) -> Result<(), IndexError> {
    match merged {
        Ok(_) | Err(TantivyError::InvalidArgument(_)) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn policy() -> LogMergePolicy {
    let mut policy = LogMergePolicy::default();
    policy.set_min_num_segments(MERGED_AT);
    policy.set_min_layer_size(SMALL_DOCUMENTS);
    policy.set_del_docs_ratio_before_merge(DELETED_MAX);
    policy
}

/// Deletes files that a killed writer left behind.
fn sweep(index: &Index) -> Result<(), IndexError> {
    let Some((_, folder)) = &index.inner.folder else { return Ok(()) };
    let locked = folder.acquire_lock(&META_LOCK);
    let _locked = locked.map_err(|err| IndexError::Failed(err.to_string()))?;
    let living = index.inner.words.load_metas()?.list_segment_files();
    for name in folder.names()? {
        let is_ours = name.file_stem().is_some_and(|it| it.len() >= 32);
        if is_ours && !living.contains(&name) {
            // A file that cannot be deleted is tried again the next time.
            drop(folder.delete(&name));
        }
    }
    Ok(())
}

/// Text that waits for indexing.
#[derive(Default)]
struct Queue {
    bytes: Mutex<usize>,
    less: Condvar,
}

impl Queue {
    fn enter(queue: &Arc<Self>, bytes: usize) -> Room {
        *queue.bytes.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        Room { queue: Arc::clone(queue), bytes }
    }

    /// Waits until `bytes` more fit into the queue. A larger text than the queue enters when it is
    /// empty.
    fn wait_for_room(&self, bytes: usize) -> Result<(), IndexError> {
        let mut queued = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        while *queued > 0 && queued.saturating_add(bytes) > QUEUED_BYTES_MAX {
            let before = *queued;
            let is_stuck = |now: &mut usize| *now == before;
            let waited = self.less.wait_timeout_while(queued, QUEUE_WAIT, is_stuck);
            let (now, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return Err(IndexError::Failed("words are taken in too slowly".to_owned()));
            }
            queued = now;
        }
        Ok(())
    }
}

/// Space in the queue, reserved until this is dropped.
struct Room {
    queue: Arc<Queue>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        *self.queue.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.queue.less.notify_all();
    }
}

/// A document in the queue.
struct Queued {
    document: TantivyDocument,
    _room: Option<Room>,
}

impl tantivy::Document for Queued {
    type Value<'d> = CompactDocValue<'d>;
    type FieldsValuesIter<'d> = Box<dyn Iterator<Item = (Field, CompactDocValue<'d>)> + 'd>;

    fn iter_fields_and_values(&self) -> Self::FieldsValuesIter<'_> {
        Box::new(self.document.iter_fields_and_values())
    }

    fn into_tantivy_document(self) -> TantivyDocument {
        self.document
    }
}
