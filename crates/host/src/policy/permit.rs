//! What comes of a decision: a proof that a call may go on, or what its caller is told.

use toolgate_contract::CallError;

use super::{Decision, RuleName};

/// Proof that policy allowed a call. Only [`Policy::authorise`] makes one.
pub(crate) struct Permit {
    pub(super) rule: RuleName,
    pub(super) confirm: bool,
}

/// That policy does not allow a call, by which rule, and what the caller is told.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(super) rule: RuleName,
    pub(super) message: String,
    /// The scope that would be enough for it.
    pub(super) needs: Option<String>,
}

impl Permit {
    /// What was decided.
    pub(crate) fn decision(&self) -> Decision {
        if self.confirm { Decision::Confirm } else { Decision::Allowed }
    }

    /// The rule that allowed it.
    pub(crate) fn rule(&self) -> &RuleName {
        &self.rule
    }

    /// Whether a person is to be asked first.
    pub(crate) fn confirms(&self) -> bool {
        self.confirm
    }
}

impl Denied {
    /// The rule that did not allow it.
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
