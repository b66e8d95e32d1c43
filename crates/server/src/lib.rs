//! The command line of toolgate.

pub mod cli;
