//! Callers, how they were authenticated, and their credentials.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The caller of a request.
///
/// Two callers are equal if they have the same name and method of authentication. Scopes and roles
/// may change between requests.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The name of the caller in policy, limits, jobs and the audit log. Callers of different kinds
    /// never have the same name.
    pub name: Arc<str>,
    /// The method by which the caller was authenticated.
    pub kind: CallerKind,
    /// OAuth scopes of the caller's token.
    pub scopes: Arc<[Arc<str>]>,
    /// The caller's roles, as the settings assign them.
    pub roles: Arc<[Arc<str>]>,
    /// The token that authenticated the caller, if there was one.
    pub bearer: Option<BearerToken>,
}

/// A token that authenticated a caller. `Debug` does not print it, and nothing stores it.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(Arc<str>);

impl BearerToken {
    /// Wraps the token `text` of a caller.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the token's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(…)")
    }
}

/// The method by which a caller was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallerKind {
    /// The caller is the person at this machine, over stdio or the command line.
    Local,
    /// The caller uses HTTP without authentication.
    #[serde(rename = "http")]
    Anonymous,
    /// The caller sent an API key over HTTP.
    Key,
    /// The caller sent a token that an authorization server issued.
    Token,
}

impl CallerKind {
    /// All methods of authentication.
    pub const ALL: [Self; 4] = [Self::Local, Self::Anonymous, Self::Key, Self::Token];

    /// Returns the method of authentication as a word: `local`, `http`, `key` or `token`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Anonymous => "http",
            Self::Key => "key",
            Self::Token => "token",
        }
    }
}

impl Caller {
    /// Creates the caller for the person at this machine, over stdio or the command line.
    pub fn local() -> Self {
        Self::new("local", CallerKind::Local)
    }

    /// Creates the caller with the API key named `name`.
    pub fn with_key(name: &str) -> Self {
        Self::new(name, CallerKind::Key)
    }

    /// Creates the caller for HTTP requests without authentication.
    pub fn anonymous() -> Self {
        Self::new("http", CallerKind::Anonymous)
    }

    /// Restores a caller from its stored `name`. API keys cannot be named `local` or `anonymous`,
    /// so the name determines the method of authentication.
    pub fn from_name(name: &str) -> Self {
        match name {
            "local" => Self::local(),
            "http" => Self::anonymous(),
            name => Self::with_key(name),
        }
    }

    /// Creates a caller without scopes and roles.
    pub fn new(name: &str, kind: CallerKind) -> Self {
        let scopes = Arc::default();
        let roles = Arc::default();
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
    fn callers_are_equal_by_name_and_kind_whatever_their_scopes() {
        let ada = Caller::with_key("ada");
        let more = Caller { scopes: ["files:read".into()].into(), ..ada.clone() };
        assert_eq!(ada, more);
        assert_ne!(ada, Caller::new("ada", CallerKind::Token));
        for caller in [Caller::local(), Caller::anonymous(), ada] {
            assert_eq!(Caller::from_name(&caller.name), caller);
        }
    }

    #[test]
    fn a_kind_serializes_as_its_name() {
        for kind in CallerKind::ALL {
            let written = serde_json::to_value(kind).expect("a word");
            assert_eq!(written, kind.as_str());
        }
    }
}
