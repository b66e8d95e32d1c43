//! One frame, answered in this process as if it had come over HTTP.

use anyhow::bail;
use toolgate_contract::{Caller, Frame, Reply};
use toolgate_dialects::Reading;

use crate::offer::Served;
use crate::session::{Desk, Out, Session};

/// The answer of `served` to `frame`, in the dialect named so, for whoever runs this process: read
/// by the dialect, answered behind the gate, enveloped, as over a socket.
///
/// # Errors
/// When there is no such dialect, or the frame asks for more than one answer.
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
