//! Errors of a PostgreSQL server, and their messages.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::super::EngineError;

/// The reason why a database operation failed.
#[derive(Debug)]
pub(super) enum PostgresError {
    /// No connection could be made.
    Unreachable(String),
    /// The operation exceeded this time limit.
    TimedOut(Duration),
    /// The server or the connection failed.
    Postgres(Error),
    /// The server cannot be used as it is. The message continues after its name.
    Unusable(String),
    /// The request cannot be fulfilled.
    Rejected(String),
}

impl From<Error> for PostgresError {
    fn from(err: Error) -> Self {
        Self::Postgres(err)
    }
}

impl PostgresError {
    /// Returns true if the connection can be used again.
    pub(super) fn keeps_connection(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) => false,
            Self::Unusable(_) | Self::Rejected(_) => true,
            Self::Postgres(err) => err.as_db_error().is_some() && !err.is_closed(),
        }
    }

    /// Returns why the server rejected the data, if other data may be accepted.
    pub(super) fn data_rejection(&self) -> Option<String> {
        let Self::Postgres(err) = self else { return None };
        let said = err.as_db_error()?;
        let code = said.code().code();
        // Invalid data, an exceeded limit, or an internal error.
        let is_of_data = code.starts_with("22") || code.starts_with("54") || code == "XX000";
        is_of_data.then(|| format!("{} ({code})", said.message()))
    }
}

/// Converts `trouble` with the server `named`, to which `user` logs in, to an error for callers.
pub(super) fn to_engine_error(
    trouble: &PostgresError,
    named: &str,
    user: &str,
    password_env: &str,
) -> EngineError {
    let away = |why: String| EngineError::Unavailable(format!("{named} {why}"));
    match trouble {
        PostgresError::Unreachable(why) => away(format!("cannot be reached: {why}")),
        PostgresError::TimedOut(within) => {
            away(format!("did not answer within {} ms; try again", within.as_millis()))
        }
        PostgresError::Unusable(why) => away(why.clone()),
        PostgresError::Rejected(why) => EngineError::Failed(why.clone()),
        PostgresError::Postgres(err) => match err.as_db_error() {
            Some(said) => code_error(said.code(), said.message(), named, user, password_env),
            None => away(connection_message(err, password_env)),
        },
    }
}

fn connection_message(err: &Error, password_env: &str) -> String {
    let why = err.source().map_or_else(|| err.to_string(), ToString::to_string);
    if why == "password missing" {
        return format!("wants a password; put it into the variable {password_env}");
    }
    if err.is_closed() || why.contains("end of file") || why.contains("unexpected EOF") {
        return "hung up; try again".to_owned();
    }
    format!("cannot be spoken with: {why}")
}

fn code_error(
    code: &SqlState,
    message: &str,
    named: &str,
    user: &str,
    password_env: &str,
) -> EngineError {
    let away = |why: String| EngineError::Unavailable(format!("{named} {why}"));
    // https://www.postgresql.org/docs/current/errcodes-appendix.html
    match code.code() {
        "28P01" | "28000" => away(format!(
            "does not let `{user}` in; see the user in its URL and the password in the variable \
             {password_env}"
        )),
        "3D000" => away("has no such database; create it, or name another".to_owned()),
        "53300" => away("has no connection free; try again, or let it have more".to_owned()),
        "57014" => away("took too long over it; try again".to_owned()),
        "55P03" | "40001" | "40P01" => {
            away("is being changed by somebody else at the moment; try again".to_owned())
        }
        "42501" => away(format!(
            "does not let `{user}` do what is needed: {message}; let it create a schema in that \
             database"
        )),
        // A table, a column or a schema is missing.
        "42P01" | "42703" | "3F000" => {
            EngineError::Damaged(format!("the index in {named} is not whole: {message}"))
        }
        // Corrupted data or a corrupted index. Other `XX…` errors are internal errors about one
        // input.
        "XX001" | "XX002" => {
            EngineError::Damaged(format!("the index in {named} is broken: {message}"))
        }
        // The server is stopping, starting, or out of disk or memory.
        code if ["57", "08", "53", "58"].iter().any(|class| code.starts_with(class)) => {
            away(format!("cannot do it now: {message}"))
        }
        _ => EngineError::Failed(format!("{named} did not take it: {message} ({})", code.code())),
    }
}
