//! Seed 003, Mira's JSON-RPC contracts, row by row, from the seat of Mira's own client.

mod client;
mod requests;
mod refusing;
mod listing;
mod reading;
mod writing;
mod running;
mod searching;
mod limiting;
