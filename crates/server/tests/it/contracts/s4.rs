//! Zyra's contract, over the wire. What it says of jobs is shown in `zyra/` too, and its examples
//! with the real Zyra in `zyra/seed.rs`.

mod calls;
mod refusals;
mod doors;
mod keys;
mod guesses;
