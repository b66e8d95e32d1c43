//! Why policy decides as it does, in words: what decides, told of each rule it looks at.

use std::fmt;

use serde_json::Value;
use toolgate_contract::{Caller, ToolSpec};

use super::rule::{Effect, Matched};
use super::{Denied, Of, Policy, Ruling, Step, Verdict, What};

/// What policy decides about a call, and each rule that it looked at for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The rules, in order, with what came of each.
    pub steps: Vec<(String, String)>,
    /// What is decided.
    pub decision: Decision,
    /// By which rule, as the record has it.
    pub rule: String,
    /// Whether the caller sees the tool at all.
    pub seen: bool,
}

/// What policy decides about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It may go on.
    Allowed,
    /// It may go on once a person has agreed.
    Confirm,
    /// It may not.
    Denied,
}

impl Decision {
    /// It in a word, as rules and records have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => Effect::Allow.word(),
            Self::Confirm => Effect::Confirm.word(),
            Self::Denied => Effect::Deny.word(),
        }
    }
}

impl Policy {
    /// What it decides about a call of the tool with `input`, and why.
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
