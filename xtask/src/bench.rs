//! Measures toolgate against the floors and the servers of others.

use crate::setup;
use crate::shell::{cargo, checkout, run};

/// Runs the benchmark with `args` and prints its tables. A whole run measures the shipped build
/// (the profile `dist`) and writes `docs/reference/performance.md`. With `--quick`, it measures
/// what `cargo build --release` makes.
pub(crate) fn measure(args: &[String]) -> anyhow::Result<()> {
    setup::ripgrep()?;
    setup::servers()?;
    setup::gateways()?;
    let mut args: Vec<_> = args.iter().map(String::as_str).collect();
    let profile = if args.contains(&"--quick") { "release" } else { "dist" };
    let packages = ["--package", "bench", "--package", "toolgate", "--package", "example-echo"];
    run(&cargo(), &[&["build", "--locked", "--profile", profile], &packages[..]].concat())?;
    // The benchmark measures the programs in its own folder.
    let bench = checkout().join("target").join(profile).join("bench");
    let into = checkout().join("docs/reference").display().to_string();
    if args.is_empty() {
        args.extend(["--into", &into]);
    }
    run(&bench.display().to_string(), &args)
}
