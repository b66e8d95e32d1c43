//! Explains policy decisions: the result, and the outcome of each checked rule.

use std::fmt;

use serde_json::Value;
use toolgate_contract::{Caller, ToolSpec};

use super::rule::{PolicyEffect, PolicyRuleMatch};
use super::{
    PolicyDenial, PolicyRequest, PolicyRequestKind, PolicyRuleEvaluation, PolicyVerdict,
    PolicyVerdictWithRule, ToolPolicy, ToolVisibility,
};

/// Policy decision about a call, with each rule that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyExplanation {
    /// Rules that were checked, in order, each with its outcome.
    pub steps: Vec<(String, String)>,
    /// Policy decision about the call.
    pub decision: PolicyDecision,
    /// Name of the deciding rule, as in the audit record.
    pub rule: String,
    /// True if the caller can see the tool.
    pub visible: bool,
    /// Reason why the arguments are invalid, so that the call would be refused even if policy
    /// allows it. The `when` expressions of rules were evaluated with the unchanged arguments.
    pub input_problem: Option<String>,
}

/// Policy decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyDecision {
    /// The call may run.
    Allowed,
    /// The call may run after a person confirms it.
    Confirm,
    /// The call is refused.
    Denied,
}

impl PolicyDecision {
    /// Returns the decision as the word in rules and records: `allow`, `confirm` or `deny`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => PolicyEffect::Allow.word(),
            Self::Confirm => PolicyEffect::Confirm.word(),
            Self::Denied => PolicyEffect::Deny.word(),
        }
    }
}

impl ToolPolicy {
    /// Decides about a call of the tool with `input`, and explains the decision.
    pub fn explain(&self, caller: &Caller, spec: &ToolSpec, input: &Value) -> PolicyExplanation {
        let mut steps = Vec::new();
        let request = PolicyRequest { caller, spec, input, kind: PolicyRequestKind::Tool };
        let PolicyVerdictWithRule { verdict, rule } = self.decide(&request, Some(&mut steps));
        let mut steps: Vec<_> = steps.into_iter().map(explain_step).collect();
        // The last rule of the `[tools]` settings is `tools.allow`. If it allows all tools, the
        // owner did not write it.
        let allow_rule = self.tools_rule_count - 1;
        if self.allows_all && allow_rule < steps.len() {
            steps.remove(allow_rule);
        }
        let mut rule = rule.to_string();
        let mut decision = match verdict {
            PolicyVerdict::Allowed => PolicyDecision::Allowed,
            PolicyVerdict::Confirm => PolicyDecision::Confirm,
            PolicyVerdict::Denied(_) | PolicyVerdict::Failed => PolicyDecision::Denied,
        };
        if decision != PolicyDecision::Denied
            && let Err(PolicyDenial { rule: scopes, message, .. }) = self.check_scopes(&request)
        {
            steps.push((scopes.to_string(), format!("yes: deny, {message}")));
            (decision, rule) = (PolicyDecision::Denied, scopes.to_string());
        }
        let visible = self.visibility(caller, spec) == ToolVisibility::Shown;
        PolicyExplanation { steps, decision, rule, visible, input_problem: None }
    }
}

fn explain_step(
    PolicyRuleEvaluation { rule, effect, matched }: PolicyRuleEvaluation,
) -> (String, String) {
    let effect = effect.word();
    let outcome = match matched {
        PolicyRuleMatch::Yes => format!("yes: {effect}"),
        PolicyRuleMatch::No(why) => format!("no: {}", why.describe()),
        PolicyRuleMatch::Failed(why) => format!("failed ({effect}): {why}"),
    };
    (rule.to_string(), outcome)
}

impl fmt::Display for PolicyExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.steps.iter().map(|(rule, _)| rule.len()).max().unwrap_or(0);
        for (rule, outcome) in &self.steps {
            writeln!(f, "{rule:width$}  {outcome}")?;
        }
        let decision = match self.decision {
            PolicyDecision::Allowed => "allowed",
            PolicyDecision::Confirm => "confirmation required",
            PolicyDecision::Denied => "denied",
        };
        let hidden_note = if self.visible { "" } else { "; the caller does not see the tool" };
        writeln!(f, "{decision} by {}{hidden_note}", self.rule)
    }
}
