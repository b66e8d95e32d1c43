//! Zyra's contract over the wire. Jobs are also tested in `zyra/`, and the examples with the real
//! Zyra in `zyra/seed.rs`.

mod calls;
mod refusals;
mod endpoints;
mod keys;
mod guesses;
