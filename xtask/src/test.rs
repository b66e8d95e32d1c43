//! Everything CI runs, in the order in which failures are cheapest.

use std::time::Instant;

use crate::shell::{cargo, run, run_with};
use crate::{codegen, setup, tidy};

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
