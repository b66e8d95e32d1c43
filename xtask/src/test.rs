//! Everything CI runs, in the order in which failures are cheapest.

use std::time::{Duration, Instant};

use crate::shell::{cargo, checkout, run, run_with};
use crate::{attack, chaos, codegen, conformance, contracts, count, fuzz, setup, tidy};

/// How often the server is killed; more often with `cargo xtask chaos`.
const KILLS: usize = 5;

/// For how long clients and upstreams of the gateway are killed; longer with `cargo xtask chaos`.
const GATEWAY: Duration = Duration::from_secs(20);

/// How long each target is fuzzed; longer with `cargo xtask fuzz`.
const FUZZ_SECONDS: u64 = 4;

/// The tests that need nothing installed and take no longer than one waits.
const EVERYDAY: &str = "not test(/^(clients|gateway|commands|zyra::seed|mcp::schemas|contracts::s0_judges|contracts::s0::judged|search_engines|identity::tokens|identity::scopes|identity::tls|search::engines::postgres::tests)::/) \
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
    let of = &["--workspace", "--locked"][..];
    let with = |words: &[&'static str], more: &[&'static str]| [words, of, more].concat();
    run(&cargo, &with(&["clippy", "--all-targets"], &["--", "--deny", "warnings"]))?;
    // Some tests speak to the examples. Built with the tests, or every dependency is built twice.
    run(&cargo, &with(&["build", "--bins", "--tests"], &[]))?;
    // Most tests wait more than they work.
    let everyday = ["-j", "4", "-E", EVERYDAY];
    run(&cargo, &with(&["nextest", "run"], if quick { &everyday } else { &[] }))?;
    if !quick {
        // Before anything else is run that leaves a report.
        contracts::judge_the_last_run()?;
        // All with what was built above: by themselves, packages are built with other features,
        // which is everything once more.
        conformance::hold(&conformance::Wanted::default())?;
        conformance::hold_client(&conformance::Wanted::default())?;
        chaos::wreak(&chaos::Wanted::few(KILLS))?;
        chaos::wreak(&chaos::Wanted::gateway(GATEWAY))?;
        attack::hold(&attack::Wanted::against(checkout().join("target/debug/toolgate")))?;
    }
    run(&cargo, &with(&["test", "--doc", "--quiet"], &[]))?;
    let strict = [("RUSTDOCFLAGS", "--deny warnings")];
    run_with(&cargo, &with(&["doc", "--no-deps", "--quiet"], &[]), &strict)?;
    codegen::pages(true)?;
    if !quick {
        count::count(false)?;
        // Last: it builds our crates once more, with coverage, and the rest is there already.
        fuzz::fuzz(&fuzz::Wanted::all(FUZZ_SECONDS, of))?;
    }
    Ok(())
}

pub(crate) fn everything(quick: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    all(quick)?;
    eprintln!("\nall of it passed in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
