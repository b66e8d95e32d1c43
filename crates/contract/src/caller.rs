//! Who asks.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Who asks.
///
/// Two are the same who are known in the same way by the same name: what they may may change from
/// one request to the next.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The name used in policy, limits, jobs and the audit log. No two kinds share one.
    pub name: Arc<str>,
    /// How they are known.
    pub kind: CallerKind,
    /// What their token was given for.
    pub scopes: Arc<[Arc<str>]>,
    /// What they are here, in the words of whoever configured it.
    pub roles: Arc<[Arc<str>]>,
    /// What they were let in with, where it was a token.
    pub bearer: Option<Bearer>,
}

/// A token that somebody was let in with. It is shown nowhere and written down nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(Arc<str>);

impl Bearer {
    /// The token that is said as `text`.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// As it was said.
    pub fn said(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(…)")
    }
}

/// How a caller is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallerKind {
    /// The person at this machine.
    Local,
    /// Whoever calls over HTTP where nobody is asked.
    #[serde(rename = "http")]
    Anonymous,
    /// By a key.
    Key,
    /// By a token that another server gave.
    Token,
}

impl CallerKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Local, Self::Anonymous, Self::Key, Self::Token];

    /// It in a word: `local`, `http`, `key` or `token`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Anonymous => "http",
            Self::Key => "key",
            Self::Token => "token",
        }
    }
}

impl Caller {
    /// The person at this machine, over stdio or the command line.
    pub fn local() -> Self {
        Self::of("local", CallerKind::Local)
    }

    /// The owner of a key, known as `name`.
    pub fn named(name: &str) -> Self {
        Self::of(name, CallerKind::Key)
    }

    /// Whoever calls over HTTP without saying who they are.
    pub fn http() -> Self {
        Self::of("http", CallerKind::Anonymous)
    }

    /// Who is meant by `name` alone, where nothing else was written down: keys cannot have the
    /// names of callers without one.
    pub fn recalled(name: &str) -> Self {
        match name {
            "local" => Self::local(),
            "http" => Self::http(),
            name => Self::named(name),
        }
    }

    /// The caller known as `name` in the way `kind` says, with neither scopes nor roles.
    pub fn of(name: &str, kind: CallerKind) -> Self {
        let (scopes, roles) = (Arc::default(), Arc::default());
        Self { name: name.into(), kind, scopes, roles, bearer: None }
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind, &self.name).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_stays_the_same_whatever_it_may_and_is_no_other_kind_s_of_its_name() {
        let ada = Caller::named("ada");
        let more = Caller { scopes: ["files:read".into()].into(), ..ada.clone() };
        assert_eq!(ada, more);
        assert_ne!(ada, Caller::of("ada", CallerKind::Token));
        for caller in [Caller::local(), Caller::http(), ada] {
            assert_eq!(Caller::recalled(&caller.name), caller);
        }
    }

    #[test]
    fn a_kind_is_written_as_its_word() {
        for kind in CallerKind::ALL {
            let written = serde_json::to_value(kind).expect("a word");
            assert_eq!(written, kind.word());
        }
    }
}
