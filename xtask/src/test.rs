//! Everything CI runs, in the order in which failures are cheapest.

use std::time::Instant;

use crate::shell::{cargo, run, run_with};
use crate::{chaos, codegen, conformance, contracts, fuzz, setup, tidy};

/// How often the server is killed; more often with `cargo xtask chaos`.
const KILLS: usize = 5;

/// How long each target is fuzzed; longer with `cargo xtask fuzz`.
const FUZZ_SECONDS: u64 = 4;

/// The tests that need nothing installed and take no longer than one waits.
const EVERYDAY: &str = "not test(/^(clients|commands|zyra::seed|mcp::schemas|contracts::s0_judges|contracts::s0::judged|search_engines|identity::tokens|identity::scopes|identity::tls|search::engines::postgres::tests)::/) \
     and not test(/two_gibibytes/)";

fn all(quick: bool) -> anyhow::Result<()> {
    let cargo = cargo();
    if quick {
        setup::the_least()?;
    } else {
        setup::everything()?;
    }
    run(&cargo, &["fmt", "--all", "--check"])?;
    tidy::check()?;
    run(
        &cargo,
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"],
    )?;
    // Some tests speak to the examples. Built with the tests, or every dependency is built twice.
    run(&cargo, &["build", "--workspace", "--bins", "--tests", "--locked"])?;
    let mut tests = vec!["nextest", "run", "--workspace", "--locked"];
    if quick {
        // Most tests wait more than they work.
        tests.extend(["-j", "4", "-E", EVERYDAY]);
    }
    run(&cargo, &tests)?;
    if !quick {
        // Before anything else is run that leaves a report.
        contracts::judge_the_last_run()?;
        with_qdrant(&cargo)?;
        // Both with what was built above: by themselves, packages are built with other features,
        // which is everything once more.
        conformance::hold(&conformance::Wanted::default())?;
        chaos::wreak(&chaos::Wanted::few(KILLS))?;
    }
    run(&cargo, &["test", "--workspace", "--locked", "--doc", "--quiet"])?;
    let strict = [("RUSTDOCFLAGS", "--deny warnings")];
    run_with(&cargo, &["doc", "--workspace", "--no-deps", "--locked", "--quiet"], &strict)?;
    codegen::pages(true)?;
    if !quick {
        // Last: it builds our crates once more, with coverage, and the rest is there already.
        fuzz::fuzz(&fuzz::Wanted::all(FUZZ_SECONDS))?;
    }
    Ok(())
}

/// The engine that is left out unless it is asked for. Everything else is as it was without it.
fn with_qdrant(cargo: &str) -> anyhow::Result<()> {
    let of = ["--locked", "--package", "toolgate-toolsets", "--features", "qdrant"];
    let strict = ["--all-targets", "--", "--deny", "warnings"];
    run(cargo, &[&["clippy"][..], &of, &strict].concat())?;
    let tests = ["-E", "test(/^search::engines::(qdrant|settings)::/)"];
    run(cargo, &[&["nextest", "run"][..], &of, &tests].concat())
}

pub(crate) fn everything(quick: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    all(quick)?;
    eprintln!("\nall of it passed in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
