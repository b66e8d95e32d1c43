//! Measures the release build against the floors and the servers of others.

use crate::setup;
use crate::shell::{cargo, checkout, run};

const BUILD: [&str; 9] = [
    "build",
    "--release",
    "--locked",
    "--package",
    "toolgate",
    "--package",
    "bench",
    "--package",
    "example-echo",
];

/// Prints the tables; a whole run is kept in `docs/reference/performance.md`.
pub(crate) fn measure(words: &[String]) -> anyhow::Result<()> {
    setup::ripgrep()?;
    setup::servers()?;
    setup::gateways()?;
    run(&cargo(), &BUILD)?;
    let bench = checkout().join("target/release/bench").display().to_string();
    let into = checkout().join("docs/reference").display().to_string();
    let mut words: Vec<_> = words.iter().map(String::as_str).collect();
    if words.is_empty() {
        words.extend(["--into", &into]);
    }
    run(&bench, &words)
}
