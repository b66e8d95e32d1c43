//! Answers one frame in this process in the same way as over HTTP.

use anyhow::{Context, bail};
use toolgate_contract::{Caller, MessageFrame, Reply};

use crate::assembly::offer::PreparedServer;
use crate::sessions::frame_actions::FrameAction;
use crate::sessions::server_state::ServerState;
use crate::sessions::session::{CallEventDestination, ClientSession};

/// Returns the answer of the server `served` to `frame` in the dialect named `dialect`, for the
/// local caller.
///
/// The frame passes the same checks as a frame that a client sends over HTTP.
///
/// # Errors
/// The dialect is unknown, or the frame needs more than one answer.
pub async fn answer_once(
    served: &PreparedServer,
    dialect: &str,
    frame: MessageFrame,
) -> anyhow::Result<Reply> {
    let dialect = served.dialect(dialect)?;
    let state = ServerState::new(served.host.clone());
    let session = ClientSession::new(state, dialect, Caller::local());
    match session.handle(session.read(&frame)) {
        FrameAction::Reply(reply) => Ok(reply),
        FrameAction::Run(calls) => {
            let pending = calls.begin(&session, &CallEventDestination::Discard, &session.caller);
            pending.answer(&session).await.reply.context("the request was not answered")
        }
        FrameAction::ReplyAll(_)
        | FrameAction::OpenSession(_)
        | FrameAction::CloseSession(_)
        | FrameAction::Stream(_) => bail!("the request has more than one answer"),
    }
}
