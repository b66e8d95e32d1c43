//! Runs the benchmarks, which compare toolgate with minimal programs and with the servers of other
//! projects.

use crate::setup;
use crate::shell::{cargo, checkout, run};

/// Builds and runs the benchmark with `args`, and prints its tables. A full run measures a
/// build with the profile `dist`, which contains the grammars that packages append, and writes `docs/reference/performance.md`. With `--quick`,
/// it measures a build by `cargo build --release`.
pub(crate) fn measure(args: &[String]) -> anyhow::Result<()> {
    match args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("--console", args)) => return run_script("console.py", args),
        Some(("--forwarder", args)) => return run_script("forwarder.py", args),
        _ => {}
    }
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

/// Runs the program `script` of the folder `bench`, which measures the release build.
fn run_script(script: &str, args: &[String]) -> anyhow::Result<()> {
    let package = ["build", "--locked", "--profile", "release", "--package", "toolgate"];
    run(&cargo(), &package)?;
    let toolgate = checkout().join("target/release/toolgate").display().to_string();
    let script = checkout().join("bench").join(script).display().to_string();
    let args = args.iter().map(String::as_str);
    let all: Vec<_> = [script.as_str(), "--toolgate", &toolgate].into_iter().chain(args).collect();
    run("python3", &all)
}
