//! Tests of the contract S1 (envelope), requirement by requirement, over HTTP and stdio, checked
//! with Python's `jsonschema`.

mod client;
mod replies;
mod identity;
mod refusals;
mod schemas;
mod folders;
mod golden;
mod everyone;
