//! Runs the examples in doc comments and checks that the documentation builds without a warning.
//!
//! `cargo doc` would compile every dependency once more, to check it. `cargo test --doc` uses what
//! the tests are linked with, so this program stands in for its `rustdoc`: it runs the examples as
//! asked, and then documents the same crate.

use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::shell::{cargo, checkout, command, copy_of_this};

/// The variable that makes this program stand in for `rustdoc`.
const STANDS_IN: &str = "XTASK_STANDS_IN_FOR_RUSTDOC";

/// Tests and documents every library of the workspace.
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

/// Runs `rustdoc` twice, if this program was started in its place: for the examples and for the
/// pages.
pub(crate) fn stand_in(words: &[String]) -> Option<ExitCode> {
    std::env::var_os(STANDS_IN)?;
    let run = |words: &[String]| {
        let status = Command::new("rustdoc").args(words).status();
        status.is_ok_and(|status| status.success())
    };
    let pages = ["--deny", "warnings", "--out-dir", "target/doc"].map(str::to_owned);
    let is_test = words.iter().any(|word| word == "--test");
    let done = run(words) && (!is_test || run(&[&without_tests(words)[..], &pages].concat()));
    Some(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The arguments without those about tests.
fn without_tests(words: &[String]) -> Vec<String> {
    let mut words = words.iter();
    let mut remaining = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--test" => {}
            // Each has a value.
            "--test-run-directory" | "--test-args" | "--test-runtool" => drop(words.next()),
            _ => remaining.push(word.clone()),
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
