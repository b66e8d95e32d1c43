//! Errors of a PostgreSQL server, and their messages.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The reason why a database operation failed.
#[derive(Debug)]
pub enum PostgresError {
    /// No connection to the database could be opened, for this reason.
    Unreachable(String),
    /// The database operation exceeded this time limit.
    TimedOut(Duration),
    /// The database server, or the connection to it, reported this error.
    Postgres(Error),
    /// The database server cannot be used in its current state. The message continues a sentence
    /// after the server's name.
    Unusable(String),
    /// The database cannot fulfill the request, for this reason.
    Rejected(String),
}

impl From<Error> for PostgresError {
    fn from(err: Error) -> Self {
        Self::Postgres(err)
    }
}

impl PostgresError {
    /// Returns true if the connection can be used again after this error.
    pub fn keeps_connection(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) => false,
            Self::Unusable(_) | Self::Rejected(_) => true,
            Self::Postgres(err) => err.as_db_error().is_some_and(|it| !is_fatal(it)),
        }
    }

    /// Returns true if the server may have committed the operation's changes although the operation
    /// failed.
    pub fn has_unknown_outcome(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unusable(_) | Self::Rejected(_) => false,
            Self::TimedOut(_) => true,
            Self::Postgres(err) => err.as_db_error().is_none(),
        }
    }

    /// Returns the server's message if it rejected the data of the operation (invalid, too large,
    /// or the cause of an internal error). Returns `None` for any other error.
    pub fn data_rejection(&self) -> Option<String> {
        let Self::Postgres(err) = self else { return None };
        let db_error = err.as_db_error()?;
        let code = db_error.code().code();
        // Invalid data, an exceeded limit, or an internal error.
        let is_about_data = code.starts_with("22") || code.starts_with("54") || code == "XX000";
        is_about_data.then(|| format!("{} ({code})", db_error.message()))
    }
}

/// Returns true if the server closes the connection after this error.
fn is_fatal(error: &DbError) -> bool {
    matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

/// A failed database operation, with a message for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostgresFailure {
    /// The database server is unavailable now, but may be available later.
    Unavailable(String),
    /// A table, a column or a schema is missing in the database.
    Incomplete {
        /// The name of the database server.
        server: String,
        /// A sentence that names the missing table, column or schema.
        reason: String,
    },
    /// Data in the database is damaged.
    Damaged {
        /// The name of the database server.
        server: String,
        /// A sentence that names the damaged data.
        reason: String,
    },
    /// The database operation failed for any other reason.
    Failed(String),
}

impl fmt::Display for PostgresFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(message) | Self::Failed(message) => f.write_str(message),
            Self::Incomplete { server, reason } => {
                write!(f, "{server} lacks a part of the schema: {reason}")
            }
            Self::Damaged { server, reason } => write!(f, "{server} has damaged data: {reason}"),
        }
    }
}

impl std::error::Error for PostgresFailure {}

/// Converts the error `err` of the database server `server`, to which `user` logs in, to a failure
/// with a message. `password_env` is the environment variable that contains the password.
pub(crate) fn to_failure(
    err: &PostgresError,
    server: &str,
    user: &str,
    password_env: &str,
) -> PostgresFailure {
    let unavailable = |why: String| PostgresFailure::Unavailable(format!("{server} {why}"));
    match err {
        PostgresError::Unreachable(why) => unavailable(format!("is unreachable: {why}")),
        PostgresError::TimedOut(within) => {
            unavailable(format!("did not answer within {} ms; try again", within.as_millis()))
        }
        PostgresError::Unusable(why) => unavailable(why.clone()),
        PostgresError::Rejected(why) => PostgresFailure::Failed(why.clone()),
        PostgresError::Postgres(err) => match err.as_db_error() {
            Some(error) => code_failure(error.code(), error.message(), server, user, password_env),
            None => unavailable(connection_message(err, password_env)),
        },
    }
}

fn connection_message(err: &Error, password_env: &str) -> String {
    let why = err.source().map_or_else(|| err.to_string(), ToString::to_string);
    if why == "password missing" {
        return format!("requires a password; put it into the environment variable {password_env}");
    }
    if err.is_closed() || why.contains("end of file") || why.contains("unexpected EOF") {
        return "closed the connection; try again".to_owned();
    }
    format!("does not accept the connection: {why}")
}

fn code_failure(
    code: &SqlState,
    message: &str,
    server: &str,
    user: &str,
    password_env: &str,
) -> PostgresFailure {
    let unavailable = |why: String| PostgresFailure::Unavailable(format!("{server} {why}"));
    let server_name = server.to_owned();
    let reason = message.to_owned();
    // https://www.postgresql.org/docs/current/errcodes-appendix.html
    match code.code() {
        "28P01" | "28000" => unavailable(format!(
            "rejects the login of `{user}`; check the user in its URL and the password in the \
             environment variable {password_env}"
        )),
        "3D000" => unavailable("has no such database; create it, or set another one".to_owned()),
        "53300" => unavailable("has no free connection; try again, or raise its limit".to_owned()),
        "57014" => unavailable("took too long; try again".to_owned()),
        "25P03" => {
            unavailable("ended a transaction that waited for too long; try again".to_owned())
        }
        "55P03" | "40001" | "40P01" => {
            unavailable("is being changed by another process; try again".to_owned())
        }
        "25006" => unavailable(
            "accepts no writes, because it is a standby; use the address of the primary server, \
             or list all servers and add `target_session_attrs=read-write` to the URL"
                .to_owned(),
        ),
        "42501" => unavailable(format!(
            "denies `{user}` a required permission: {message}; allow the user to create a schema \
             in that database"
        )),
        "42P01" | "42703" | "3F000" => PostgresFailure::Incomplete { server: server_name, reason },
        // Corrupted data or a corrupted index. Other `XX…` errors are internal errors about one
        // input.
        "XX001" | "XX002" => PostgresFailure::Damaged { server: server_name, reason },
        // The server is stopping, starting, or out of disk or memory.
        code if ["57", "08", "53", "58"].iter().any(|class| code.starts_with(class)) => {
            unavailable(format!("is unavailable now: {message}"))
        }
        code => {
            PostgresFailure::Failed(format!("{server} rejected the request: {message} ({code})"))
        }
    }
}
