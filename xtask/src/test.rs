//! Everything CI runs, in the order in which failures are cheapest.

use std::time::Instant;

use crate::shell::{cargo, run, run_with};
use crate::{chaos, codegen, setup, tidy};

/// How often the server is killed; more often with `cargo xtask chaos`.
const KILLS: usize = 5;

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
    let filter = if quick { "not test(/^clients::/)" } else { "all()" };
    run(&cargo, &["nextest", "run", "--workspace", "--locked", "-E", filter])?;
    if !quick {
        chaos::wreak(&chaos::Wanted::few(KILLS))?;
    }
    run(&cargo, &["test", "--workspace", "--locked", "--doc", "--quiet"])?;
    let strict = [("RUSTDOCFLAGS", "--deny warnings")];
    run_with(&cargo, &["doc", "--workspace", "--no-deps", "--locked", "--quiet"], &strict)?;
    codegen::pages(true)
}

pub(crate) fn everything(quick: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    all(quick)?;
    eprintln!("\nall of it passed in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
