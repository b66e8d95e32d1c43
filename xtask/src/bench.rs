//! Runs the benchmarks, which compare toolgate with minimal programs and with the servers of other
//! projects.

use anyhow::Context;

use crate::dist;
use crate::setup;
use crate::shell::{cargo, checkout, run};

/// Builds and runs the benchmark with `args`, and prints its tables. It measures the executable that
/// `cargo xtask dist` ships, or with `--quick` a build by `cargo build --release`. A full run writes
/// `docs/reference/performance.md`.
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
    let is_quick = args.contains(&"--quick");
    let profile = if is_quick { "release" } else { "dist" };
    let build = ["build", "--locked", "--profile", profile];
    let packages = ["--package", "bench", "--package", "example-echo"];
    let built = checkout().join("target").join(profile);
    if is_quick {
        run(&cargo(), &[&build[..], &packages[..], &["--package", "toolgate"]].concat())?;
    } else {
        run(&cargo(), &[&build[..], &packages[..]].concat())?;
        let shipped = dist::build_shipped(dist::HOST)?;
        std::fs::copy(&shipped, built.join("toolgate")).context("cannot copy the executable")?;
    }
    // The benchmark measures the programs in its own folder.
    let bench = built.join("bench");
    let into = checkout().join("docs/reference").display().to_string();
    if args.is_empty() {
        args.extend(["--into", &into]);
    }
    run(&bench.display().to_string(), &args)
}

/// Runs the script `script` of the folder `bench`, which measures the release build.
fn run_script(script: &str, args: &[String]) -> anyhow::Result<()> {
    let package = ["build", "--locked", "--profile", "release", "--package", "toolgate"];
    run(&cargo(), &package)?;
    let toolgate = checkout().join("target/release/toolgate").display().to_string();
    let script = checkout().join("bench").join(script).display().to_string();
    let args = args.iter().map(String::as_str);
    let all: Vec<_> = [script.as_str(), "--toolgate", &toolgate].into_iter().chain(args).collect();
    run("python3", &all)
}
