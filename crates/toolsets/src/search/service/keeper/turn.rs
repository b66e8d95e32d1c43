//! Waits for the right to write while another server has it.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Keeper, Stopped, written};
use crate::search::engines::{EngineError, Leader, Writer};
use crate::search::service::progress::State;

/// The pause between two attempts to get the right to write.
const TURN_EVERY: Duration = Duration::from_millis(500);
/// The time without a sign of life after which another server counts as stuck. It covers several
/// missed signs.
const SILENT: Duration = Duration::from_secs(8);

impl Keeper {
    /// Waits until this process has the right to write.
    pub(super) async fn turn(&mut self) -> Result<Box<dyn Writer>, Stopped> {
        loop {
            if let Some(writer) = written(self.engine.writer().await)? {
                return Ok(writer);
            }
            let status = self.engine.status().await?;
            // An engine without this information may well have a complete index.
            let leader = self
                .engine
                .leader()
                .await?
                .unwrap_or(Leader { complete: status.documents > 0, ..Leader::default() });
            let is_silent = leader.silent > SILENT;
            let vectors = self.embedding.is_wanted().then_some(status.with_vectors);
            self.told.send_modify(|it| {
                it.state = State::Following;
                it.files = status.documents;
                it.chunks = status.chunks;
                it.vectors = vectors;
                it.total = None;
                it.complete = leader.complete && !is_silent;
                it.unwritten = false;
                it.note = Some(if is_silent { stuck(leader) } else { KEPT.to_owned() });
            });
            self.answer();
            let next = Instant::now() + TURN_EVERY;
            tokio::select! {
                ask = self.asks.recv() => match ask {
                    None => return Err(Stopped::Unwanted),
                    Some(ask) => if let Some(why) = self.wait(ask) {
                        return Err(Stopped::Engine(EngineError::Away(why)));
                    }
                },
                () = sleep_until(next) => {}
            }
        }
    }
}

const KEPT: &str = "another server of this workspace keeps the index";

fn stuck(leader: Leader) -> String {
    let seconds = leader.silent.as_secs();
    let which = leader.process.map(|it| format!(" (process {it})")).unwrap_or_default();
    format!(
        "the server of this workspace that keeps the index{which} has not moved for {seconds} s: \
         what changed since is not found; end it, and this one takes over"
    )
}
