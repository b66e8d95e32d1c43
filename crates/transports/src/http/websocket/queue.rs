//! Message queue that is bounded in number and bytes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use toolgate_contract::lock_mutex;

/// Queue of messages with a single consumer, and a single waiting producer at a time.
#[derive(Debug)]
pub(super) struct WebSocketMessageQueue {
    inner: Mutex<WebSocketMessageQueueState>,
    messages_max: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct WebSocketMessageQueueState {
    messages: VecDeque<Bytes>,
    bytes: usize,
    status: WebSocketMessageQueueStatus,
    consumer: Option<Waker>,
    producer: Option<Waker>,
}

/// State of a queue of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WebSocketMessageQueueStatus {
    /// The queue is open, so that more messages may arrive.
    Open,
    /// No more messages arrive in the queue. Queued messages may still be taken.
    Ended,
    /// The consumer was too slow, so all messages were dropped.
    Overflowed {
        /// Number of waiting messages that were dropped.
        waiting: usize,
    },
}

/// Reason why a queue did not accept a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueuePushRefusal {
    Full,
    Ended,
}

impl WebSocketMessageQueue {
    /// Creates a queue that accepts a message while it contains fewer than `messages_max` messages
    /// and fewer than `bytes_max` bytes.
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Self {
        let inner = WebSocketMessageQueueState {
            messages: VecDeque::new(),
            bytes: 0,
            status: WebSocketMessageQueueStatus::Open,
            consumer: None,
            producer: None,
        };
        Self { inner: Mutex::new(inner), messages_max, bytes_max }
    }

    /// Adds `message` to the queue without waiting. Returns the reason if the queue does not accept
    /// the message.
    pub(super) fn try_push(&self, message: Bytes) -> Result<(), QueuePushRefusal> {
        let mut inner = lock_mutex(&self.inner);
        if inner.status != WebSocketMessageQueueStatus::Open {
            return Err(QueuePushRefusal::Ended);
        }
        if !self.has_room(&inner) {
            return Err(QueuePushRefusal::Full);
        }
        inner.bytes += message.len();
        inner.messages.push_back(message);
        wake(inner.consumer.take());
        Ok(())
    }

    /// Adds `message` to the queue. Waits while the queue is full. Returns the reason if the queue
    /// no longer accepts messages.
    pub(super) async fn push(&self, message: Bytes) -> Result<(), QueuePushRefusal> {
        loop {
            poll_fn(|cx| self.poll_room(cx)).await;
            match self.try_push(message.clone()) {
                // A producer that did not wait took the room.
                Err(QueuePushRefusal::Full) => {}
                done => return done,
            }
        }
    }

    /// Completes when the queue is not full, or has ended.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = lock_mutex(&self.inner);
        if inner.status != WebSocketMessageQueueStatus::Open || self.has_room(&inner) {
            return Poll::Ready(());
        }
        inner.producer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits for the next message and removes it from the queue. Returns `None` if no more will
    /// follow.
    pub(super) async fn pop(&self) -> Option<Bytes> {
        poll_fn(|cx| self.poll_pop(cx)).await
    }

    /// Polls for the next message, which [`pop`](Self::pop) returns.
    pub(super) fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut inner = lock_mutex(&self.inner);
        if let Some(message) = inner.messages.pop_front() {
            inner.bytes -= message.len();
            wake(inner.producer.take());
            return Poll::Ready(Some(message));
        }
        if inner.status != WebSocketMessageQueueStatus::Open {
            return Poll::Ready(None);
        }
        inner.consumer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns the state of the queue and registers the consumer's waker for its change.
    pub(super) fn poll_status(&self, cx: &mut Context<'_>) -> WebSocketMessageQueueStatus {
        let mut inner = lock_mutex(&self.inner);
        inner.consumer = Some(cx.waker().clone());
        inner.status
    }

    /// Closes the queue for new messages. Queued messages can still be taken.
    pub(super) fn end(&self) {
        let mut inner = lock_mutex(&self.inner);
        if inner.status == WebSocketMessageQueueStatus::Open {
            inner.set_status(WebSocketMessageQueueStatus::Ended);
        }
    }

    /// Closes the queue because its consumer is too slow, and drops all queued messages.
    pub(super) fn overflow(&self) {
        let mut inner = lock_mutex(&self.inner);
        if inner.status == WebSocketMessageQueueStatus::Open {
            let waiting = inner.clear();
            inner.set_status(WebSocketMessageQueueStatus::Overflowed { waiting });
        }
    }

    /// Closes the queue because nobody will consume it, and drops all queued messages.
    pub(super) fn abandon(&self) {
        self.end();
        lock_mutex(&self.inner).clear();
    }

    fn has_room(&self, inner: &WebSocketMessageQueueState) -> bool {
        inner.messages.len() < self.messages_max && inner.bytes < self.bytes_max
    }
}

impl WebSocketMessageQueueState {
    /// Drops all messages in the queue and returns their number.
    fn clear(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.messages).len()
    }

    fn set_status(&mut self, state: WebSocketMessageQueueStatus) {
        self.status = state;
        wake(self.consumer.take());
        wake(self.producer.take());
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
