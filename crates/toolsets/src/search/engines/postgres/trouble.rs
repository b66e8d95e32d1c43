//! What can be wrong with a PostgreSQL server, and how that is told.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::super::EngineError;

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// There is no connection: why.
    Unreachable(String),
    /// It took longer than this.
    Slow(Duration),
    /// The server or the connection failed.
    Postgres(Error),
    /// It cannot be used as it is, whoever asks: a sentence that goes on after its name.
    Unfit(String),
    /// What was asked for cannot be done.
    Refused(String),
}

impl From<Error> for Trouble {
    fn from(err: Error) -> Self {
        Self::Postgres(err)
    }
}

impl Trouble {
    /// Whether the connection on which it came can go on being used.
    pub(super) fn leaves_it_good(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Slow(_) => false,
            Self::Unfit(_) | Self::Refused(_) => true,
            Self::Postgres(err) => err.as_db_error().is_some() && !err.is_closed(),
        }
    }

    /// Why the server refused what it was given, where the same with other documents may do.
    pub(super) fn refusal(&self) -> Option<String> {
        let Self::Postgres(err) = self else { return None };
        let said = err.as_db_error()?;
        let code = said.code().code();
        // Data that it does not take, a limit of its own, and what it did not foresee.
        let is_of_data = code.starts_with("22") || code.starts_with("54") || code == "XX000";
        is_of_data.then(|| format!("{} ({code})", said.message()))
    }
}

/// What is said of `trouble` with the server `named`, which `user` logs in to.
pub(super) fn told(trouble: &Trouble, named: &str, user: &str, password_env: &str) -> EngineError {
    let away = |why: String| EngineError::Away(format!("{named} {why}"));
    match trouble {
        Trouble::Unreachable(why) => away(format!("cannot be reached: {why}")),
        Trouble::Slow(within) => {
            away(format!("did not answer within {} ms; try again", within.as_millis()))
        }
        Trouble::Unfit(why) => away(why.clone()),
        Trouble::Refused(why) => EngineError::Failed(why.clone()),
        Trouble::Postgres(err) => match err.as_db_error() {
            Some(said) => by_code(said.code(), said.message(), named, user, password_env),
            None => away(by_connection(err, password_env)),
        },
    }
}

fn by_connection(err: &Error, password_env: &str) -> String {
    let why = err.source().map_or_else(|| err.to_string(), ToString::to_string);
    if why == "password missing" {
        return format!("wants a password; put it into the variable {password_env}");
    }
    if err.is_closed() || why.contains("end of file") || why.contains("unexpected EOF") {
        return "hung up; try again".to_owned();
    }
    format!("cannot be spoken with: {why}")
}

fn by_code(
    code: &SqlState,
    message: &str,
    named: &str,
    user: &str,
    password_env: &str,
) -> EngineError {
    let away = |why: String| EngineError::Away(format!("{named} {why}"));
    // The class tells; https://www.postgresql.org/docs/current/errcodes-appendix.html
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
        // A table, a column, a schema that is not there any more.
        "42P01" | "42703" | "3F000" => {
            EngineError::Damaged(format!("the index in {named} is not whole: {message}"))
        }
        // Broken data, and a broken index; of other `XX…` the server only was not ready for what it
        // was given.
        "XX001" | "XX002" => {
            EngineError::Damaged(format!("the index in {named} is broken: {message}"))
        }
        // Going down, coming up, out of disk or memory.
        code if ["57", "08", "53", "58"].iter().any(|class| code.starts_with(class)) => {
            away(format!("cannot do it now: {message}"))
        }
        _ => EngineError::Failed(format!("{named} did not take it: {message} ({})", code.code())),
    }
}
