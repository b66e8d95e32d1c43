//! Metrics and traces of calls.

mod exposition;
mod metrics;
mod traces;
