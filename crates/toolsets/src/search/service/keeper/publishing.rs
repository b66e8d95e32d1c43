//! Publishes the progress of an index to searches and to other servers.

use super::{IndexUpdater, IndexUpdaterStopReason};
use crate::search::engines::SearchEngineWriter;
use crate::search::service::files::TrackedFiles;
use crate::search::service::progress::IndexState;

impl IndexUpdater {
    /// Publishes to searches that the index is up to date, and to other servers whether the index
    /// is complete. Fails if the engine fails.
    pub(super) async fn publish_ready(
        &mut self,
        files: &TrackedFiles,
        writer: &mut dyn SearchEngineWriter,
    ) -> Result<(), IndexUpdaterStopReason> {
        self.publish_counts(None).await?;
        let rejected = &self.memory.rejected;
        let texts = files.text_count() as u64;
        let complete = files.is_complete() && rejected.is_empty();
        let left_out = rejected.first().map(|first| match rejected.len() {
            1 => format!("1 file cannot be indexed: `{first}`"),
            count => format!("{count} files cannot be indexed, such as `{first}`"),
        });
        let failure = self.embedding.failure_note();
        self.progress.send_modify(|it| {
            let is_rebuilt = it.is_rebuilt();
            let rebuilt = it.note.take().filter(|_| is_rebuilt);
            it.state = IndexState::Ready;
            it.files = texts;
            it.total = None;
            it.complete = complete;
            it.write_failed = false;
            it.note = failure.or(left_out).or(rebuilt);
        });
        self.release_waiting();
        self.publish_complete(writer, complete).await;
        Ok(())
    }

    /// Publishes to other servers of this workspace whether the index is complete.
    pub(super) async fn publish_complete(
        &mut self,
        writer: &mut dyn SearchEngineWriter,
        complete: bool,
    ) {
        if self.memory.published == Some(complete) {
            return;
        }
        // Servers without this information assume an incomplete index.
        if let Err(err) = writer.publish_complete(complete).await {
            tracing::warn!("publishing the state of an index to other servers failed: {err}");
        }
        self.memory.published = Some(complete);
    }

    /// Publishes the size of the index to searches. `read` contains the number of files that were
    /// read, and the total. Fails if the engine fails.
    pub(super) async fn publish_counts(
        &mut self,
        read: Option<(u64, u64)>,
    ) -> Result<(), IndexUpdaterStopReason> {
        let status = self.engine.status().await?;
        let vectors = self.embedding.is_configured().then_some(status.with_vectors);
        self.progress.send_modify(|it| {
            it.files = read.map_or(status.documents, |(files, _)| files);
            it.total = read.map(|(_, total)| total);
            it.chunks = status.chunks;
            it.vectors = vectors;
        });
        Ok(())
    }
}
