//! What holds across the contracts: one server, one catalog, one gate, and no word of one contract
//! in another.

mod house;
mod together;
mod apart;
mod secrets;
