//! Runs the resource attacks for a short time, as a test. `cargo xtask attack --resources` starts
//! longer runs.
#![allow(clippy::disallowed_methods, reason = "a test, which starts a test program")]

use std::process::Command;

#[test]
fn callers_work_while_others_attack_the_memory_and_the_time_of_the_server() {
    let mut attack = Command::new(env!("CARGO_BIN_EXE_toolgate-attack"));
    let status = attack.args(["--resources", "--minutes", "0.3", "--untimed"]).status();
    let status = status.expect("the program starts");
    assert!(status.success(), "toolgate-attack --resources: {status}");
}
