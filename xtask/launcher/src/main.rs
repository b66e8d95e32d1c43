//! Runs `cargo xtask demo`, and starts the package `xtask` for all other commands.
//!
//! This package has no dependencies, so the first command of a newcomer does not wait until `xtask`
//! is compiled, which takes 12 s on two cores.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a tool for developers: it owns the checkout that it runs in and prints for a person"
)]

mod demo;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Action of the launcher for a command line of `cargo xtask`.
#[derive(Debug, PartialEq, Eq)]
enum LauncherAction<'a> {
    /// Run the demo. If `is_built` is true, with the executable of the last build.
    RunDemo { is_built: bool },
    /// Refuse this option of the demo.
    RefuseOption(&'a str),
    /// Start the package `xtask` with the same arguments.
    StartXtask,
}

impl<'a> LauncherAction<'a> {
    fn from_args(args: &'a [String]) -> Self {
        let Some(("demo", options)) = args.split_first().map(|(word, rest)| (&word[..], rest))
        else {
            return Self::StartXtask;
        };
        match options.iter().find(|option| *option != "--built") {
            Some(unknown) => Self::RefuseOption(unknown),
            None => Self::RunDemo { is_built: !options.is_empty() },
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match LauncherAction::from_args(&args) {
        LauncherAction::RunDemo { is_built } => demo::serve_and_call(is_built),
        LauncherAction::RefuseOption(unknown) => {
            eprintln!(
                "xtask: `demo` has no option `{unknown}`; its only option is --built, which uses \
                 the executable of the last build"
            );
            return ExitCode::from(2);
        }
        LauncherAction::StartXtask => Err(run_xtask(&args)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("xtask: {err}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the package `xtask` and replaces this process by it. Returns only if that fails.
fn run_xtask(args: &[String]) -> io::Error {
    let manifest = checkout().join("Cargo.toml");
    let mut command = cargo();
    command.args(["run", "--quiet", "--package=xtask", "--manifest-path"]).arg(manifest);
    command.arg("--").args(args).exec()
}

/// Returns the root folder of the checkout.
fn checkout() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap_or(package)
}

/// Returns a command for the running Cargo. The command does not inherit the variables that Cargo
/// set for this program, because Cargo would rebuild the crates that read them.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let is_own =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_own) {
            command.env_remove(name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::LauncherAction;

    #[test]
    fn the_demo_runs_here_and_all_other_commands_in_xtask() {
        let demo = |is_built| LauncherAction::RunDemo { is_built };
        for (line, action) in [
            ("demo", demo(false)),
            ("demo --built", demo(true)),
            ("demo --help", LauncherAction::RefuseOption("--help")),
            ("demo --built x", LauncherAction::RefuseOption("x")),
            ("test --quick", LauncherAction::StartXtask),
            ("dmeo", LauncherAction::StartXtask),
            ("", LauncherAction::StartXtask),
        ] {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(LauncherAction::from_args(&args), action, "{line}");
        }
    }
}
