//! The suite's other half: what it has for clients, held against how toolgate speaks to upstreams.

use anyhow::ensure;

use super::suite::Suite;
use super::{ConformanceOptions, EXTENSIONS, Folder, Tally, driver};
use crate::shell::copy_of_this;

/// The revisions that the suite has clients held against.
const REVISIONS: [&str; 4] = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
/// What toolgate does not offer, each with the reason that is printed.
const WITHOUT: [(&str, &str); 4] = [
    ("auth/enterprise-managed-authorization", "toolgate does not offer this extension"),
    ("auth/dpop", "toolgate does not offer this extension"),
    ("auth/dpop-nonce", "toolgate does not offer this extension"),
    ("auth/wif-jwt-bearer", "toolgate does not offer this extension"),
];

/// Runs every scenario that is wanted, and fails if any check of any does.
pub(super) fn hold(wanted: &ConformanceOptions) -> anyhow::Result<()> {
    let suite = Suite::installed()?;
    let all = suite.client_scenarios()?;
    let folder = Folder::make()?;
    let driver = folder.0.join("driver");
    copy_of_this(&driver)?;
    let command = driver::command(&driver);
    let mut failed = 0;
    for revision in REVISIONS {
        if wanted.revision.as_ref().is_some_and(|wanted| wanted != revision) {
            continue;
        }
        let mut tally = Tally::default();
        let mut count = 0;
        for scenario in all.iter().filter(|one| one.is_of(revision, EXTENSIONS)) {
            if wanted.scenario.as_ref().is_some_and(|wanted| *wanted != scenario.name) {
                continue;
            }
            if let Some((_, why)) = WITHOUT.iter().find(|(name, _)| *name == scenario.name) {
                eprintln!("{revision} {}: skipped: {why}", scenario.name);
                continue;
            }
            count += 1;
            let results = folder.0.join("results").join(revision).join(&scenario.name);
            let checks = suite.run_client(scenario, revision, &command, &results)?;
            tally.count(revision, scenario, &checks);
        }
        let Tally { passed, failed: not, skipped } = tally;
        failed += not;
        println!(
            "{revision} as a client: {count} scenarios, {passed} passed, {not} failed, {skipped} \
             skipped"
        );
    }
    folder.leave(wanted.keep)?;
    ensure!(failed == 0, "toolgate does not conform to MCP as a client in {failed} checks");
    Ok(())
}
