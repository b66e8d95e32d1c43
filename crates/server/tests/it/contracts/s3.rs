//! Tests of the contract S3 (Mira's JSON-RPC), requirement by requirement, as Mira's own client
//! uses it.

mod client;
mod requests;
mod refusing;
mod listing;
mod reading;
mod writing;
mod running;
mod searching;
mod limiting;
