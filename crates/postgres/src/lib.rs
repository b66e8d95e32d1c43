//! Connections to a PostgreSQL server: its URL, TLS, a bounded pool, notifications and errors.
//!
//! The search index and the job store use this crate, and declare their tables themselves.

mod password;
mod error;
mod address;
mod connections;

pub use address::PostgresAddress;
pub use connections::{
    PooledConnection, PostgresConnection, PostgresConnectionPool, PostgresNotificationReceiver,
    SharedPostgresPool,
};
pub use error::{PostgresError, PostgresFailure};
pub use password::DatabasePassword;
