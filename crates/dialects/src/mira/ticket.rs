//! Answers and events of one Mira request.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde::Serialize;
use toolgate_contract::{Answer, CallError, Event, Reply, Stream};

use super::calls::Called;
use super::listing::Listing;
use super::message::{Id, success};
use super::refusals::{Code, Refusal};
use super::results;
use crate::Ticket;
use crate::rpc::notification;

/// The data needed to answer one request.
pub(super) struct CallTicket {
    pub(super) id: Id,
    pub(super) asked: Asked,
    /// The number of the next output chunk; `None` if chunks are not sent.
    chunks: Option<AtomicU64>,
}

/// The kind of a request.
pub(super) enum Asked {
    List(Box<Listing>),
    Contracted(Called),
    Tool {
        /// The tool's name in this dialect.
        name: String,
    },
    /// A request with invalid parameters.
    Misshapen,
}

/// A piece of a program's output.
#[derive(Serialize)]
struct Chunk<'a> {
    /// The id of the request.
    id: &'a Id,
    stream: &'static str,
    chunk: &'a str,
    seq: u64,
}

impl CallTicket {
    pub(super) fn new(id: Id, asked: Asked) -> Self {
        let streams = matches!(asked, Asked::Contracted(Called::Run { stream: true }));
        Self { id, asked, chunks: streams.then(AtomicU64::default) }
    }

    /// Returns the encoder without output chunks, for connections with one answer.
    pub(super) fn without_chunks(self) -> Self {
        Self { chunks: None, ..self }
    }
}

impl Ticket for CallTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        let result = match (outcome, &self.asked) {
            (Ok(Answer::Tools(page)), Asked::List(listing)) => Ok(listing.result(&page)),
            (Ok(Answer::Output(output)), Asked::Contracted(called)) => {
                results::contracted(called, &output)
            }
            (Ok(Answer::Output(output)), Asked::Tool { .. }) => results::any(&output),
            (Err(error), asked) => Err(Refusal::of(&error, asked)),
            (Ok(_), _) => Err(Refusal::new(Code::Internal, "that was not asked for")),
        };
        Some(match result {
            Ok(result) => Reply::json(success(&self.id, &result)),
            Err(refusal) => refusal.reply(Some(&self.id)),
        })
    }

    fn event(&self, event: &Event) -> Option<Bytes> {
        let chunks = self.chunks.as_ref()?;
        let Event::Chunk { stream, text } = event else { return None };
        let stream = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        // The number also grows for dropped chunks, so a slow client notices the gap.
        let seq = chunks.fetch_add(1, Ordering::Relaxed);
        Some(notification("exec/stream", &Chunk { id: &self.id, stream, chunk: text, seq }))
    }

    fn listens(&self) -> bool {
        self.chunks.is_some()
    }
}
