//! Synesthetic's assets compared with other implementations, which are in `tests/judges`.

use std::path::Path;
use std::process::Command;

use crate::support::binary;

/// Runs the judge `name`, which starts the binary itself, and checks that it reports no failure.
#[track_caller]
fn run_judge(name: &str, args: &[&str]) {
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

#[test]
fn s0_04_42_49_50_51_52_53_a_patch_applied_by_another_implementation_gives_the_new_asset() {
    run_judge("patches.py", &["--cases", "10000"]);
}

#[test]
fn s0_03_46_48_65_80_validation_results_match_pythons_jsonschema() {
    run_judge("validation.py", &["--cases", "10000"]);
}

#[test]
fn s0_43_57_an_asset_is_sent_over_tls_only_to_a_trusted_backend() {
    run_judge("backend.py", &[]);
}
