//! Waits for the write lock of an index while another server holds the lock.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{IndexUpdater, IndexUpdaterStopReason, map_write_error};
use crate::search::engines::{IndexLeaderStatus, SearchEngineError, SearchEngineWriter};
use crate::search::service::progress::IndexState;

/// The pause between two attempts to acquire the write lock of the index.
const TURN_EVERY: Duration = Duration::from_millis(500);
/// The time after the last heartbeat of another server that writes the index, after which that
/// server counts as stuck. Several heartbeats may be missed within this time.
const STUCK_AFTER: Duration = Duration::from_secs(8);

impl IndexUpdater {
    /// Waits until this process acquires the write lock of the index. Meanwhile, shows searches the
    /// progress of the other server. Fails if the engine fails.
    pub(super) async fn wait_for_writer(
        &mut self,
    ) -> Result<Box<dyn SearchEngineWriter>, IndexUpdaterStopReason> {
        loop {
            if let Some(writer) = map_write_error(self.engine.acquire_writer().await)? {
                return Ok(writer);
            }
            let status = self.engine.status().await?;
            // An engine without this information may well have a complete index.
            let leader = self.engine.leader().await?.unwrap_or(IndexLeaderStatus {
                complete: status.documents > 0,
                ..IndexLeaderStatus::default()
            });
            let is_silent = leader.silent_for > STUCK_AFTER;
            let vectors = self.embedding.is_configured().then_some(status.with_vectors);
            self.progress.send_modify(|it| {
                it.state = IndexState::Following;
                it.files = status.documents;
                it.chunks = status.chunks;
                it.vectors = vectors;
                it.total = None;
                it.complete = leader.complete && !is_silent;
                it.write_failed = false;
                it.note =
                    Some(if is_silent { stuck_note(leader) } else { FOLLOWING_NOTE.to_owned() });
            });
            self.release_waiting();
            let next = Instant::now() + TURN_EVERY;
            tokio::select! {
                request = self.requests.recv() => match request {
                    None => return Err(IndexUpdaterStopReason::Closed),
                    Some(request) => if let Some(why) = self.accept(request) {
                        return Err(IndexUpdaterStopReason::Engine(SearchEngineError::Unavailable(why)));
                    }
                },
                () = sleep_until(next) => {}
            }
        }
    }
}

const FOLLOWING_NOTE: &str = "another server of this workspace maintains the index";

fn stuck_note(leader: IndexLeaderStatus) -> String {
    let seconds = leader.silent_for.as_secs();
    let process = leader.process_id.map(|it| format!(" (process {it})")).unwrap_or_default();
    format!(
        "the server that maintains the index of this workspace{process} has not responded for \
         {seconds} s, so searches do not find later changes; if you end that server, this \
         server takes over"
    )
}
