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
use super::small_commit::{DocumentChange, SmallCommit};
use super::{IndexError, IndexWriteLock, SearchIndex, catch_panics};
use crate::document::borrow_texts;
use crate::{ChunkHash, IndexDocument, static_model};

/// Memory for the index's words before they are written, in bytes: the minimum of tantivy.
const WORDS_BYTES: usize = 15_000_000;
/// Maximum size of the texts that wait for indexing, in bytes.
const QUEUED_BYTES_MAX: usize = 4 << 20;
/// Longest wait for space in the queue of texts to index. After this time, indexing counts as
/// stuck.
const QUEUE_WAIT: Duration = Duration::from_secs(60);
/// Number of the built-in model's vectors that are written at once.
const VECTORS_BUFFERED_MAX: usize = 8_192;
/// Minimum number of index segments of similar size that are merged to a larger segment while
/// changes follow each other. Merges compete with searches for the processor.
const BUSY_MERGED_SEGMENTS_MIN: usize = 8;
/// Minimum number of index segments of similar size that are merged while no change is expected.
const IDLE_MERGED_SEGMENTS_MIN: usize = 3;
/// Number of documents up to which index segments count as similar in size.
const SMALL_SEGMENT_DOCUMENTS: u32 = 1_000;
/// Share of deleted documents, from 0 to 1, above which an index segment is rewritten.
const DELETED_SHARE_MAX: f32 = 0.3;

/// Writer of an index, which holds the write lock and the changes since the last commit.
///
/// Background threads run from the first change until [`SearchIndexWriter::finish`], or until a
/// commit leaves the index empty.
pub struct SearchIndexWriter {
    // Fields drop in order: the threads must end before the right does.
    active: Option<ActiveIndexWriter>,
    pub(super) index: SearchIndex,
    queue: Arc<IndexBacklog>,
    /// Vectors by the built-in model that wait to be written.
    vectors: Vec<(ChunkHash, Vec<f32>)>,
    /// The changes since the last commit. `None` if they are many: then `active` writes them.
    small_commit: Option<SmallCommit>,
    is_changed: bool,
    /// Error of a merge of index segments that failed after a successful commit.
    merge_error: Option<IndexError>,
    _lock: IndexWriteLock,
}

/// Writer of the word index with its background threads.
struct ActiveIndexWriter {
    merging: Option<Pin<Box<SegmentMergeFuture>>>,
    writer: IndexWriter<QueuedIndexDocument>,
}

/// Future of a merge of index segments.
type SegmentMergeFuture = FutureResult<Option<SegmentMeta>>;

impl SearchIndexWriter {
    pub(super) fn new(index: SearchIndex, right: IndexWriteLock) -> Result<Self, IndexError> {
        delete_leftovers(&index)?;
        Ok(Self {
            active: None,
            index,
            queue: Arc::default(),
            vectors: Vec::new(),
            small_commit: Some(SmallCommit::default()),
            is_changed: false,
            merge_error: None,
            _lock: right,
        })
    }

    /// Adds `document` to the index. The document replaces any previous document with the same
    /// path. Fails if the index cannot be written.
    pub fn put(&mut self, document: &IndexDocument<'_>) -> Result<(), IndexError> {
        if document.path.len() > PATH_BYTES_MAX {
            let why = format!("a path of {} bytes is too long", document.path.len());
            return Err(IndexError::Refused(why));
        }
        catch_panics(|| self.try_put(document))
    }

    /// Deletes the document at `path` from the index. Fails if the index cannot be written.
    pub fn remove(&mut self, path: &str) -> Result<(), IndexError> {
        let change = DocumentChange { path: path.to_owned(), entries: Vec::new() };
        catch_panics(|| self.add_change(change))
    }

    /// Makes all changes since the last commit visible. If the process is killed, the last commit
    /// stays. If the commit fails, all changes are lost and none of them becomes visible. Waits for a
    /// running merge if the index is empty afterwards.
    pub fn commit(&mut self) -> Result<(), IndexError> {
        if let Some(err) = self.merge_error.take() {
            return Err(err);
        }
        if self.is_changed {
            let done = catch_panics(|| self.commit_changes());
            self.small_commit = Some(SmallCommit::default());
            if done.is_err() {
                self.active = None;
            }
            done?;
            self.is_changed = false;
            self.end_threads_if_empty();
        }
        // The commit succeeded, so a failed merge is reported by the next call.
        self.merge_error = catch_panics(|| self.merge(BUSY_MERGED_SEGMENTS_MIN)).err();
        Ok(())
    }

    /// Adds vectors of the configured model. Each vector applies to every chunk with its hash. The
    /// next snapshot of the index includes the vectors. Fails if a vector is invalid or cannot be
    /// written.
    pub fn add_vectors(&mut self, vectors: &[(ChunkHash, Vec<f32>)]) -> Result<(), IndexError> {
        let Some(model) = &self.index.inner.model_vectors else {
            let why = "no embedding model is configured";
            return Err(IndexError::Refused(why.to_owned()));
        };
        catch_panics(|| Ok(model.append(vectors)?))
    }

    /// Commits all changes of the index, finishes merges and ends the background threads. Call this
    /// when no change is expected soon. Fails if a commit or a merge fails.
    pub fn finish(&mut self) -> Result<(), IndexError> {
        self.commit()?;
        self.merge_error.take().map_or(Ok(()), Err)?;
        catch_panics(|| {
            self.merge(IDLE_MERGED_SEGMENTS_MIN)?;
            while let Some(working) = &mut self.active {
                match working.merging.take() {
                    Some(merging) => {
                        wait_for_merge(merging)?;
                        self.merge(IDLE_MERGED_SEGMENTS_MIN)?;
                    }
                    None => self.active = None,
                }
            }
            self.delete_unused_vectors()
        })
    }

    /// Returns true if no background thread of the index is running.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_none()
    }

    fn try_put(&mut self, document: &IndexDocument<'_>) -> Result<(), IndexError> {
        let fields = self.index.inner.fields;
        let known = self.index.inner.static_vectors.snapshot();
        let unwritten = |err: serde_json::Error| IndexError::Failed(err.to_string());
        let mut entries = Vec::with_capacity(document.chunks.len() + 1);
        entries.push((fields.file_document(document).map_err(unwritten)?, 0));
        let mut number = 0;
        for chunk in document.chunks {
            let texts = document.texts(chunk);
            let texts = borrow_texts(&texts);
            let hash = ChunkHash::for_texts(&texts);
            if known.slot_of(hash).is_none()
                && let Some(vector) = static_model::embed_chunk(&texts)
            {
                self.vectors.push((hash, vector));
            }
            number += 1;
            let bytes: usize = texts.iter().map(|it| it.len()).sum();
            let chunk =
                fields.chunk_document(document, number, chunk, &texts, hash).map_err(unwritten)?;
            entries.push((chunk, bytes));
        }
        self.add_change(DocumentChange { path: document.path.to_owned(), entries })?;
        if self.vectors.len() >= VECTORS_BUFFERED_MAX {
            self.write_vectors()?;
        }
        Ok(())
    }

    /// Adds `change` to the next commit. Fails if the index cannot be written.
    fn add_change(&mut self, change: DocumentChange) -> Result<(), IndexError> {
        let changes = match self.small_commit.take() {
            None => vec![change],
            Some(mut small) => {
                small.push(change);
                if !small.is_too_large() {
                    self.small_commit = Some(small);
                    self.is_changed = true;
                    return Ok(());
                }
                small.into_changes()
            }
        };
        changes.into_iter().try_for_each(|change| self.send_change(change))?;
        self.is_changed = true;
        Ok(())
    }

    /// Sends `change` to the background thread that writes the words. Fails if it cannot write.
    fn send_change(&mut self, change: DocumentChange) -> Result<(), IndexError> {
        let DocumentChange { path, entries } = change;
        self.queue.wait_for_room(entries.iter().map(|(_, bytes)| bytes).sum())?;
        let mut operations = Vec::with_capacity(entries.len() + 1);
        let delete = Term::from_field_text(self.index.inner.fields.path, &path);
        operations.push(UserOperation::Delete(delete));
        operations.extend(entries.into_iter().map(|(entry, bytes)| {
            let room = IndexBacklog::reserve(&self.queue, bytes);
            UserOperation::Add(QueuedIndexDocument::new(entry, room))
        }));
        let sent = self.active_writer()?.writer.run(operations);
        if sent.is_err() {
            self.active = None;
        }
        sent?;
        Ok(())
    }

    fn commit_changes(&mut self) -> Result<(), IndexError> {
        self.write_vectors()?;
        let small_commit = self.small_commit.take();
        let index = self.index.clone();
        let writer = &mut self.active_writer()?.writer;
        if let Some(small_commit) = small_commit {
            small_commit.write(&index.inner.words, index.inner.fields.path, writer)?;
        }
        writer.commit()?;
        Ok(())
    }

    fn active_writer(&mut self) -> Result<&mut ActiveIndexWriter, IndexError> {
        if self.active.is_none() {
            let options = IndexWriterOptions::builder()
                .num_worker_threads(1)
                .num_merge_threads(1)
                .memory_budget_per_thread(WORDS_BYTES)
                .build();
            let writer = self.index.inner.words.writer_with_options(options)?;
            writer.set_merge_policy(Box::new(NoMergePolicy));
            self.active = Some(ActiveIndexWriter { merging: None, writer });
        }
        self.active.as_mut().ok_or_else(|| IndexError::Failed("nothing writes".to_owned()))
    }

    fn write_vectors(&mut self) -> Result<(), IndexError> {
        if !self.vectors.is_empty() {
            self.index.inner.static_vectors.append(&self.vectors)?;
            self.vectors.clear();
        }
        Ok(())
    }

    /// Ends the background threads if the index is empty or cannot be read.
    ///
    /// Tantivy keeps a deletion in memory until a segment reads it. The next segment would read a
    /// deletion that was committed while the index was empty, although its documents are newer.
    fn end_threads_if_empty(&mut self) {
        let segments = catch_panics(|| Ok(self.index.inner.words.searchable_segment_metas()?));
        if segments.is_ok_and(|segments| !segments.is_empty()) {
            return;
        }
        self.end_threads();
    }

    /// Ends the background threads after a running merge, whose result is not needed any more.
    fn end_threads(&mut self) {
        // A merge writes files until it ends, and must not overlap with the next writer.
        if let Some(merging) = self.active.as_mut().and_then(|it| it.merging.take()) {
            drop(catch_panics(|| wait_for_merge(merging)));
        }
        self.active = None;
    }

    /// Merges index segments in the background, if at least `segments_min` are similar in size.
    /// Fails if the index cannot be read.
    fn merge(&mut self, segments_min: usize) -> Result<(), IndexError> {
        let Some(working) = &mut self.active else { return Ok(()) };
        if let Some(merging) = &mut working.merging {
            match merging.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return Ok(()),
                Poll::Ready(merged) => {
                    working.merging = None;
                    check_merge(merged)?;
                }
            }
        }
        let segments = self.index.inner.words.searchable_segment_metas()?;
        if let Some(few) =
            merge_policy(segments_min).compute_merge_candidates(&segments).into_iter().next()
        {
            working.merging = Some(Box::pin(working.writer.merge(&few.0)));
        }
        Ok(())
    }

    /// Deletes vectors that belong to no chunk, if there are many. Fails if the index is unreadable
    /// or a file cannot be written.
    fn delete_unused_vectors(&self) -> Result<(), IndexError> {
        let snapshot = self.index.snapshot()?;
        let chunks = snapshot.counts().chunks;
        let vector_count = self.index.inner.static_vectors.snapshot().len();
        if vector_count as u64 > 2 * chunks + VECTORS_BUFFERED_MAX as u64 {
            let live_hashes = snapshot.chunk_hashes();
            self.index.inner.static_vectors.retain(&|hash| live_hashes.contains(&hash))?;
        }
        Ok(())
    }
}

impl Drop for SearchIndexWriter {
    fn drop(&mut self) {
        self.end_threads();
    }
}

fn wait_for_merge(mut merging: Pin<Box<SegmentMergeFuture>>) -> Result<(), IndexError> {
    /// Waker that unparks the thread which waits for a future.
    struct ThreadWaker(std::thread::Thread);
    impl std::task::Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match merging.as_mut().poll(&mut context) {
            Poll::Ready(merged) => return check_merge(merged),
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Returns the error of a merge of index segments, if any. If all documents of the segments were
/// deleted meanwhile, tantivy does not find the segments, which is not an error.
fn check_merge(merged: tantivy::Result<Option<SegmentMeta>>) -> Result<(), IndexError> {
    match merged {
        Ok(_) | Err(TantivyError::InvalidArgument(_)) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn merge_policy(segments_min: usize) -> LogMergePolicy {
    let mut policy = LogMergePolicy::default();
    policy.set_min_num_segments(segments_min);
    policy.set_min_layer_size(SMALL_SEGMENT_DOCUMENTS);
    policy.set_del_docs_ratio_before_merge(DELETED_SHARE_MAX);
    policy
}

/// Deletes files of the index that a writer left behind when it was killed. Files that cannot be
/// deleted stay until the next call. Fails if the index cannot be locked or read.
fn delete_leftovers(index: &SearchIndex) -> Result<(), IndexError> {
    let Some((_, folder)) = &index.inner.folder else { return Ok(()) };
    let locked = folder.acquire_lock(&META_LOCK);
    let _locked = locked.map_err(|err| IndexError::Failed(err.to_string()))?;
    let living = index.inner.words.load_metas()?.list_segment_files();
    for name in folder.segment_file_names()? {
        if !living.contains(&name) {
            // A file that cannot be deleted is tried again the next time.
            drop(folder.delete(&name));
        }
    }
    Ok(())
}

/// Amount of text that waits to be indexed.
#[derive(Default)]
struct IndexBacklog {
    bytes: Mutex<usize>,
    shrunk: Condvar,
}

impl IndexBacklog {
    fn reserve(queue: &Arc<Self>, bytes: usize) -> IndexBacklogReservation {
        *queue.bytes.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        IndexBacklogReservation { queue: Arc::clone(queue), bytes }
    }

    /// Waits until `bytes` more bytes fit into the queue. A text that is larger than the queue
    /// waits until the queue is empty. Fails if no space becomes free within 60 seconds.
    fn wait_for_room(&self, bytes: usize) -> Result<(), IndexError> {
        let mut queued = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        while *queued > 0 && queued.saturating_add(bytes) > QUEUED_BYTES_MAX {
            let before = *queued;
            let is_stuck = |now: &mut usize| *now == before;
            let waited = self.shrunk.wait_timeout_while(queued, QUEUE_WAIT, is_stuck);
            let (now, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return Err(IndexError::Failed("the index writes too slowly".to_owned()));
            }
            queued = now;
        }
        Ok(())
    }
}

/// Space for a document in the queue of texts to index. Dropping this value frees the space.
struct IndexBacklogReservation {
    queue: Arc<IndexBacklog>,
    bytes: usize,
}

impl Drop for IndexBacklogReservation {
    fn drop(&mut self) {
        *self.queue.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.queue.shrunk.notify_all();
    }
}

/// A document in the queue of texts to index, with its reserved space.
///
/// This value is a pointer, so that it is small: after each commit, tantivy creates a queue with room
/// for 40,000 of these values, and writes to all pages of the queue.
struct QueuedIndexDocument(Box<(TantivyDocument, IndexBacklogReservation)>);

impl QueuedIndexDocument {
    fn new(document: TantivyDocument, room: IndexBacklogReservation) -> Self {
        Self(Box::new((document, room)))
    }
}

impl tantivy::Document for QueuedIndexDocument {
    type Value<'d> = CompactDocValue<'d>;
    type FieldsValuesIter<'d> = Box<dyn Iterator<Item = (Field, CompactDocValue<'d>)> + 'd>;

    fn iter_fields_and_values(&self) -> Self::FieldsValuesIter<'_> {
        Box::new(self.0.0.iter_fields_and_values())
    }

    fn into_tantivy_document(self) -> TantivyDocument {
        self.0.0
    }
}
