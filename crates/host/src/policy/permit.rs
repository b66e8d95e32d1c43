//! Defines the two results of a decision: the proof that a call may run, or its refusal.

use toolgate_contract::CallError;

use super::{Decision, RuleName};

/// Proof that policy allowed a call. Only [`Policy::authorise`] creates one.
pub(crate) struct Permit {
    pub(super) rule: RuleName,
    pub(super) confirm: bool,
}

/// Refusal of a call, with its rule and the message for the caller.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(super) rule: RuleName,
    pub(super) message: String,
    /// Scope that would allow the call.
    pub(super) needs: Option<String>,
}

impl Permit {
    /// Returns the decision.
    pub(crate) fn decision(&self) -> Decision {
        if self.confirm { Decision::Confirm } else { Decision::Allowed }
    }

    /// Returns the rule that allowed the call.
    pub(crate) fn rule(&self) -> &RuleName {
        &self.rule
    }

    /// Returns true if a person must confirm the call first.
    pub(crate) fn confirms(&self) -> bool {
        self.confirm
    }
}

impl Denied {
    /// Returns the rule that refused the call.
    pub(crate) fn rule(&self) -> &RuleName {
        &self.rule
    }
}

impl From<Denied> for CallError {
    fn from(Denied { message, needs, .. }: Denied) -> Self {
        match needs {
            None => Self::NotAllowed { message },
            Some(scope) => Self::Scope { message, needs: vec![scope] },
        }
    }
}
