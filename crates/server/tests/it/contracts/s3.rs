//! Seed 003, Mira's JSON-RPC contracts, row by row, as Mira's own client uses them.

mod client;
mod requests;
mod refusing;
mod listing;
mod reading;
mod writing;
mod running;
mod searching;
mod limiting;
