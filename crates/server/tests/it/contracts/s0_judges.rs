//! Synesthetic's assets, judged by implementations that are not ours. `tests/judges` has them.

use std::path::Path;
use std::process::Command;

use crate::support::binary;

/// Runs the judge called `name`, which starts the binary itself; all is well if it says so.
#[track_caller]
fn judged(name: &str, words: &[&str]) {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let python = checkout.join(".tools/judges/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask setup`", python.display());
    let judge = checkout.join("tests/judges").join(name);
    let output = Command::new(python).arg(judge).args(words).arg(binary()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}\n{errors}");
    assert!(said.ends_with(" 0 failed\n"), "{name}: {said}\n{errors}");
}

#[test]
fn s0_04_42_49_50_51_52_53_a_patch_makes_of_the_first_asset_the_second_by_anothers_hand() {
    judged("patches.py", &["--cases", "10000"]);
}

#[test]
fn s0_03_46_48_65_80_assets_are_judged_as_pythons_jsonschema_judges_them() {
    judged("validation.py", &["--cases", "10000"]);
}

#[test]
fn s0_43_57_an_asset_is_sent_over_tls_to_a_backend_that_is_trusted_and_to_no_other() {
    judged("backend.py", &[]);
}
