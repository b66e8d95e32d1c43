//! How a server is used well, as agents are told when they begin.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// How to use a server well: what it says itself, and what is said beside it at the moment.
#[derive(Clone, Default)]
pub struct Instructions {
    own: String,
    beside: Option<Arc<dyn Fn() -> String + Send + Sync>>,
}

impl Instructions {
    /// The same, and after it what `beside` says whenever they are asked for, if that is anything.
    #[must_use]
    pub fn and(self, beside: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { beside: Some(Arc::new(beside)), ..self }
    }

    /// As they are now.
    pub fn now(&self) -> Cow<'_, str> {
        let beside = self.beside.as_ref().map(|beside| beside()).unwrap_or_default();
        match (self.own.is_empty(), beside.is_empty()) {
            (_, true) => self.own.as_str().into(),
            (true, false) => beside.into(),
            (false, false) => format!("{}\n\n{beside}", self.own).into(),
        }
    }
}

impl<T: Into<String>> From<T> for Instructions {
    fn from(own: T) -> Self {
        Self { own: own.into(), beside: None }
    }
}

impl fmt::Debug for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.own.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_beside_comes_after_a_server_s_own_words_if_it_is_anything() {
        let of =
            |own: &str, beside: &'static str| Instructions::from(own).and(|| beside.to_owned());
        assert_eq!(of("Ours.", "Theirs.").now(), "Ours.\n\nTheirs.");
        assert_eq!(of("Ours.", "").now(), "Ours.");
        assert_eq!(of("", "Theirs.").now(), "Theirs.");
    }
}
