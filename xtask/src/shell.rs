//! Runs programs in the checkout and says which.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, bail};

/// Builds the programs, tests and benchmarks of all packages. A selection of fewer packages has other features,
/// and compiles each dependency again.
pub(crate) const BUILD: [&str; 9] = [
    "build",
    "--workspace",
    "--locked",
    "--profile",
    "test",
    "--bins",
    "--tests",
    "--bench",
    "gate",
];

/// Runs what [`BUILD`] builds. Four at a time: many tests wait more than they compute.
pub(crate) const NEXTEST: [&str; 6] = ["nextest", "run", "--workspace", "--locked", "-j", "4"];

/// Variables for every program that [`command`] starts from now on.
static ENVIRONMENT: OnceLock<[(&str, String); 3]> = OnceLock::new();

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
    command.envs(ENVIRONMENT.get().into_iter().flatten().map(|(name, value)| (name, value)));
    command
}

/// Makes Clippy the compiler of our own crates from now on, with warnings as errors. One pass then
/// both lints and builds, and all that this process starts shares what it built.
///
/// A whole test run compiles everything once, so it does not write what makes a second build quick,
/// unless `CARGO_INCREMENTAL` asks for that.
pub(crate) fn lint_builds(incremental: bool) -> anyhow::Result<()> {
    let sysroot = output("rustc", &["--print", "sysroot"])?;
    let clippy = format!("{}/bin/clippy-driver", sysroot.trim());
    if !works(&clippy, &["--version"]) {
        bail!("Clippy is missing; run `rustup component add clippy`");
    }
    // What `cargo clippy -- --deny warnings` passes on.
    let flags = ["--deny", "warnings"].map(|flag| format!("{flag}__CLIPPY_HACKERY__")).concat();
    let by_default = |_| u8::from(incremental).to_string();
    let incremental = std::env::var("CARGO_INCREMENTAL").unwrap_or_else(by_default);
    let environment = [
        ("RUSTC_WORKSPACE_WRAPPER", clippy),
        ("CLIPPY_ARGS", flags),
        ("CARGO_INCREMENTAL", incremental),
    ];
    let _ = ENVIRONMENT.set(environment);
    Ok(())
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
        .with_context(|| format!("cannot start `{program}`"))?;
    eprintln!("    {:.1} s", begun.elapsed().as_secs_f64());
    if !status.success() {
        bail!("`{name} {}` failed: {status}", args.join(" "));
    }
    Ok(())
}

/// Builds all programs and tests with [`BUILD`].
pub(crate) fn build() -> anyhow::Result<()> {
    run(&cargo(), &BUILD)
}

/// What a program prints, run in the checkout.
pub(crate) fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = command(program)
        .args(args)
        .current_dir(checkout())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{program}`"))?;
    if !output.status.success() {
        bail!("`{program} {}` failed: {}", args.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a program runs and is content with `args`.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    let mut command = command(program);
    command.args(args).current_dir(checkout());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
