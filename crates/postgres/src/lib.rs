//! Connections to a PostgreSQL server: its URL, TLS, a bounded pool, notifications and errors.
//!
//! This crate knows no tables. The search index and the job store use it.

mod password;
mod error;
mod address;
mod connections;

pub use address::PostgresAddress;
pub use connections::{
    ConnectionPool, LentConnection, NotificationReceiver, PostgresConnection, SharedPool,
};
pub use error::{PostgresError, PostgresFailure};
pub use password::DatabasePassword;
