//! Measures what is released against the floors and the servers of others.

use crate::shell::{cargo, checkout, run};
use crate::{release, setup};

/// Prints the tables; a whole run is kept in `docs/reference/performance.md`. A quick one is of a
/// release build as cargo makes it, which takes a third of the time.
pub(crate) fn measure(words: &[String]) -> anyhow::Result<()> {
    setup::ripgrep()?;
    setup::servers()?;
    setup::gateways()?;
    let mut words: Vec<_> = words.iter().map(String::as_str).collect();
    let build = ["build", "--release", "--locked", "--package", "bench"];
    let ours = ["--package", "toolgate", "--package", "example-echo"];
    let built = checkout().join("target/release");
    let bench = if words.contains(&"--quick") {
        run(&cargo(), &[&build[..], &ours].concat())?;
        built.join("bench")
    } else {
        let released = release::build()?;
        run(&cargo(), &build)?;
        // It measures what lies beside it.
        release::copy(&built, &["bench", "floor"], &released)?;
        released.join("bench")
    };
    let into = checkout().join("docs/reference").display().to_string();
    if words.is_empty() {
        words.extend(["--into", &into]);
    }
    run(&bench.display().to_string(), &words)
}
