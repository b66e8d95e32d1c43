//! How far an index is, told to whoever searches and to other servers.

use super::{Keeper, Stopped};
use crate::search::engines::Writer;
use crate::search::service::files::Files;
use crate::search::service::progress::State;

impl Keeper {
    /// Says that the index is as the folder is.
    pub(super) async fn settle(
        &mut self,
        files: &Files,
        writer: &mut dyn Writer,
    ) -> Result<(), Stopped> {
        self.count(None).await?;
        let refused = &self.so_far.refused;
        let (texts, complete) = (files.texts() as u64, files.is_complete() && refused.is_empty());
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

    /// Tells other servers of this workspace whether all is in the index.
    pub(super) async fn tell(&mut self, writer: &mut dyn Writer, complete: bool) {
        if self.so_far.told == Some(complete) {
            return;
        }
        // Who is not told takes it for incomplete.
        if let Err(err) = writer.tell(complete).await {
            tracing::warn!("other servers do not learn how far an index is: {err}");
        }
        self.so_far.told = Some(complete);
    }

    /// Tells how much is in the index, and how much of how much was read.
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
