//! Requirements across the contracts: one server, one catalog, one gate, and no part of one
//! contract in another.

mod setup;
mod together;
mod apart;
mod secrets;
