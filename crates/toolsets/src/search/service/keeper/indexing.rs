//! Reads changed files and puts them into the index.

use std::time::Duration;

use tokio::time::Instant;
use toolgate_contract::ToolError;
use toolgate_net::{BlockingTask, spawn_blocking};

use super::{IndexUpdater, IndexUpdaterStopReason, flatten_join, map_write_error};
use crate::search::engines::SearchEngineWriter;
use crate::search::service::files::{
    IndexBatchChanges, PendingIndexWork, TrackedFiles, split_batches,
};
use crate::search::service::reading::{
    IndexFileReadOutcome, IndexableContent, StaleIndexedFile, read_all,
};

/// The maximum time between two commits while an index is built, so that searches see progress.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

impl IndexUpdater {
    /// Reads the files of `work` and updates the index. Reads a batch of files while the previous
    /// batch is written to the index. Fails if the index cannot be written.
    pub(super) async fn index_changes(
        &mut self,
        mut files: TrackedFiles,
        work: PendingIndexWork,
        writer: &mut dyn SearchEngineWriter,
    ) -> Result<TrackedFiles, IndexUpdaterStopReason> {
        let PendingIndexWork { read, gone } = work;
        let total =
            (files.text_count() + read.iter().filter(|it| it.etag.is_none()).count()) as u64;
        let is_building = self.progress.borrow().state.is_building();
        let mut batches = split_batches(read).into_iter();
        let mut reading = batches.next().map(|batch| self.read_batch(batch));
        for path in &gone {
            self.memory.rejected.remove(path);
        }
        let removed = files.remove_paths(gone);
        let mut is_uncommitted = !removed.remove.is_empty();
        self.put_batch(&mut files, removed, writer).await?;
        let mut published = Instant::now();
        let mut is_first = true;
        while let Some(task) = reading {
            let readings = flatten_join(task.await)?;
            reading = batches.next().map(|batch| self.read_batch(batch));
            for it in &readings {
                self.memory.rejected.remove(&it.path);
            }
            let batch = files.record_read(readings);
            is_uncommitted |= !(batch.put.is_empty() && batch.remove.is_empty());
            self.put_batch(&mut files, batch, writer).await?;
            if is_building && (is_first || published.elapsed() > COMMIT_EVERY) {
                (is_first, is_uncommitted) = (false, false);
                map_write_error(writer.commit().await)?;
                self.publish_counts(Some((files.text_count() as u64, total))).await?;
                published = Instant::now();
            } else if is_building {
                let texts = files.text_count() as u64;
                self.progress.send_modify(|it| {
                    it.files = texts;
                    it.total = Some(total);
                });
            }
        }
        if is_uncommitted {
            map_write_error(writer.commit().await)?;
            self.commits += 1;
            self.embedding.resume();
        }
        Ok(files)
    }

    /// Puts `batch` into the index. Documents that the engine rejects are not indexed. Fails if the
    /// index cannot be written.
    async fn put_batch(
        &mut self,
        files: &mut TrackedFiles,
        batch: IndexBatchChanges,
        writer: &mut dyn SearchEngineWriter,
    ) -> Result<(), IndexUpdaterStopReason> {
        let IndexBatchChanges { put, remove } = batch;
        if !remove.is_empty() {
            map_write_error(writer.remove(remove).await)?;
        }
        if !put.is_empty() {
            map_write_error(writer.put(put).await)?;
        }
        for (put, why) in writer.take_rejected() {
            tracing::warn!("`{}` is left out of a search index: {why}", put.path);
            self.memory.rejected.insert(put.path.clone());
            let unsearched = IndexFileReadOutcome {
                path: put.path,
                stamp: put.stamp,
                content: IndexableContent::Unsearched,
            };
            map_write_error(writer.remove(files.record_read(vec![unsearched]).remove).await)?;
        }
        Ok(())
    }

    fn read_batch(
        &self,
        batch: Vec<StaleIndexedFile>,
    ) -> BlockingTask<Result<Vec<IndexFileReadOutcome>, ToolError>> {
        let root = self.root.clone();
        let watch = self.watch();
        spawn_blocking(move || read_all(&root, batch, &watch))
    }
}
