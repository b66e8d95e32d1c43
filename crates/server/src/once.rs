//! Answers one frame in this process as if it had come over HTTP.

use anyhow::bail;
use toolgate_contract::{Caller, Frame, Reply};
use toolgate_dialects::Reading;

use crate::offer::Served;
use crate::session::{Desk, Out, Session};

/// Returns the answer of `served` to `frame` in the dialect named `dialect`, for the local caller.
///
/// The frame passes the dialect, the gate and the envelope, as it would over a socket.
///
/// # Errors
/// When the dialect is unknown, or the frame needs more than one answer.
pub async fn answer_once(served: &Served, dialect: &str, frame: Frame) -> anyhow::Result<Reply> {
    let dialect = served.dialect(dialect)?;
    let desk = Desk::new(served.host.clone());
    let session = Session::new(desk, dialect, Caller::local());
    match session.read(&frame) {
        Reading::Reply(reply) => Ok(reply),
        Reading::Ask(ask) => match session.begin(ask, Out::Nowhere, &session.caller) {
            Ok(begun) => match begun.work.await.reply {
                Some(reply) => Ok(reply),
                None => bail!("the request was not answered"),
            },
            Err(refusal) => Ok(refusal),
        },
        _ => bail!("the request has more than one answer"),
    }
}
