//! Tests of the contract S4 (Zyra). Jobs are also tested in `zyra/`, and the examples with the real
//! Zyra in `zyra/seed.rs`.

mod calls;
mod refusals;
mod endpoints;
mod keys;
mod guesses;
