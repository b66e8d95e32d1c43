//! Seed 001, the envelope, row by row: over HTTP and over lines, judged by Python's `jsonschema`.

mod client;
mod replies;
mod identity;
mod refusals;
mod schemas;
mod folders;
mod golden;
mod everyone;
