//! Runs attack cases as tests. The test of a case attempts each of its variants, and uses each
//! dialect at least once.

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

/// Attack case that can run as one test.
#[derive(Debug)]
pub struct AttackCaseTest(AttackCase);

/// Outcome of an attack case that found no vulnerability.
#[derive(Debug)]
pub enum AttackCaseTestOutcome {
    /// All attempts were made, and none broke the server. The text lists the dialects.
    Passed(String),
    /// The machine cannot run the case. The text is the reason.
    Skipped(String),
}

impl AttackCaseTest {
    /// Returns a test for each attack case.
    ///
    /// # Errors
    ///
    /// If a file of attack cases cannot be read.
    pub fn all() -> Result<Vec<Self>> {
        Ok(all_cases()?.into_iter().map(Self).collect())
    }

    /// Returns the name of the test: the id and the words of the title of the attack case.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.test_name()
    }

    /// Makes attempts at the case, one after another, against the server beside `attack_program`.
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

/// Returns a selection of `attempts` with each variant and each dialect at least once, as small as
/// possible. `shift` chooses the dialect and transport of the first selected attempt, and later
/// ones take the next dialects.
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
