//! Builds and checks the website of the documentation, and runs the examples in it.

use std::path::absolute;

use anyhow::{Context, bail};

use crate::examples;
use crate::shell::{cargo, checkout, run};

/// Builds the website into `target/site`, and runs the examples. Fails on a broken link, on a page
/// that the website's search does not find, and on an example that fails. In `words`, `--examples`
/// runs only the examples, and `--bin FILE` runs them with an existing executable.
pub(crate) fn from_words(words: &[String]) -> anyhow::Result<()> {
    let mut builds_site = true;
    let mut toolgate = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--examples" => builds_site = false,
            "--bin" => toolgate = Some(absolute(words.next().context("--bin needs a file")?)?),
            _ => bail!("unknown option `{word}`; use --examples or --bin FILE"),
        }
    }
    if builds_site {
        build()?;
    }
    let toolgate = match toolgate {
        Some(file) => file,
        None => {
            run(&cargo(), &["build", "--locked", "--package", "toolgate", "--bin", "toolgate"])?;
            checkout().join("target/debug/toolgate")
        }
    };
    eprintln!("\n==> examples");
    examples::run(&toolgate)
}

/// Builds the website, and checks its links and its search.
fn build() -> anyhow::Result<()> {
    let docs = checkout().join("docs").display().to_string();
    run("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", &docs])?;
    run("npm", &["run", "build", "--prefix", &docs])?;
    eprintln!("the site is in target/site");
    Ok(())
}
