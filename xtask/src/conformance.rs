//! Holds toolgate against MCP's own conformance suite, through the example that offers everything.
//!
//! Every scenario that a revision has is run, those of extensions and those added since its
//! release too, and each of its checks must succeed: nothing is expected to fail.

mod suite;
mod server;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::setup;
use crate::shell::{cargo, checkout, run};
use server::Server;
use suite::{Outcome, Scenario, Suite};

/// The revisions that the suite has servers held against.
const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];
/// The revision that extensions belong to.
const EXTENSIONS: &str = "2026-07-28";

/// What `cargo xtask conformance` is asked for.
#[derive(Default)]
pub(crate) struct Wanted {
    /// Only this scenario.
    scenario: Option<String>,
    /// Only this revision.
    revision: Option<String>,
    /// Whether what the suite wrote down is kept.
    keep: bool,
}

/// What came of a revision.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Does what `words` say: `--scenario NAME`, `--revision REVISION`, `--keep`.
pub(crate) fn from_words(words: &[String]) -> anyhow::Result<()> {
    let mut wanted = Wanted::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("what comes after `{word}`?"));
        match word.as_str() {
            "--scenario" => wanted.scenario = Some(value()?.clone()),
            "--revision" => {
                let revision = value()?;
                let known = REVISIONS.contains(&revision.as_str());
                ensure!(known, "the suite is for {}, not {revision}", REVISIONS.join(" and "));
                wanted.revision = Some(revision.clone());
            }
            "--keep" => wanted.keep = true,
            other => bail!("`{other}` is none of --scenario NAME, --revision REVISION, --keep"),
        }
    }
    setup::node()?;
    run(&cargo(), &["build", "--locked", "--package", "example-everything"])?;
    hold(&wanted)
}

/// Runs every scenario that is wanted against the example as it is built, and fails if any check
/// of any does.
pub(crate) fn hold(wanted: &Wanted) -> anyhow::Result<()> {
    let suite = Suite::installed()?;
    let all = suite.scenarios()?;
    let runs = chosen(&all, wanted)?;

    let folder = Folder::make()?;
    let server = Server::start(&checkout().join("target/debug/example-everything"), &folder.0)?;
    eprintln!("\n==> conformance against {}", server.url);
    let mut last = Vec::new();
    let mut failed = 0;
    for (revision, scenarios) in runs {
        let begun = Instant::now();
        let mut tally = Tally::default();
        for scenario in &scenarios {
            let results = folder.0.join("results").join(revision).join(&scenario.name);
            let checks = suite.run(scenario, revision, &server.url, &results)?;
            for check in &checks {
                match check.outcome {
                    Outcome::Passed => tally.passed += 1,
                    Outcome::Failed => {
                        tally.failed += 1;
                        println!("{revision} {}: {check}", scenario.name);
                    }
                    Outcome::Skipped => {
                        tally.skipped += 1;
                        eprintln!("{revision} {}: skipped: {check}", scenario.name);
                    }
                    Outcome::Told => {}
                }
            }
        }
        eprintln!(
            "{revision}: {} scenarios in {:.0} s; {} checks skipped, as the suite has it",
            scenarios.len(),
            begun.elapsed().as_secs_f64(),
            tally.skipped
        );
        last.push(format!("{revision}: {} passed, {} failed", tally.passed, tally.failed));
        failed += tally.failed;
    }
    server.stop()?;
    folder.leave(wanted.keep)?;
    for line in last {
        println!("{line}");
    }
    ensure!(failed == 0, "toolgate does not conform to MCP in {failed} checks, named above");
    Ok(())
}

/// The scenarios to run, by revision.
fn chosen<'s>(
    all: &'s [Scenario],
    wanted: &Wanted,
) -> anyhow::Result<Vec<(&'static str, Vec<&'s Scenario>)>> {
    let mut runs = Vec::new();
    for revision in REVISIONS {
        if wanted.revision.as_ref().is_some_and(|wanted| wanted != revision) {
            continue;
        }
        let is_wanted = |one: &&Scenario| {
            let named = wanted.scenario.as_ref().is_none_or(|name| *name == one.name);
            named && one.is_of(revision, EXTENSIONS)
        };
        let scenarios: Vec<_> = all.iter().filter(is_wanted).collect();
        if !scenarios.is_empty() {
            runs.push((revision, scenarios));
        }
    }
    ensure!(!runs.is_empty(), "the suite has no such scenario; it has {}", {
        let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
        names.join(", ")
    });
    Ok(runs)
}

/// A folder for the server's state and the suite's results, removed when all is well or not.
struct Folder(PathBuf);

impl Folder {
    fn make() -> anyhow::Result<Self> {
        let name = format!("toolgate-conformance-{:x}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Removes it, or says where it is.
    fn leave(mut self, keep: bool) -> anyhow::Result<()> {
        if keep {
            eprintln!("what the suite wrote down is in {}", self.0.join("results").display());
            self.0 = PathBuf::new();
            return Ok(());
        }
        let path = std::mem::take(&mut self.0);
        std::fs::remove_dir_all(&path).with_context(|| path.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // An error is on its way that says more than this one would.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
