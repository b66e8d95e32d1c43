//! Tests of the contract S2 (workstation), requirement by requirement, over stdio, at its path, and
//! at the root of a dedicated listener.

mod client;
mod discovery;
mod messages;
mod files;
mod repositories;
mod builds;
mod arguments;
mod time;
mod records;
mod rates;
mod people;
