//! Runs attack cases as tests: each test attempts one case, with each variant and in each dialect.
#![allow(clippy::print_stdout, reason = "the output of a test")]

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use toolgate_attack::{AttackCaseTest, AttackCaseTestOutcome};

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::from_args();
    let tests = AttackCaseTest::all()?.into_iter().map(trial).collect();
    Ok(libtest_mimic::run(&arguments, tests).exit_code())
}

fn trial(test: AttackCaseTest) -> Trial {
    Trial::ignorable_test(test.name(), move || {
        let outcome = test.run(Path::new(env!("CARGO_BIN_EXE_toolgate-attack")));
        match outcome.map_err(|err| Failed::from(format!("{err:#}")))? {
            AttackCaseTestOutcome::Passed(text) => {
                println!("{text}");
                Ok(Completion::Completed)
            }
            AttackCaseTestOutcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
        }
    })
}
