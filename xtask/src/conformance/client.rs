//! Runs the suite's scenarios for clients, with toolgate as the client of the suite's servers.

use anyhow::ensure;

use super::suite::ConformanceSuite;
use super::{ConformanceOptions, ConformanceTempFolder, EXTENSIONS, ScenarioCheckCounts, driver};
use crate::shell::copy_of_this;

/// MCP revisions in which the suite tests clients.
const REVISIONS: [&str; 4] = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
/// Names of the scenarios to skip, each with the reason that is printed.
const SKIPPED: [(&str, &str); 4] = [
    ("auth/enterprise-managed-authorization", "toolgate does not offer this extension"),
    ("auth/dpop", "toolgate does not offer this extension"),
    ("auth/dpop-nonce", "toolgate does not offer this extension"),
    ("auth/wif-jwt-bearer", "toolgate does not offer this extension"),
];

/// Runs the selected scenarios for clients. Fails if a check fails.
pub(super) fn run_client_suite(options: &ConformanceOptions) -> anyhow::Result<()> {
    let suite = ConformanceSuite::installed()?;
    let all = suite.client_scenarios()?;
    let folder = ConformanceTempFolder::create()?;
    let driver = folder.0.join("driver");
    copy_of_this(&driver)?;
    let command = driver::command(&driver);
    let mut failed = 0;
    for revision in REVISIONS {
        if options.revision.as_ref().is_some_and(|only| only != revision) {
            continue;
        }
        let mut tally = ScenarioCheckCounts::default();
        let mut count = 0;
        for scenario in all.iter().filter(|scenario| scenario.runs_in(revision, EXTENSIONS)) {
            if options.scenario.as_ref().is_some_and(|only| *only != scenario.name) {
                continue;
            }
            if let Some((_, reason)) = SKIPPED.iter().find(|(name, _)| *name == scenario.name) {
                eprintln!("{revision} {}: skipped: {reason}", scenario.name);
                continue;
            }
            count += 1;
            let results = folder.0.join("results").join(revision).join(&scenario.name);
            let checks = suite.run_client(scenario, revision, &command, &results)?;
            tally.count(revision, scenario, &checks);
        }
        let ScenarioCheckCounts { passed, failed: failed_here, skipped } = tally;
        failed += failed_here;
        println!(
            "{revision} as a client: {count} scenarios, {passed} passed, {failed_here} failed, \
             {skipped} skipped"
        );
    }
    folder.close(options.keep)?;
    ensure!(failed == 0, "toolgate does not conform to MCP as a client in {failed} checks");
    Ok(())
}
