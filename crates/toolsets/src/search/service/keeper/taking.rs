//! Reads changed files and puts them into the index.

use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;
use toolgate_contract::ToolError;

use super::{Keeper, Stopped, joined, written};
use crate::search::engines::Writer;
use crate::search::service::files::{Batch, Files, Todo, batches};
use crate::search::service::reading::{Stale, Taken, What, read_all};

/// The longest time between two commits while an index is built, so that searches see progress.
const SHOWN_EVERY: Duration = Duration::from_secs(5);

impl Keeper {
    /// Reads the files of `todo` and updates the index. Reads one batch while it puts the previous
    /// one.
    pub(super) async fn take(
        &mut self,
        mut files: Files,
        todo: Todo,
        writer: &mut dyn Writer,
    ) -> Result<Files, Stopped> {
        let Todo { read, gone } = todo;
        let total = (files.texts() + read.iter().filter(|it| it.etag.is_none()).count()) as u64;
        let is_built = self.told.borrow().state.is_on_the_way();
        let mut batches = batches(read).into_iter();
        let mut reading = batches.next().map(|batch| self.read(batch));
        for path in &gone {
            self.so_far.refused.remove(path);
        }
        let removed = files.removed(gone);
        let mut open = !removed.remove.is_empty();
        self.put(&mut files, removed, writer).await?;
        let mut shown = Instant::now();
        let mut first = true;
        while let Some(now) = reading {
            let taken = joined(now.await)?;
            reading = batches.next().map(|batch| self.read(batch));
            for it in &taken {
                self.so_far.refused.remove(&it.path);
            }
            let batch = files.took(taken);
            open |= !(batch.put.is_empty() && batch.remove.is_empty());
            self.put(&mut files, batch, writer).await?;
            if is_built && (first || shown.elapsed() > SHOWN_EVERY) {
                (first, open) = (false, false);
                written(writer.commit().await)?;
                self.count(Some((files.texts() as u64, total))).await?;
                shown = Instant::now();
            } else if is_built {
                let texts = files.texts() as u64;
                self.told.send_modify(|it| {
                    it.files = texts;
                    it.total = Some(total);
                });
            }
        }
        if open {
            written(writer.commit().await)?;
            self.writes += 1;
            self.embedding.wake();
        }
        Ok(files)
    }

    /// Puts `batch` into the index. Documents that the engine rejects are left out.
    async fn put(
        &mut self,
        files: &mut Files,
        batch: Batch,
        writer: &mut dyn Writer,
    ) -> Result<(), Stopped> {
        let Batch { put, remove } = batch;
        if !remove.is_empty() {
            written(writer.remove(remove).await)?;
        }
        if !put.is_empty() {
            written(writer.put(put).await)?;
        }
        for (put, why) in writer.refused() {
            tracing::warn!("`{}` is left out of an index for searching: {why}", put.path);
            self.so_far.refused.insert(put.path.clone());
            let other = Taken { path: put.path, stamp: put.stamp, what: What::Other };
            written(writer.remove(files.took(vec![other]).remove).await)?;
        }
        Ok(())
    }

    fn read(&self, batch: Vec<Stale>) -> JoinHandle<Result<Vec<Taken>, ToolError>> {
        let root = self.root.clone();
        let watch = self.watch();
        spawn_blocking(move || read_all(&root, batch, &watch))
    }
}
