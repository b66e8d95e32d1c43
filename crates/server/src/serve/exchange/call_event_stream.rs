//! Stream of server-sent events for one call.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use toolgate_transports::http::ServerSentEvent;

use super::json_body;
use crate::sessions::client::PresenceGuard;
use crate::sessions::session::{CallAnswer, StreamItem};

/// Stream of a call's events, followed by its answer.
pub(super) struct CallEventStream {
    pub(super) first: Option<StreamItem>,
    pub(super) events: mpsc::Receiver<StreamItem>,
    pub(super) state: WorkState,
    pub(super) _presence: Option<PresenceGuard>,
}

/// Work of a call whose events are streamed: running or finished.
pub(super) enum WorkState {
    /// Task that still runs the call's work.
    Running(JoinHandle<Option<CallAnswer>>),
    /// Finished work with its answer. Earlier events may still be queued.
    Finished(Option<Bytes>),
}

impl CallEventStream {
    pub(super) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<StreamItem>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let WorkState::Running(work) = &mut self.state
            && let Poll::Ready(answer) = Pin::new(work).poll(cx)
        {
            let answer = answer.ok().flatten().and_then(|answer| answer.reply);
            self.state = WorkState::Finished(answer.and_then(json_body));
        }
        match (self.events.poll_recv(cx), &mut self.state) {
            (Poll::Ready(Some(event)), _) => Poll::Ready(Some(event)),
            (Poll::Ready(None) | Poll::Pending, WorkState::Finished(answer)) => {
                Poll::Ready(answer.take().map(StreamItem::Message))
            }
            (Poll::Ready(None) | Poll::Pending, WorkState::Running(_)) => Poll::Pending,
        }
    }
}

impl Stream for CallEventStream {
    type Item = ServerSentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ServerSentEvent>> {
        loop {
            match std::task::ready!(self.poll_item(cx)) {
                Some(StreamItem::Message(message)) => {
                    return Poll::Ready(Some(ServerSentEvent::message(message)));
                }
                // This stream cannot be resumed, so its connection stays open.
                Some(StreamItem::Disconnect) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}
