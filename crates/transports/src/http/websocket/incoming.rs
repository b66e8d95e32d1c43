//! Account of the memory of the messages that arrive from one WebSocket client.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::{Context, Poll};

use tokio_util::sync::WaitForCancellationFutureOwned;
use toolgate_budget::{
    InputMemoryBudget, InputMemoryFull, InputMemoryOwner, InputMemoryReservation, UNCOUNTED_BYTES,
};
use toolgate_contract::lock_mutex;

/// Account of the memory of a WebSocket client's messages: the message that is arriving, and the
/// messages that wait for the application.
#[derive(Debug)]
pub(super) struct IncomingMessageMemory {
    memory: InputMemoryBudget,
    owner: InputMemoryOwner,
    state: Mutex<IncomingMessageState>,
}

#[derive(Debug, Default)]
struct IncomingMessageState {
    /// Number of bytes of the connection that had been read when the last message was complete.
    complete_at: u64,
    /// Memory of the message that is arriving, and the number of its bytes that have been charged.
    arriving: Option<(InputMemoryReservation, u64)>,
    /// Memory reservations of the messages that wait for the application, oldest first. `None` for
    /// a small message.
    waiting: VecDeque<Option<InputMemoryReservation>>,
    /// Memory reservation of the message that the application handles. `None` for a small message.
    taken: Option<InputMemoryReservation>,
}

impl IncomingMessageMemory {
    pub(super) fn new(memory: InputMemoryBudget, owner: InputMemoryOwner) -> Self {
        Self { memory, owner, state: Mutex::default() }
    }

    /// Charges memory for the message that is arriving. `bytes_read` is the number of bytes that
    /// were read from the connection so far.
    ///
    /// # Errors
    /// There is no memory for the message.
    pub(super) fn count_arriving(&self, bytes_read: u64) -> Result<(), InputMemoryFull> {
        let mut state = lock_mutex(&self.state);
        let bytes = bytes_read - state.complete_at;
        let counted = bytes.saturating_sub(UNCOUNTED_BYTES as u64);
        if counted == 0 {
            return Ok(());
        }
        let open = || (self.memory.open_share(self.owner.clone()), 0);
        let (share, before) = state.arriving.get_or_insert_with(open);
        if share.is_evicted() {
            return Err(InputMemoryFull);
        }
        let more = usize::try_from(counted - *before).unwrap_or(usize::MAX);
        *before = counted;
        if more > 0 { share.grow_at_once(more) } else { Ok(()) }
    }

    /// Records that a message of the client is complete and waits for the application. `bytes_read`
    /// is the number of bytes that were read from the connection so far.
    ///
    /// # Errors
    /// There is no memory for the message.
    pub(super) fn note_complete(&self, bytes_read: u64) -> Result<(), InputMemoryFull> {
        let mut state = lock_mutex(&self.state);
        state.complete_at = bytes_read;
        let share = state.arriving.take().map(|(share, _)| share);
        share.as_ref().map_or(Ok(()), InputMemoryReservation::mark_complete)?;
        state.waiting.push_back(share);
        Ok(())
    }

    /// Records that only control frames (such as pings) were read. They take no memory.
    pub(super) fn note_control(&self, bytes_read: u64) {
        let mut state = lock_mutex(&self.state);
        if state.arriving.is_none() {
            state.complete_at = bytes_read;
        }
    }

    /// Records that the application took the oldest waiting message.
    pub(super) fn note_taken(&self) {
        let mut state = lock_mutex(&self.state);
        state.taken = state.waiting.pop_front().flatten();
    }

    /// Removes and returns the memory reservation of the message that the application took, after
    /// charging `more` bytes for the message.
    ///
    /// # Errors
    /// There is no memory for these bytes.
    pub(super) fn take_counted(
        &self,
        more: usize,
    ) -> Result<Option<InputMemoryReservation>, InputMemoryFull> {
        let taken = lock_mutex(&self.state).taken.take();
        if more == 0 {
            return Ok(taken);
        }
        let share = match taken {
            Some(share) => share,
            None => {
                let share = self.memory.open_share(self.owner.clone());
                share.mark_complete()?;
                share
            }
        };
        share.grow_at_once(more)?;
        Ok(Some(share))
    }

    /// Frees the memory of the message that the application took.
    pub(super) fn release_taken(&self) {
        lock_mutex(&self.state).taken = None;
    }

    /// Completes when the message that is arriving must be dropped, because other messages need its
    /// memory.
    pub(super) fn poll_evicted(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Option<std::pin::Pin<Box<WaitForCancellationFutureOwned>>>,
    ) -> Poll<()> {
        let state = lock_mutex(&self.state);
        let Some((share, _)) = &state.arriving else {
            *waiting = None;
            return Poll::Pending;
        };
        let pending = waiting.get_or_insert_with(|| Box::pin(share.evicted_owned()));
        pending.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn messages_in_flight_share_the_memory_of_their_owner() {
        let owner = InputMemoryOwner::Address(IpAddr::from([127, 0, 0, 1]));
        let incoming = IncomingMessageMemory::new(InputMemoryBudget::new(1 << 20), owner);
        // One owner may take the memory of six messages.
        let first = incoming.take_counted(6 << 20).expect("there is room");
        assert!(incoming.take_counted(1).is_err());
        assert!(incoming.take_counted(0).is_ok_and(|share| share.is_none()));
        drop(first);
        assert!(incoming.take_counted(6 << 20).is_ok());
    }
}
