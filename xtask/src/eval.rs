//! Measures how well search ranks.

use crate::shell::{cargo, run};

/// Builds the evaluation as it is measured and runs it with `words`.
pub(crate) fn search(words: &[String]) -> anyhow::Result<()> {
    built("toolgate-eval", words)
}

/// Learns what search knows beforehand, as `words` say, and writes it where it is built in.
pub(crate) fn train(words: &[String]) -> anyhow::Result<()> {
    built("train", words)
}

fn built(program: &str, words: &[String]) -> anyhow::Result<()> {
    let build = ["run", "--release", "--package", "toolgate-eval", "--bin", program];
    let words = words.iter().map(String::as_str);
    let all: Vec<&str> = build.into_iter().chain(["--"]).chain(words).collect();
    run(&cargo(), &all)
}
