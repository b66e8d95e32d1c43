//! Reports the outcome of an attack case: the verdicts of all its attempts in one line.

use std::collections::{BTreeMap, BTreeSet};

use super::attempt::AttackAttemptVerdict;
use super::case::AttackCase;
use super::plan::{PlannedAttackAttempt, variants};

/// Largest number of characters of a failure that an outcome shows.
const FAILURE_CHARS_MAX: usize = 400;
/// Largest number of notes that an outcome shows.
const NOTES_MAX: usize = 3;

/// Outcome of an attack case over all of its attempts.
#[derive(Debug)]
pub(super) enum AttackCaseOutcome {
    /// All attempts were made, and none broke the server. The text lists the routes and some notes.
    Held(String),
    /// The machine cannot run one of the attempts. The text is the reason.
    Skipped(String),
    /// An attempt failed, or no attempt was made. The text has the first failure.
    Broken(String),
}

impl AttackCaseOutcome {
    /// Combines the verdicts of all attempts at `case` into one outcome.
    pub(super) fn new(
        case: &AttackCase,
        verdicts: &[(PlannedAttackAttempt, AttackAttemptVerdict)],
    ) -> Self {
        if verdicts.is_empty() {
            return Self::Broken("no dialect can make this attempt".to_owned());
        }
        let broken: Vec<_> =
            verdicts.iter().filter(|(_, verdict)| !verdict.failures.is_empty()).collect();
        if let Some((attempt, first)) = broken.first() {
            let variants = variants(case);
            let mut routes_by_label: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
            for (attempt, _) in &broken {
                let label =
                    variants.get(attempt.variant).map_or("", |variant| variant.label.as_str());
                routes_by_label.entry(label).or_default().insert(attempt.route.name());
            }
            let groups: Vec<String> = routes_by_label
                .into_iter()
                .map(|(label, routes)| format!("{label}[{}]", by_dialect(&routes)))
                .collect();
            let failure: String =
                first.failures.join("; ").chars().take(FAILURE_CHARS_MAX).collect();
            return Self::Broken(format!(
                "{} of {} attempts; {}: {failure}  ({})",
                broken.len(),
                verdicts.len(),
                attempt.route.name(),
                groups.join("; ")
            ));
        }
        let skip_reason = verdicts.iter().find_map(|(_, verdict)| verdict.skip_reason.as_deref());
        if let Some(reason) = skip_reason {
            return Self::Skipped(reason.to_owned());
        }
        let routes = verdicts.iter().map(|(attempt, _)| attempt.route.name()).collect();
        let notes = verdicts.iter().flat_map(|(_, verdict)| &verdict.notes);
        let notes: BTreeSet<&str> = notes.map(String::as_str).collect();
        let notes: Vec<&str> = notes.into_iter().take(NOTES_MAX).collect();
        Self::Held(format!("{}   {}", by_dialect(&routes), notes.join("; ")))
    }
}

/// Returns the names of `routes`, with each dialect named once, for example `mira http ws, zyra
/// http`.
fn by_dialect(routes: &BTreeSet<String>) -> String {
    let mut dialects: Vec<(&str, Vec<&str>)> = Vec::new();
    for (dialect, transport) in routes.iter().filter_map(|route| route.split_once(' ')) {
        match dialects.iter_mut().find(|(name, _)| *name == dialect) {
            Some((_, transports)) => transports.push(transport),
            None => dialects.push((dialect, vec![transport])),
        }
    }
    let parts =
        dialects.iter().map(|(dialect, transports)| format!("{dialect} {}", transports.join(" ")));
    parts.collect::<Vec<_>>().join(", ")
}
