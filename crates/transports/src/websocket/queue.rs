//! Message queue that is bounded in number and bytes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

/// Queue with a single consumer, and a single waiting producer at a time.
#[derive(Debug)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    messages_max: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Inner {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    state: State,
    taker: Option<Waker>,
    giver: Option<Waker>,
}

/// State of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// More messages may arrive.
    Open,
    /// No more messages arrive. Queued ones may still be taken.
    Ended,
    /// The consumer was too slow, and all messages were dropped.
    Overflown {
        /// Number of dropped messages.
        waiting: usize,
    },
}

/// Reason why a message was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Ended,
}

impl Queue {
    /// Creates a queue with room while fewer than `messages_max` messages with fewer than
    /// `bytes_max` bytes wait.
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        let inner = Inner {
            waiting: VecDeque::new(),
            bytes: 0,
            state: State::Open,
            taker: None,
            giver: None,
        };
        Self { inner: Mutex::new(inner), messages_max, bytes_max }
    }

    /// Adds `message` if there is room.
    pub(super) fn offer(&self, message: Bytes) -> Result<(), Refused> {
        let mut inner = self.lock();
        if inner.state != State::Open {
            return Err(Refused::Ended);
        }
        if !self.has_room(&inner) {
            return Err(Refused::Full);
        }
        inner.bytes += message.len();
        inner.waiting.push_back(message);
        wake(inner.taker.take());
        Ok(())
    }

    /// Adds `message` as soon as there is room.
    pub(super) async fn push(&self, message: Bytes) -> Result<(), Refused> {
        loop {
            poll_fn(|cx| self.poll_room(cx)).await;
            match self.offer(message.clone()) {
                // A producer that did not wait took the room.
                Err(Refused::Full) => {}
                done => return done,
            }
        }
    }

    /// Completes when there is room, or the queue has ended.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if inner.state != State::Open || self.has_room(&inner) {
            return Poll::Ready(());
        }
        inner.giver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Takes the next message. Returns `None` when no more will come.
    pub(super) async fn pop(&self) -> Option<Bytes> {
        poll_fn(|cx| self.poll_pop(cx)).await
    }

    /// Polls for the next message, as [`pop`](Self::pop) does.
    pub(super) fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut inner = self.lock();
        if let Some(message) = inner.waiting.pop_front() {
            inner.bytes -= message.len();
            wake(inner.giver.take());
            return Poll::Ready(Some(message));
        }
        if inner.state != State::Open {
            return Poll::Ready(None);
        }
        inner.taker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns the state and registers the consumer's waker for its change.
    pub(super) fn watch(&self, cx: &mut Context<'_>) -> State {
        let mut inner = self.lock();
        inner.taker = Some(cx.waker().clone());
        inner.state
    }

    /// Accepts no more messages.
    pub(super) fn end(&self) {
        let mut inner = self.lock();
        if inner.state == State::Open {
            inner.become_now(State::Ended);
        }
    }

    /// Ends the queue because its consumer is too slow, and drops all messages.
    pub(super) fn overflow(&self) {
        let mut inner = self.lock();
        if inner.state == State::Open {
            let waiting = inner.clear();
            inner.become_now(State::Overflown { waiting });
        }
    }

    /// Ends the queue because nobody will consume it, and drops all messages.
    pub(super) fn abandon(&self) {
        self.end();
        self.lock().clear();
    }

    fn has_room(&self, inner: &Inner) -> bool {
        inner.waiting.len() < self.messages_max && inner.bytes < self.bytes_max
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Drops all messages and returns their number.
    fn clear(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.waiting).len()
    }

    fn become_now(&mut self, state: State) {
        self.state = state;
        wake(self.taker.take());
        wake(self.giver.take());
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
