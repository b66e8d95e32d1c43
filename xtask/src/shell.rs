//! Runs programs in the checkout, and prints their command lines.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, bail};

/// Cargo arguments that build the programs, tests and benchmarks of all packages. Building fewer
/// packages would select other features, and compile each dependency again.
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

/// Cargo arguments that run the tests that [`BUILD`] builds.
pub(crate) const NEXTEST: [&str; 4] = ["nextest", "run", "--workspace", "--locked"];

/// Environment variables for every program that [`command`] starts, once they are set.
static ENVIRONMENT: OnceLock<[(&str, String); 3]> = OnceLock::new();

/// Returns the root folder of the checkout.
pub(crate) fn checkout() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// Returns the folder into which Cargo builds.
pub(crate) fn target_folder() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    checkout().join(named.unwrap_or_else(|| "target".into()))
}

/// Returns the folder `.tools`, into which `cargo xtask setup` installs programs.
pub(crate) fn tools() -> PathBuf {
    checkout().join(".tools")
}

/// Returns the path of the Cargo that runs this program.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Copies the running program to the file `to`. Copies the image of the process, because a build
/// may have removed the file meanwhile.
pub(crate) fn copy_of_this(to: &Path) -> anyhow::Result<()> {
    std::fs::copy("/proc/self/exe", to).with_context(|| to.display().to_string())?;
    Ok(())
}

/// Returns a command that runs `program` without the environment variables that Cargo set for this
/// program: if Cargo inherited them, it would rebuild the crates that read them.
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

/// Makes Clippy the compiler of this workspace's crates from now on, with warnings as errors. One
/// pass then lints and builds, and every program that this process starts uses the same build.
///
/// A test run compiles everything once. It therefore writes no incremental data, unless
/// `incremental` is true or `CARGO_INCREMENTAL` asks for it.
pub(crate) fn lint_builds(incremental: bool) -> anyhow::Result<()> {
    let sysroot = output("rustc", &["--print", "sysroot"])?;
    let clippy = format!("{}/bin/clippy-driver", sysroot.trim());
    if !works(&clippy, &["--version"]) {
        bail!("Clippy is missing; run `rustup component add clippy`");
    }
    // The encoding in which `cargo clippy -- --deny warnings` passes its flags on.
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

/// Runs `program` in the checkout and shows its output. Fails if the program fails.
pub(crate) fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    run_with(program, args, &[])
}

/// Runs `program` like [`run`], with additional environment variables `env`.
pub(crate) fn run_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    let name = program.rsplit('/').next().unwrap_or(program);
    eprintln!("\n==> {name} {}", args.join(" "));
    let started = Instant::now();
    let status = command(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(checkout())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{program}`"))?;
    eprintln!("    {:.1} s", started.elapsed().as_secs_f64());
    if !status.success() {
        bail!("`{name} {}` failed: {status}", args.join(" "));
    }
    Ok(())
}

/// Builds all programs and tests with the arguments [`BUILD`].
pub(crate) fn build() -> anyhow::Result<()> {
    run(&cargo(), &BUILD)
}

/// Runs `program` in the checkout, and returns its standard output. Fails if the program fails.
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

/// Returns true if `program` can be started with `args` and succeeds.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    let mut command = command(program);
    command.args(args).current_dir(checkout());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
