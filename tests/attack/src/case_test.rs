//! Cases as tests: one test for each case, which attempts each variant and each dialect.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use toolgate_test_support::sibling_toolgate;

use super::attempt_process::{AttackAttemptLength, AttackRunEnvironment};
use super::case::AttackCase;
use super::dialects::{AttackDialect, ROUTES};
use super::offered_tools::OfferedToolNames;
use super::plan::{PlannedAttackAttempt, all_cases, attempts};
use super::report::AttackCaseOutcome;

/// Attack case that runs as a test.
#[derive(Debug)]
pub struct AttackCaseTest(AttackCase);

/// Outcome of an attack case that did not fail.
#[derive(Debug)]
pub enum AttackCaseTestOutcome {
    /// All attempts failed to break the server. The text has the dialects.
    Passed(String),
    /// The case cannot run on this machine, for this reason.
    Skipped(String),
}

impl AttackCaseTest {
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

    /// Runs attempts at the case, one after the other, against the server beside `attack_program`.
    /// They include each variant and each dialect at least once, over alternating transports.
    /// `cargo xtask attack` attempts each variant in each dialect over each transport.
    ///
    /// # Errors
    ///
    /// If the case is broken, or the server or the folder of the run is missing.
    pub fn run(&self, attack_program: &Path) -> Result<AttackCaseTestOutcome> {
        let toolgate = sibling_toolgate(attack_program)?;
        let environment = AttackRunEnvironment {
            length: AttackAttemptLength::Short,
            ..AttackRunEnvironment::new(attack_program.to_owned(), toolgate, false)?
        };
        let outcome = self.run_attempts(&environment);
        environment.remove()?;
        match outcome? {
            AttackCaseOutcome::Held(text) => Ok(AttackCaseTestOutcome::Passed(text)),
            AttackCaseOutcome::Skipped(reason) => Ok(AttackCaseTestOutcome::Skipped(reason)),
            AttackCaseOutcome::Broken(text) => bail!("{}: {text}", self.0.title),
        }
    }

    fn run_attempts(&self, environment: &AttackRunEnvironment) -> Result<AttackCaseOutcome> {
        let Self(case) = self;
        let offered = OfferedToolNames::list(&environment.toolgate, &environment.base)?;
        let shift = case.id.bytes().map(usize::from).sum();
        let verdicts: Vec<_> =
            each_variant_and_each_dialect(&attempts(case, &ROUTES, &offered), shift)
                .into_iter()
                .map(|attempt| (attempt, environment.run_attempt(case, attempt)))
                .collect();
        Ok(AttackCaseOutcome::new(case, &verdicts))
    }
}

/// Returns as few attempts as have each variant and each dialect at least once. `shift` chooses the
/// dialect and the transport of the first attempt. Later attempts take the next ones.
fn each_variant_and_each_dialect(
    attempts: &[PlannedAttackAttempt],
    shift: usize,
) -> Vec<PlannedAttackAttempt> {
    let by_variant: Vec<_> = attempts.chunk_by(|a, b| a.variant == b.variant).collect();
    let mut missing: BTreeSet<AttackDialect> = attempts.iter().map(|it| it.route.dialect).collect();
    let mut chosen = Vec::new();
    let mut choose = |of_variant: &[PlannedAttackAttempt],
                      missing: &mut BTreeSet<AttackDialect>| {
        let new = of_variant.iter().filter(|it| missing.contains(&it.route.dialect));
        let mut candidates: Vec<_> = new.copied().collect();
        if candidates.is_empty() {
            candidates = of_variant.to_vec();
        }
        let attempt = candidates[(shift + chosen.len()) % candidates.len()];
        missing.remove(&attempt.route.dialect);
        chosen.push(attempt);
    };
    for of_variant in &by_variant {
        choose(of_variant, &mut missing);
    }
    for of_variant in by_variant.iter().cycle() {
        if missing.is_empty() {
            break;
        }
        if of_variant.iter().any(|it| missing.contains(&it.route.dialect)) {
            choose(of_variant, &mut missing);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::dialects::AttackTransport;
    use super::*;

    fn planned(variants: usize) -> Vec<PlannedAttackAttempt> {
        let of_variant = |variant| ROUTES.map(|route| PlannedAttackAttempt { variant, route });
        (0..variants).flat_map(of_variant).collect()
    }

    #[test]
    fn a_test_attempts_each_variant_and_each_dialect_at_least_once() {
        for (variants, expected) in [(1, 7), (3, 7), (7, 7), (20, 20)] {
            let chosen = each_variant_and_each_dialect(&planned(variants), 5);
            assert_eq!(chosen.len(), expected, "{variants}");
            let seen: BTreeSet<_> = chosen.iter().map(|it| it.variant).collect();
            assert_eq!(seen.len(), variants);
            let dialects: BTreeSet<_> = chosen.iter().map(|it| it.route.dialect).collect();
            assert_eq!(dialects.len(), 7);
        }
    }

    #[test]
    fn transports_alternate_between_attempts() {
        let chosen = each_variant_and_each_dialect(&planned(20), 0);
        for transport in [AttackTransport::Stdio, AttackTransport::Http, AttackTransport::WebSocket]
        {
            assert!(chosen.iter().any(|it| it.route.transport == transport), "{transport:?}");
        }
    }
}
