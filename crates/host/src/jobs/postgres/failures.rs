//! Converts failures of the database to failures of a job store.

use toolgate_postgres::{PostgresError, PostgresFailure};

use crate::jobs::store::JobStoreError;

/// A failed database write, and whether the database may have committed it.
pub(super) struct FailedDatabaseWrite {
    pub(super) error: JobStoreError,
    pub(super) has_unknown_outcome: bool,
}

impl From<FailedDatabaseWrite> for JobStoreError {
    fn from(failed: FailedDatabaseWrite) -> Self {
        failed.error
    }
}

impl From<JobStoreError> for PostgresError {
    fn from(err: JobStoreError) -> Self {
        Self::Rejected(err.0)
    }
}

impl From<PostgresFailure> for JobStoreError {
    fn from(failure: PostgresFailure) -> Self {
        Self(failure.to_string())
    }
}
