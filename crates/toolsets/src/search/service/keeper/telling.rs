//! Publishes the progress of an index to searches and to other servers.

use super::{Keeper, Stopped};
use crate::search::engines::Writer;
use crate::search::service::files::Files;
use crate::search::service::progress::State;

impl Keeper {
    /// Publishes that the index is up to date.
    pub(super) async fn settle(
        &mut self,
        files: &Files,
        writer: &mut dyn Writer,
    ) -> Result<(), Stopped> {
        self.count(None).await?;
        let refused = &self.so_far.refused;
        let texts = files.texts() as u64;
        let complete = files.is_complete() && refused.is_empty();
        let left_out = refused.first().map(|first| {
            format!("{} files cannot be taken in, `{first}` is one of them", refused.len())
        });
        let trouble = self.embedding.trouble();
        self.told.send_modify(|it| {
            let is_rebuilt = it.is_rebuilt();
            let rebuilt = it.note.take().filter(|_| is_rebuilt);
            it.state = State::Ready;
            it.files = texts;
            it.total = None;
            it.complete = complete;
            it.unwritten = false;
            it.note = trouble.or(left_out).or(rebuilt);
        });
        self.answer();
        self.tell(writer, complete).await;
        Ok(())
    }

    /// Publishes to other servers of this workspace whether the index is complete.
    pub(super) async fn tell(&mut self, writer: &mut dyn Writer, complete: bool) {
        if self.so_far.told == Some(complete) {
            return;
        }
        // Servers without this information assume an incomplete index.
        if let Err(err) = writer.tell(complete).await {
            tracing::warn!("other servers do not learn how far an index is: {err}");
        }
        self.so_far.told = Some(complete);
    }

    /// Publishes the size of the index. `read` is the number of files read and the total.
    pub(super) async fn count(&mut self, read: Option<(u64, u64)>) -> Result<(), Stopped> {
        let status = self.engine.status().await?;
        let vectors = self.embedding.is_wanted().then_some(status.with_vectors);
        self.told.send_modify(|it| {
            it.files = read.map_or(status.documents, |(files, _)| files);
            it.total = read.map(|(_, total)| total);
            it.chunks = status.chunks;
            it.vectors = vectors;
        });
        Ok(())
    }
}
