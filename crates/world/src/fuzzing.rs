//! Fuzz targets of this crate, for code that reads input from untrusted sources.

use crate::{root, sandbox};

/// A function that takes one fuzz input and panics if it finds a bug.
type WorldFuzzTarget = fn(&[u8]);

/// Every fuzz target of this crate, with the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, WorldFuzzTarget)] =
    &[("protected", protected), ("paths", paths), ("plans", plans)];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Fuzzes the spellings of protected names.
fn protected(bytes: &[u8]) {
    root::fuzz_protected(bytes);
}

/// Fuzzes paths in a caller's notation.
fn paths(bytes: &[u8]) {
    root::fuzz_paths(bytes);
}

/// Fuzzes the plans that the sandbox helper receives.
fn plans(bytes: &[u8]) {
    sandbox::fuzz_plans(bytes);
}
