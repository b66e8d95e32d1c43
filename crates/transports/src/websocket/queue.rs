//! Messages that wait, bounded in number and in bytes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

/// A queue with one who takes and, of those who wait for room, one at a time.
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

/// Whether messages still come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// They do.
    Open,
    /// No more do; those that wait may be taken.
    Ended,
    /// So many waited that all were thrown away.
    Overflown {
        /// How many.
        waiting: usize,
    },
}

/// Why a message was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Ended,
}

impl Queue {
    /// Takes messages in while fewer than `messages_max` wait, of fewer than `bytes_max` bytes.
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

    /// Takes `message` in if there is room.
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

    /// Takes `message` in as soon as there is room.
    pub(super) async fn push(&self, message: Bytes) -> Result<(), Refused> {
        loop {
            poll_fn(|cx| self.poll_room(cx)).await;
            match self.offer(message.clone()) {
                // Somebody who did not wait was faster.
                Err(Refused::Full) => {}
                done => return done,
            }
        }
    }

    /// Ready when a message would be taken in, or none ever will.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if inner.state != State::Open || self.has_room(&inner) {
            return Poll::Ready(());
        }
        inner.giver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next message, when there is one; `None` when none will come.
    pub(super) async fn pop(&self) -> Option<Bytes> {
        poll_fn(|cx| self.poll_pop(cx)).await
    }

    /// The same, polled.
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

    /// Whether messages still come; who asks is woken when that changes.
    pub(super) fn watch(&self, cx: &mut Context<'_>) -> State {
        let mut inner = self.lock();
        inner.taker = Some(cx.waker().clone());
        inner.state
    }

    /// Takes nothing more in.
    pub(super) fn end(&self) {
        let mut inner = self.lock();
        if inner.state == State::Open {
            inner.become_now(State::Ended);
        }
    }

    /// Takes nothing more in, and throws away what waits because that is too much.
    pub(super) fn overflow(&self) {
        let mut inner = self.lock();
        if inner.state == State::Open {
            let waiting = inner.clear();
            inner.become_now(State::Overflown { waiting });
        }
    }

    /// Takes nothing more in, and throws away what waits because nobody will take it.
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
    /// Throws away what waits, and says how much that was.
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
