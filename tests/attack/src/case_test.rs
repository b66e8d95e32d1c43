//! Cases as tests: one test for each case, with an attempt at each variant in each dialect.

use std::path::Path;

use anyhow::{Result, bail};
use toolgate_test_support::sibling_toolgate;

use super::attempt_process::RunEnvironment;
use super::case::Case;
use super::dialects::ROUTES;
use super::offered_tools::OfferedTools;
use super::plan::{PlannedAttempt, all_cases, attempts};
use super::report::CaseOutcome;

/// A case as a test.
#[derive(Debug)]
pub struct CaseTest(Case);

/// The outcome of a test that did not fail.
#[derive(Debug)]
pub enum TestOutcome {
    /// All attempts failed to break the server. The text has the dialects.
    Passed(String),
    /// This machine cannot run the case, for this reason.
    Skipped(String),
}

impl CaseTest {
    /// Returns a test for each case.
    ///
    /// # Errors
    ///
    /// If a file of cases cannot be read.
    pub fn all() -> Result<Vec<Self>> {
        Ok(all_cases()?.into_iter().map(Self).collect())
    }

    /// Returns the name of the test: the id of the case and the words of its title.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.test_name()
    }

    /// Runs the attempts at the case, one after the other, against the server beside
    /// `attack_program`. Each variant is attempted in each dialect over one transport, which alternates;
    /// `cargo xtask attack` attempts it over all of them.
    ///
    /// # Errors
    ///
    /// If the case is broken, or the server or the folder of the run is missing.
    pub fn run(&self, attack_program: &Path) -> Result<TestOutcome> {
        let toolgate = sibling_toolgate(attack_program)?;
        let environment = RunEnvironment::new(attack_program.to_owned(), toolgate, false)?;
        let outcome = self.run_attempts(&environment);
        environment.remove()?;
        match outcome? {
            CaseOutcome::Held(text) => Ok(TestOutcome::Passed(text)),
            CaseOutcome::Skipped(reason) => Ok(TestOutcome::Skipped(reason)),
            CaseOutcome::Broken(text) => bail!("{}: {text}", self.0.title),
        }
    }

    fn run_attempts(&self, environment: &RunEnvironment) -> Result<CaseOutcome> {
        let Self(case) = self;
        let offered = OfferedTools::list(&environment.toolgate, &environment.base)?;
        let shift = case.id.bytes().map(usize::from).sum();
        let verdicts: Vec<_> = over_one_transport_each(&attempts(case, &ROUTES, &offered), shift)
            .into_iter()
            .map(|attempt| (attempt, environment.run_attempt(case, attempt)))
            .collect();
        Ok(CaseOutcome::new(case, &verdicts))
    }
}

/// Returns the attempts of each variant in each dialect over one of its transports. `shift` chooses the
/// transport of the first variant, and each further variant takes the next one.
fn over_one_transport_each(attempts: &[PlannedAttempt], shift: usize) -> Vec<PlannedAttempt> {
    let is_same = |a: &PlannedAttempt, b: &PlannedAttempt| {
        a.variant == b.variant && a.route.dialect == b.route.dialect
    };
    let alternatives = attempts.chunk_by(is_same);
    alternatives.map(|them| them[(shift + them[0].variant) % them.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_is_attempted_once_per_dialect_and_transports_alternate() {
        let planned = |variant| ROUTES.map(|route| PlannedAttempt { variant, route });
        let all = [planned(0), planned(1)].concat();
        let chosen = over_one_transport_each(&all, 0);
        assert_eq!(chosen.len(), 14);
        assert_eq!(chosen[0].route, ROUTES[0]);
        assert_eq!(chosen[7].route, ROUTES[1]);
    }
}
