//! Encodes answers and events of one Mira request.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde::Serialize;
use toolgate_contract::{CallError, CallEvent, HostAnswer, OutputStreamKind, Reply, ToolId};

use super::calls::MiraCallParams;
use super::listing::MiraToolListing;
use super::message::MiraRequestId;
use super::methods::method_name;
use super::refusals::{MiraErrorCode, MiraRequestError};
use super::results;
use crate::rpc::{notification, success};
use crate::tool_mentions::rename_tools;
use crate::{AnswerEncoder, MISMATCHED_ANSWER};

/// The encoder for the answer to one request of Mira's dialect.
pub(super) struct MiraEncoder {
    pub(super) id: MiraRequestId,
    pub(super) request: MiraRequest,
    /// The number of the next chunk of program output. `None` if chunks are not sent.
    chunks: Option<AtomicU64>,
}

/// The kind of a request in Mira's dialect.
pub(super) enum MiraRequest {
    List(Box<MiraToolListing>),
    Contracted(MiraCallParams),
    Tool {
        /// The name of the tool in Mira's dialect.
        name: String,
    },
    /// Request whose parameters are invalid.
    Invalid,
}

impl MiraRequest {
    /// Replaces names of tools in `text` with the names in Mira's dialect.
    pub(super) fn rename_tools(&self, text: &str) -> String {
        let called = match self {
            Self::Contracted(call) => Some(call.method().tool().to_owned()),
            Self::Tool { name } => Some(name.replace('/', ".")),
            Self::List(_) | Self::Invalid => None,
        };
        rename_tools(text, called.as_deref(), |id| ToolId::foreign(id).map(|id| method_name(&id)))
    }
}

/// A notification with a piece of a program's output, as Mira's contract defines it.
#[derive(Serialize)]
struct ProgramOutputChunk<'a> {
    /// The id of the request that runs the program.
    id: &'a MiraRequestId,
    stream: &'static str,
    chunk: &'a str,
    seq: u64,
}

impl MiraEncoder {
    pub(super) fn new(id: MiraRequestId, request: MiraRequest) -> Self {
        let streams =
            matches!(request, MiraRequest::Contracted(MiraCallParams::Run { stream: true }));
        Self { id, request, chunks: streams.then(AtomicU64::default) }
    }

    /// Returns the encoder without chunks of program output, for connections with one answer.
    pub(super) fn without_chunks(self) -> Self {
        Self { chunks: None, ..self }
    }
}

impl AnswerEncoder for MiraEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        let result = match (outcome, &self.request) {
            (Ok(HostAnswer::Tools(page)), MiraRequest::List(listing)) => Ok(listing.result(&page)),
            (Ok(HostAnswer::Output(output)), MiraRequest::Contracted(call)) => {
                results::contract_result(call, &output)
            }
            (Ok(HostAnswer::Output(output)), request @ MiraRequest::Tool { .. }) => {
                results::tool_result(request, &output)
            }
            (Err(error), request) => Err(MiraRequestError::from_error(&error, request)),
            (Ok(_), _) => Err(MiraRequestError::new(MiraErrorCode::Internal, MISMATCHED_ANSWER)),
        };
        Some(match result {
            Ok(result) => Reply::json(success(&self.id, &result)),
            Err(refusal) => refusal.reply(Some(&self.id)),
        })
    }

    fn encode_event(&self, event: &CallEvent) -> Option<Bytes> {
        let chunks = self.chunks.as_ref()?;
        let CallEvent::ProgramOutput { stream, text } = event else { return None };
        let stream = match stream {
            OutputStreamKind::Stdout => "stdout",
            OutputStreamKind::Stderr => "stderr",
        };
        // The number also grows for dropped chunks, so a slow client notices the gap.
        let seq = chunks.fetch_add(1, Ordering::Relaxed);
        Some(notification(
            "exec/stream",
            &ProgramOutputChunk { id: &self.id, stream, chunk: text, seq },
        ))
    }

    fn encodes_events(&self) -> bool {
        self.chunks.is_some()
    }
}
