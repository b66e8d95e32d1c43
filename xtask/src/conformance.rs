//! Runs MCP's own conformance suite against toolgate, through the example server that offers every
//! feature.
//!
//! Runs every scenario of a revision, including those of extensions and those added after the
//! release of the revision. Each check must succeed: nothing is expected to fail.

mod suite;
mod client;
mod driver;
mod fleet;
mod matrix;
mod older;
mod server;
mod through;

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::setup;
use crate::shell::{build, checkout};
use client::run_client_suite;
use fleet::TestedFleet;
use matrix::GatewayPairOutcome;
use server::ConformanceServerProcess;
use suite::{ConformanceScenario, ConformanceSuite, ScenarioCheck, ScenarioCheckOutcome};
use through::{ConformanceClient, ExampleServerConnection};

pub(crate) use driver::drive;

/// MCP revisions in which the suite tests servers.
const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];
/// MCP revision in which scenarios of extensions run.
const EXTENSIONS: &str = "2026-07-28";

/// Command-line options of `cargo xtask conformance`.
#[derive(Default)]
struct ConformanceOptions {
    /// Name of the only scenario to run. If it is `None`, all run.
    scenario: Option<String>,
    /// The only MCP revision to run. If it is `None`, all run.
    revision: Option<String>,
    /// True to keep the files that the suite wrote.
    keep: bool,
    /// True to test the example server through toolgate as a gateway.
    through: bool,
    /// True to test toolgate as a client of upstreams.
    client: bool,
    /// True to test several toolgates behind a load balancer.
    fleet: bool,
    /// Text that selects the clients to test by their names, e.g. `2024-11-05 over HTTP+SSE`. If it
    /// is `None`, all clients are tested.
    from: Option<String>,
    /// Text that selects the edges to test by their names, e.g. `2025-03-26 over stdio`. An edge is
    /// a connection from toolgate to the example server. If it is `None`, all edges are tested.
    edge: Option<String>,
}

/// Number of passed, failed and skipped checks of the conformance suite.
#[derive(Default)]
struct ScenarioCheckCounts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl ScenarioCheckCounts {
    /// Adds the outcomes of `checks`, the checks of `scenario`, to the counts. Prints the checks
    /// that did not pass.
    fn count(&mut self, revision: &str, scenario: &ConformanceScenario, checks: &[ScenarioCheck]) {
        for check in checks {
            match check.outcome {
                ScenarioCheckOutcome::Passed => self.passed += 1,
                ScenarioCheckOutcome::Failed => {
                    self.failed += 1;
                    println!("{revision} {}: {check}", scenario.name);
                }
                ScenarioCheckOutcome::Skipped => {
                    self.skipped += 1;
                    eprintln!("{revision} {}: skipped: {check}", scenario.name);
                }
                ScenarioCheckOutcome::Info => {}
            }
        }
    }
}

/// Runs the command `cargo xtask conformance` with the arguments `args`.
pub(crate) fn run_command(args: &[String]) -> anyhow::Result<()> {
    let mut options = ConformanceOptions::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("`{arg}` needs a value"));
        match arg.as_str() {
            "--scenario" => options.scenario = Some(value()?.clone()),
            "--revision" => {
                let revision = value()?;
                options.revision = Some(revision.clone());
            }
            "--keep" => options.keep = true,
            "--through" => options.through = true,
            "--client" => options.client = true,
            "--fleet" => options.fleet = true,
            "--from" => options.from = Some(value()?.clone()),
            "--edge" => options.edge = Some(value()?.clone()),
            other => bail!(
                "unknown option `{other}`; the options are --scenario NAME, --revision REVISION, --keep, --through, \
                 --from CLIENT, --edge EDGE, --client, --fleet"
            ),
        }
    }
    setup::node()?;
    build()?;
    if options.client {
        return run_client_suite(&options);
    }
    if options.through {
        // The bridge that serves the example over WebSockets is one of them.
        setup::upstreams()?;
        return test_gateway(&options);
    }
    if let Some(revision) = &options.revision {
        let known = REVISIONS.contains(&revision.as_str());
        ensure!(known, "the suite supports {}, not {revision}", REVISIONS.join(" and "));
    }
    if options.fleet {
        setup::postgres()?;
        setup::haproxy()?;
        return test_fleet(&options);
    }
    test_server(&options)
}

/// Runs the selected scenarios against the example server, and fails if a check fails.
fn test_server(options: &ConformanceOptions) -> anyhow::Result<()> {
    let folder = ConformanceTempFolder::create()?;
    let server = ConformanceServerProcess::start(
        &checkout().join("target/debug/example-everything"),
        &folder.0,
    )?;
    let tallies = run_selected(&server.url, options, &folder.0)?;
    server.stop()?;
    folder.close(options.keep)?;
    report_counts(&tallies)
}

/// Runs the selected scenarios against several toolgates behind a load balancer. Fails if a check
/// fails.
fn test_fleet(options: &ConformanceOptions) -> anyhow::Result<()> {
    let folder = ConformanceTempFolder::create()?;
    let fleet = TestedFleet::start(&folder.0)?;
    let tallies = run_selected(&fleet.url(), options, &folder.0)?;
    fleet.stop()?;
    folder.close(options.keep)?;
    report_counts(&tallies)
}

/// Runs the selected scenarios against the server at `url`, and returns the counts by revision. The
/// suite writes its files below `folder`.
fn run_selected(
    url: &str,
    options: &ConformanceOptions,
    folder: &Path,
) -> anyhow::Result<Vec<(&'static str, ScenarioCheckCounts)>> {
    let suite = ConformanceSuite::installed()?;
    let all = suite.scenarios()?;
    eprintln!("\n==> conformance against {url}");
    let mut tallies = Vec::new();
    for (revision, scenarios) in select_scenarios(&all, options)? {
        let results = folder.join("results").join(revision);
        tallies.push((revision, run_scenarios(&suite, revision, &scenarios, url, &results)?));
    }
    Ok(tallies)
}

/// Prints the counts of each revision. Fails if a check failed.
fn report_counts(tallies: &[(&str, ScenarioCheckCounts)]) -> anyhow::Result<()> {
    let mut failed = 0;
    for (revision, tally) in tallies {
        println!("{revision}: {} passed, {} failed", tally.passed, tally.failed);
        failed += tally.failed;
    }
    ensure!(failed == 0, "toolgate does not conform to MCP in {failed} checks, named above");
    Ok(())
}

/// Runs the selected scenarios against the example server behind toolgate, for each client and edge
/// (connection from toolgate to the example). As many edges run at once as there are processors. A
/// full run writes a reference page.
fn test_gateway(options: &ConformanceOptions) -> anyhow::Result<()> {
    let suite = ConformanceSuite::installed()?;
    let all = suite.scenarios()?;
    let is_selected = |edge: &ExampleServerConnection| {
        let name = edge.to_string();
        options.edge.as_ref().is_none_or(|part| name.contains(part.as_str()))
    };
    let edges = Mutex::new(ExampleServerConnection::all().filter(is_selected));
    let next_edge = || edges.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run_edges = || {
        let mut pairs = Vec::new();
        while let Some(edge) = next_edge() {
            pairs.extend(test_edge(edge, &suite, &all, options)?);
        }
        anyhow::Ok(pairs)
    };
    let pairs: anyhow::Result<Vec<_>> = thread::scope(|scope| {
        let at_once = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(run_edges)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    let pairs: Vec<_> = pairs?.into_iter().flatten().collect();
    let filters = [&options.from, &options.edge, &options.revision, &options.scenario];
    let is_whole = filters.iter().all(|filter| filter.is_none());
    if is_whole {
        matrix::write(&pairs)?;
    }
    let failed: usize = pairs.iter().map(|pair| pair.tally.failed).sum();
    ensure!(failed == 0, "{failed} checks failed through toolgate, named above");
    Ok(())
}

/// Starts toolgate with the example as its upstream over `edge`, and runs the selected clients
/// against toolgate.
fn test_edge(
    edge: ExampleServerConnection,
    suite: &ConformanceSuite,
    all: &[ConformanceScenario],
    options: &ConformanceOptions,
) -> anyhow::Result<Vec<GatewayPairOutcome>> {
    let folder = ConformanceTempFolder::create()?;
    let gateway = edge.start_gateway(&folder.0)?;
    eprintln!("\n==> conformance against {}, with {edge} upstream", gateway.server.url);
    let mut pairs = Vec::new();
    for client in ConformanceClient::all() {
        let name = client.to_string();
        let is_left_out = options.from.as_ref().is_some_and(|from| !name.contains(from.as_str()));
        if is_left_out || options.revision.as_ref().is_some_and(|only| only != client.revision) {
            continue;
        }
        let is_selected = |scenario: &&ConformanceScenario| {
            let has_name = options.scenario.as_ref().is_none_or(|name| *name == scenario.name);
            has_name && client.supports(scenario)
        };
        let (scenarios, left_out): (Vec<_>, Vec<_>) =
            all.iter().filter(is_selected).partition(|scenario| edge.supports(&scenario.name));
        if scenarios.is_empty() {
            continue;
        }
        let (url, client_gateway) = client.connect(&gateway)?;
        let results = folder.0.join("results").join(name);
        let tally = run_scenarios(suite, client.suite_revision(), &scenarios, &url, &results)?;
        client_gateway.map_or(Ok(()), ConformanceServerProcess::stop)?;
        let ScenarioCheckCounts { passed, failed, .. } = tally;
        println!("{client}, {edge} upstream: {passed} passed, {failed} failed");
        pairs.push(GatewayPairOutcome { client, edge, tally, left_out: left_out.len() });
    }
    gateway.stop()?;
    folder.close(options.keep)?;
    Ok(pairs)
}

/// Runs `scenarios` in `revision` against the server at `url`, and returns the counts of their
/// outcomes. The suite writes its files below `results`.
fn run_scenarios(
    suite: &ConformanceSuite,
    revision: &str,
    scenarios: &[&ConformanceScenario],
    url: &str,
    results: &Path,
) -> anyhow::Result<ScenarioCheckCounts> {
    let started = Instant::now();
    let mut tally = ScenarioCheckCounts::default();
    for scenario in scenarios {
        let results = results.join(&scenario.name);
        tally.count(revision, scenario, &suite.run(scenario, revision, url, &results)?);
    }
    eprintln!(
        "{revision}: {} scenarios in {:.0} s; the suite skipped {} checks",
        scenarios.len(),
        started.elapsed().as_secs_f64(),
        tally.skipped
    );
    Ok(tally)
}

/// Returns the scenarios that the options select, with the revision in which they run.
fn select_scenarios<'s>(
    all: &'s [ConformanceScenario],
    options: &ConformanceOptions,
) -> anyhow::Result<Vec<(&'static str, Vec<&'s ConformanceScenario>)>> {
    let mut runs = Vec::new();
    for revision in REVISIONS {
        if options.revision.as_ref().is_some_and(|only| only != revision) {
            continue;
        }
        let is_selected = |scenario: &&ConformanceScenario| {
            let has_name = options.scenario.as_ref().is_none_or(|name| *name == scenario.name);
            has_name && scenario.runs_in(revision, EXTENSIONS)
        };
        let scenarios: Vec<_> = all.iter().filter(is_selected).collect();
        if !scenarios.is_empty() {
            runs.push((revision, scenarios));
        }
    }
    ensure!(!runs.is_empty(), "the suite has no such scenario; it has {}", {
        let names: Vec<_> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        names.join(", ")
    });
    Ok(runs)
}

/// Temporary folder for the server's state and the suite's results. Dropping it deletes the folder.
struct ConformanceTempFolder(PathBuf);

impl ConformanceTempFolder {
    fn create() -> anyhow::Result<Self> {
        static CREATED: AtomicUsize = AtomicUsize::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let name = format!("toolgate-conformance-{:x}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Deletes the folder. If `keep` is true, prints its path instead.
    fn close(mut self, keep: bool) -> anyhow::Result<()> {
        if keep {
            eprintln!("the suite's results are in {}", self.0.join("results").display());
            self.0 = PathBuf::new();
            return Ok(());
        }
        let path = std::mem::take(&mut self.0);
        std::fs::remove_dir_all(&path).with_context(|| path.display().to_string())
    }
}

impl Drop for ConformanceTempFolder {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // The run already failed with an error that matters more than this one.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
