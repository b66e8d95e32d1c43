//! Runs the programs in `tests/judges`, which compare toolgate with other implementations.

use std::path::Path;
use std::process::Command;

use super::binary;

/// Runs the program `name` in `tests/judges`, which starts toolgate itself. Checks that it reports
/// no failure.
#[track_caller]
pub(crate) fn run_judge(name: &str, args: &[&str]) {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let python = checkout.join(".tools/judges/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask setup`", python.display());
    let judge = checkout.join("tests/judges").join(name);
    let output = Command::new(python).arg(judge).args(args).arg(binary()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stdout}\n{stderr}");
    assert!(stdout.ends_with(" 0 failed\n"), "{name}: {stdout}\n{stderr}");
}
