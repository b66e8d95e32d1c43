//! Instructions that a server sends to agents at the start of a conversation.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use toolgate_contract::Caller;

/// Instructions for agents: a fixed text and an optional addition for each caller.
#[derive(Clone, Default)]
pub struct AgentInstructions {
    fixed: String,
    addition: Option<Arc<CallerInstructions>>,
}

/// A function that returns the current addition to the instructions for a caller.
type CallerInstructions = dyn Fn(&Caller) -> String + Send + Sync;

impl AgentInstructions {
    /// Returns the instructions with an addition, which `addition` computes for each caller. An
    /// empty addition adds nothing.
    #[must_use]
    pub fn with_addition(
        self,
        addition: impl Fn(&Caller) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { fixed: self.fixed, addition: Some(Arc::new(addition)) }
    }

    /// Returns the current instructions for `caller`.
    pub fn for_caller(&self, caller: &Caller) -> Cow<'_, str> {
        let addition = self.addition.as_ref().map(|addition| addition(caller)).unwrap_or_default();
        match (self.fixed.is_empty(), addition.is_empty()) {
            (_, true) => self.fixed.as_str().into(),
            (true, false) => addition.into(),
            (false, false) => format!("{}\n\n{addition}", self.fixed).into(),
        }
    }
}

impl<T: Into<String>> From<T> for AgentInstructions {
    fn from(fixed: T) -> Self {
        Self { fixed: fixed.into(), addition: None }
    }
}

impl fmt::Debug for AgentInstructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fixed.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addition_follows_the_fixed_instructions_unless_empty() {
        let joined = |fixed: &str, addition: &'static str| {
            let instructions =
                AgentInstructions::from(fixed).with_addition(|_| addition.to_owned());
            instructions.for_caller(&Caller::local()).into_owned()
        };
        assert_eq!(joined("Fixed.", "Added."), "Fixed.\n\nAdded.");
        assert_eq!(joined("Fixed.", ""), "Fixed.");
        assert_eq!(joined("", "Added."), "Added.");
    }
}
