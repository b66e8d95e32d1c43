//! Stream of server-sent events for one call.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use toolgate_contract::{Reply, ReplyBody};
use toolgate_transports::http::ServerSentEvent;

use crate::sessions::client::ClientPresenceGuard;
use crate::sessions::session::{CallAnswer, EventStreamItem};

/// Stream of the events of one call, which ends with the answer to the call.
pub(super) struct CallEventStream {
    pub(super) first: Option<EventStreamItem>,
    pub(super) events: mpsc::Receiver<EventStreamItem>,
    pub(super) state: StreamedCallState,
    pub(super) _presence: Option<ClientPresenceGuard>,
}

/// State of a call whose events are streamed to the client.
pub(super) enum StreamedCallState {
    /// The call is still running in this task.
    Running(JoinHandle<Option<CallAnswer>>),
    /// The call has finished with this answer. Earlier events may still be queued.
    Finished(Option<Bytes>),
}

impl CallEventStream {
    pub(super) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<EventStreamItem>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let StreamedCallState::Running(work) = &mut self.state
            && let Poll::Ready(answer) = Pin::new(work).poll(cx)
        {
            let answer = answer.ok().flatten().and_then(|answer| answer.reply);
            self.state = StreamedCallState::Finished(answer.and_then(json_body));
        }
        match (self.events.poll_recv(cx), &mut self.state) {
            (Poll::Ready(Some(event)), _) => Poll::Ready(Some(event)),
            (Poll::Ready(None) | Poll::Pending, StreamedCallState::Finished(answer)) => {
                Poll::Ready(answer.take().map(EventStreamItem::Message))
            }
            (Poll::Ready(None) | Poll::Pending, StreamedCallState::Running(_)) => Poll::Pending,
        }
    }
}

impl Stream for CallEventStream {
    type Item = ServerSentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ServerSentEvent>> {
        loop {
            match std::task::ready!(self.poll_item(cx)) {
                Some(EventStreamItem::Message(message)) => {
                    return Poll::Ready(Some(ServerSentEvent::message(message)));
                }
                // This stream cannot be resumed, so its connection stays open.
                Some(EventStreamItem::Disconnect) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Returns the JSON body of `reply`, or `None` if the body is empty or a file.
pub(super) fn json_body(reply: Reply) -> Option<Bytes> {
    match reply.body {
        ReplyBody::Json(bytes) => Some(bytes),
        ReplyBody::Empty | ReplyBody::File(_) => None,
    }
}
