//! Runs programs in the checkout and says which.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

/// The checkout.
pub(crate) fn checkout() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// The folder that setup owns.
pub(crate) fn tools() -> PathBuf {
    checkout().join(".tools")
}

/// The cargo that runs this.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Copies the program that this is: who builds while it runs may have removed its file, not what runs.
pub(crate) fn copy_of_this(to: &Path) -> anyhow::Result<()> {
    std::fs::copy("/proc/self/exe", to).with_context(|| to.display().to_string())?;
    Ok(())
}

/// `program`, without what cargo tells this one of itself: a cargo that is told the same takes it
/// for a change, and builds anew what asks for it.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let is_own =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_own) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program in the checkout, its output shown; fails if it does.
pub(crate) fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    run_with(program, args, &[])
}

/// The same with variables added to the environment.
pub(crate) fn run_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    let name = program.rsplit('/').next().unwrap_or(program);
    eprintln!("\n==> {name} {}", args.join(" "));
    let begun = Instant::now();
    let status = command(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(checkout())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("`{program}` cannot be started"))?;
    eprintln!("    {:.1} s", begun.elapsed().as_secs_f64());
    if !status.success() {
        bail!("`{name} {}` failed: {status}", args.join(" "));
    }
    Ok(())
}

/// Builds all that the tests have built, as they have it: any less is built with other features,
/// and each dependency once more.
pub(crate) fn build() -> anyhow::Result<()> {
    let build = "build --workspace --locked --bins --tests";
    run(&cargo(), &build.split(' ').collect::<Vec<_>>())
}

/// What a program prints, run in the checkout.
pub(crate) fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = command(program)
        .args(args)
        .current_dir(checkout())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("`{program}` cannot be started"))?;
    if !output.status.success() {
        bail!("`{program} {}` failed: {}", args.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What rustc builds for here, e.g. `x86_64-unknown-linux-gnu`.
pub(crate) fn host() -> anyhow::Result<String> {
    let said = output("rustc", &["-vV"])?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say for what it builds")?.to_owned())
}

/// Whether a program runs and is content with `args`.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    let mut command = command(program);
    command.args(args).current_dir(checkout());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
