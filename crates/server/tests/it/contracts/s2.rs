//! Seed 002, the workstation contract, row by row: the same over standard streams, at its path and
//! at the root of a listener of its own.

mod desk;
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
