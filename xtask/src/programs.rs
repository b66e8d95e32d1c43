//! Builds and starts two programs in `tests`: one attacks the server, and one kills it. The tests
//! also run both: each attack case alone, and short runs of kills.

use std::path::absolute;

use crate::setup;
use crate::shell::{build, cargo, checkout, run};

/// Builds and runs the program that attacks a server. `--release` attacks the optimized build, and
/// `--bin FILE` an existing executable. Resource attacks measure durations, so they always attack
/// the optimized build.
pub(crate) fn attack(words: &[String]) -> anyhow::Result<()> {
    let (release, words) = without(words, "--release");
    let server = if release || words.iter().any(|word| word == "--resources") {
        TestedToolgateBuild::Release
    } else {
        TestedToolgateBuild::Debug
    };
    start("toolgate-attack", words, "--bin", server)
}

/// Builds and runs the program that kills servers: the optimized build by default, that of the
/// tests with `--debug`, and an existing executable with `--server FILE`.
pub(crate) fn chaos(words: &[String]) -> anyhow::Result<()> {
    let (debug, words) = without(words, "--debug");
    if words.iter().any(|word| word == "--fleet") {
        setup::postgres()?;
        setup::haproxy()?;
        setup::faketime()?;
    }
    let server = if debug { TestedToolgateBuild::Debug } else { TestedToolgateBuild::Release };
    start("toolgate-chaos", words, "--server", server)
}

/// Build of toolgate that a program tests if its arguments name no executable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TestedToolgateBuild {
    /// Build of the tests, in the folder of the program.
    Debug,
    Release,
}

/// Builds the toolgate `server` and `program`, and runs `program` with the arguments `words`. If
/// `words` contain `file_flag`, which names an existing executable, builds no toolgate.
fn start(
    program: &str,
    mut words: Vec<String>,
    file_flag: &str,
    server: TestedToolgateBuild,
) -> anyhow::Result<()> {
    if let Some(at) = words.iter().position(|word| word == file_flag) {
        // The program runs in the checkout, wherever this does.
        if let Some(file) = words.get_mut(at + 1) {
            *file = absolute(&*file)?.display().to_string();
        }
        build_only(program)?;
    } else if server == TestedToolgateBuild::Release {
        run(&cargo(), &["build", "--locked", "--package", "toolgate", "--release"])?;
        build_only(program)?;
        let file = checkout().join("target/release/toolgate");
        words.extend([file_flag.to_owned(), file.display().to_string()]);
    } else {
        build()?;
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let program = checkout().join("target/debug").join(program);
    run(&program.display().to_string(), &words)
}

/// Builds `program` without building toolgate.
fn build_only(program: &str) -> anyhow::Result<()> {
    run(&cargo(), &["build", "--locked", "--package", program, "--bin", program])
}

/// Returns true if `words` contain `flag`, and the words without it.
fn without(words: &[String], flag: &str) -> (bool, Vec<String>) {
    let others: Vec<String> = words.iter().filter(|word| *word != flag).cloned().collect();
    (others.len() < words.len(), others)
}
