//! Converts failures of a PostgreSQL server to errors of an engine.

pub(super) use toolgate_postgres::PostgresError;
use toolgate_postgres::PostgresFailure;

use super::super::SearchEngineError;

impl From<PostgresFailure> for SearchEngineError {
    fn from(failure: PostgresFailure) -> Self {
        match failure {
            PostgresFailure::Unavailable(message) => Self::Unavailable(message),
            PostgresFailure::Incomplete { server, reason } => {
                Self::Damaged(format!("the index in {server} is incomplete: {reason}"))
            }
            PostgresFailure::Damaged { server, reason } => {
                Self::Damaged(format!("the index in {server} is damaged: {reason}"))
            }
            PostgresFailure::Failed(message) => Self::Failed(message),
        }
    }
}
