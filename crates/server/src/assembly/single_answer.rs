//! Answers one frame in this process as if it had come over HTTP.

use anyhow::bail;
use toolgate_contract::{Caller, MessageFrame, Reply};
use toolgate_dialects::FrameReading;

use crate::assembly::offer::PreparedServer;
use crate::sessions::session::{ClientSession, OutboundChannel, ServerState};

/// Returns the answer of `served` to `frame` in the dialect named `dialect`, for the local caller.
///
/// The frame passes the dialect, the gate and the envelope, as it would over a socket.
///
/// # Errors
/// When the dialect is unknown, or the frame needs more than one answer.
pub async fn answer_once(
    served: &PreparedServer,
    dialect: &str,
    frame: MessageFrame,
) -> anyhow::Result<Reply> {
    let dialect = served.dialect(dialect)?;
    let state = ServerState::new(served.host.clone());
    let session = ClientSession::new(state, dialect, Caller::local());
    match session.read(&frame) {
        FrameReading::Reply(reply) => Ok(reply),
        FrameReading::Request(ask) => {
            match session.begin_call(ask, OutboundChannel::Discard, &session.caller) {
                Ok(begun) => match begun.work.await.reply {
                    Some(reply) => Ok(reply),
                    None => bail!("the request was not answered"),
                },
                Err(refusal) => Ok(refusal),
            }
        }
        _ => bail!("the request has more than one answer"),
    }
}
