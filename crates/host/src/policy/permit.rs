//! Defines the two results of a policy decision: the proof that a call may run, and its refusal.

use toolgate_contract::CallError;

use super::{PolicyDecision, PolicyRuleName};

/// Proof that the policy allowed a call. Only [`ToolPolicy::authorise`] creates one.
pub(crate) struct CallPermit {
    pub(super) rule: PolicyRuleName,
    pub(super) confirm: bool,
}

/// Refusal of a call, with its rule and the message for the caller.
#[derive(Debug)]
pub(crate) struct PolicyDenial {
    pub(super) rule: PolicyRuleName,
    pub(super) message: String,
    /// OAuth scope that would allow the call.
    pub(super) missing_scope: Option<String>,
}

impl CallPermit {
    /// Returns the policy decision that led to the permit.
    pub(crate) fn decision(&self) -> PolicyDecision {
        if self.confirm { PolicyDecision::Confirm } else { PolicyDecision::Allowed }
    }

    /// Returns the name of the rule that allowed the call.
    pub(crate) fn rule(&self) -> &PolicyRuleName {
        &self.rule
    }

    /// Returns true if a person must confirm the call first.
    pub(crate) fn needs_confirmation(&self) -> bool {
        self.confirm
    }
}

impl PolicyDenial {
    /// Returns the name of the rule that refused the call.
    pub(crate) fn rule(&self) -> &PolicyRuleName {
        &self.rule
    }
}

impl From<PolicyDenial> for CallError {
    fn from(PolicyDenial { message, missing_scope: needs, .. }: PolicyDenial) -> Self {
        match needs {
            None => Self::NotAllowed { message },
            Some(scope) => Self::Scope { message, needs: vec![scope] },
        }
    }
}
