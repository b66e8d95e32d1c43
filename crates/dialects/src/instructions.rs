//! Instructions that a server sends to agents at the start of a conversation.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use toolgate_contract::Caller;

/// Instructions for agents: a fixed text and an optional addition that depends on the caller.
#[derive(Clone, Default)]
pub struct Instructions {
    fixed: String,
    addition: Option<Arc<CallerInstructions>>,
}

/// Returns the current addition for a caller.
type CallerInstructions = dyn Fn(&Caller) -> String + Send + Sync;

impl Instructions {
    /// Returns the instructions with an addition. `beside` computes it for each caller; an empty
    /// addition is left out.
    #[must_use]
    pub fn with_addition(self, beside: impl Fn(&Caller) -> String + Send + Sync + 'static) -> Self {
        Self { fixed: self.fixed, addition: Some(Arc::new(beside)) }
    }

    /// Returns the current instructions for `caller`.
    pub fn for_caller(&self, caller: &Caller) -> Cow<'_, str> {
        let beside = self.addition.as_ref().map(|beside| beside(caller)).unwrap_or_default();
        match (self.fixed.is_empty(), beside.is_empty()) {
            (_, true) => self.fixed.as_str().into(),
            (true, false) => beside.into(),
            (false, false) => format!("{}\n\n{beside}", self.fixed).into(),
        }
    }
}

impl<T: Into<String>> From<T> for Instructions {
    fn from(own: T) -> Self {
        Self { fixed: own.into(), addition: None }
    }
}

impl fmt::Debug for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fixed.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_beside_comes_after_a_server_s_own_words_if_it_is_anything() {
        let told = |own: &str, beside: &'static str| {
            let all = Instructions::from(own).with_addition(|_| beside.to_owned());
            all.for_caller(&Caller::local()).into_owned()
        };
        assert_eq!(told("Ours.", "Theirs."), "Ours.\n\nTheirs.");
        assert_eq!(told("Ours.", ""), "Ours.");
        assert_eq!(told("", "Theirs."), "Theirs.");
    }
}
