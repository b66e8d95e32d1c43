//! What can be wrong with a Qdrant server, and how that is told.

use std::time::Duration;

use qdrant_client::QdrantError;

use super::super::EngineError;

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It took longer than this.
    Slow(Duration),
    /// The server or the connection failed.
    Qdrant(Box<QdrantError>),
    /// It cannot be used as it is, whoever asks: a sentence that goes on after its name.
    Unfit(String),
}

impl From<QdrantError> for Trouble {
    fn from(err: QdrantError) -> Self {
        Self::Qdrant(Box::new(err))
    }
}

/// How the client begins to tell that there is no connection, by the code that Qdrant has for its
/// own mistakes.
const NEVER_SPOKEN: [&str; 2] = ["Failed to connect", "h2 protocol error"];

/// What is said of `trouble` with the server `named`, whose API key is in the variable `key_env`.
pub(super) fn told(trouble: &Trouble, named: &str, key_env: &str) -> EngineError {
    let away = |why: String| EngineError::Away(format!("{named} {why}"));
    let err = match trouble {
        Trouble::Slow(within) => {
            return away(format!("did not answer within {} ms; try again", within.as_millis()));
        }
        Trouble::Unfit(why) => return away(why.clone()),
        Trouble::Qdrant(err) => &**err,
    };
    let status = match err {
        QdrantError::ResponseError { status }
        | QdrantError::ResourceExhaustedError { status, .. } => status,
        other => return EngineError::Failed(format!("{named} cannot be asked: {other}")),
    };
    let message = status.message().trim();
    let refused = || {
        away(format!(
            "does not let this server in; put an API key that may write there into the variable \
             {key_env}"
        ))
    };
    // https://grpc.github.io/grpc/core/md_doc_statuscodes.html
    match i32::from(status.code()) {
        5 => EngineError::Damaged(format!("the index at {named} is gone: {message}")),
        7 | 16 => refused(),
        // By the client, which goes on with the key.
        3 if message.starts_with("Malformed API key") => refused(),
        8 => away(format!("has too much to do: {message}; try again")),
        13 if NEVER_SPOKEN.iter().any(|it| message.starts_with(it)) => away(format!(
            "cannot be reached: {}; see whether it runs there and whether `url` names the port at \
             which it speaks gRPC, 6334 unless it is told another",
            unreachable(message)
        )),
        // Cancelled, unknown, out of time, aborted, unavailable: by the connection, not by Qdrant.
        1 | 2 | 4 | 10 | 14 => away(format!(
            "hung up: {message}; try again, and see whether `url` names the port at which it \
             speaks gRPC, 6334 unless it is told another"
        )),
        _ => EngineError::Failed(format!("{named} did not take it: {message}")),
    }
}

/// The reason in `debugged`, which is how the client tells that it could not connect: values as
/// Rust prints them to whoever debugs.
fn unreachable(debugged: &str) -> String {
    let between = |before: &str, after: char| {
        let (_, rest) = debugged.split_once(before)?;
        Some(rest.split(after).next()?.to_owned())
    };
    if let Some(said) = between("message: \"", '"').or_else(|| between("error: \"", '"')) {
        return said;
    }
    if let Some(why) = between("InvalidCertificate(", ')') {
        return format!("its certificate is not trusted ({why})");
    }
    if debugged.contains("Elapsed") || debugged.contains("deadline") {
        return "nothing answers".to_owned();
    }
    "what answers there does not speak gRPC, or hung up".to_owned()
}
