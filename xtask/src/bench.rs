//! Measures toolgate against the floors and the servers of others.

use crate::setup;
use crate::shell::{cargo, checkout, run};

/// Prints the tables. A whole run is kept in `docs/reference/performance.md` and measures what is
/// shipped (the profile `dist`). A quick run measures what `cargo build --release` makes.
pub(crate) fn measure(words: &[String]) -> anyhow::Result<()> {
    setup::ripgrep()?;
    setup::servers()?;
    setup::gateways()?;
    let mut words: Vec<_> = words.iter().map(String::as_str).collect();
    let profile = if words.contains(&"--quick") { "release" } else { "dist" };
    let packages = ["--package", "bench", "--package", "toolgate", "--package", "example-echo"];
    run(&cargo(), &[&["build", "--locked", "--profile", profile], &packages[..]].concat())?;
    // It measures the programs beside it.
    let bench = checkout().join("target").join(profile).join("bench");
    let into = checkout().join("docs/reference").display().to_string();
    if words.is_empty() {
        words.extend(["--into", &into]);
    }
    run(&bench.display().to_string(), &words)
}
