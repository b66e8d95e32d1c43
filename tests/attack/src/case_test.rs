//! Cases as tests: one test for each case, with all its attempts.

use std::path::Path;

use anyhow::{Result, bail};
use toolgate_test_support::sibling_toolgate;

use super::attempt_process::RunEnvironment;
use super::case::Case;
use super::dialects::ROUTES;
use super::offered_tools::OfferedTools;
use super::plan::{all_cases, attempts};
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

    /// Runs all attempts at the case, one after the other, against the server beside
    /// `attack_program`.
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
        let verdicts: Vec<_> = attempts(case, &ROUTES, &offered)
            .into_iter()
            .map(|attempt| (attempt, environment.run_attempt(case, attempt)))
            .collect();
        Ok(CaseOutcome::new(case, &verdicts))
    }
}
