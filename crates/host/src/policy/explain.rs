//! Explains policy decisions: the result, and the outcome of each checked rule.

use std::fmt;

use serde_json::Value;
use toolgate_contract::{Caller, ToolSpec};

use super::rule::{Effect, Matched};
use super::{Denied, Of, Policy, Ruling, Step, Verdict, What};

/// Policy decision about a call, with each rule that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// Checked rules, in order, each with its outcome.
    pub steps: Vec<(String, String)>,
    /// The decision.
    pub decision: Decision,
    /// Name of the deciding rule, as in the audit record.
    pub rule: String,
    /// True if the caller can see the tool.
    pub seen: bool,
}

/// Policy decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The call may run.
    Allowed,
    /// The call may run after a person confirms it.
    Confirm,
    /// The call is refused.
    Denied,
}

impl Decision {
    /// Returns the decision as a word of rules and records: `allow`, `confirm` or `deny`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => Effect::Allow.word(),
            Self::Confirm => Effect::Confirm.word(),
            Self::Denied => Effect::Deny.word(),
        }
    }
}

impl Policy {
    /// Decides about a call of the tool with `input`, and explains the decision.
    pub fn explain(&self, caller: &Caller, spec: &ToolSpec, input: &Value) -> Explained {
        let mut steps = Vec::new();
        let asked = Of { caller, spec, input, what: What::Tool };
        let Ruling { verdict, rule } = self.decide(&asked, Some(&mut steps));
        let mut steps: Vec<_> = steps.into_iter().map(told).collect();
        let mut rule = rule.to_string();
        let mut decision = match verdict {
            Verdict::Allowed => Decision::Allowed,
            Verdict::Confirm => Decision::Confirm,
            Verdict::Denied(_) | Verdict::Failed => Decision::Denied,
        };
        if decision != Decision::Denied
            && let Err(Denied { rule: scopes, message, .. }) = self.scoped(&asked)
        {
            steps.push((scopes.to_string(), format!("yes: deny, {message}")));
            (decision, rule) = (Decision::Denied, scopes.to_string());
        }
        Explained { steps, decision, rule, seen: self.shows(caller, spec) }
    }
}

fn told(Step { rule, effect, matched }: Step) -> (String, String) {
    let effect = effect.word();
    let what = match matched {
        Matched::Yes => format!("yes: {effect}"),
        Matched::No(why) => format!("no: {}", why.words()),
        Matched::Failed(why) => format!("failed ({effect}): {why}"),
    };
    (rule.to_string(), what)
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.steps.iter().map(|(rule, _)| rule.len()).max().unwrap_or(0);
        for (rule, what) in &self.steps {
            writeln!(f, "{rule:width$}  {what}")?;
        }
        let decision = match self.decision {
            Decision::Allowed => "allowed",
            Decision::Confirm => "a person is asked",
            Decision::Denied => "denied",
        };
        let seen = if self.seen { "" } else { "; the caller does not see the tool" };
        writeln!(f, "{decision} by {}{seen}", self.rule)
    }
}
