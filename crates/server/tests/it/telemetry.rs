//! What is told of calls beside their records, to those who watch many servers.

mod exposition;
mod metrics;
mod traces;
