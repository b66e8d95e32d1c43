//! Applies parsed frames of clients to their session, in the same way for every transport.

use std::sync::Arc;

use futures_util::future::join_all;
use toolgate_contract::{BoxFuture, Caller, Reply, ReplyBody};
use toolgate_dialects::{ChangeSubscription, JobWatchRequest, ParsedFrame, PendingHostRequest};

use crate::sessions::session::{CallAnswer, CallEventDestination, ClientSession};

/// The action that a transport must take for a client's frame.
#[allow(clippy::large_enum_variant, reason = "a call is the usual case and needs no allocation")]
pub(crate) enum FrameAction {
    /// Send the reply to the client.
    Reply(Reply),
    /// Send the replies to the client, in this order. Only frames of line-based transports have
    /// several replies.
    ReplyAll(Vec<Reply>),
    /// Send the reply, which opens the client's session.
    OpenSession(Reply),
    /// Send the reply, which closes the client's session.
    CloseSession(Reply),
    /// Start the calls that the frame requests, and send their answer.
    Run(FrameToolCalls),
    /// Send the stream of messages that the frame requests.
    Stream(RequestedMessageStream),
}

/// Calls that one frame of a client requests.
#[allow(clippy::large_enum_variant, reason = "a call is the usual case and needs no allocation")]
pub(crate) enum FrameToolCalls {
    /// A single call.
    Single(PendingHostRequest),
    /// Several messages of a JSON-RPC batch. Their replies are joined into one answer.
    Batch(Vec<ParsedFrame>),
}

/// A stream of messages that a client's message requests.
pub(crate) enum RequestedMessageStream {
    /// The client wants the events of a job.
    Job(JobWatchRequest),
    /// The client wants notifications about the changes to which the frame subscribes.
    Changes(ChangeSubscription),
    /// The client wants the session's notifications that follow the event with the id `after`, or
    /// only new ones if `after` is `None`.
    Notifications { after: Option<String> },
}

impl ClientSession {
    /// Applies a client's frame to the session. `reading` is the frame as its dialect parsed it.
    /// Returns the action that the transport must take.
    pub(crate) fn handle(&self, reading: ParsedFrame) -> FrameAction {
        match reading {
            ParsedFrame::Reply(reply) => FrameAction::Reply(self.redact_reply(reply)),
            ParsedFrame::Replies(replies) => {
                let redacted = replies.into_iter().map(|reply| self.redact_reply(reply));
                FrameAction::ReplyAll(redacted.collect())
            }
            ParsedFrame::StateChange { reply, .. } => FrameAction::Reply(reply),
            ParsedFrame::OpenSession(reply) => FrameAction::OpenSession(reply),
            ParsedFrame::CloseSession(reply) => FrameAction::CloseSession(reply),
            ParsedFrame::Cancel { key, reply } => {
                self.cancel(&key);
                FrameAction::Reply(reply)
            }
            ParsedFrame::Unwatch { uri, reply } => {
                self.unsubscribe(&uri);
                FrameAction::Reply(reply)
            }
            ParsedFrame::Response { id, heard: response, reply } => {
                self.receive_answer(&id, &response);
                FrameAction::Reply(reply)
            }
            ParsedFrame::Request(request) => FrameAction::Run(FrameToolCalls::Single(request)),
            ParsedFrame::Batch(readings) => FrameAction::Run(FrameToolCalls::Batch(readings)),
            ParsedFrame::Watch(job) => FrameAction::Stream(RequestedMessageStream::Job(job)),
            ParsedFrame::Subscribe(subscription) => {
                FrameAction::Stream(RequestedMessageStream::Changes(subscription))
            }
            ParsedFrame::OpenNotifications { after } => {
                FrameAction::Stream(RequestedMessageStream::Notifications { after })
            }
        }
    }

    /// Redacts known secrets in a reply that does not answer a call, because a dialect may repeat
    /// parts of a message that it refuses.
    fn redact_reply(&self, mut reply: Reply) -> Reply {
        if let ReplyBody::Json(message) = &reply.body
            && let Some(clean) = self.server.host.redact_message(message)
        {
            reply.body = ReplyBody::Json(clean.into());
        }
        reply
    }
}

impl FrameToolCalls {
    /// Starts the calls of the frame on behalf of `caller`. While they run, their events go to
    /// `out`.
    pub(crate) fn begin(
        self,
        session: &Arc<ClientSession>,
        out: &CallEventDestination,
        caller: &Caller,
    ) -> PendingFrameAnswer {
        match self {
            Self::Single(request) => match session.begin_call(request, out.clone(), caller) {
                Ok(call) => PendingFrameAnswer::Work(call.work),
                Err(refusal) => PendingFrameAnswer::Ready(refusal),
            },
            Self::Batch(readings) => {
                let begin = |reading| match session.handle(reading) {
                    FrameAction::Reply(reply)
                    | FrameAction::OpenSession(reply)
                    | FrameAction::CloseSession(reply) => PendingFrameAnswer::Ready(reply),
                    FrameAction::Run(calls) => calls.begin(session, out, caller),
                    // No dialect of ours streams, or answers several times, within a batch.
                    FrameAction::ReplyAll(_) | FrameAction::Stream(_) => {
                        PendingFrameAnswer::Ready(Reply::empty(202))
                    }
                };
                PendingFrameAnswer::Batch(readings.into_iter().map(begin).collect())
            }
        }
    }
}

/// The answer to a frame, which is either ready or still being computed.
pub(crate) enum PendingFrameAnswer {
    Ready(Reply),
    Work(BoxFuture<'static, CallAnswer>),
    Batch(Vec<PendingFrameAnswer>),
}

impl PendingFrameAnswer {
    /// Waits for all calls of the frame and returns the answer.
    pub(crate) async fn answer(self, session: &ClientSession) -> CallAnswer {
        match self {
            Self::Ready(reply) => CallAnswer { reply: Some(reply), followed_job: None },
            Self::Work(work) => work.await,
            Self::Batch(parts) => {
                let parts = parts.into_iter().map(|part| Box::pin(part.answer(session)));
                let replies = join_all(parts).await.into_iter().filter_map(|part| part.reply);
                CallAnswer {
                    reply: Some(session.join_replies(replies.collect())),
                    followed_job: None,
                }
            }
        }
    }
}
