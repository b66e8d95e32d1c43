//! Tests with MCP clients of other projects: each program in `tests/clients`, in every mode and
//! over both transports.

mod openapi;
mod rig;
mod rust;

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{
    MODERN, REVISIONS, ServerLaunchOptions, TempWorkspace, at_once, binary, checkout, path,
};
use rig::ClientTestServers;

/// Client programs of the tests, each with the interpreter that it needs.
#[derive(Clone, Copy)]
pub(crate) enum SdkClientDriver {
    Python,
    PythonTasks,
    PythonLibrary,
    Inspector,
    TypeScript,
    /// Client program for the workstation contract, in Python.
    PythonWorkstation,
    TypeScriptWorkstation,
    /// Client program that opens the console in a browser.
    Console,
}

impl SdkClientDriver {
    pub(crate) fn command(self) -> Command {
        let (program, script) = match self {
            Self::Python => ("python/bin/python", "python_client.py"),
            Self::PythonTasks => ("python/bin/python", "python_tasks.py"),
            Self::PythonLibrary => ("python/bin/python", "python_library.py"),
            Self::TypeScript => ("node/node_modules/.bin/node", "typescript.mjs"),
            Self::PythonWorkstation => ("python/bin/python", "python_workstation.py"),
            Self::TypeScriptWorkstation => ("node/node_modules/.bin/node", "workstation.mjs"),
            Self::Console => ("node/node_modules/.bin/node", "console.mjs"),
            Self::Inspector => ("node/node_modules/.bin/node", "inspector.mjs"),
        };
        let program = checkout().join(".tools").join(program);
        assert!(program.exists(), "{} is missing: run `cargo xtask setup`", program.display());
        let mut command = Command::new(program);
        command.arg(checkout().join("tests/clients").join(script));
        command
    }
}

/// Runs `driver` in `mode` against a server of `folder`, over both transports, and checks that it
/// reports no failure.
#[track_caller]
fn check(driver: SdkClientDriver, folder: &Path, mode: [&str; 2]) {
    let root = folder.to_str().unwrap();
    let begin = || {
        let mut command = driver.command();
        command.args(["--workspace", root]).args(mode);
        command
    };
    let mut over_stdio = begin();
    // The SDKs pass no variables on.
    over_stdio.args(["--stdio", "env", "TOOLGATE_SERVER_RESULTS=both"]);
    over_stdio.arg(binary()).args(["stdio", root]);
    let served = ServerLaunchOptions::at(folder).served();
    let mut over_http = begin();
    over_http.args(["--url", &served.url()]);
    // Both mostly wait.
    at_once([over_stdio, over_http], check_passes);
}

/// Runs `driver` once, with `args`, against both test servers over both transports.
#[track_caller]
fn check_all(driver: SdkClientDriver, args: [&str; 2]) {
    let rig = ClientTestServers::new();
    let mut command = driver.command();
    command.args(args).arg("--workspace").arg(rig.workspace.root());
    command.arg("--toolgate").arg(binary()).args(["--toolgate-url", &rig.toolgate.url()]);
    command.arg("--everything").arg(ClientTestServers::example());
    command.args(["--everything-url", &rig.everything.url()]);
    check_passes(command);
}

/// Runs the client program `driver` and checks that it reports no failure.
#[track_caller]
pub(crate) fn check_passes(mut driver: Command) {
    let home = TempDir::with_prefix("toolgate-home-").unwrap();
    driver.env_clear().env("PATH", path()).env("HOME", home.path());
    // Python writes no compiled modules into the repository.
    driver.env("PYTHONDONTWRITEBYTECODE", "1");
    let done = driver.stdin(Stdio::null()).output().unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let err = String::from_utf8_lossy(&done.stderr);
    let count = |word: &str| -> usize {
        let sum = out.lines().last().unwrap_or_default();
        let mut parts = sum.split(", ").filter_map(|part| part.strip_suffix(word));
        parts.next().and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| {
            panic!("{driver:?} printed no summary:\n{out}\n{err}");
        })
    };
    let passed = count(" passed");
    let failed = count(" failed");
    assert!(failed == 0 && passed > 0 && done.status.success(), "{driver:?}:\n{out}\n{err}");
}

fn python(mode: [&str; 2]) {
    check(SdkClientDriver::Python, TempWorkspace::new().root(), mode);
}

fn inspector(era: &str) {
    check(SdkClientDriver::Inspector, TempWorkspace::new().root(), ["--era", era]);
}

#[test]
fn the_python_sdk_finds_the_stateless_revision() {
    python(["--mode", "auto"]);
}

#[test]
fn the_python_sdk_works_in_the_stateless_revision() {
    python(["--mode", "2026-07-28"]);
}

#[test]
fn the_python_sdk_works_after_a_handshake() {
    python(["--mode", "legacy"]);
}

#[test]
fn the_python_sdk_works_in_each_revision_with_a_handshake() {
    let revisions = REVISIONS.into_iter().filter(|revision| *revision != MODERN);
    at_once(revisions, |revision| python(["--revision", revision]));
}

#[test]
fn the_python_sdk_works_on_this_repository() {
    check(SdkClientDriver::Python, &checkout(), ["--mode", "auto"]);
}

#[test]
fn the_python_sdk_finishes_tasks_in_the_stateless_revision() {
    check(SdkClientDriver::PythonTasks, TempWorkspace::new().root(), ["--mode", "auto"]);
}

#[test]
fn the_python_sdk_manages_tasks_in_2025_11_25() {
    check(SdkClientDriver::PythonTasks, TempWorkspace::new().root(), ["--revision", "2025-11-25"]);
}

#[test]
fn the_python_sdk_can_use_everything_in_every_revision() {
    check_all(SdkClientDriver::PythonLibrary, ["--client", "mcp"]);
}

#[test]
fn fastmcp_can_use_everything_in_every_revision() {
    check_all(SdkClientDriver::PythonLibrary, ["--client", "fastmcp"]);
}

#[test]
fn the_typescript_sdk_can_use_everything_in_every_revision() {
    check_all(SdkClientDriver::TypeScript, ["--sdk", "client"]);
}

#[test]
fn the_typescript_sdk_v1_can_use_everything_in_every_revision() {
    check_all(SdkClientDriver::TypeScript, ["--sdk", "v1"]);
}

#[test]
fn the_rust_sdk_can_use_everything_in_every_revision() {
    at_once(REVISIONS, rust::check);
}

#[test]
fn the_inspector_finds_the_stateless_revision() {
    inspector("auto");
}

#[test]
fn the_inspector_works_in_the_stateless_revision() {
    inspector("modern");
}

#[test]
fn the_inspector_works_after_a_handshake() {
    inspector("legacy");
}

#[test]
fn a_person_can_use_the_console_in_a_browser_with_the_keyboard_and_in_every_size() {
    let mut driver = SdkClientDriver::Console.command();
    driver.arg("--toolgate").arg(binary());
    check_passes(driver);
}
