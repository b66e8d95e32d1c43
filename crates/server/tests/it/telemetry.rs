//! Tests of metrics and traces of calls.

mod call_lines;
mod exposition;
mod metrics;
mod traces;
