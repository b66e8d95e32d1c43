//! Runs everything that CI runs. The stages whose failures are found fastest come first.

use crate::shell::{NEXTEST, build, cargo, lint_builds, run};
use crate::stages::{BackgroundStageProcess, CheckStageTimes};
use crate::{codegen, contracts, setup, tidy};

/// Nextest filter for the tests to run after each change: those of single crates, and those of MCP
/// and HTTP with the real server. They need nothing installed. Tests that take many seconds, or that
/// attack or kill the real server, are left out.
const EVERYDAY: &str = "(not binary_id(=toolgate::it) or test(/^(http|mcp)::/)) \
     and not test(/^(mcp::schemas|search::embedders::folder::tests|search::engines::postgres::tests|jobs::postgres::tests|tests::jobs_in_database)::/) \
     and not test(/^(audit::tests::edits|index::tests|vectors::tests|git::tests::hostile)::/) \
     and not binary_id(=toolgate-embed::minilm) and not binary_id(=toolgate-dist::packages) \
     and not binary_id(=toolgate-attack::cases) and not binary_id(=toolgate-attack::resources) \
     and not binary_id(=toolgate-chaos::short_runs)";

/// Commands that run after the tests. Both lists run side by side. The commands of each list run in
/// order.
const LANES: [&[&str]; 2] =
    [&["conformance", "conformance --client"], &["demo --built", "doc", "count"]];

pub(crate) fn everything(quick: bool) -> anyhow::Result<()> {
    let mut stages = CheckStageTimes::new();
    let outcome = if quick { everyday(&mut stages) } else { all(&mut stages) };
    stages.print_table();
    outcome
}

/// Runs the checks to make after each change, which need nothing installed.
fn everyday(stages: &mut CheckStageTimes) -> anyhow::Result<()> {
    stages.run("setup", setup::the_least)?;
    lint_builds(true)?;
    check_and_build(stages)?;
    stages.run("tests", || nextest(&["-E", EVERYDAY]))?;
    stages.run("generated pages", || codegen::pages(true))
}

/// Runs all stages that CI runs.
fn all(stages: &mut CheckStageTimes) -> anyhow::Result<()> {
    stages.run("setup (least)", setup::the_least)?;
    lint_builds(false)?;
    // Installing waits for the network and the disk while the compiler runs.
    let setup = BackgroundStageProcess::start("setup")?;
    check_and_build(stages)?;
    stages.wait_for(setup)?;
    stages.run("tests", || nextest(&[]))?;
    // Before anything else runs that leaves a report.
    stages.run("contracts", contracts::judge_the_last_run)?;
    stages.run("generated pages", || codegen::pages(true))?;
    stages.side_by_side(&LANES)
}

/// Runs the checks that need no build, and then lints and builds everything in one pass.
fn check_and_build(stages: &mut CheckStageTimes) -> anyhow::Result<()> {
    stages.run("format", || run(&cargo(), &["fmt", "--all", "--check"]))?;
    stages.run("tidy", tidy::check)?;
    stages.run("lint and build", build)
}

/// Runs the tests that were built, with the additional nextest arguments `words`.
fn nextest(words: &[&str]) -> anyhow::Result<()> {
    let program = setup::nextest()?;
    run(&program, &[&NEXTEST[..], words].concat())
}
