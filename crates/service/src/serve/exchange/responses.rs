//! Makes the HTTP responses to calls and to requests for streams.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::poll_fn;
use tokio::sync::mpsc;
use tokio::task::JoinError;
use toolgate_contract::Reply;
use toolgate_dialects::AcceptedResponseMode;
use toolgate_transports::http::{OutgoingResponse, ServerSentEvent};

use super::EVENTS_WAITING_MAX;
use super::call_event_stream::{CallEventStream, StreamedCallState, json_body};
use crate::sessions::session::{CallAnswer, ClientSession, EventStreamItem};
use crate::sessions::streams::notification_event;

/// Returns the response to a finished call: one message, or an event stream if it has sent events.
pub(super) fn finished_response(
    session: &ClientSession,
    reply: Option<Reply>,
    mut events: mpsc::Receiver<EventStreamItem>,
    answer_form: AcceptedResponseMode,
) -> OutgoingResponse {
    match (events.try_recv(), reply) {
        (Err(_), Some(reply)) => OutgoingResponse::Single(reply),
        (_, reply) if answer_form == AcceptedResponseMode::Message => {
            OutgoingResponse::Single(reply_or_accepted(reply))
        }
        // The client cancelled the call, so a waiting request gets a stream that just ends.
        (first, reply) => {
            let first = first.ok();
            let state = StreamedCallState::Finished(reply.and_then(json_body));
            match answer_form {
                AcceptedResponseMode::Resumable => {
                    resumable_response(session, first, events, state)
                }
                AcceptedResponseMode::Message | AcceptedResponseMode::Stream => {
                    stream_response(CallEventStream { first, events, state, _presence: None })
                }
            }
        }
    }
}

/// Time for which notifications are kept for an MCP client that has disconnected.
const NOTIFICATION_GRACE: Duration = Duration::from_secs(60);

/// Returns a resumable stream of a call's events and answer. A disconnect does not end the call.
pub(super) fn resumable_response(
    session: &ClientSession,
    first: Option<EventStreamItem>,
    events: mpsc::Receiver<EventStreamItem>,
    state: StreamedCallState,
) -> OutgoingResponse {
    let log = session.streams.open();
    let events_read = log.read_after(0);
    toolgate_net::spawn_task(async move {
        let mut stream = CallEventStream { first, events, state, _presence: None };
        while let Some(item) = std::future::poll_fn(|cx| stream.poll_item(cx)).await {
            match item {
                EventStreamItem::Message(message) => log.push(message),
                EventStreamItem::Disconnect => log.disconnect_reader(),
            }
        }
        log.end();
    });
    OutgoingResponse::AnswerStream(events_read)
}

/// Returns the session's stream of notifications. If `after` is an event id, returns the rest of
/// the stream that contains this event, starting after the event.
pub(super) fn notification_response(
    session: &Arc<ClientSession>,
    after: Option<&str>,
) -> OutgoingResponse {
    let after = match after {
        None => None,
        Some(id) => match (notification_event(id), session.streams.find_event(id)) {
            (Some(event), _) => Some(event),
            (None, Some((log, event))) => {
                return OutgoingResponse::LongStream(log.read_after(event));
            }
            (None, None) => return OutgoingResponse::Single(session.dialect.unknown_event(id)),
        },
    };
    let (log, is_new) = session.streams.notifications();
    // A client without a last event id gets only new events.
    let last = log.last();
    let events = log.read_after(after.map_or(last, |after| after.min(last)));
    if is_new {
        let (out, mut messages) = mpsc::channel(EVENTS_WAITING_MAX);
        session.send_notifications(out);
        toolgate_net::spawn_task(async move {
            let logging = async {
                while let Some(message) = messages.recv().await {
                    log.push(message);
                }
            };
            tokio::select! {
                () = logging => {}
                () = log.wait_unread_for(NOTIFICATION_GRACE) => {}
            }
            log.end();
        });
    }
    OutgoingResponse::LongStream(events)
}

/// Returns an event stream that converts each of `messages` to an event with `to_event`.
pub(super) fn event_feed(
    mut messages: mpsc::Receiver<Bytes>,
    to_event: fn(Bytes) -> ServerSentEvent,
) -> OutgoingResponse {
    OutgoingResponse::LongStream(Box::pin(poll_fn(move |cx| {
        messages.poll_recv(cx).map(|next| next.map(to_event))
    })))
}

pub(super) fn batch_reply(answer: Result<CallAnswer, JoinError>) -> Reply {
    reply_or_accepted(answer.ok().and_then(|answer| answer.reply))
}

pub(super) fn stream_response(stream: CallEventStream) -> OutgoingResponse {
    OutgoingResponse::AnswerStream(Box::pin(stream))
}

/// Returns `reply`, or an empty reply with status 202 for `None`: the client cancelled the call.
pub(super) fn reply_or_accepted(reply: Option<Reply>) -> Reply {
    reply.unwrap_or_else(|| Reply::empty(202))
}
