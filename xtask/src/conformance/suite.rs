//! The suite as it is installed: which scenarios it has, and what it says of a server.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::shell::{checkout, output, tools};

/// What a scenario of an extension is marked with where others name revisions.
const EXTENSION: &str = "extension";
/// How much of what a scenario printed is shown if it left nothing else.
const SHOWN_LINES: usize = 8;

/// The suite, and the Node that runs it.
pub(super) struct Suite {
    node: String,
    program: String,
}

/// A scenario: a client with something in mind.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: String,
    /// The revisions that it is of, or that it is of an extension.
    of: Vec<String>,
}

/// One thing that a scenario looked at.
pub(super) struct Check {
    pub(super) outcome: Outcome,
    id: String,
    message: String,
}

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// A warning is a failure too: it is what a server should do and does not.
    Failed,
    Skipped,
    /// It only tells something.
    Told,
}

impl Suite {
    /// The suite that setup installed.
    pub(super) fn installed() -> anyhow::Result<Self> {
        let modules = tools().join("node/node_modules");
        let file = |path: &str| -> anyhow::Result<String> {
            let file: PathBuf = modules.join(path);
            ensure!(file.exists(), "{} is missing; run `cargo xtask setup`", file.display());
            Ok(file.display().to_string())
        };
        let program = file("@modelcontextprotocol/conformance/dist/index.js")?;
        Ok(Self { node: file(".bin/node")?, program })
    }

    /// Every scenario that it has for servers.
    pub(super) fn scenarios(&self) -> anyhow::Result<Vec<Scenario>> {
        self.listed("--server")
    }

    /// Every scenario that it has for clients.
    pub(super) fn client_scenarios(&self) -> anyhow::Result<Vec<Scenario>> {
        self.listed("--client")
    }

    fn listed(&self, of: &str) -> anyhow::Result<Vec<Scenario>> {
        let listed = output(&self.node, &[&self.program, "list", of])?;
        let scenarios: Vec<_> = listed.lines().filter_map(Scenario::read).collect();
        ensure!(
            !scenarios.is_empty(),
            "the suite lists no scenario in the expected form:\n{listed}"
        );
        Ok(scenarios)
    }

    /// Runs `scenario` against the server at `url`; what it writes down is below `results`.
    pub(super) fn run(
        &self,
        scenario: &Scenario,
        revision: &str,
        url: &str,
        results: &Path,
    ) -> anyhow::Result<Vec<Check>> {
        self.ran(&["server", "--url", url], scenario, revision, results)
    }

    /// Runs `scenario` against the client that `command` starts.
    pub(super) fn run_client(
        &self,
        scenario: &Scenario,
        revision: &str,
        command: &str,
        results: &Path,
    ) -> anyhow::Result<Vec<Check>> {
        self.ran(&["client", "--command", command], scenario, revision, results)
    }

    fn ran(
        &self,
        words: &[&str],
        scenario: &Scenario,
        revision: &str,
        results: &Path,
    ) -> anyhow::Result<Vec<Check>> {
        fs::create_dir_all(results)?;
        let ran = Command::new(&self.node)
            .arg(&self.program)
            .args(words)
            .args(["--scenario", &scenario.name])
            // Extensions are of no revision; without force they are left out.
            .args(["--spec-version", revision, "--force"])
            .arg("--output-dir")
            .arg(results)
            .current_dir(checkout())
            .stdin(Stdio::null())
            .output()
            .context("cannot start the suite")?;
        let output = [ran.stdout, ran.stderr].concat();
        fs::write(results.join("said.txt"), &output)?;
        let Some(checks) = checks(results)? else {
            let output = String::from_utf8_lossy(&output);
            let from = output.lines().count().saturating_sub(SHOWN_LINES);
            let end: Vec<_> = output.lines().skip(from).collect();
            let message = format!("the suite failed ({}): {}", ran.status, end.join("\n  "));
            return Ok(vec![Check {
                outcome: Outcome::Failed,
                id: "scenario".to_owned(),
                message,
            }]);
        };
        checks.iter().map(Check::read).collect()
    }
}

/// What a scenario wrote down, in a folder that it made somewhere below `results`.
fn checks(results: &Path) -> anyhow::Result<Option<Vec<Value>>> {
    for entry in fs::read_dir(results)? {
        let entry = entry?.path();
        if entry.file_name().is_some_and(|name| name == "checks.json") {
            let text = fs::read_to_string(&entry)?;
            let checks: Vec<Value> =
                serde_json::from_str(&text).with_context(|| entry.display().to_string())?;
            return Ok((!checks.is_empty()).then_some(checks));
        }
        if entry.is_dir()
            && let Some(checks) = checks(&entry)?
        {
            return Ok(Some(checks));
        }
    }
    Ok(None)
}

impl Scenario {
    /// The scenario that a line of the list names: `  - ping [2025-06-18,2025-11-25]`.
    fn read(line: &str) -> Option<Self> {
        let (name, of) = line.trim().strip_prefix("- ")?.split_once(" [")?;
        let of = of.strip_suffix(']')?.split(',').map(|one| one.trim().to_owned()).collect();
        Some(Self { name: name.to_owned(), of })
    }

    /// Whether it is run for `revision`; those of extensions are for `extensions`.
    pub(super) fn is_of(&self, revision: &str, extensions: &str) -> bool {
        self.of.iter().any(|of| of == revision || (of == EXTENSION && revision == extensions))
    }
}

impl Check {
    fn read(check: &Value) -> anyhow::Result<Self> {
        let text = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
        let outcome = match check["status"].as_str() {
            Some("SUCCESS") => Outcome::Passed,
            Some("FAILURE" | "WARNING") => Outcome::Failed,
            Some("SKIPPED") => Outcome::Skipped,
            Some("INFO") => Outcome::Told,
            other => anyhow::bail!("a check has the unknown status {other:?}"),
        };
        let message = match text("errorMessage") {
            none if none.is_empty() => text("description"),
            message => message,
        };
        Ok(Self { outcome, id: text("id"), message })
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_run_in_their_revisions_and_extensions_in_the_newest() {
        let read = |line| Scenario::read(line).expect("a scenario");
        let ping = read("  - ping [2025-06-18,2025-11-25]");
        assert_eq!(ping.name, "ping");
        assert!(ping.is_of("2025-11-25", "2026-07-28") && !ping.is_of("2026-07-28", "2026-07-28"));
        let tasks = read("  - tasks-lifecycle [extension]");
        assert!(
            !tasks.is_of("2025-11-25", "2026-07-28") && tasks.is_of("2026-07-28", "2026-07-28")
        );
        assert!(Scenario::read("Server scenarios (test against a server):").is_none());
    }

    #[test]
    fn a_warning_is_a_failure_and_an_unknown_status_an_error() {
        let read = |status: &str| Check::read(&serde_json::json!({ "id": "a", "status": status }));
        assert_eq!(read("WARNING").expect("known").outcome, Outcome::Failed);
        assert_eq!(read("INFO").expect("known").outcome, Outcome::Told);
        assert!(read("MAYBE").is_err());
    }
}
