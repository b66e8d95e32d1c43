//! Runs the examples in doc comments, and checks that the documentation builds without a warning.
//!
//! `cargo doc` would check every dependency again. `cargo test --doc` uses the libraries of the
//! tests instead. This program therefore runs as the `rustdoc` of `cargo test --doc`: it runs the
//! examples, and then builds the documentation of the same crate.

use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::shell::{cargo, checkout, command, copy_of_this};

/// Environment variable that makes this program act as `rustdoc`.
const STANDS_IN: &str = "XTASK_STANDS_IN_FOR_RUSTDOC";

/// Runs the examples of every library of the workspace, and builds its documentation.
pub(crate) fn check() -> anyhow::Result<()> {
    let folder = checkout().join("target/xtask");
    std::fs::create_dir_all(&folder)?;
    let stand_in = folder.join("rustdoc");
    copy_of_this(&stand_in)?;
    let mut test = command(&cargo());
    test.args(["test", "--workspace", "--locked", "--doc", "--quiet"]);
    test.env("RUSTDOC", stand_in).env(STANDS_IN, "1").current_dir(checkout());
    let status = test.status()?;
    if !status.success() {
        bail!("the documentation has errors: {status}");
    }
    Ok(())
}

/// Acts as `rustdoc` if Cargo started this program for that: runs the examples, and then builds the
/// pages. Returns `None` otherwise.
pub(crate) fn stand_in(args: &[String]) -> Option<ExitCode> {
    std::env::var_os(STANDS_IN)?;
    let run = |args: &[String]| {
        let status = Command::new("rustdoc").args(args).status();
        status.is_ok_and(|status| status.success())
    };
    let pages = ["--deny", "warnings", "--out-dir", "target/doc"].map(str::to_owned);
    let is_test = args.iter().any(|arg| arg == "--test");
    let done = run(args) && (!is_test || run(&[&without_tests(args)[..], &pages].concat()));
    Some(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the arguments of `rustdoc` without those that concern tests.
fn without_tests(args: &[String]) -> Vec<String> {
    let mut args = args.iter();
    let mut remaining = Vec::new();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--test" => {}
            // Each of these has a value.
            "--test-run-directory" | "--test-args" | "--test-runtool" => drop(args.next()),
            _ => remaining.push(arg.clone()),
        }
    }
    remaining
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_arguments_are_removed_with_their_values() {
        let given = ["--crate-name", "it", "--test", "--test-run-directory", "/a", "lib.rs"];
        let remaining = without_tests(&given.map(str::to_owned));
        assert_eq!(remaining, ["--crate-name", "it", "lib.rs"]);
    }
}
