//! Builds the programs in `tests` that attack the server and that kill it, and starts them. The
//! tests run them, too: each attack alone, and short runs of kills.

use std::path::absolute;

use crate::setup;
use crate::shell::{build, cargo, checkout, run};

/// Attacks the server. `--release` attacks the optimized build, `--bin FILE` an existing one.
/// Resource attacks measure times, so they always attack the optimized build.
pub(crate) fn attack(words: &[String]) -> anyhow::Result<()> {
    let (release, words) = without(words, "--release");
    let server = if release || words.iter().any(|word| word == "--resources") {
        ExampleProgramServer::Release
    } else {
        ExampleProgramServer::Debug
    };
    start("toolgate-attack", words, "--bin", server)
}

/// Kills the server. By default it is the optimized build; `--debug` kills that of the tests,
/// `--server FILE` an existing one.
pub(crate) fn chaos(words: &[String]) -> anyhow::Result<()> {
    let (debug, words) = without(words, "--debug");
    if words.iter().any(|word| word == "--fleet") {
        setup::postgres()?;
        setup::haproxy()?;
        setup::faketime()?;
    }
    let server = if debug { ExampleProgramServer::Debug } else { ExampleProgramServer::Release };
    start("toolgate-chaos", words, "--server", server)
}

/// The server that a program runs against if its words name no file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExampleProgramServer {
    /// Server binary that the tests use, beside the program.
    Debug,
    Release,
}

/// Builds the server and `program`, and runs `program` with `words`. The word `file_flag` names
/// the file of a server.
fn start(
    program: &str,
    mut words: Vec<String>,
    file_flag: &str,
    server: ExampleProgramServer,
) -> anyhow::Result<()> {
    if let Some(at) = words.iter().position(|word| word == file_flag) {
        // The program runs in the checkout, wherever this does.
        if let Some(file) = words.get_mut(at + 1) {
            *file = absolute(&*file)?.display().to_string();
        }
        build_only(program)?;
    } else if server == ExampleProgramServer::Release {
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

/// Builds `program` without the server.
fn build_only(program: &str) -> anyhow::Result<()> {
    run(&cargo(), &["build", "--locked", "--package", program, "--bin", program])
}

/// Returns true if `words` contain `flag`, and the words without `flag`.
fn without(words: &[String], flag: &str) -> (bool, Vec<String>) {
    let others: Vec<String> = words.iter().filter(|word| *word != flag).cloned().collect();
    (others.len() < words.len(), others)
}
