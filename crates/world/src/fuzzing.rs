//! Fuzz targets of this crate, for code that reads input from untrusted sources.

use crate::{root, sandbox};

/// A fuzz target: a function that takes one fuzz input and panics if it finds a bug.
type WorldFuzzTarget = fn(&[u8]);

/// Every fuzz target of this crate, with the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, WorldFuzzTarget)] =
    &[("protected", protected), ("paths", paths), ("plans", plans)];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Fuzzes the check for protected names. The check must find a protected name in every spelling
/// (case, invisible characters, endings), and must find none in other plain paths.
fn protected(bytes: &[u8]) {
    root::fuzz_protected(bytes);
}

/// Fuzzes the conversion of a caller's path to a path relative to the workspace: the result must be
/// a suffix of the caller's path, without a leading slash, a NUL or a name that is too long.
fn paths(bytes: &[u8]) {
    root::fuzz_paths(bytes);
}

/// Fuzzes the parsing of the server's messages to the sandbox helper: a parsed message that is
/// serialized and parsed again must stay the same.
fn plans(bytes: &[u8]) {
    sandbox::fuzz_plans(bytes);
}
