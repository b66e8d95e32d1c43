//! Holds toolgate against MCP's own conformance suite, through the example that offers everything.
//!
//! Every scenario that a revision has is run, those of extensions and those added since its
//! release too, and each of its checks must succeed: nothing is expected to fail.

mod suite;
mod client;
mod driver;
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
use client::hold as hold_client;
use matrix::Pair;
use server::Server;
use suite::{Check, Outcome, Scenario, Suite};
use through::{Client, Edge};

pub(crate) use driver::drive;

/// The revisions that the suite has servers held against.
const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];
/// The revision that extensions belong to.
const EXTENSIONS: &str = "2026-07-28";

/// What `cargo xtask conformance` is asked for.
#[derive(Default)]
struct ConformanceOptions {
    /// Only this scenario.
    scenario: Option<String>,
    /// Only this revision.
    revision: Option<String>,
    /// Whether what the suite wrote down is kept.
    keep: bool,
    /// Whether the example is held through toolgate.
    through: bool,
    /// Whether toolgate is held as the client that it is to upstreams.
    client: bool,
    /// Only where the name of the client has this in it, e.g. `2024-11-05 over HTTP+SSE`.
    from: Option<String>,
    /// Only where the name of the edge has this in it, e.g. `2025-03-26 over stdio`.
    edge: Option<String>,
}

/// What came of a revision.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    /// Counts what came of `scenario`, and prints what did not pass.
    fn count(&mut self, revision: &str, scenario: &Scenario, checks: &[Check]) {
        for check in checks {
            match check.outcome {
                Outcome::Passed => self.passed += 1,
                Outcome::Failed => {
                    self.failed += 1;
                    println!("{revision} {}: {check}", scenario.name);
                }
                Outcome::Skipped => {
                    self.skipped += 1;
                    eprintln!("{revision} {}: skipped: {check}", scenario.name);
                }
                Outcome::Told => {}
            }
        }
    }
}

/// Does what `words` say: `--scenario NAME`, `--revision REVISION`, `--keep`.
pub(crate) fn from_words(words: &[String]) -> anyhow::Result<()> {
    let mut wanted = ConformanceOptions::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("`{word}` needs a value"));
        match word.as_str() {
            "--scenario" => wanted.scenario = Some(value()?.clone()),
            "--revision" => {
                let revision = value()?;
                wanted.revision = Some(revision.clone());
            }
            "--keep" => wanted.keep = true,
            "--through" => wanted.through = true,
            "--client" => wanted.client = true,
            "--from" => wanted.from = Some(value()?.clone()),
            "--edge" => wanted.edge = Some(value()?.clone()),
            other => bail!(
                "unknown option `{other}`; the options are --scenario NAME, --revision REVISION, --keep, --through, \
                 --from CLIENT, --edge EDGE, --client"
            ),
        }
    }
    setup::node()?;
    build()?;
    if wanted.client {
        return hold_client(&wanted);
    }
    if wanted.through {
        // What has the example speak over WebSockets is among them.
        setup::upstreams()?;
        return hold_through(&wanted);
    }
    if let Some(revision) = &wanted.revision {
        let known = REVISIONS.contains(&revision.as_str());
        ensure!(known, "the suite supports {}, not {revision}", REVISIONS.join(" and "));
    }
    hold(&wanted)
}

/// Runs every scenario that is wanted against the example as it is built, and fails if any check
/// of any does.
fn hold(wanted: &ConformanceOptions) -> anyhow::Result<()> {
    let suite = Suite::installed()?;
    let all = suite.scenarios()?;
    let folder = Folder::make()?;
    let server = Server::start(&checkout().join("target/debug/example-everything"), &folder.0)?;
    eprintln!("\n==> conformance against {}", server.url);
    let mut tallies = Vec::new();
    for (revision, scenarios) in chosen(&all, wanted)? {
        let results = folder.0.join("results").join(revision);
        tallies.push((revision, against(&suite, revision, &scenarios, &server.url, &results)?));
    }
    server.stop()?;
    folder.leave(wanted.keep)?;
    let mut failed = 0;
    for (revision, tally) in tallies {
        println!("{revision}: {} passed, {} failed", tally.passed, tally.failed);
        failed += tally.failed;
    }
    ensure!(failed == 0, "toolgate does not conform to MCP in {failed} checks, named above");
    Ok(())
}

/// The same against the example behind toolgate, for every pair of edges, as many edges at a time
/// as there are processors; a whole run is kept as a page of the reference.
fn hold_through(wanted: &ConformanceOptions) -> anyhow::Result<()> {
    let suite = Suite::installed()?;
    let all = suite.scenarios()?;
    let is_wanted = |edge: &Edge| {
        let name = edge.to_string();
        wanted.edge.as_ref().is_none_or(|wanted| name.contains(wanted.as_str()))
    };
    let edges = Mutex::new(Edge::all().filter(is_wanted));
    let next = || edges.lock().unwrap_or_else(PoisonError::into_inner).next();
    let some = || {
        let mut pairs = Vec::new();
        while let Some(edge) = next() {
            pairs.extend(before(edge, &suite, &all, wanted)?);
        }
        anyhow::Ok(pairs)
    };
    let pairs: anyhow::Result<Vec<_>> = thread::scope(|scope| {
        let at_once = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(some)).collect();
        threads.into_iter().map(|one| one.join().unwrap_or_else(|why| resume_unwind(why))).collect()
    });
    let pairs: Vec<_> = pairs?.into_iter().flatten().collect();
    let some = [&wanted.from, &wanted.edge, &wanted.revision, &wanted.scenario];
    let is_whole = some.iter().all(|it| it.is_none());
    if is_whole {
        matrix::write(&pairs)?;
    }
    let failed: usize = pairs.iter().map(|pair| pair.tally.failed).sum();
    ensure!(failed == 0, "{failed} checks failed through toolgate, named above");
    Ok(())
}

/// What comes of the clients that are wanted before `edge`.
fn before(
    edge: Edge,
    suite: &Suite,
    all: &[Scenario],
    wanted: &ConformanceOptions,
) -> anyhow::Result<Vec<Pair>> {
    let folder = Folder::make()?;
    let tested = edge.start(&folder.0)?;
    eprintln!("\n==> conformance against {}, with {edge} upstream", tested.server.url);
    let mut pairs = Vec::new();
    for client in Client::all() {
        let name = client.to_string();
        let other = wanted.from.as_ref().is_some_and(|from| !name.contains(from.as_str()));
        if other || wanted.revision.as_ref().is_some_and(|wanted| wanted != client.revision) {
            continue;
        }
        let is_wanted = |one: &&Scenario| {
            let named = wanted.scenario.as_ref().is_none_or(|name| *name == one.name);
            named && client.asks(one)
        };
        let (scenarios, beyond): (Vec<_>, Vec<_>) =
            all.iter().filter(is_wanted).partition(|one| edge.has_words_for(&one.name));
        if scenarios.is_empty() {
            continue;
        }
        let (url, between) = client.reaches(&tested)?;
        let results = folder.0.join("results").join(name);
        let tally = against(suite, client.suited(), &scenarios, &url, &results)?;
        between.map_or(Ok(()), Server::stop)?;
        let Tally { passed, failed, .. } = tally;
        println!("{client}, {edge} upstream: {passed} passed, {failed} failed");
        pairs.push(Pair { client, edge, tally, beyond: beyond.len() });
    }
    tested.stop()?;
    folder.leave(wanted.keep)?;
    Ok(pairs)
}

/// What comes of `scenarios` against the server at `url`; what the suite writes down is below
/// `results`.
fn against(
    suite: &Suite,
    revision: &str,
    scenarios: &[&Scenario],
    url: &str,
    results: &Path,
) -> anyhow::Result<Tally> {
    let begun = Instant::now();
    let mut tally = Tally::default();
    for scenario in scenarios {
        let results = results.join(&scenario.name);
        tally.count(revision, scenario, &suite.run(scenario, revision, url, &results)?);
    }
    eprintln!(
        "{revision}: {} scenarios in {:.0} s; the suite skipped {} checks",
        scenarios.len(),
        begun.elapsed().as_secs_f64(),
        tally.skipped
    );
    Ok(tally)
}

/// The scenarios to run, by revision.
fn chosen<'s>(
    all: &'s [Scenario],
    wanted: &ConformanceOptions,
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
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("toolgate-conformance-{:x}-{nth}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Removes it, or says where it is.
    fn leave(mut self, keep: bool) -> anyhow::Result<()> {
        if keep {
            eprintln!("the suite's results are in {}", self.0.join("results").display());
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
