//! Tests of toolgate's command line, as people and scripts use it.

mod audit;
mod calls;
mod jobs;
mod servers;
mod looks;
mod trust;
mod index;
mod starts;
mod banner;
mod connect;
mod environments;

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{binary, path, trust_config};

/// Exit code and output of a command that a test ran.
#[derive(Debug)]
struct CliCommandResult {
    code: i32,
    out: String,
    err: String,
}

/// Command line that a test runs in `folder`.
struct TestCommandLine {
    command: Command,
    input: Vec<u8>,
    _home: TempDir,
}

impl TestCommandLine {
    fn new(folder: &Path, args: &[&str]) -> Self {
        let home = TempDir::with_prefix("toolgate-home-").unwrap();
        let mut command = Command::new(binary());
        command.args(args).current_dir(folder).env_clear();
        command.env("PATH", path()).env("HOME", home.path()).env("TOOLGATE_AUDIT_TO", "off");
        trust_config(&mut command, folder);
        Self { command, input: Vec::new(), _home: home }
    }

    fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    fn input(mut self, input: &str) -> Self {
        self.input = input.into();
        self
    }

    fn run(mut self) -> CliCommandResult {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        // The command may end without reading its input.
        let _ = child.stdin.take().unwrap().write_all(&self.input);
        let done = child.wait_with_output().unwrap();
        CliCommandResult {
            code: done.status.code().expect("no signal ended it"),
            out: String::from_utf8(done.stdout).unwrap(),
            err: String::from_utf8(done.stderr).unwrap(),
        }
    }
}

/// Runs `toolgate` with `args` in `folder`.
fn run(folder: &Path, args: &[&str]) -> CliCommandResult {
    TestCommandLine::new(folder, args).run()
}
