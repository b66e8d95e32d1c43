//! Compares the validation of Synesthetic assets with other implementations, which are in
//! `tests/judges`.

use crate::support::run_judge;

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
