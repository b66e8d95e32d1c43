//! Runs the installed conformance suite: lists its scenarios, runs them, and reads their checks.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::shell::{checkout, output, tools};

/// Word that the suite lists for a scenario of an extension instead of MCP revisions.
const EXTENSION: &str = "extension";
/// Number of the last output lines that an error shows if a scenario wrote no checks.
const SHOWN_LINES: usize = 8;

/// Paths of MCP's conformance suite and of the Node.js that runs it.
pub(super) struct ConformanceSuite {
    node: String,
    program: String,
}

/// Scenario of the conformance suite, with its name and its revisions.
#[derive(Debug)]
pub(super) struct ConformanceScenario {
    pub(super) name: String,
    /// MCP revisions in which the scenario runs, or [`EXTENSION`] for a scenario of an extension.
    revisions: Vec<String>,
}

/// One check in a scenario of the conformance suite, with its outcome.
pub(super) struct ScenarioCheck {
    pub(super) outcome: ScenarioCheckOutcome,
    id: String,
    message: String,
}

/// Outcome of a check in the conformance suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScenarioCheckOutcome {
    Passed,
    /// The check failed or gave a warning.
    Failed,
    Skipped,
    /// The check only gives information.
    Info,
}

impl ConformanceSuite {
    /// Finds the conformance suite that `cargo xtask setup` installed.
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

    /// Returns the scenarios that test servers.
    pub(super) fn scenarios(&self) -> anyhow::Result<Vec<ConformanceScenario>> {
        self.list("--server")
    }

    /// Returns the scenarios that test clients.
    pub(super) fn client_scenarios(&self) -> anyhow::Result<Vec<ConformanceScenario>> {
        self.list("--client")
    }

    fn list(&self, kind: &str) -> anyhow::Result<Vec<ConformanceScenario>> {
        let listed = output(&self.node, &[&self.program, "list", kind])?;
        let scenarios: Vec<_> = listed.lines().filter_map(ConformanceScenario::read).collect();
        ensure!(
            !scenarios.is_empty(),
            "the suite lists no scenario in the expected form:\n{listed}"
        );
        Ok(scenarios)
    }

    /// Runs `scenario` against the server at `url`, and returns its checks. The suite writes its
    /// files below `results`.
    pub(super) fn run(
        &self,
        scenario: &ConformanceScenario,
        revision: &str,
        url: &str,
        results: &Path,
    ) -> anyhow::Result<Vec<ScenarioCheck>> {
        self.run_scenario(&["server", "--url", url], scenario, revision, results)
    }

    /// Runs `scenario` against the client that `command` starts, and returns its checks. The suite
    /// writes its files below `results`.
    pub(super) fn run_client(
        &self,
        scenario: &ConformanceScenario,
        revision: &str,
        command: &str,
        results: &Path,
    ) -> anyhow::Result<Vec<ScenarioCheck>> {
        self.run_scenario(&["client", "--command", command], scenario, revision, results)
    }

    /// Runs the suite with `args`, and returns the checks of `scenario` that it wrote below
    /// `results`.
    fn run_scenario(
        &self,
        args: &[&str],
        scenario: &ConformanceScenario,
        revision: &str,
        results: &Path,
    ) -> anyhow::Result<Vec<ScenarioCheck>> {
        fs::create_dir_all(results)?;
        let output = Command::new(&self.node)
            .arg(&self.program)
            .args(args)
            .args(["--scenario", &scenario.name])
            // Extensions belong to no revision. Without `--force`, the suite leaves them out.
            .args(["--spec-version", revision, "--force"])
            .arg("--output-dir")
            .arg(results)
            .current_dir(checkout())
            .stdin(Stdio::null())
            .output()
            .context("cannot start the suite")?;
        let text = [output.stdout, output.stderr].concat();
        fs::write(results.join("output.txt"), &text)?;
        let Some(checks) = checks(results)? else {
            let text = String::from_utf8_lossy(&text);
            let from = text.lines().count().saturating_sub(SHOWN_LINES);
            let end: Vec<_> = text.lines().skip(from).collect();
            let message = format!("the suite failed ({}): {}", output.status, end.join("\n  "));
            return Ok(vec![ScenarioCheck {
                outcome: ScenarioCheckOutcome::Failed,
                id: "scenario".to_owned(),
                message,
            }]);
        };
        checks.iter().map(ScenarioCheck::read).collect()
    }
}

/// Returns the checks that a scenario wrote into a folder below `results`, or `None` if there are
/// no checks.
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

impl ConformanceScenario {
    /// Parses a line of the suite's list of scenarios, e.g. `  - ping [2025-06-18,2025-11-25]`.
    fn read(line: &str) -> Option<Self> {
        let (name, revisions) = line.trim().strip_prefix("- ")?.split_once(" [")?;
        let revisions = revisions.strip_suffix(']')?.split(',');
        let revisions = revisions.map(|revision| revision.trim().to_owned()).collect();
        Some(Self { name: name.to_owned(), revisions })
    }

    /// Returns true if the scenario runs in `revision`. A scenario of an extension runs only in the
    /// revision `extensions`.
    pub(super) fn runs_in(&self, revision: &str, extensions: &str) -> bool {
        let is_match =
            |own: &String| own == revision || (own == EXTENSION && revision == extensions);
        self.revisions.iter().any(is_match)
    }
}

impl ScenarioCheck {
    fn read(check: &Value) -> anyhow::Result<Self> {
        let text = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
        let outcome = match check["status"].as_str() {
            Some("SUCCESS") => ScenarioCheckOutcome::Passed,
            Some("FAILURE" | "WARNING") => ScenarioCheckOutcome::Failed,
            Some("SKIPPED") => ScenarioCheckOutcome::Skipped,
            Some("INFO") => ScenarioCheckOutcome::Info,
            other => anyhow::bail!("a check has the unknown status {other:?}"),
        };
        let message = match text("errorMessage") {
            empty if empty.is_empty() => text("description"),
            message => message,
        };
        Ok(Self { outcome, id: text("id"), message })
    }
}

impl fmt::Display for ScenarioCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_run_in_their_revisions_and_extensions_in_the_newest() {
        let read = |line| ConformanceScenario::read(line).expect("a scenario");
        let ping = read("  - ping [2025-06-18,2025-11-25]");
        assert_eq!(ping.name, "ping");
        assert!(
            ping.runs_in("2025-11-25", "2026-07-28") && !ping.runs_in("2026-07-28", "2026-07-28")
        );
        let tasks = read("  - tasks-lifecycle [extension]");
        assert!(
            !tasks.runs_in("2025-11-25", "2026-07-28") && tasks.runs_in("2026-07-28", "2026-07-28")
        );
        assert!(ConformanceScenario::read("Server scenarios (test against a server):").is_none());
    }

    #[test]
    fn a_warning_is_a_failure_and_an_unknown_status_an_error() {
        let read =
            |status: &str| ScenarioCheck::read(&serde_json::json!({ "id": "a", "status": status }));
        assert_eq!(read("WARNING").expect("known").outcome, ScenarioCheckOutcome::Failed);
        assert_eq!(read("INFO").expect("known").outcome, ScenarioCheckOutcome::Info);
        assert!(read("MAYBE").is_err());
    }
}
